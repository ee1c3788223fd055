// SPDX-License-Identifier: Apache-2.0
//
// Kinds of fault that other libraries had, section 1: numerics. A test's name begins with the entry
// of tests/faults.txt.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>

#include "ops/compare.h"
#include "ops/slice.h"
#include "support/random.h"

namespace linattn::test {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

constexpr Op kClasses[] = {kda, gdn, gla, simple_gla};
constexpr Pass kPasses[] = {Pass::kForward, Pass::kBackward, Pass::kStep};
constexpr DType kDTypes[] = {DType::kFloat32, DType::kBFloat16};  // rows take one of them or both

Drawn drawn(Op op, Pass pass, std::vector<std::int64_t> lengths, std::int32_t key_dim = 32,
            std::int32_t value_dim = 32, DType dtype = DType::kFloat32, std::int32_t heads = 1,
            std::int32_t value_heads = 2) {
  Drawn d;
  d.scenario = make(op, pass, std::move(lengths), heads, value_heads, key_dim, value_dim, dtype);
  d.inputs = draw(d.scenario);
  return d;
}

void expect_right(const Drawn& d) { expect_agreement(d.scenario, d.inputs); }

void expect_finite(const Results& results) {
  for (const Output& out : results)
    for (const float x : out.values) ASSERT_TRUE(std::isfinite(x)) << out.name;
}

// q = k = u, |u| = 1, one decay a and strength b: r_t = (1 - b) a r_(t-1) + b v_t, o_t = scale r_t.
// No matrices.
void expect_closed_form(Op op, DType dtype, std::int64_t tokens, double log_decay, double beta) {
  Drawn d = drawn(op, Pass::kForward, {tokens}, 32, 24, dtype);
  d.scenario.keys = Keys::kIdentical;
  d.scenario.options = kNoInitial;
  d.inputs = draw(d.scenario);
  d.inputs.q = d.inputs.k;
  std::fill(d.inputs.g.begin(), d.inputs.g.end(), static_cast<float>(log_decay));
  std::fill(d.inputs.beta.begin(), d.inputs.beta.end(), static_cast<float>(beta));
  for (std::size_t i = 0; i < d.inputs.v.size(); ++i)  // period 24
    d.inputs.v[i] = d.inputs.v[i % 48 + i / 48 % 24 * (tokens < 24 ? 0 : 48)];
  double norm = 0;
  for (int c = 0; c < 32; ++c) norm += std::pow(static_cast<double>(d.inputs.k[c]), 2);
  std::vector<float> expected(d.inputs.v.size());
  std::vector<double> state(48, 0);
  float largest_v = 0;
  for (const float x : d.inputs.v) largest_v = std::max(largest_v, std::abs(x));
  const double a = std::exp(static_cast<double>(static_cast<float>(log_decay)));
  const double b = static_cast<float>(beta);
  for (std::int64_t t = 0; t < tokens; ++t)
    for (std::size_t i = 0; i < 48; ++i) {
      const std::size_t at = static_cast<std::size_t>(t) * 48 + i;
      state[i] = (1 - b * norm) * a * state[i] + b * norm * d.inputs.v[at];
      expected[at] = static_cast<float>(state[i] / std::sqrt(32.));
    }
  for (const std::string& row : takers(d.scenario)) {
    SCOPED_TRACE(reproduce(d.scenario, row) + " g=" + std::to_string(log_decay) +
                 " beta=" + std::to_string(beta));
    const Results x = must_run(d, row);
    expect_finite(x);
    const bool rounds = dtype != DType::kFloat32 || !full_precision(row);
    // With b near 2 a rounding error only changes its sign from token to token: 16 bits have no
    // bound.
    if (!rounds || b <= 1) {
      EXPECT_LE(relative_rms(output(x, "out").values, expected),
                rounds ? kRepeatedKeys * caps(DType::kBFloat16).out : 1e-5);
    }
    if (b > 1) continue;
    for (const float o : output(x, "out").values)
      ASSERT_LE(std::abs(o), largest_v / std::sqrt(32.f) * (rounds ? 1.05f : 1.0001f));
  }
}

TEST(Faults, N01_IdenticalKeysOfEveryStrength) {
  for (const Op op : {kda, gdn})
    for (const DType dtype : kDTypes)
      for (const double beta : {.5, .9, 1., 1.9, 2.})
        for (const std::int64_t tokens : {16, 17, 64, 65, 128})
          expect_closed_form(op, dtype, tokens, -2e-5, beta);
}
TEST(Faults, N01_IdenticalKeysForLong) {
  for (const Op op : {kda, gdn})
    for (const DType dtype : kDTypes) {
      expect_closed_form(op, dtype, 4096, -2e-5, 1.9);
      expect_closed_form(op, dtype, 2007, -2e-5, .9995);
    }
}

void correlated(Pass pass, std::int64_t tokens, double noise, DType dtype) {
  for (const Op op : {kda, gdn}) {
    Drawn d = drawn(op, pass, {tokens}, 64, 32, dtype);
    Random random(9);
    const auto n = static_cast<std::size_t>(tokens) * 64;
    std::vector<double> u(64);
    for (double& x : u) x = random.normal();
    for (std::size_t i = 0; i < n; i += 64) {
      double sum = 0, key[64];
      for (std::size_t c = 0; c < 64; ++c) {
        key[c] = u[c] + noise * random.normal();
        sum += key[c] * key[c];
      }
      for (std::size_t c = 0; c < 64; ++c)
        d.inputs.k[i + c] = static_cast<float>(.9 * key[c] / std::sqrt(sum));
    }
    round_to(dtype, d.inputs.k);
    std::fill(d.inputs.beta.begin(), d.inputs.beta.end(), 1.f);
    for (float& g : d.inputs.g) g = static_cast<float>(random.uniform(-.034, -.012));
    d.scenario.keys = Keys::kCorrelated;
    expect_right(d);
  }
}
TEST(Faults, N02_CorrelatedKeysForward) {
  for (const DType dtype : kDTypes)
    for (const double noise : {0., .01, .05, .3})
      for (const std::int64_t tokens : {64, 512}) correlated(Pass::kForward, tokens, noise, dtype);
}
TEST(Faults, N02_CorrelatedKeysBackward) {
  for (const double noise : {0., .05, .3}) correlated(Pass::kBackward, 100, noise, DType::kFloat32);
}
// Each path must have its tensors' accuracy where the inverse amplifies most.
TEST(Faults, N03_InverseKeepsItsPrecision) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16})
    correlated(Pass::kForward, 64, .3, dtype);
}

