// SPDX-License-Identifier: Apache-2.0
//
// The oracle's forward pass against the second recurrence, and properties that need no tolerance.
#include <gtest/gtest.h>

#include "unit/recurrent_case.h"

namespace linattn::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

template <class Visit>
void for_each_kind(const Visit& visit) {
  std::uint64_t seed = 100;
  for (const Op op : all_ops())
    for (const GateInput gate_input : gate_inputs(op))
      for (const BetaInput beta_input : beta_inputs(op)) visit(op, gate_input, beta_input, ++seed);
}

Case simple_case(Op op, std::vector<std::int64_t> lengths, Shape shape = {},
                 std::uint64_t seed = 1) {
  return make_case(op, gate_inputs(op).front(), beta_inputs(op).front(), std::move(lengths), shape,
                   seed);
}

void expect_reference(const Case& c, const Result& result, double tolerance = 2e-7) {
  const Reference truth = brute_force(c, Doubles(c));
  EXPECT_LE(relative_error(result.out, truth.out), tolerance) << "out of " << name_of(c.p);
  EXPECT_LE(relative_error(result.final, truth.final), tolerance)
      << "final state of " << name_of(c.p);
}

TEST(Recurrent, EqualsTheSecondRecurrence) {
  for_each_kind([](Op op, GateInput gate_input, BetaInput beta_input, std::uint64_t seed) {
    for (const bool qk_l2norm : {false, true}) {
      Case c = make_case(op, gate_input, beta_input, {9, 0, 1, 4}, {}, seed);
      c.p.qk_l2norm = qk_l2norm;
      if (seed % 3 == 0) c.scale = -.7f;
      expect_reference(c, forward(c));
    }
  });
}

// S-10: no dimension is special.
TEST(Recurrent, AnyDimensions) {
  const Shape shapes[] = {{1, 1, 1, 1},    {1, 1, 1, 7},   {1, 2, 5, 1},
                          {1, 1, 100, 72}, {1, 1, 16, 33}, {3, 3, 65, 130}};
  for (const Shape& shape : shapes)
    for (const Op op : {kda, gdn, gla, gdn2}) {
      Case c = simple_case(op, {17, 2}, shape);
      c.p.qk_l2norm = true;
      expect_reference(c, forward(c), 1e-6);
    }
}

// N-01: equal keys of norm 1 make the recurrence a scalar one, whatever the matrices do in between.
TEST(Recurrent, EqualKeysHaveAClosedForm) {
  for (const std::int64_t tokens : {16, 17, 64, 65, 128, 4096})
    for (const float beta : {.5f, .9f, .9995f, 1.f, 1.9f, 2.f}) {
      Case c = make_case(gdn, GateInput::kLogDecay, BetaInput::kValue, {tokens}, {1, 1, 4, 2});
      c.q.assign(c.q.size(), .5f), c.k.assign(c.k.size(), .5f);
      c.beta.assign(c.beta.size(), beta), c.g.assign(c.g.size(), -2e-5f);
      const Result result = forward(c);
      std::vector<double> r(2), truth;
      const bool key_value = c.p.state_layout == StateLayout::kKeyValue;
      for (std::size_t i = 0; i < 8; ++i) r[key_value ? i % 2 : i / 4] += .5 * c.initial[i];
      for (std::size_t t = 0; t < c.g.size(); ++t)
        for (std::size_t i = 0; i < 2; ++i) {
          r[i] = (1 - static_cast<double>(beta)) * std::exp(static_cast<double>(c.g[t])) * r[i] +
                 beta * c.v[t * 2 + i];
          truth.push_back(.5 * r[i]);  // scale is K^-1/2
        }
      EXPECT_LE(relative_error(result.out, truth), 1e-7) << tokens << " " << beta;
    }
}

// T-03, T-10: cut anywhere and carried on in an fp32 state.
TEST(Recurrent, SplitAtEveryPosition) {
  for (const Op op : all_ops()) {
    const Case whole = simple_case(op, {40}, {1, 2, 4, 3});
    const Result all = forward(whole);
    for (std::int64_t s = 0; s <= 40; ++s) {
      const Result head = forward(part(whole, 0, s));
      Case tail_case = part(whole, s, 40);
      tail_case.initial = head.final;
      const Result tail = forward(tail_case);
      EXPECT_TRUE(same_bits(head.out, rows(all.out, 40, 0, s))) << s;
      EXPECT_LE(relative_error(tail.out, rows(all.out, 40, s, 40)), 1e-6) << s << name_of(whole.p);
      EXPECT_LE(relative_error(tail.final, all.final), 1e-6) << s << name_of(whole.p);
    }
  }
}

