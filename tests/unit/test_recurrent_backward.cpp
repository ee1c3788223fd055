// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "unit/recurrent_case.h"

namespace linattn::test {
namespace {

struct Grads {
  Floats dq, dk, dv, dg, dbeta, derase, dwrite, da_log, ddt_bias, dinitial;
  static constexpr Floats Grads::* kAll[] = {
      &Grads::dq,     &Grads::dk,     &Grads::dv,     &Grads::dg,       &Grads::dbeta,
      &Grads::derase, &Grads::dwrite, &Grads::da_log, &Grads::ddt_bias, &Grads::dinitial};
};

enum Wanted : unsigned { kAllWanted = ~0u };

// Bit i of wanted asks for Grads::kAll[i].
Grads backward(const Case& c, unsigned wanted = kAllWanted,
               const std::function<void(BackwardArgs&)>& change = {}) {
  const Problem& p = c.p;
  Inputs inputs(c);
  auto a = inputs.args<BackwardArgs>();
  Buffer dout(c.dout, p.dtype), dfinal(c.dfinal, p.state_dtype);
  if (!c.dout.empty()) a.dout = contiguous(dout.data(), p.value_heads, p.value_dim);
  if (!c.dfinal.empty()) a.dfinal_state = inputs.state(dfinal);
  Buffer outputs[10];
  const auto want = [&](unsigned i, std::size_t count, DType dtype) -> void* {
    if ((wanted >> i & 1u) == 0 || count == 0) return nullptr;
    outputs[i] = Buffer::poisoned(static_cast<std::int64_t>(count), dtype);
    return outputs[i].data();
  };
  a.dq = contiguous(want(0, c.q.size(), p.dtype), p.heads, p.key_dim);
  a.dk = contiguous(want(1, c.k.size(), p.dtype), p.heads, p.key_dim);
  a.dv = contiguous(want(2, c.v.size(), p.dtype), p.value_heads, p.value_dim);
  a.dg = contiguous(want(3, c.g.size(), p.gate_dtype), p.value_heads, c.gate_width());
  a.dbeta = contiguous(want(4, c.beta.size(), p.beta_dtype), p.value_heads, 1);
  a.derase = contiguous(want(5, c.erase.size(), p.beta_dtype), p.value_heads, p.key_dim);
  a.dwrite = contiguous(want(6, c.write.size(), p.beta_dtype), p.value_heads, p.value_dim);
  a.da_log = static_cast<float*>(want(7, c.a_log.size(), DType::kFloat32));
  a.ddt_bias = static_cast<float*>(want(8, c.dt_bias.size(), DType::kFloat32));
  if (void* data = want(9, c.initial.size(), p.state_dtype))
    a.dinitial_state = contiguous_state(data, c.sequences(), p.value_heads, p.key_dim, p.value_dim);
  if (change) change(a);
  const ForwardPlan forward_plan(p, Device::cpu(), "cpu.recurrent");
  const BackwardPlan plan(forward_plan);
  Scratch scratch(plan.workspace_bytes(a.tokens, a.sequences));
  plan.run(a, scratch.workspace);
  Grads grads;
  for (unsigned i = 0; i < 10; ++i)
    if (outputs[i].data() != nullptr) grads.*Grads::kAll[i] = outputs[i].floats();
  return grads;
}

double loss(const Case& c, const Doubles& x) {
  const Reference r = brute_force(c, x);
  double sum = 0;
  for (std::size_t i = 0; i < c.dout.size(); ++i) sum += c.dout[i] * r.out[i];
  for (std::size_t i = 0; i < c.dfinal.size(); ++i) sum += c.dfinal[i] * r.final[i];
  return sum;
}

std::vector<double> central_differences(const Case& c, std::vector<double> Doubles::* input) {
  constexpr double kStep = 2e-5;
  Doubles x(c);
  std::vector<double> gradient((x.*input).size());
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    const double value = (x.*input)[i];
    (x.*input)[i] = value + kStep;
    const double above = loss(c, x);
    (x.*input)[i] = value - kStep;
    gradient[i] = (above - loss(c, x)) / (2 * kStep);
    (x.*input)[i] = value;
  }
  return gradient;
}

// Of a difference: a double's last bit of the loss, over twice the step.
constexpr double kNoise = 1e-10;

void expect_differences(const Case& c, const Grads& grads, const char* what) {
  static constexpr std::vector<double> Doubles::* kInputs[] = {
      &Doubles::q,     &Doubles::k,     &Doubles::v,     &Doubles::g,       &Doubles::beta,
      &Doubles::erase, &Doubles::write, &Doubles::a_log, &Doubles::dt_bias, &Doubles::initial};
  static constexpr const char* kNames[] = {"q",     "k",     "v",     "g",       "beta",
                                           "erase", "write", "a_log", "dt_bias", "initial"};
  for (std::size_t i = 0; i < 10; ++i) {
    const Floats& gradient = grads.*Grads::kAll[i];
    const auto truth = central_differences(c, kInputs[i]);
    ASSERT_EQ(gradient.size(), truth.size()) << kNames[i];
    double error = 0, size = 0;
    for (std::size_t j = 0; j < truth.size(); ++j) {
      const double beyond = std::max(std::abs(gradient[j] - truth[j]) - kNoise, 0.);
      error += beyond * beyond;
      size += truth[j] * truth[j];
    }
    EXPECT_LE(std::sqrt(error), 1e-6 * std::sqrt(size))
        << what << " d" << kNames[i] << " of " << name_of(c.p);
  }
}

// Every op x gate input x beta kind x l2norm; grouped value heads, an empty sequence.
TEST(RecurrentBackward, EqualsCentralDifferences) {
  std::uint64_t seed = 0;
  for (const Op op : all_ops())
    for (const GateInput gate_input : gate_inputs(op))
      for (const BetaInput beta_input : beta_inputs(op))
        for (const bool qk_l2norm : {false, true}) {
          Case c = make_case(op, gate_input, beta_input, {4, 0, 2}, {}, ++seed);
          c.p.qk_l2norm = qk_l2norm;
          if (seed % 3 == 0) c.scale = .7f;
          expect_differences(c, backward(c), "all");
        }
}

// B-03, N-14: no loss on the outputs.
TEST(RecurrentBackward, GradientsThroughTheFinalStateOnly) {
  for (const Op op : all_ops()) {
    Case c = make_case(op, gate_inputs(op).front(), beta_inputs(op).front(), {3, 4});
    c.dout.clear();
    const Grads grads = backward(c);
    for (const float x : grads.dq) EXPECT_EQ(x, 0);
    expect_differences(c, grads, "final state only");
  }
}

// B-05: every combination of initial state, gradient of the final state and of the outputs.
TEST(RecurrentBackward, AbsentStatesAndGradients) {
  for (const Op op : {kda, gdn, simple_gla, gdn2})
    for (int mask = 0; mask < 8; ++mask) {
      Case c = make_case(op, GateInput::kLogDecay, beta_inputs(op).front(), {3, 0, 2});
      if ((mask & 1) != 0) std::fill(c.initial.begin(), c.initial.end(), 0.f);
      if ((mask & 2) != 0) c.dfinal.clear();
      if ((mask & 4) != 0) c.dout.clear();
      Grads grads = backward(c);
      expect_differences(c, grads, "combination");
      if ((mask & 1) == 0) continue;
      Case absent = c;
      absent.initial.clear();
      const Grads without = backward(absent);
      for (std::size_t i = 0; i < 9; ++i)
        EXPECT_TRUE(same_bits(without.*Grads::kAll[i], grads.*Grads::kAll[i])) << i;
    }
}

// B-06: each gradient alone, and some in pairs, has the bits that it has among all.
TEST(RecurrentBackward, SubsetsOfGradients) {
  for (const Op op : all_ops()) {
    const GateInput gate_input = op.gate == Gate::kNone ? GateInput::kUnset : GateInput::kSoftplus;
    const Case c = make_case(op, gate_input, beta_inputs(op).front(), {5, 3});
    const Grads all = backward(c);
    for (unsigned i = 0; i < 10; ++i) {
      const unsigned mask = 1u << i | 1u << (i * 3 % 10);
      const Grads some = backward(c, mask);
      for (unsigned j = 0; j < 10; ++j) {
        const Floats expected = (mask >> j & 1u) != 0 ? all.*Grads::kAll[j] : Floats{};
        EXPECT_TRUE(same_bits(some.*Grads::kAll[j], expected))
            << i << " " << j << " " << name_of(c.p);
      }
    }
  }
}

// V-02: rows past the last offset are zero; N == 0 leaves only such rows.
TEST(RecurrentBackward, RowsPastTheLastOffsetAreZero) {
  for (const Op op : {kda, gdn, gdn2}) {
    const Case whole = make_case(op, GateInput::kSoftplus, BetaInput::kLogit, {4, 6});
    for (const std::vector<std::int64_t>& offsets :
         {std::vector<std::int64_t>{0, 4}, std::vector<std::int64_t>{0}}) {
      Case c = whole;
      c.offsets = offsets;
      const auto states = static_cast<std::size_t>(c.sequences() * c.p.value_heads * c.matrix());
      c.initial.resize(states), c.dfinal.resize(states);
      const Grads grads = backward(c);
      for (std::size_t i = 0; i < 7; ++i)
        for (const float x : rows(grads.*Grads::kAll[i], c.tokens, offsets.back(), c.tokens))
          EXPECT_EQ(x, 0) << i;
      for (const float x : grads.ddt_bias) EXPECT_TRUE(std::isfinite(x));
      if (offsets.size() > 1) continue;
      for (const float x : grads.da_log) EXPECT_EQ(x, 0);
    }
  }
}

// V-01, S-05: an empty sequence hands the gradient of its state through; T = 0 too.
TEST(RecurrentBackward, EmptySequencesPassTheStateGradient) {
  for (const DType state_dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16})
    for (const auto& lengths :
         {std::vector<std::int64_t>{0, 5, 0, 0, 1, 0}, std::vector<std::int64_t>{0, 0}}) {
      Case c = make_case(kda, GateInput::kLogDecay, BetaInput::kValue, lengths);
      c.p.state_dtype = state_dtype;
      for (float& x : c.dfinal) x = rounded(x, state_dtype);
      const Grads grads = backward(c);
      for (std::size_t n = 0; n < lengths.size(); ++n)
        if (lengths[n] == 0) {
          const auto sequence = static_cast<std::int64_t>(n);
          EXPECT_TRUE(same_bits(rows(grads.dinitial, c.sequences(), sequence, sequence + 1),
                                rows(c.dfinal, c.sequences(), sequence, sequence + 1)));
        }
    }
}