// Raw keys: (I - beta k k^T) expands and the state explodes. Not in the contract, but no other head
// or sequence sees it.
TEST(Faults, N04_ExplodingKeysStayInTheirSequence) {
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    Drawn d = drawn(delta_rule, Pass::kForward, {64, 64}, 64, 64, dtype, 2, 2);
    Drawn wild = d;
    Random random(3);
    for (std::int64_t t = 0; t < 64; ++t)
      for (std::size_t c = 0; c < 64; ++c)  // head 0 of sequence 0
        wild.inputs.k[static_cast<std::size_t>(t) * 128 + c] =
            static_cast<float>(4 * random.normal());
    round_to(dtype, wild.inputs.k);
    for (const std::string& row : takers(d.scenario)) {
      const Results tame = must_run(d, row), other = must_run(wild, row);
      const std::vector<float>&x = output(tame, "out").values, &y = output(other, "out").values;
      expect_same(part(x, 2, 64, 0, 64, 1, 1), part(y, 2, 64, 0, 64, 1, 1), row + " head 1");
      expect_same(part(x, 2, 64, 64, 128, 0, 2), part(y, 2, 64, 64, 128, 0, 2),
                  row + " sequence 1");
    }
  }
}
TEST(Faults, N04_RawKeysNormalisedInTheKernel) {
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    Drawn d = drawn(delta_rule, Pass::kForward, {64}, 64, 64, dtype);
    d.scenario.problem.qk_l2norm = true;
    d.scenario.keys = Keys::kRaw;
    d.inputs = draw(d.scenario);
    expect_right(d);
  }
}

// One value of g for all tokens: per head, per channel, and one saturated channel among others that
// keep everything.
void constant_gate(Pass pass, float g, std::int64_t tokens) {
  for (const Op op : kClasses)
    for (const DType dtype : kDTypes) {
      Drawn d = drawn(op, pass, {tokens}, 32, 24, dtype);
      std::fill(d.inputs.g.begin(), d.inputs.g.end(), g);
      expect_right(d);
      if (op.gate != Gate::kChannel) continue;
      for (std::size_t i = 0; i < d.inputs.g.size(); ++i) d.inputs.g[i] = i % 32 == 5 ? g : 0;
      expect_right(d);
    }
}
class Faults_N05 : public testing::TestWithParam<float> {};
INSTANTIATE_TEST_SUITE_P(Gates, Faults_N05,
                         testing::Values(-1.4f, -1.42f, -5.54f, -5.55f, -5.91f, -5.92f, -11.f,
                                         -11.2f, -20.f, -88.f, -200.f, -1e4f, -kInfinity));