TEST(Recurrent, LaterTokensDoNotMatter) {
  for (const Op op : all_ops()) {
    Case c = simple_case(op, {20});
    const Result before = forward(c);
    for (Floats Case::* x : {&Case::q, &Case::k, &Case::v})
      std::fill((c.*x).end() - static_cast<std::int64_t>((c.*x).size()) * 7 / 20, (c.*x).end(),
                NAN);
    EXPECT_TRUE(same_bits(rows(before.out, 20, 0, 13), rows(forward(c).out, 20, 0, 13)));
  }
}

// S-03, C-10, V-01: a sequence among others, empty ones and NaN ones too, is the sequence alone.
TEST(Recurrent, SequencesAreIndependent) {
  for (const Op op : all_ops()) {
    Case c = simple_case(op, {0, 7, 0, 0, 1, 12, 0});
    const std::int64_t matrices = c.sequences();
    for (std::int64_t i = 8 * c.p.value_heads * c.p.value_dim;
         i < static_cast<std::int64_t>(c.v.size()); ++i)
      c.v[static_cast<std::size_t>(i)] = NAN;
    const Result all = forward(c);
    Case alone = part(c, 0, 7);
    alone.initial = rows(c.initial, matrices, 1, 2);
    const Result one = forward(alone);
    EXPECT_TRUE(same_bits(rows(all.out, c.tokens, 0, 7), one.out));
    EXPECT_TRUE(same_bits(rows(all.final, matrices, 1, 2), one.final));
    for (const std::int64_t empty : {0, 2, 3, 6})
      EXPECT_TRUE(same_bits(rows(all.final, matrices, empty, empty + 1),
                            rows(c.initial, matrices, empty, empty + 1)));
  }
}

// L-08, S-13: value head i of a group with query and key head i / group.
TEST(Recurrent, HeadsAreIndependent) {
  for (const Op op : all_ops()) {
    const Case c = simple_case(op, {11}, {2, 6, 4, 3});
    const Result all = forward(c);
    for (std::size_t head = 0; head < 6; ++head) {
      Case one = c;
      one.p.heads = one.p.value_heads = 1;
      const auto pick = [&](Floats Case::* x, std::size_t heads, std::size_t at) {
        const std::size_t tokens = x == &Case::g && op.gate == Gate::kHeadConstant ? 1 : 11;
        const std::size_t width = (c.*x).size() / tokens / heads;
        (one.*x).clear();
        for (std::size_t t = 0; t < (width == 0 ? 0 : tokens); ++t)
          for (std::size_t i = 0; i < width; ++i)
            (one.*x).push_back((c.*x)[(t * heads + at) * width + i]);
      };
      pick(&Case::q, 2, head / 3), pick(&Case::k, 2, head / 3);
      for (Floats Case::* x : {&Case::v, &Case::g, &Case::beta, &Case::erase, &Case::write})
        pick(x, 6, head);
      one.initial =
          rows(c.initial, 6, static_cast<std::int64_t>(head), static_cast<std::int64_t>(head) + 1);
      const Result result = forward(one);
      EXPECT_TRUE(same_bits(
          rows(all.final, 6, static_cast<std::int64_t>(head), static_cast<std::int64_t>(head) + 1),
          result.final));
      for (std::size_t t = 0; t < 11; ++t)
        for (std::size_t i = 0; i < 3; ++i)
          EXPECT_EQ(result.out[t * 3 + i], all.out[(t * 6 + head) * 3 + i]);
    }
  }
}