// B-02, S-14: no gate against a gate of 0, no beta against a beta of 1.
TEST(RecurrentBackward, AbsentGateIsAZeroGate) {
  const Case bare = make_case(delta_rule, GateInput::kUnset, BetaInput::kOne, {100}, {1, 2, 4, 3});
  Case zero = bare;
  zero.p.op = gdn;
  zero.p.gate_input = GateInput::kLogDecay;
  zero.p.beta_input = BetaInput::kValue;
  zero.g.assign(200, 0.f);
  zero.beta.assign(200, 1.f);
  const Grads a = backward(bare), b = backward(zero);
  for (std::size_t i : {0u, 1u, 2u, 9u})
    EXPECT_TRUE(same_bits(a.*Grads::kAll[i], b.*Grads::kAll[i])) << i;
  EXPECT_GT(std::abs(b.dbeta[0]), 0);
}

// N-05, N-07, N-08: decays from mild to total. Finite everywhere; where e^a is 0, dg is 0; where it
// is not, the central differences agree.
TEST(RecurrentBackward, StrongDecaysStayFinite) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const Op op : {kda, gdn, gla, gdn2, lightning})
    for (const float decay : {-1.4f, -5.55f, -11.2f, -20.f, -88.f, -200.f, -1e4f, -infinity}) {
      Case c = make_case(op, GateInput::kLogDecay, beta_inputs(op).front(), {17}, {1, 1, 4, 3});
      for (std::size_t i = 0; i < c.g.size(); ++i)
        if (op.gate != Gate::kChannel || i % 4 != 1) c.g[i] = decay;
      const Grads grads = backward(c);
      for (const auto member : Grads::kAll)
        for (const float x : grads.*member)
          ASSERT_TRUE(std::isfinite(x)) << decay << " " << name_of(c.p);
      if (decay <= -1e4f)
        for (std::size_t i = 0; i < c.g.size(); ++i)
          if (c.g[i] == decay) {
            EXPECT_EQ(grads.dg[i], 0);
          }
      if (std::isfinite(decay)) expect_differences(c, grads, "strong decay");
    }
}