TEST_P(Faults_N05, ConstantGateForward) {
  for (const std::int64_t tokens : {15, 16, 17, 63, 64, 65, 129})
    constant_gate(Pass::kForward, GetParam(), tokens);
}
TEST_P(Faults_N05, ConstantGateBackward) {
  for (const std::int64_t tokens : {17, 65}) constant_gate(Pass::kBackward, GetParam(), tokens);
}
TEST_P(Faults_N05, ConstantGateStep) { constant_gate(Pass::kStep, GetParam(), 8); }
// So strong a gate leaves o_t = scale beta_t (q_t . k_t) v_t.
TEST(Faults, N05_SaturatedGateForgetsAll) {
  for (const DType dtype : kDTypes)
    for (const float g : {-88.f, -1e4f, -kInfinity}) {
      Drawn d = drawn(kda, Pass::kForward, {65}, 32, 24, dtype);
      std::fill(d.inputs.g.begin(), d.inputs.g.end(), g);
      std::vector<float> expected(d.inputs.v.size());
      for (std::size_t i = 0; i < expected.size(); ++i) {
        const std::size_t t = i / 48, h = i / 24 % 2;
        double dot = 0;
        for (std::size_t c = 0; c < 32; ++c)
          dot += static_cast<double>(d.inputs.q[t * 32 + c]) * d.inputs.k[t * 32 + c];
        expected[i] =
            static_cast<float>(dot * d.inputs.beta[t * 2 + h] * d.inputs.v[i] / std::sqrt(32.));
      }
      for (const std::string& row : takers(d.scenario))
        EXPECT_LE(relative_rms(output(must_run(d, row), "out").values, expected),
                  limit(d.scenario, row, 1e-5))
            << row;
    }
}

// Every run of the harness has NaN and 1e30 behind its inputs; here the tail meets gates that
// overflow.
TEST(Faults, N06_TailOfTheLastChunkUnderStrongGates) {
  for (const std::int64_t tokens : {1, 17, 28, 33, 49, 65}) {
    constant_gate(Pass::kForward, -5, tokens);
    for (const Op op : kClasses)
      for (const DType dtype : kDTypes) {
        Drawn d = drawn(op, Pass::kForward, {tokens}, 32, 32, dtype);
        for (std::size_t i = 0; i < d.inputs.g.size(); ++i) d.inputs.g[i] = i % 2 ? -1e3f : -5;
        expect_right(d);
      }
  }
}
TEST(Faults, N06_LongTail) { constant_gate(Pass::kForward, -5, 1500); }

TEST(Faults, N07_MaskAfterExpInBackward) {
  for (const float g : {-5.f, -1.5f}) {
    constant_gate(Pass::kBackward, g, 64);
    Drawn d = drawn(kda, Pass::kBackward, {64});
    std::fill(d.inputs.g.begin(), d.inputs.g.end(), g);
    const Results x = must_run(d, kOracle);
    expect_finite(x);
    double sum = 0;
    for (const float dg : output(x, "dg").values) sum += std::abs(dg);
    EXPECT_GT(sum, 1e-3);
  }
}

// Decay 1 but for a few tokens of e^-26, in one channel: the others do not notice.
TEST(Faults, N08_TinyDecayInOneChannel) {
  for (const std::int64_t at : {0, 14, 15, 31, 60}) {
    for (const Op op : kClasses)
      for (const DType dtype : kDTypes) {
        Drawn d = drawn(op, Pass::kForward, {70}, 32, 32, dtype);
        std::fill(d.inputs.g.begin(), d.inputs.g.end(), 0.f);
        const std::size_t width = d.inputs.g.size() / 70, first = static_cast<std::size_t>(at);
        for (std::size_t t = first; t < first + 4; ++t) d.inputs.g[t * width] = -26;
        expect_right(d);
      }
    // Without a delta the rows of a state are independent: bit-identical.
    Drawn flat = drawn(gla, Pass::kForward, {70});
    std::fill(flat.inputs.g.begin(), flat.inputs.g.end(), 0.f);
    Drawn dip = flat;
    dip.inputs.g[static_cast<std::size_t>(at) * 64] = -26;
    const Results x = must_run(flat, kOracle), y = must_run(dip, kOracle);
    expect_same(part(output(x, "final_state").values, 64, 32, 0, 1, 1, 63),
                part(output(y, "final_state").values, 64, 32, 0, 1, 1, 63), "other rows");
  }
}