// L-07: with K = V only the values can tell.
TEST(Recurrent, StateLayouts) {
  for (const StateLayout layout : {StateLayout::kKeyValue, StateLayout::kValueKey}) {
    Case c = make_case(kda, GateInput::kLogDecay, BetaInput::kValue, {1}, {1, 1, 8, 8});
    c.p.state_layout = layout;
    c.g.assign(8, 0.f), c.beta.assign(1, 0.f), c.q.assign(8, 0.f), c.initial.assign(64, 0.f);
    c.q[0] = 1, c.scale = .5f;
    c.initial[layout == StateLayout::kKeyValue ? 5 : 5 * 8] = 1;  // key 0, value 5
    const Result result = forward(c);
    for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(result.out[i], i == 5 ? .5f : 0.f);
    EXPECT_TRUE(same_bits(result.final, c.initial));
  }
  Case key_value = simple_case(kda, {9, 3}, {}, 2), value_key = key_value;
  value_key.p.state_layout = StateLayout::kValueKey;
  const auto transposed = [](const Floats& x) {
    Floats y(x.size());
    for (std::size_t m = 0; m < x.size() / 6; ++m)
      for (std::size_t i = 0; i < 6; ++i) y[m * 6 + i % 2 * 3 + i / 2] = x[m * 6 + i];
    return y;
  };
  value_key.initial = transposed(key_value.initial);
  const Result a = forward(key_value), b = forward(value_key);
  EXPECT_TRUE(same_bits(a.out, b.out));
  EXPECT_TRUE(same_bits(transposed(a.final), b.final));
}

// V-03, and sequences of equal length without offsets.
TEST(Recurrent, OffsetsOfAnyKind) {
  for (const Op op : {kda, lightning, gdn2}) {
    const Case c = simple_case(op, {6, 6, 6});
    const Result expected = forward(c);
    const std::int32_t offsets[] = {0, 6, 12, 18};
    const Result narrow =
        forward(c, [&](ForwardArgs& a) { a.cu_seqlens = offsets, a.cu_seqlens_dtype = 0; });
    const Result dense = forward(c, [&](ForwardArgs& a) {
      a.cu_seqlens = nullptr;
      for (Tensor* x : {&a.q, &a.k, &a.v, &a.g, &a.beta, &a.erase, &a.write, &a.out})
        x->sequence_stride = 6 * x->token_stride;
    });
    for (const Result& result : {narrow, dense}) {
      EXPECT_TRUE(same_bits(result.out, expected.out));
      EXPECT_TRUE(same_bits(result.final, expected.final));
    }
  }
}

// V-02, S-05.
TEST(Recurrent, SurplusRowsAndNoTokens) {
  Case c = simple_case(kda, {4, 5});
  c.offsets.back() = 6;
  for (const float x : rows(forward(c).out, 9, 6, 9)) EXPECT_EQ(x, 0);
  c.offsets = {0};
  c.initial.clear();
  for (const float x : forward(c).out) EXPECT_EQ(x, 0);
  for (const auto& lengths : {std::vector<std::int64_t>{0}, std::vector<std::int64_t>{0, 0, 0}})
    for (const Op op : all_ops()) {
      Case none = simple_case(op, lengths);
      EXPECT_TRUE(same_bits(forward(none).final, none.initial));
      none.initial.clear();
      for (const float x : forward(none).final) EXPECT_EQ(x, 0);
    }
}

// L-03, L-06, L-10: slices of wider rows, heads before tokens, pools with a gap. What lies between
// stays as it is.
TEST(Recurrent, StridesOfAnyKind) {
  const Case c = simple_case(gdn2, {5, 3}, {2, 4, 3, 2});
  const Result expected = forward(c);
  const auto spread = [](Floats& store, Tensor& x, const Floats& values, std::int64_t heads,
                         std::int64_t dim) {
    const std::int64_t head_stride = 8 * (dim + 1) + 3,
                       token_stride = dim + 1;  // [heads, tokens, dim] with gaps
    store.assign(static_cast<std::size_t>(heads * head_stride), -7.f);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto at = static_cast<std::int64_t>(i);
      store[static_cast<std::size_t>(at / dim / heads * token_stride +
                                     at / dim % heads * head_stride + at % dim)] = values[i];
    }
    x = {store.data(), 0, token_stride, head_stride};
  };
  Floats stores[8], pool(2 * (4 * 6 + 5) + 3 * 4, -7.f);
  const Result strided = forward(c, [&](ForwardArgs& a) {
    spread(stores[0], a.q, c.q, 2, 3), spread(stores[1], a.k, c.k, 2, 3),
        spread(stores[2], a.v, c.v, 4, 2);
    spread(stores[3], a.g, c.g, 4, 3), spread(stores[4], a.erase, c.erase, 4, 3),
        spread(stores[5], a.write, c.write, 4, 2);
    spread(stores[6], a.out, Floats(expected.out.size(), 9.f), 4, 2);
    a.final_state = {pool.data(), 2, 4 * 7 + 3, 7};
  });
  spread(stores[7], *std::make_unique<Tensor>(), expected.out, 4, 2);
  EXPECT_TRUE(same_bits(stores[6], stores[7]));
  Floats expected_pool(pool.size(), -7.f);
  for (std::size_t i = 0; i < 48; ++i)
    expected_pool[i / 24 * 31 + i / 6 % 4 * 7 + i % 6] = expected.final[i];
  EXPECT_TRUE(same_bits(pool, expected_pool));
}