// A decay of 0 forgets infinities, and nothing of them reaches a gradient.
TEST(RecurrentBackward, TotalDecayForgetsInfinities) {
  for (const GateInput input : {GateInput::kLogDecay, GateInput::kDecay}) {
    Case c = make_case(kda, input, BetaInput::kValue, {5}, {1, 1, 2, 2});
    for (const std::size_t token : {0u, 3u})
      std::fill_n(c.g.begin() + static_cast<std::int64_t>(token) * 2, 2,
                  input == GateInput::kDecay ? 0.f : -std::numeric_limits<float>::infinity());
    Case clean = c;
    c.initial.assign(4, std::numeric_limits<float>::infinity());
    clean.initial.assign(4, 0.f);
    const Grads grads = backward(c), expected = backward(clean);
    for (const auto member : Grads::kAll) EXPECT_TRUE(same_bits(grads.*member, expected.*member));
    for (std::size_t i = 0; i < 10; ++i)
      if (i / 2 == 0 || i / 2 == 3) {
        EXPECT_EQ(grads.dg[i], 0);
      }
  }
}

// N-17: rows of zeros, of denormal squares and of squares that overflow fp32, under the l2norm.
TEST(RecurrentBackward, NormOfExtremeRows) {
  Case c = make_case(kda, GateInput::kLogDecay, BetaInput::kValue, {5}, {1, 1, 3, 2});
  c.p.qk_l2norm = true;
  const float sizes[] = {0, 1e-4f, 1e-20f, 1e19f, 1};
  for (std::size_t t = 0; t < 5; ++t)
    for (std::size_t i = 0; i < 3; ++i) c.q[t * 3 + i] *= sizes[t], c.k[t * 3 + i] *= sizes[4 - t];
  const Grads grads = backward(c);
  for (const auto member : Grads::kAll)
    for (const float x : grads.*member) ASSERT_TRUE(std::isfinite(x));
  // At 0 the norm is 1e-3, so the gradient is that of the normalised row times 1e3: S^T-independent
  // check by scaling.
  Case plain = c;
  plain.p.qk_l2norm = false;
  plain.q.assign(15, 0.f);
  for (std::size_t t = 0; t < 5; ++t) {
    double norm = 1e-6;
    for (std::size_t i = 0; i < 3; ++i)
      norm += static_cast<double>(c.k[t * 3 + i]) * c.k[t * 3 + i];
    for (std::size_t i = 0; i < 3; ++i)
      plain.k[t * 3 + i] = static_cast<float>(c.k[t * 3 + i] / std::sqrt(norm));
  }
  const Grads unnormalised = backward(plain);
  for (std::size_t i = 0; i < 3; ++i)
    EXPECT_NEAR(grads.dq[i], 1e3f * unnormalised.dq[i], 1e-3 * std::abs(grads.dq[i]));
}