// A growing gate: right while it can be represented, and confined to its sequence when it cannot.
TEST(Faults, N09_PositiveLogDecay) {
  for (const DType dtype : kDTypes) {
    for (const Pass pass : kPasses)
      for (const float g : {.01f, 1.f})
        for (const Op op : {gla, simple_gla}) {
          Drawn d = drawn(op, pass, {pass == Pass::kStep ? 8 : 64}, 32, 32, dtype);
          std::fill(d.inputs.g.begin(), d.inputs.g.end(), g);
          expect_right(d);
        }
    Drawn d = drawn(gla, Pass::kForward, {64, 64}, 32, 32, dtype);
    Drawn wild = d;
    std::fill_n(wild.inputs.g.begin(), 64 * 64, 5.f);
    for (const std::string& row : takers(d.scenario)) {
      const Results x = must_run(d, row), y = must_run(wild, row);
      expect_same(part(output(x, "out").values, 2, 32, 64, 128, 0, 2),
                  part(output(y, "out").values, 2, 32, 64, 128, 0, 2), row);
    }
  }
}

// inf * 0: the gate stays in [-inf, 0], never NaN.
TEST(Faults, N10_GateActivationAtItsEnds) {
  for (const Pass pass : {Pass::kForward, Pass::kStep})
    for (const DType dtype : kDTypes)
      for (const GateInput input : {GateInput::kSoftplus, GateInput::kBounded})
        for (const float a_log : {-kInfinity, -88.f, 0.f, 88.f, 89.f, 100.f})
          for (const float x : {-200.f, -20.f, 0.f, 20.f, 200.f}) {
            Drawn d = drawn(kda, pass, {5}, 8, 8, dtype);
            d.scenario.problem.gate_input = input;
            if (input == GateInput::kBounded) d.scenario.lower_bound = -5;
            d.scenario.options = kNoBias;
            d.inputs = draw(d.scenario);
            std::fill(d.inputs.g.begin(), d.inputs.g.end(), x);
            std::fill(d.inputs.a_log.begin(), d.inputs.a_log.end(), a_log);
            for (const std::string& row : takers(d.scenario)) {
              SCOPED_TRACE(row + " a_log=" + std::to_string(a_log) + " x=" + std::to_string(x));
              expect_finite(must_run(d, row));
            }
          }
}

TEST(Faults, N11_BetaStaysFp32AfterTheSigmoid) {
  for (const Op op : {kda, gdn, delta_rule})
    for (const Pass pass : {Pass::kForward, Pass::kStep}) {
      Drawn d = drawn(op, pass, {1}, 8, 8, DType::kBFloat16);
      d.scenario.problem.beta_input = BetaInput::kLogit;
      d.scenario.problem.beta_dtype = DType::kBFloat16;
      d.scenario.options = kNoInitial;
      d.inputs = draw(d.scenario);
      std::fill(d.inputs.k.begin(), d.inputs.k.end(), 0.f);
      d.inputs.k[0] = 1;
      std::fill(d.inputs.v.begin(), d.inputs.v.end(), 1.f);
      std::fill(d.inputs.beta.begin(), d.inputs.beta.end(), .5f);
      std::fill(d.inputs.g.begin(), d.inputs.g.end(), 0.f);
      for (const std::string& row : takers(d.scenario))
        EXPECT_NEAR(output(must_run(d, row), "final_state").values[0], .62245933f,
                    full_precision(row) ? 2e-7 : 2e-3)
            << row;
    }
}
// Many steps against one forward: a strength that is off by 0.2% drifts apart.
TEST(Faults, N11_StepsDoNotDriftFromForward) {
  Drawn whole = drawn(gdn, Pass::kForward, {400}, 16, 16, DType::kBFloat16);
  whole.scenario.problem.beta_input = BetaInput::kLogit;
  whole.scenario.problem.beta_dtype = DType::kBFloat16;
  whole.scenario.decay = Decay::kLong;
  whole.inputs = draw(whole.scenario);
  Drawn steps = whole;
  steps.scenario.pass = Pass::kStep;
  for (const std::string& row : takers(whole.scenario)) {
    const Results all = must_run(whole, row);
    for (const std::string& step : takers(steps.scenario)) {
      std::vector<float> state;
      for (std::int64_t t = 0; t < 400; ++t)
        state = output(must_run(rows_of(steps, 0, t, t + 1, state), step), "final_state").values;
      EXPECT_LE(relative_rms(output(all, "final_state").values, state),
                full_precision(row) ? 1e-5 : 3 * caps(DType::kBFloat16).state)
          << row << " against " << step;
    }
  }
}