// T-02, T-08, V-08: slots of a pool, read and written in place; null ids, pads and
// has_initial_state.
TEST(Recurrent, SlotsAndPads) {
  for (const Op op : all_ops())
    for (const std::int32_t first_slot : {0, 1}) {
      Case c = simple_case(op, {4, 3, 0, 5, 2, 6});
      const std::int64_t matrix = c.p.value_heads * c.matrix();
      const std::int32_t null = first_slot - 1;
      const std::int32_t read[] = {5, 2, 3, null, null, 1}, write[] = {5, 4, 6, 7, null, null};
      const std::uint8_t has[] = {1, 1, 1, 1, 1, 0};
      Floats pool(static_cast<std::size_t>(8 * matrix));
      for (std::size_t i = 0; i < pool.size(); ++i) pool[i] = std::sin(static_cast<float>(i));
      const Floats before = pool;
      for (std::int64_t n = 0; n < 6; ++n)
        for (std::int64_t i = 0; i < matrix; ++i)
          c.initial[static_cast<std::size_t>(n * matrix + i)] =
              read[n] == null || has[n] == 0
                  ? 0
                  : before[static_cast<std::size_t>(read[n] * matrix + i)];
      const Result expected = forward(c);
      const Result result = forward(c, [&](ForwardArgs& a) {
        a.initial_state = a.final_state =
            contiguous_state(pool.data(), 8, c.p.value_heads, c.p.key_dim, c.p.value_dim);
        a.read_slots = read, a.write_slots = write, a.has_initial_state = has,
        a.first_slot = first_slot;
      });
      Floats out = expected.out;
      std::fill(out.begin() + 12 * 8, out.begin() + 14 * 8, 0.f);  // sequence 4 is a pad
      EXPECT_TRUE(same_bits(result.out, out)) << name_of(c.p);
      Floats expected_pool = before;
      for (std::int64_t n = 0; n < 6; ++n)
        if (write[n] != null)
          std::copy_n(expected.final.begin() + n * matrix, matrix,
                      expected_pool.begin() + write[n] * matrix);
      EXPECT_TRUE(same_bits(pool, expected_pool)) << name_of(c.p);
    }
}