// N-16: dg of late tokens is not lost beside early ones that are 1e8 times larger.
TEST(RecurrentBackward, SmallGateGradientsAfterLargeOnes) {
  Case c = make_case(simple_gla, GateInput::kLogDecay, BetaInput::kUnset, {32, 32}, {1, 1, 3, 2});
  Case late = part(c, 32, 64);
  late.initial = rows(c.initial, 2, 1, 2), late.dfinal = rows(c.dfinal, 2, 1, 2);
  c.offsets = {0, 64};
  c.initial = rows(c.initial, 2, 0, 1), c.dfinal = late.dfinal;
  for (std::size_t i = 0; i < 64; ++i) c.dout[i] *= 1e8f;
  c.g[32] = -std::numeric_limits<float>::infinity();  // what follows starts from nothing
  late.g[0] = c.g[32];
  const Grads whole = backward(c), alone = backward(late);
  EXPECT_TRUE(same_bits(rows(whole.dg, 64, 32, 64), alone.dg));
}

// CAUSAL: what comes after has no say in the gradients of a loss on what comes before.
TEST(RecurrentBackward, LaterTokensDoNotMatter) {
  for (const Op op : all_ops()) {
    Case c = make_case(op, gate_inputs(op).front(), beta_inputs(op).front(), {40}, {1, 2, 4, 3});
    c.dfinal.clear();
    const std::int64_t half = 17;
    std::fill(c.dout.begin() + half * 6, c.dout.end(), 0.f);
    const Grads before = backward(c);
    for (Floats Case::* x : {&Case::q, &Case::k, &Case::v})
      for (std::size_t i = (c.*x).size() * 17 / 40; i < (c.*x).size(); ++i) (c.*x)[i] += 3;
    const Grads after = backward(c);
    for (std::size_t i : {0u, 1u, 2u, 4u})
      EXPECT_TRUE(same_bits(rows(before.*Grads::kAll[i], 40, 0, half),
                            rows(after.*Grads::kAll[i], 40, 0, half)));
  }
}