// Inside one call the state is not rounded to its 16-bit dtype: token 8 sees the exact state of
// token 7.
TEST(Faults, N13_StateKeepsItsPrecisionInsideACall) {
  for (const Pass pass : kPasses)
    for (const DType dtype : kDTypes)
      for (const DType state : kDTypes)
        for (const Op op : kClasses) {
          Drawn d = drawn(op, pass, {8}, 32, 32, dtype);
          d.scenario.problem.state_dtype = state;
          for (float& x : d.inputs.initial) x *= 100;
          for (float& x : d.inputs.v) x *= .1f;
          round_to(state, d.inputs.initial);
          round_to(state, d.inputs.dfinal);
          round_to(dtype, d.inputs.v);
          expect_right(d);
        }
}

TEST(Faults, N14_StateGradientStaysFp32) {
  Drawn d = drawn(kda, Pass::kBackward, {1024}, 16, 16);
  d.scenario.options = kNoDout;
  d.inputs = draw(d.scenario);
  std::fill(d.inputs.g.begin(), d.inputs.g.end(), -.001f);
  expect_right(d);
}

// dg is a suffix sum: contributions of 1e8 in the first half must not swallow ones in the second.
TEST(Faults, N16_SuffixSumOfTheGateGradient) {
  const std::int64_t tokens = 128;
  Drawn d = drawn(simple_gla, Pass::kBackward, {tokens}, 1, 1, DType::kFloat32, 1, 1);
  d.scenario.options = kNoDFinal | kNoInitial;
  d.scenario.scale = 1;
  d.inputs = draw(d.scenario);
  for (auto* x : {&d.inputs.q, &d.inputs.k, &d.inputs.v}) std::fill(x->begin(), x->end(), 1.f);
  std::fill(d.inputs.g.begin(), d.inputs.g.end(), 0.f);
  for (std::size_t t = 0; t < 128; ++t) d.inputs.dout[t] = t < 64 ? 1e8f : 1.f;
  // o_t = sum of v_j e^(g_(j+1) + .. + g_t): dg_t = sum over i >= t of dout_i times the t tokens
  // before t.
  for (const std::string& row : takers(d.scenario)) {
    const std::vector<float> dg = output(must_run(d, row), "dg").values;
    for (std::size_t t = 64; t < 128; ++t)
      ASSERT_EQ(dg[t], static_cast<float>((128 - t) * t)) << row << " token " << t;
  }
}

TEST(Faults, N17_L2NormOfZeroTinyAndHugeRows) {
  for (const Pass pass : kPasses)
    for (const DType dtype : kDTypes)
      for (const Op op : kClasses) {
        const std::int64_t tokens = pass == Pass::kStep ? 8 : 20;
        Drawn d = drawn(op, pass, {tokens}, 32, 32, dtype);
        d.scenario.problem.qk_l2norm = true;
        for (auto* x : {&d.inputs.q, &d.inputs.k})
          for (std::size_t t = 0; t < static_cast<std::size_t>(tokens); ++t)
            for (std::size_t c = 0; c < 32; ++c) {
              const float factor[] = {0, 1e-4f, 1e-20f, 1, 1e4f};
              float& value = (*x)[t * 32 + c];
              value = t % 6 == 5 ? (c == 3 ? 2.f : 0.f) : value * factor[t % 6];
            }
        round_to(dtype, d.inputs.q);
        round_to(dtype, d.inputs.k);
        expect_right(d);
      }
}
// The square of 1e19 overflows fp32: right, or at least nothing but that row's business.
TEST(Faults, N17_RowWhoseSquareOverflows) {
  for (const DType dtype : kDTypes)
    for (const Op op : kClasses) {
      Drawn d = drawn(op, Pass::kForward, {20}, 32, 32, dtype);
      d.scenario.problem.qk_l2norm = true;
      for (std::size_t c = 0; c < 32; ++c) d.inputs.k[10 * 32 + c] *= 1e19f;
      round_to(dtype, d.inputs.k);
      for (const std::string& row : takers(d.scenario)) {
        SCOPED_TRACE(reproduce(d.scenario, row));
        expect_finite(must_run(d, row));
      }
    }
}
TEST(Faults, N17_GradientAtZeroIsThousandTimesTheUpstream) {
  Drawn d = drawn(linear_attention, Pass::kBackward, {1}, 4, 1, DType::kFloat32, 1, 1);
  d.scenario.problem.qk_l2norm = true;
  d.scenario.options = kNoDFinal | kNoInitial;
  d.scenario.scale = 1;
  d.inputs = draw(d.scenario);
  std::fill(d.inputs.q.begin(), d.inputs.q.end(), 0.f);
  d.inputs.k = {1, 0, 0, 0}, d.inputs.v = {1}, d.inputs.dout = {2};
  for (const std::string& row : takers(d.scenario))
    EXPECT_NEAR(output(must_run(d, row), "dq").values[0], 2e3f, .1f) << row;
}