// The state after `position` tokens of the whole sequence, as a run of so many tokens ends.
TEST(Recurrent, Checkpoints) {
  for (const DType dtype : {DType::kUnset, DType::kBFloat16}) {
    Case c = simple_case(kda, {10, 0, 7});
    c.p.checkpoint_interval = 2;
    c.p.checkpoint_dtype = dtype;
    const std::int64_t matrix = c.p.value_heads * c.matrix();
    const std::int32_t starts[] = {4, 6, 0}, offsets[] = {0, 6, 8, 11};
    const std::int32_t positions[] = {2, 4, 6, 10, 14, 16, 4, 6, 0, 2, 8},
                       slots[] = {0, 1, 2, -1, 3, 4, 5, 6, 7, 8, 9};
    Buffer pool = Buffer(Floats(static_cast<std::size_t>(10 * matrix), 5.f),
                         dtype == DType::kUnset ? DType::kFloat32 : dtype);
    forward(c, [&](ForwardArgs& a) {
      a.checkpoints =
          contiguous_state(pool.data(), 10, c.p.value_heads, c.p.key_dim, c.p.value_dim);
      a.start_positions = starts;
      a.checkpoint_offsets = offsets, a.checkpoint_positions = positions,
      a.checkpoint_slots = slots;
    });
    const auto state_after = [&](std::int64_t n, std::int64_t tokens) {
      Case piece = part(c, c.offsets[static_cast<std::size_t>(n)],
                        c.offsets[static_cast<std::size_t>(n)] + tokens);
      piece.initial = rows(c.initial, 3, n, n + 1);
      Floats state = forward(piece).final;
      for (float& x : state) x = dtype == DType::kUnset ? x : rounded(x, dtype);
      return state;
    };
    const Floats after = pool.floats();
    const auto slot = [&](std::int64_t s) { return rows(after, 10, s, s + 1); };
    const Floats untouched(static_cast<std::size_t>(matrix), 5.f);
    EXPECT_TRUE(same_bits(slot(0), untouched));
    EXPECT_TRUE(same_bits(slot(1), state_after(0, 0)));
    EXPECT_TRUE(same_bits(slot(2), state_after(0, 2)));
    EXPECT_TRUE(same_bits(slot(3), state_after(0, 10)));
    EXPECT_TRUE(same_bits(slot(4), untouched));
    EXPECT_TRUE(same_bits(slot(5), untouched));
    EXPECT_TRUE(same_bits(slot(6), state_after(1, 0)));
    EXPECT_TRUE(same_bits(slot(7), state_after(2, 0)));
    EXPECT_TRUE(same_bits(slot(8), state_after(2, 2)));
    EXPECT_TRUE(same_bits(slot(9), untouched));
  }
}

// N-18: final state = M initial state + state from zero; the identity for no tokens.
TEST(Recurrent, Transition) {
  for_each_kind([](Op op, GateInput gate_input, BetaInput beta_input, std::uint64_t seed) {
    Case c = make_case(op, gate_input, beta_input, {8, 0, 3}, {}, seed);
    c.p.qk_l2norm = true;
    const std::size_t keys = 3, values = 2, heads = 4;
    Floats transition(3 * heads * keys * keys, NAN);
    const auto ask = [&](ForwardArgs& a) { a.transition = {transition.data(), 3, 4 * 9, 9}; };
    const Result result = forward(c, ask);
    Case zero = c;
    zero.initial.clear();
    const Result from_zero = forward(zero);
    const bool key_value = c.p.state_layout == StateLayout::kKeyValue;
    std::vector<double> sum(result.final.size());
    for (std::size_t m = 0; m < 3 * heads; ++m)
      for (std::size_t i = 0; i < keys; ++i)
        for (std::size_t v = 0; v < values; ++v) {
          const auto at = [&](std::size_t key) {
            return m * 6 + (key_value ? key * values + v : v * keys + key);
          };
          sum[at(i)] = from_zero.final[at(i)];
          for (std::size_t j = 0; j < keys; ++j)
            sum[at(i)] += static_cast<double>(transition[m * 9 + i * 3 + j]) * c.initial[at(j)];
        }
    EXPECT_LE(relative_error(result.final, sum), 1e-6) << name_of(c.p);
    for (std::size_t i = 0; i < heads * 9; ++i)
      EXPECT_EQ(transition[heads * 9 + i], i % 9 % 4 == 0 ? 1.f : 0.f);
    EXPECT_TRUE(same_bits(forward(c).out, result.out));
  });
}

// N-13, N-19, T-09: 16-bit tensors are storage. The same values as fp32 give the same results,
// rounded once.
TEST(Recurrent, SixteenBitTensorsAreStorage) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16})
    for (const Op op : all_ops()) {
      Case c = make_case(op, op.gate == Gate::kNone ? GateInput::kUnset : GateInput::kSoftplus,
                         beta_inputs(op).front(), {12, 1}, {2, 4, 8, 5});
      for (Floats Case::* x : {&Case::q, &Case::k, &Case::v, &Case::g, &Case::beta, &Case::erase,
                               &Case::write, &Case::initial})
        for (float& value : c.*x) value = rounded(value, dtype);
      Result expected = forward(c);
      for (float& x : expected.out) x = rounded(x, dtype);
      for (float& x : expected.final) x = rounded(x, dtype);
      c.p.dtype = c.p.gate_dtype = c.p.beta_dtype = c.p.state_dtype = dtype;
      const Result result = forward(c);
      EXPECT_TRUE(same_bits(result.out, expected.out));
      EXPECT_TRUE(same_bits(result.final, expected.final));
    }
}