// One recomputed chunk or many, one thread or four: the same bits. S-13: dq and dk of a group are
// sums in order.
TEST(RecurrentBackward, ThreadsChangeNothing) {
  for (const Op op : {kda, simple_gla}) {
    const Case c =
        make_case(op, GateInput::kSoftplus, beta_inputs(op).front(), {70, 3, 41, 1}, {2, 6, 8, 5});
    set_threads(1);
    const Grads one = backward(c);
    for (const int threads : {2, 4, 7}) {
      set_threads(threads);
      const Grads many = backward(c);
      for (const auto member : Grads::kAll)
        EXPECT_TRUE(same_bits(one.*member, many.*member)) << threads;
    }
    set_threads(0);
  }
}

// A group's gradient is the sum of what its value heads give alone.
TEST(RecurrentBackward, GroupsSumQueryAndKeyGradients) {
  const Case grouped = make_case(kda, GateInput::kLogDecay, BetaInput::kLogit, {20}, {2, 6, 4, 3});
  Case repeated = grouped;
  repeated.p.heads = 6;
  for (Floats Case::* x : {&Case::q, &Case::k}) {
    (repeated.*x).clear();
    for (std::size_t t = 0; t < 20; ++t)
      for (std::size_t h = 0; h < 6; ++h)
        for (std::size_t i = 0; i < 4; ++i)
          (repeated.*x).push_back((grouped.*x)[(t * 2 + h / 3) * 4 + i]);
  }
  const Grads a = backward(grouped), b = backward(repeated);
  for (std::size_t i : {2u, 3u, 4u, 9u})
    EXPECT_TRUE(same_bits(a.*Grads::kAll[i], b.*Grads::kAll[i])) << i;
  for (std::size_t which : {0u, 1u}) {
    std::vector<double> sums(20 * 2 * 4);
    for (std::size_t i = 0; i < 20 * 6 * 4; ++i)
      sums[(i / 24 * 2 + i / 4 % 6 / 3) * 4 + i % 4] += (b.*Grads::kAll[which])[i];
    EXPECT_LE(relative_error(a.*Grads::kAll[which], sums), 1e-6);
  }
}

// A sequence that starts from zero by its slot id or by has_initial_state gives its initial state
// no gradient.
TEST(RecurrentBackward, StatesThatAreNotReadHaveNoGradient) {
  const Case c = make_case(kda, GateInput::kLogDecay, BetaInput::kValue, {3, 3, 3});
  const std::int32_t slots[] = {2, -1, 0};
  const std::uint8_t has[] = {1, 1, 0};
  const Grads grads = backward(
      c, kAllWanted, [&](BackwardArgs& a) { a.read_slots = slots, a.has_initial_state = has; });
  Case reordered = c;
  const Floats first = rows(c.initial, 3, 2, 3);
  std::fill(reordered.initial.begin(), reordered.initial.end(), 0.f);
  std::copy(first.begin(), first.end(), reordered.initial.begin());
  const Grads expected = backward(reordered);
  for (std::size_t i = 0; i < 7; ++i)
    EXPECT_TRUE(same_bits(grads.*Grads::kAll[i], expected.*Grads::kAll[i])) << i;
  EXPECT_TRUE(same_bits(rows(grads.dinitial, 3, 0, 1), rows(expected.dinitial, 3, 0, 1)));
  for (const float x : rows(grads.dinitial, 3, 1, 3)) EXPECT_EQ(x, 0);
}

}  // namespace
}  // namespace linattn::test