// Transitions of pieces, multiplied, are the whole's; final = M initial + final from zero.
TEST(Faults, N18_TransitionsComposeInFp32) {
  for (const DType dtype : kDTypes)
    for (const Op op : kClasses) {
      Drawn whole = drawn(op, Pass::kForward, {512}, 16, 16, dtype, 1, 1);
      whole.scenario.options = kTransition;
      std::fill(whole.inputs.g.begin(), whole.inputs.g.end(), -.001f);
      std::fill(whole.inputs.beta.begin(), whole.inputs.beta.end(), 1.f);
      for (const std::string& row : takers(whole.scenario)) {
        std::vector<float> state = whole.inputs.initial;
        for (std::int64_t t = 0; t < 512; t += 128) {
          Drawn piece = rows_of(whole, 0, t, t + 128, std::vector<float>(256, 0));
          const Results x = must_run(piece, row);
          std::vector<float> next = output(x, "final_state").values;
          for (std::size_t i = 0; i < 16; ++i)
            for (std::size_t j = 0; j < 16; ++j)
              for (std::size_t v = 0; v < 16; ++v)
                next[i * 16 + v] += output(x, "transition").values[i * 16 + j] * state[j * 16 + v];
          state = next;
        }
        // States are fp32 whatever the tensors are.
        EXPECT_LE(relative_rms(state, output(must_run(whole, row), "final_state").values),
                  full_precision(row) ? 1e-5 : 3 * caps(DType::kBFloat16).state)
            << reproduce(whole.scenario, row);
      }
    }
}

// The same values as bf16 and as fp32 give the same bits: exp and sums are fp32 whatever the
// input's dtype.
TEST(Faults, N19_GateDTypeIsNotAPrecision) {
  for (const Pass pass : {Pass::kForward, Pass::kStep})
    for (const DType dtype : kDTypes)
      for (const Op op : kClasses) {
        Drawn wide = drawn(op, pass, {pass == Pass::kStep ? 8 : 70}, 32, 32, dtype);
        for (float& g : wide.inputs.g) g = g * .6f - .5f;
        round_to(DType::kBFloat16, wide.inputs.g);
        Drawn narrow = wide;
        narrow.scenario.problem.gate_dtype = DType::kBFloat16;
        for (const std::string& row : takers(wide.scenario))
          EXPECT_EQ(difference(must_run(wide, row), must_run(narrow, row)), "") << row;
      }
}

// Keys that make I - beta k k^T expand: the oracle and its independent second agree, and so do the
// others.
TEST(Faults, N21_ExpansiveTransitions) {
  for (const DType dtype : kDTypes)
    for (const std::int64_t tokens : {256, 1100})  // long and few heads: what may be split
      for (const bool raw : {true, false}) {
        Drawn d = drawn(kda, Pass::kForward, {tokens}, 16, 16, dtype);
        Random random(4);
        for (float& g : d.inputs.g) g = static_cast<float>(-random.uniform(0, .2));
        std::fill(d.inputs.beta.begin(), d.inputs.beta.end(), raw ? 1.f : 1.95f);
        if (raw)
          for (float& k : d.inputs.k) k *= 1.5f;
        round_to(dtype, d.inputs.k);
        expect_right(d);
      }
}
TEST(Faults, N21_HugeInitialStateUnderForgettingGates) {
  for (const DType dtype : kDTypes)
    for (const std::int64_t tokens : {300, 1100})
      for (const Op op : kClasses) {
        Drawn d = drawn(op, Pass::kForward, {tokens}, 32, 32, dtype);
        for (float& x : d.inputs.initial) x *= 1e6f;
        expect_right(d);
      }
}

}  // namespace
}  // namespace linattn::test