// N-11: sigmoid(0.5) is never rounded to 16 bits.
TEST(Recurrent, StrengthsKeepTheirPrecision) {
  Case c = make_case(delta_rule, GateInput::kUnset, BetaInput::kLogit, {1}, {1, 1, 2, 1});
  c.p.beta_dtype = DType::kBFloat16;
  c.k = {1, 0}, c.v = {1}, c.beta = {.5f}, c.initial.clear();
  EXPECT_FLOAT_EQ(forward(c).final[0], 0.62245933f);
}

// N-05, N-06: decays from mild to total, some channels or all.
TEST(Recurrent, StrongDecays) {
  for (const Op op : {kda, gdn, gla, simple_gla, gdn2, lightning})
    for (const float decay :
         {-1.4f, -5.54f, -5.92f, -11.2f, -20.f, -88.f, -200.f, -1e4f, -kInfinity})
      for (const std::int64_t tokens : {1, 15, 17, 65, 129})
        for (const bool all : {false, true}) {
          Case c =
              make_case(op, GateInput::kLogDecay, beta_inputs(op).front(), {tokens}, {1, 1, 4, 3});
          for (std::size_t i = 0; i < c.g.size(); ++i)
            if (all || i % 4 == 1) c.g[i] = decay;
          const Result result = forward(c);
          for (const float x : result.out) ASSERT_TRUE(std::isfinite(x));
          for (const float x : result.final) ASSERT_TRUE(std::isfinite(x));
          expect_reference(c, result);
          if (!all || decay > -88 || op != kda) continue;
          for (std::size_t t = 1; t < c.beta.size(); ++t) {  // only the token itself is left
            double qk = 0;
            for (std::size_t i = 0; i < 4; ++i)
              qk += static_cast<double>(c.q[t * 4 + i]) * c.k[t * 4 + i];
            for (std::size_t i = 0; i < 3; ++i)
              EXPECT_NEAR(result.out[t * 3 + i], .5 * c.beta[t] * qk * c.v[t * 3 + i], 1e-7);
          }
        }
}

// A decay of 0 forgets infinities too, and so does a linear decay of 0.
TEST(Recurrent, TotalDecayForgetsInfinities) {
  for (const GateInput input : {GateInput::kLogDecay, GateInput::kDecay}) {
    Case c = make_case(kda, input, BetaInput::kValue, {3}, {1, 1, 2, 2});
    std::fill_n(c.g.begin(), 2, input == GateInput::kDecay ? 0.f : -kInfinity);
    c.initial = {kInfinity, NAN, -kInfinity, 1};
    Case clean = c;
    clean.initial.clear();
    EXPECT_TRUE(same_bits(forward(c).out, forward(clean).out));
  }
}

// N-08: a dip of one channel leaves the others' bits alone. With orthogonal keys the channels do
// not meet.
TEST(Recurrent, DipOfOneChannel) {
  Case c = make_case(gla, GateInput::kLogDecay, BetaInput::kUnset, {64}, {1, 1, 4, 3});
  c.g.assign(c.g.size(), 0.f);
  c.p.state_layout = StateLayout::kKeyValue;
  const Result flat = forward(c);
  for (const std::size_t offset : {0u, 14u, 15u, 31u, 60u}) {
    Case dip = c;
    for (std::size_t t = offset; t < offset + 4; ++t) dip.g[t * 4 + 2] = -26;
    const Result result = forward(dip);
    expect_reference(dip, result);
    for (std::size_t i = 0; i < 12; ++i)
      if (i / 3 != 2) {
        EXPECT_EQ(result.final[i], flat.final[i]);
      }
  }
}

// N-09: a positive log decay grows the state.
TEST(Recurrent, PositiveLogDecayIsPassedThrough) {
  for (const float growth : {.01f, 1.f}) {
    Case c = make_case(simple_gla, GateInput::kLogDecay, BetaInput::kUnset, {64}, {1, 1, 4, 3});
    c.g.assign(c.g.size(), growth);
    expect_reference(c, forward(c));
  }
}

