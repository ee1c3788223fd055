// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "unit/recurrent_case.h"

namespace linattn::test {
namespace {

Case simple_case(Op op, std::vector<std::int64_t> lengths, Shape shape = {}) {
  return make_case(op, gate_inputs(op).front(), beta_inputs(op).front(), std::move(lengths), shape);
}

// A pool of states that no two slots or elements share.
struct Pool {
  Pool(const Case& c, std::int64_t slots)
      : c_(c), slots_(slots), x(static_cast<std::size_t>(slots * width())) {
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i));
  }
  std::int64_t width() const { return c_.p.value_heads * c_.matrix(); }
  State state() {
    return contiguous_state(x.data(), slots_, c_.p.value_heads, c_.p.key_dim, c_.p.value_dim);
  }
  Floats slot(std::int64_t i) const { return rows(x, slots_, i, i + 1); }
  void put(std::int64_t i, const Floats& values) {
    std::copy(values.begin(), values.end(), x.begin() + i * width());
  }

 private:
  const Case& c_;
  const std::int64_t slots_;

 public:
  Floats x;
};

// Tokens of one sequence in the given order, as a sequence of their own.
Case path(const Case& c, std::int64_t n, const std::vector<std::int64_t>& tokens,
          const Floats& initial) {
  Case out = c;
  const std::int64_t begin = c.offsets[static_cast<std::size_t>(n)];
  for (Floats Case::* x :
       {&Case::q, &Case::k, &Case::v, &Case::g, &Case::beta, &Case::erase, &Case::write}) {
    if (x == &Case::g && c.p.op.gate == Gate::kHeadConstant) continue;
    (out.*x).clear();
    for (const std::int64_t t : tokens) {
      const Floats row = rows(c.*x, c.tokens, begin + t, begin + t + 1);
      (out.*x).insert((out.*x).end(), row.begin(), row.end());
    }
  }
  out.tokens = static_cast<std::int64_t>(tokens.size());
  out.offsets = {0, out.tokens};
  out.initial = initial;
  return out;
}

// T-04.
TEST(RecurrentStep, EqualsForwardBitForBit) {
  for (const Op op : all_ops())
    for (const GateInput gate_input : gate_inputs(op))
      for (std::int64_t tokens = 0; tokens <= 8; ++tokens) {
        Case c =
            make_case(op, gate_input, beta_inputs(op).back(), {tokens, 1, tokens}, {1, 2, 8, 5});
        c.p.qk_l2norm = true;
        const Result expected = forward(c), result = step(c);
        EXPECT_TRUE(same_bits(result.out, expected.out)) << tokens << name_of(c.p);
        EXPECT_TRUE(same_bits(result.final, expected.final)) << tokens << name_of(c.p);
      }
}

// Decode: as many calls as tokens, in place, against one forward pass.
TEST(RecurrentStep, DecodeFollowsForward) {
  for (const Op op : all_ops()) {
    const Case c = simple_case(op, {100}, {1, 2, 8, 5});
    const Result expected = forward(c);
    Floats state = c.initial, out;
    for (std::int64_t t = 0; t < 100; ++t) {
      Case one = part(c, t, t + 1);
      const Result result = step(one, [&](StepArgs& a) {
        a.initial_state = a.final_state = contiguous_state(state.data(), 1, 2, 8, 5);
      });
      out.insert(out.end(), result.out.begin(), result.out.end());
    }
    EXPECT_LE(relative_error(out, expected.out), 1e-6) << name_of(c.p);
    EXPECT_LE(relative_error(state, expected.final), 1e-6) << name_of(c.p);
  }
}

// N-13: inside a call the state is not rounded to the pool's 16 bits; between calls it is.
TEST(RecurrentStep, StateIsRoundedBetweenCallsOnly) {
  Case c = simple_case(kda, {8}, {1, 1, 8, 5});
  c.p.state_dtype = DType::kBFloat16;
  for (float& x : c.initial) x = rounded(100 * x, DType::kBFloat16);
  for (float& x : c.g) x *= .01f;
  for (float& x : c.beta) x *= .01f;
  const Reference truth = brute_force(c, Doubles(c));
  const Result result = step(c);
  EXPECT_LE(relative_error(result.out, truth.out), 1e-7);
  for (std::size_t i = 0; i < result.final.size(); ++i)
    EXPECT_EQ(result.final[i], rounded(static_cast<float>(truth.final[i]), DType::kBFloat16));
}