// N-17.
TEST(Recurrent, NormOfExtremeRows) {
  Case c = make_case(kda, GateInput::kLogDecay, BetaInput::kValue, {6}, {1, 1, 4, 3});
  c.p.qk_l2norm = true;
  const float sizes[] = {0, 1e-4f, 1e-20f, 1e19f, 1, 3};
  for (std::size_t t = 0; t < 6; ++t)
    for (std::size_t i = 0; i < 4; ++i) c.q[t * 4 + i] *= sizes[t], c.k[t * 4 + i] *= sizes[5 - t];
  const Result result = forward(c);
  for (const float x : result.out) EXPECT_TRUE(std::isfinite(x));
  expect_reference(c, result);
}

// N-02, N-21: correlated keys, and keys that make the transition expansive.
TEST(Recurrent, CorrelatedAndLongKeys) {
  for (const float spread : {0.f, .01f, .3f})
    for (const float norm : {.9f, 1.6f}) {
      Case c = make_case(kda, GateInput::kLogDecay, BetaInput::kValue, {300}, {1, 1, 8, 3});
      for (std::size_t i = 0; i < c.k.size(); ++i) c.k[i] = norm * (.35f + spread * c.k[i]);
      c.beta.assign(c.beta.size(), norm > 1 ? .7f : 1.f);
      for (float& g : c.g) g = g * .02f - .012f;
      expect_reference(c, forward(c), 1e-6);
    }
}

// S-14: ops that are special cases of others.
TEST(Recurrent, OpsContainEachOther) {
  Case c = make_case(kda, GateInput::kLogDecay, BetaInput::kLogit, {30}, {1, 2, 4, 3});
  const Result by_kda = forward(c);
  Case by_gdn2 = c;
  by_gdn2.p.op = gdn2;
  for (const float beta : c.beta) {
    by_gdn2.erase.insert(by_gdn2.erase.end(), 4, beta);
    by_gdn2.write.insert(by_gdn2.write.end(), 3, beta);
  }
  by_gdn2.beta.clear();
  EXPECT_TRUE(same_bits(forward(by_gdn2).out, by_kda.out));
  Case bare = make_case(linear_attention, GateInput::kUnset, BetaInput::kUnset, {30}, {1, 2, 4, 3});
  const Result by_bare = forward(bare);
  for (const Op op : {gla, simple_gla, lightning}) {
    Case open = bare;
    open.p.op = op;
    open.p.gate_input = GateInput::kLogDecay;
    open.g.assign(30 * 2 * 4, 0.f);
    EXPECT_TRUE(same_bits(forward(open).out, by_bare.out));
  }
}

TEST(Recurrent, ThreadsChangeNothing) {
  for (const Op op : {kda, simple_gla, gdn2}) {
    const Case c = simple_case(op, {33, 0, 5, 64}, {2, 6, 8, 5});
    set_threads(1);
    const Result one = forward(c);
    for (const int threads : {2, 4, 9}) {
      set_threads(threads);
      const Result many = forward(c);
      EXPECT_TRUE(same_bits(one.out, many.out) && same_bits(one.final, many.final)) << threads;
    }
    set_threads(0);
  }
}

// The workspace of a plan serves its runs, however the number of threads changes in between.
TEST(Recurrent, WorkspaceDoesNotDependOnThreads) {
  const Case c = simple_case(kda, {9, 9, 9});
  const ForwardPlan plan(c.p, Device::cpu(), "cpu.recurrent");
  set_threads(1);
  const std::size_t bytes = plan.workspace_bytes(27, 3);
  set_threads(64);
  EXPECT_EQ(plan.workspace_bytes(27, 3), bytes);
  set_threads(0);
  EXPECT_LE(plan.workspace_bytes(26, 2), bytes);
}

TEST(Recurrent, RefusesOtherDevicesOnly) {
  Problem p = simple_case(kda, {4}).p;
  EXPECT_NE(explain(p, Device::cuda(0)).find("cpu.recurrent: device is cuda:0, not cpu"),
            std::string::npos);
  EXPECT_NE(explain(p, Device::cpu()).find("cpu.recurrent: takes it"), std::string::npos);
}

}  // namespace
}  // namespace linattn::test