// A slot per token, chosen columns to start from, counts that make a pad. T-05: only a sequence's
// own tokens count.
TEST(RecurrentStep, SlotsPerToken) {
  for (const Op op : all_ops()) {
    const Case c = simple_case(op, {3, 1, 4, 2, 2, 2});
    Pool pool(c, 24), expected(c, 24);
    const std::int32_t read[6][4] = {{1, 2, 3, 4},    {5, 6, 7, 8},     {-1, 10, 11, 12},
                                     {-1, 9, -1, -1}, {13, 14, 15, 16}, {-1, -1, 17, 17}};
    const std::int32_t write[6][4] = {{1, 2, 3, 99},    {20, 99, 99, 99}, {11, -1, 10, 12},
                                      {21, -1, 99, 99}, {13, 14, 99, 99}, {-1, -1, 99, 99}};
    // The fourth starts from zero, the fifth's count is out of range, the last reads and writes
    // nothing.
    const std::int32_t accepted[] = {3, 1, 4, 1, 5, 2};
    Floats out(static_cast<std::size_t>(c.tokens * 8), 0.f);
    for (std::int64_t n = 0; n < 4; ++n) {
      const std::int32_t slot = read[n][accepted[n] - 1];
      const Floats initial =
          slot < 0 ? Floats(static_cast<std::size_t>(pool.width())) : pool.slot(slot);
      std::vector<std::int64_t> tokens;
      for (std::int64_t t = 0;
           t < c.offsets[static_cast<std::size_t>(n) + 1] - c.offsets[static_cast<std::size_t>(n)];
           ++t) {
        tokens.push_back(t);
        const Result result = forward(path(c, n, tokens, initial));
        const Floats last = rows(result.out, t + 1, t, t + 1);
        std::copy(last.begin(), last.end(),
                  out.begin() + (c.offsets[static_cast<std::size_t>(n)] + t) * 8);
        if (write[n][t] >= 0) expected.put(write[n][t], result.final);
      }
    }
    const Result result = step(c, [&](StepArgs& a) {
      a.initial_state = a.final_state = pool.state();
      a.read_slots = &read[0][0], a.read_slot_stride = 4, a.accepted = accepted;
      a.write_slots = &write[0][0], a.write_slot_stride = 4;
    });
    EXPECT_TRUE(same_bits(result.out, out)) << name_of(c.p);
    EXPECT_TRUE(same_bits(pool.x, expected.x)) << name_of(c.p);
  }
}

// Every token continues its parent's state; in place too, where the root's slot is overwritten at
// once.
TEST(RecurrentStep, DraftTrees) {
  const std::vector<std::vector<std::int32_t>> trees = {
      {-1, 0, 1, 2}, {-1, -1, -1}, {-1, 0, 0, 1, 1, 2, 2, 0}, {-1, 0, -1, 2, 1, 3, 0, 2}};
  for (const Op op : all_ops())
    for (const auto& parents : trees) {
      const auto tokens = static_cast<std::int64_t>(parents.size());
      const Case c = simple_case(op, {0, tokens}, {1, 2, 8, 5});
      Pool pool(c, 9), expected(c, 9);
      const Floats initial = pool.slot(3);
      const std::int32_t read[] = {8, 3};
      std::int32_t write[2][8] = {{-1, -1, -1, -1, -1, -1, -1, -1}, {3, 1, 2, 4, 5, 6, 7, 0}};
      Floats out;
      for (std::int64_t t = 0; t < tokens; ++t) {
        std::vector<std::int64_t> ancestors;
        for (std::int64_t at = t; at >= 0; at = parents[static_cast<std::size_t>(at)])
          ancestors.insert(ancestors.begin(), at);
        const Result result = forward(path(c, 1, ancestors, initial));
        const auto depth = static_cast<std::int64_t>(ancestors.size());
        const Floats last = rows(result.out, depth, depth - 1, depth);
        out.insert(out.end(), last.begin(), last.end());
        expected.put(write[1][t], result.final);
      }
      const Result result = step(c, [&](StepArgs& a) {
        a.initial_state = a.final_state = pool.state();
        a.read_slots = read;
        a.write_slots = &write[0][0], a.write_slot_stride = 8;
        a.parents = parents.data();
      });
      EXPECT_TRUE(same_bits(result.out, out)) << name_of(c.p);
      EXPECT_TRUE(same_bits(pool.x, expected.x)) << name_of(c.p);
    }
}

TEST(RecurrentStep, PadsNullIdsAndSurplusRows) {
  Case c = simple_case(kda, {2, 1, 0, 1, 3});
  c.offsets.back() = 5;  // two rows past it
  Pool pool(c, 7), expected(c, 7);
  const std::int32_t read[] = {1, 0, 3, 0, 5}, write[] = {2, 0, 4, 6, 0};  // ids below 1 are null
  const std::uint8_t has[] = {1, 1, 1, 1, 0};
  Case plain = c;
  for (std::int64_t n = 0; n < 5; ++n) {
    const Floats state = read[n] == 0 || has[n] == 0
                             ? Floats(static_cast<std::size_t>(pool.width()))
                             : pool.slot(read[n]);
    std::copy(state.begin(), state.end(), plain.initial.begin() + n * pool.width());
  }
  Result truth = step(plain);
  std::fill(truth.out.begin() + 16, truth.out.begin() + 24, 0.f);  // sequence 1 is a pad
  for (std::int64_t n = 0; n < 5; ++n)
    if (write[n] != 0) expected.put(write[n], rows(truth.final, 5, n, n + 1));
  const Result result = step(c, [&](StepArgs& a) {
    a.initial_state = a.final_state = pool.state();
    a.read_slots = read, a.write_slots = write, a.has_initial_state = has, a.first_slot = 1;
  });
  EXPECT_TRUE(same_bits(result.out, truth.out));
  EXPECT_TRUE(same_bits(pool.x, expected.x));
  for (const float x : rows(result.out, 7, 5, 7)) EXPECT_EQ(x, 0);
}

}  // namespace
}  // namespace linattn::test
