// SPDX-License-Identifier: Apache-2.0
//
// What holds for every implementation whatever its precision: no tolerance, unless a test says why.
#include <gtest/gtest.h>

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <string>
#include <vector>

#include "cpu/thread_pool.h"
#include "ops/compare.h"
#include "ops/run_log.h"
#include "ops/slice.h"

namespace linattn::test {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr std::int64_t kChunk = 64;

constexpr DType kDTypes[] = {DType::kFloat32, DType::kBFloat16};  // rows take one of them or both

struct Subject {
  NamedOp op;
  Pass pass;
  DType dtype;
};

std::string name_of(const Subject& x) {
  return std::string(x.op.name) + "_" + to_string(x.pass) +
         (x.dtype == DType::kBFloat16 ? "_bf16" : "");
}
void PrintTo(const Subject& x, std::ostream* stream) { *stream << name_of(x); }

// Tensor cores multiply the tokens of a chunk as a whole, zeros above the diagonal included, and 0
// times NaN or infinity is NaN.
std::int64_t shared_tokens(const std::string& row) {
  return row == "portable.forward" || row.starts_with("sm90.") ? 32 : 1;
}

// The properties of each op; T is 70 for forward and backward, 6 for step, so that a chunk has a
// tail.
class Property : public testing::TestWithParam<Subject> {
 protected:
  std::int64_t tokens() const { return GetParam().pass == Pass::kStep ? 6 : 70; }
  Drawn drawn(std::vector<std::int64_t> lengths, std::int32_t heads,
              std::int32_t value_heads) const {
    Drawn d;
    d.scenario = make(GetParam().op.op, GetParam().pass, std::move(lengths), heads, value_heads, 32,
                      48, GetParam().dtype);
    d.scenario.seed = 77;
    d.inputs = draw(d.scenario);
    return d;
  }
  // Every implementation that takes it.
  template <class Body>
  void each(const Drawn& d, Body&& body) const {
    for (const std::string& row : takers(d.scenario)) {
      SCOPED_TRACE(reproduce(d.scenario, row));
      body(row);
    }
  }
};

std::vector<Subject> every_op(std::initializer_list<Pass> passes) {
  std::vector<Subject> all;
  for (const NamedOp& op : kAllOps)
    for (const Pass pass : passes)
      for (const DType dtype : kDTypes) all.push_back({op, pass, dtype});
  return all;
}

std::string name_of_param(const testing::TestParamInfo<Subject>& info) {
  return name_of(info.param);
}

INSTANTIATE_TEST_SUITE_P(
    Ops, Property, testing::ValuesIn(every_op({Pass::kForward, Pass::kBackward, Pass::kStep})),
    name_of_param);

class ForwardProperty : public Property {};  // what gradients, which look ahead, do not have
INSTANTIATE_TEST_SUITE_P(Ops, ForwardProperty,
                         testing::ValuesIn(every_op({Pass::kForward, Pass::kStep})), name_of_param);

// Output rows [0, P) do not see inputs at t >= P: other values there leave their bits alone. Values
// out of the common range (NaN, huge keys, gates past the exponent's range) may send the whole
// chunk down another route of chunked code, whose rounding differs: a tolerance for those, and
// still no NaN but in the tokens that share its products.
TEST_P(ForwardProperty, Causal) {
  enum class Future { kOtherDraw, kLarge, kStrongGates, kNaN };
  const Drawn whole = drawn({tokens()}, 1, 2);
  Drawn other = whole;
  other.scenario.seed = 78;
  other.inputs = draw(other.scenario);
  each(whole, [&](const std::string& row) {
    const Results before = must_run(whole, row);
    const Output& a = output(before, "out");
    for (const std::int64_t p : {std::int64_t{1}, tokens() / 2, tokens() - 1})
      for (const Future future :
           {Future::kOtherDraw, Future::kLarge, Future::kStrongGates, Future::kNaN}) {
        Drawn changed = whole;
        const auto spoil = [&](std::vector<float> Inputs::* field, float value) {
          std::vector<float>& x = changed.inputs.*field;
          if (x.empty()) return;
          const auto from = static_cast<std::int64_t>(x.size()) / tokens() * p;
          if (future == Future::kOtherDraw)
            std::copy((other.inputs.*field).begin() + from, (other.inputs.*field).end(),
                      x.begin() + from);
          else
            std::fill(x.begin() + from, x.end(), value);
        };
        for (const auto field :
             {&Inputs::q, &Inputs::k, &Inputs::v, &Inputs::beta, &Inputs::erase, &Inputs::write})
          if (future != Future::kStrongGates) spoil(field, future == Future::kNaN ? kNaN : 3);
        if (GetParam().op.op.gate != Gate::kHeadConstant && future != Future::kLarge)
          spoil(&Inputs::g, future == Future::kNaN ? kNaN : -30);
        const Results after = must_run(changed, row);
        const Output& b = output(after, "out");
        std::int64_t kept = p;
        if (future == Future::kLarge || future == Future::kNaN) kept -= p % shared_tokens(row);
        const std::vector<float> x(a.values.begin(), a.values.begin() + kept * a.row_width);
        const std::vector<float> y(b.values.begin(), b.values.begin() + kept * b.row_width);
        if (future == Future::kOtherDraw || row == kOracle)
          expect_same(x, y, "out before token " + std::to_string(p));
        else
          EXPECT_LE(relative_rms(y, x), limit(whole.scenario, row, 1e-6));
      }
  });
}

TEST_P(Property, HeadAloneEqualsHeadInBatch) {
  Drawn whole = drawn({tokens()}, 3, 6);
  each(whole, [&](const std::string& row) {
    const Results all = must_run(whole, row);
    for (std::int64_t h = 0; h < 3; ++h) {
      const Results alone = must_run(head_of(whole, h), row);
      for (const Output& one : alone) {
        const std::vector<float>& x = output(all, one.name).values;
        const bool by_key = one.name == "dq" || one.name == "dk";
        const std::int64_t heads = by_key ? 3 : 6, count = by_key ? 1 : 2;
        const bool over_tokens = one.row_width > 0;
        const std::int64_t rows = over_tokens ? tokens() : 1;
        const auto dim = static_cast<std::int64_t>(x.size()) / rows / heads;
        expect_same(part(x, heads, dim, 0, rows, h * count, count), one.values,
                    one.name + " of head " + std::to_string(h));
      }
    }
  });
}

// Its neighbours in the batch hold NaN, also in their states.
TEST_P(Property, RowAloneEqualsRowInBatch) {
  const std::int64_t t = tokens();
  Drawn whole = drawn({t / 2, t, 3, t}, 1, 2);
  each(whole, [&](const std::string& row) {
    for (const std::int64_t n : {1, 3}) {
      const Drawn one = rows_of(whole, n, 0, t);
      Drawn spoilt = whole;
      const auto spoil = [&](std::vector<float>& x, std::int64_t units, std::int64_t first,
                             std::int64_t last) {
        if (x.empty()) return;
        const auto width = static_cast<std::int64_t>(x.size()) / units;
        std::fill(x.begin(), x.begin() + first * width, kNaN);
        std::fill(x.begin() + last * width, x.end(), kNaN);
      };
      const std::int64_t first = whole.scenario.begin(n), rows = whole.scenario.tokens();
      Inputs& in = spoilt.inputs;
      for (auto* x : {&in.q, &in.k, &in.v, &in.beta, &in.erase, &in.write, &in.dout})
        spoil(*x, rows, first, first + t);
      if (GetParam().op.op.gate != Gate::kHeadConstant) spoil(in.g, rows, first, first + t);
      spoil(in.initial, 4, n, n + 1);
      spoil(in.dfinal, 4, n, n + 1);
      const Results all = must_run(spoilt, row);
      for (const Output& alone : must_run(one, row)) {
        // A gradient that is summed over sequences is not a row's.
        if (alone.name == "dg" && GetParam().op.op.gate == Gate::kHeadConstant) continue;
        const std::vector<float>& x = output(all, alone.name).values;
        const auto size = static_cast<std::int64_t>(alone.values.size());
        const std::int64_t at = alone.row_width > 0 ? first * alone.row_width : n * size;
        expect_same({x.begin() + at, x.begin() + at + size}, alone.values, alone.name);
      }
    }
  });
}

TEST_P(Property, PermutedHeadsGivePermutedResults) {
  const Drawn whole = drawn({tokens()}, 2, 2);
  Drawn swapped = whole;
  const auto swap_heads = [&](std::vector<float>& x, std::int64_t rows) {
    const auto dim = static_cast<std::int64_t>(x.size()) / rows / 2;
    for (std::int64_t r = 0; r < rows; ++r)
      std::swap_ranges(x.begin() + 2 * r * dim, x.begin() + (2 * r + 1) * dim,
                       x.begin() + (2 * r + 1) * dim);
  };
  Inputs& in = swapped.inputs;
  for (auto* x : {&in.q, &in.k, &in.v, &in.beta, &in.erase, &in.write, &in.dout})
    swap_heads(*x, tokens());
  swap_heads(in.g, GetParam().op.op.gate == Gate::kHeadConstant ? 1 : tokens());
  swap_heads(in.initial, 1), swap_heads(in.dfinal, 1);
  each(whole, [&](const std::string& row) {
    const Results expected = must_run(whole, row);
    for (Output& out : must_run(swapped, row)) {
      swap_heads(out.values, out.row_width > 0 ? tokens() : 1);
      expect_same(out.values, output(expected, out.name).values, out.name);
    }
  });
}

// K != V, so a transposition cannot hide.
TEST_P(Property, StateLayoutsAgree) {
  const Drawn key_value = drawn({tokens(), tokens()}, 1, 2);
  Drawn value_key = key_value;
  value_key.scenario.problem.state_layout = StateLayout::kValueKey;
  each(key_value, [&](const std::string& row) {
    EXPECT_EQ(difference(must_run(key_value, row), must_run(value_key, row)), "");
  });
}

TEST_P(Property, SameResultForOneTwoAndThreeThreads) {
  const Drawn whole = drawn({tokens(), tokens() / 2, 0, 1}, 2, 6);
  each(whole, [&](const std::string& row) {
    set_threads(1);
    const Results one = must_run(whole, row);
    for (const int threads : {2, 3}) {
      set_threads(threads);
      EXPECT_EQ(difference(one, must_run(whole, row)), "") << threads << " threads";
    }
    set_threads(0);
  });
}

// Twenty runs, the same bits (faults.md, harness rule 2).
TEST_P(Property, RepeatsBitForBit) {
  const Drawn whole = drawn({tokens(), 5}, 2, 4);
  each(whole, [&](const std::string& row) {
    const Results first = must_run(whole, row);
    for (int i = 0; i < 20; ++i) ASSERT_EQ(difference(first, must_run(whole, row)), "");
  });
}

TEST_P(Property, LargerBoundsAndWorkspaceChangeNothing) {
  const Drawn whole = drawn({tokens(), 5}, 1, 2);
  Drawn larger = whole;
  larger.scenario.problem.max_tokens = 5000;
  larger.scenario.problem.max_sequences = 77;
  each(whole, [&](const std::string& row) {
    EXPECT_EQ(difference(must_run(whole, row), must_run(larger, row)), "");
  });
}

// Grouped value heads are the repetition of q and k.
TEST_P(Property, GroupsEqualRepeatedKeys) {
  const Drawn grouped = drawn({tokens()}, 2, 6);
  Drawn repeated = grouped;
  repeated.scenario.problem.heads = 6;
  const auto repeat = [&](std::vector<float>& x) {
    std::vector<float> all;
    for (std::int64_t t = 0; t < tokens(); ++t)
      for (std::int64_t h = 0; h < 6; ++h) {
        const auto start = x.begin() + (t * 2 + h / 3) * 32;
        all.insert(all.end(), start, start + 32);
      }
    x = std::move(all);
  };
  repeat(repeated.inputs.q), repeat(repeated.inputs.k);
  each(grouped, [&](const std::string& row) {
    const Results expected = must_run(repeated, row);
    for (const Output& out : must_run(grouped, row)) {
      if (out.name != "dq" && out.name != "dk") {
        expect_same(out.values, output(expected, out.name).values, out.name);
        continue;
      }
      // Summed over a group, in an order of the implementation's: fp32 rounding.
      std::vector<float> sum(out.values.size(), 0);
      for (std::size_t i = 0; i < output(expected, out.name).values.size(); ++i)
        sum[(i / 32 / 6 * 2 + i / 32 % 6 / 3) * 32 + i % 32] +=
            output(expected, out.name).values[i];
      EXPECT_LE(relative_rms(out.values, sum), limit(grouped.scenario, row, 1e-6)) << out.name;
    }
  });
}

// What a plan asks for a call is enough for every smaller one.
template <class Args>
void expect_monotone(const Scenario& s, const std::string& row) {
  std::string refusal;
  const auto plan = pinned<Args>(s.problem, row, memory_under_test()->device(), refusal);
  ASSERT_TRUE(plan) << refusal;
  const std::int64_t tokens[] = {0, 1, 31, 33, 64, 255, 256, 767, 768, 1024, 5000, 20000};
  for (std::size_t t = 1; t < std::size(tokens); ++t)
    for (const std::int64_t n : {1, 2, 5, 76}) {
      const std::size_t bytes = plan->workspace_bytes(tokens[t], n);
      EXPECT_LE(plan->workspace_bytes(tokens[t - 1], n), bytes) << row << " " << tokens[t];
      EXPECT_LE(bytes, plan->workspace_bytes(tokens[t], n + 1)) << row << " " << tokens[t];
    }
  log_run(s.pass, row, 0);
}

TEST(Workspace, BytesAreMonotone) {
  for (const NamedOp& op : kAllOps)
    for (const Pass pass : {Pass::kForward, Pass::kStep})
      for (const DType dtype : kDTypes)
        for (const std::int32_t dim : {64, 128, 256}) {
          Scenario s = make(op.op, pass, {8}, 2, 4, dim, dim, dtype);
          s.problem.max_tokens = 20000;
          s.problem.max_sequences = 77;
          for (const std::string& row : takers(s)) {
            if (pass == Pass::kForward)
              expect_monotone<ForwardArgs>(s, row);
            else
              expect_monotone<StepArgs>(s, row);
          }
        }
}

// ---- splitting and stepping
// -------------------------------------------------------------------------

// Forward over [0, split) and from its state over [split, T) is one forward.
void expect_split(const Drawn& whole, const std::string& row, std::int64_t split, double limit) {
  const std::int64_t t = whole.scenario.tokens();
  const Results all = must_run(whole, row);
  const Results head = must_run(rows_of(whole, 0, 0, split), row);
  const Results tail =
      must_run(rows_of(whole, 0, split, t, output(head, "final_state").values), row);
  std::vector<float> out = output(head, "out").values;
  const std::vector<float>& rest = output(tail, "out").values;
  out.insert(out.end(), rest.begin(), rest.end());
  const std::string at = " split at " + std::to_string(split);
  if (limit == 0) {
    expect_same(out, output(all, "out").values, "out" + at);
    expect_same(output(tail, "final_state").values, output(all, "final_state").values,
                "final_state" + at);
  } else {
    EXPECT_LE(relative_rms(out, output(all, "out").values), limit) << at;
    EXPECT_LE(relative_rms(output(tail, "final_state").values, output(all, "final_state").values),
              limit)
        << at;
  }
}

class EveryOp : public testing::TestWithParam<NamedOp> {};

INSTANTIATE_TEST_SUITE_P(Ops, EveryOp, testing::ValuesIn(kAllOps),
                         [](const auto& info) { return std::string(info.param.name); });

Drawn forward_of(Op op, std::int64_t tokens, DType dtype = DType::kFloat32) {
  Drawn d;
  d.scenario = make(op, Pass::kForward, {tokens}, 1, 2, 16, 24, dtype);
  d.scenario.seed = 5;
  d.inputs = draw(d.scenario);
  return d;
}

// The oracle carries fp32 between calls but double inside one: so, fp32 rounding of the state.
TEST_P(EveryOp, SplitsAtEveryPosition) {
  for (const DType dtype : kDTypes) {
    const Drawn whole = forward_of(GetParam().op, 67, dtype);
    for (const std::string& row : takers(whole.scenario)) {
      SCOPED_TRACE(reproduce(whole.scenario, row));
      for (std::int64_t split = 0; split <= 67; ++split)
        expect_split(whole, row, split, limit(whole.scenario, row, 2e-6));
    }
  }
}

// At a chunk's border a chunked run rounds nothing that a longer one does not.
TEST_P(EveryOp, SplitsExactlyAtChunks) {
  for (const DType dtype : kDTypes) {
    const Drawn whole = forward_of(GetParam().op, 3 * kChunk + 5, dtype);
    for (const std::string& row : takers(whole.scenario)) {
      if (row == kOracle) continue;
      SCOPED_TRACE(reproduce(whole.scenario, row));
      for (std::int64_t split = 0; split <= 3 * kChunk; split += kChunk)
        expect_split(whole, row, split, 0);
    }
  }
}

// T steps of one token, a few tokens a step, and one forward.
TEST_P(EveryOp, StepsEqualOneForward) {
  for (const DType dtype : kDTypes) {
    const Drawn whole = forward_of(GetParam().op, 65, dtype);
    Drawn steps = whole;
    steps.scenario.pass = Pass::kStep;
    for (const std::string& row : takers(whole.scenario)) {
      const Results all = must_run(whole, row);
      for (const std::string& step : takers(steps.scenario))
        for (const std::int64_t at_once : {1, 8}) {
          SCOPED_TRACE(row + " against " + step + ", " + std::to_string(at_once) + " at once");
          std::vector<float> out, state;
          for (std::int64_t t = 0; t < 65; t += at_once) {
            const Drawn some = rows_of(steps, 0, t, std::min<std::int64_t>(t + at_once, 65), state);
            const Results one = must_run(some, step);
            state = output(one, "final_state").values;
            const std::vector<float>& o = output(one, "out").values;
            out.insert(out.end(), o.begin(), o.end());
          }
          const double most = limit(whole.scenario, row, 5e-6);
          EXPECT_LE(relative_rms(output(all, "out").values, out), most);
          EXPECT_LE(relative_rms(output(all, "final_state").values, state), most);
        }
    }
  }
}

// The step's first call of 8 tokens is the forward of the oracle, bit for bit: one loop serves
// both.
TEST_P(EveryOp, OracleStepIsItsForward) {
  const Drawn forward = forward_of(GetParam().op, 8);
  Drawn step = forward;
  step.scenario.pass = Pass::kStep;
  EXPECT_EQ(difference(must_run(forward, kOracle), must_run(step, kOracle)), "");
}

class EveryGate : public testing::TestWithParam<NamedOp> {};
INSTANTIATE_TEST_SUITE_P(Ops, EveryGate,
                         testing::Values(NamedOp{"kda", kda}, NamedOp{"gdn", gdn},
                                         NamedOp{"gla", gla}, NamedOp{"simple_gla", simple_gla},
                                         NamedOp{"lightning", lightning}),
                         [](const auto& info) { return std::string(info.param.name); });

// g = 0 is the op without a gate.
TEST_P(EveryGate, ZeroDecayEqualsNoGate) {
  const Op op = GetParam().op;
  for (const Pass pass : {Pass::kForward, Pass::kBackward, Pass::kStep})
    for (const DType dtype : kDTypes) {
      Drawn gated;
      gated.scenario = make(op, pass, {pass == Pass::kStep ? 5 : 70}, 1, 2, 16, 24, dtype);
      gated.scenario.decay = Decay::kZero;
      gated.inputs = draw(gated.scenario);
      Drawn bare = gated;
      bare.scenario.problem.op.gate = Gate::kNone;
      bare.scenario.problem.gate_input = GateInput::kUnset;
      bare.inputs.g.clear();
      for (const std::string& row : takers(gated.scenario)) {
        SCOPED_TRACE(reproduce(gated.scenario, row));
        const Results x = must_run(gated, row);
        for (const Output& out : must_run(bare, row)) {
          // Per-channel chunked code multiplies in another order than per-head code.
          if (row == kOracle)
            expect_same(out.values, output(x, out.name).values, out.name);
          else
            EXPECT_LE(relative_rms(out.values, output(x, out.name).values),
                      limit(gated.scenario, row, 2e-6))
                << out.name;
        }
      }
    }
}

class EveryDelta : public testing::TestWithParam<NamedOp> {};
INSTANTIATE_TEST_SUITE_P(Ops, EveryDelta,
                         testing::Values(NamedOp{"kda", kda}, NamedOp{"gdn", gdn},
                                         NamedOp{"delta_rule", delta_rule}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(EveryDelta, BetaOneEqualsAbsentBeta) {
  for (const Pass pass : {Pass::kForward, Pass::kBackward, Pass::kStep})
    for (const DType dtype : kDTypes) {
      Drawn ones;
      ones.scenario =
          make(GetParam().op, pass, {pass == Pass::kStep ? 5 : 70}, 1, 2, 16, 24, dtype);
      ones.inputs = draw(ones.scenario);
      std::fill(ones.inputs.beta.begin(), ones.inputs.beta.end(), 1.f);
      Drawn absent = ones;
      absent.scenario.problem.beta_input = BetaInput::kOne;
      absent.inputs.beta.clear();
      for (const std::string& row : takers(ones.scenario)) {
        SCOPED_TRACE(reproduce(ones.scenario, row));
        const Results x = must_run(ones, row);
        for (const Output& out : must_run(absent, row))
          expect_same(out.values, output(x, out.name).values, out.name);
      }
    }
}

// Nothing is written: with no decay the state stays, bit for bit.
TEST_P(EveryDelta, ZeroBetaFreezesTheState) {
  for (const Pass pass : {Pass::kForward, Pass::kStep})
    for (const DType dtype : kDTypes) {
      Drawn d;
      d.scenario =
          make(GetParam().op, pass, {pass == Pass::kStep ? 5 : 70, 3}, 1, 2, 16, 24, dtype);
      d.scenario.decay = Decay::kZero;
      d.inputs = draw(d.scenario);
      std::fill(d.inputs.beta.begin(), d.inputs.beta.end(), 0.f);
      for (const std::string& row : takers(d.scenario)) {
        SCOPED_TRACE(reproduce(d.scenario, row));
        expect_same(output(must_run(d, row), "final_state").values, d.inputs.initial,
                    "final_state");
      }
    }
}

// Erase = write = beta is KDA.
TEST(EraseWrite, EqualStrengthsAreKda) {
  for (const Pass pass : {Pass::kForward, Pass::kBackward, Pass::kStep}) {
    Drawn plain;
    plain.scenario = make(kda, pass, {pass == Pass::kStep ? 5 : 70}, 1, 2, 16, 24);
    plain.inputs = draw(plain.scenario);
    Drawn two = plain;
    two.scenario.problem.op = gdn2;
    for (const float beta : plain.inputs.beta) {
      two.inputs.erase.insert(two.inputs.erase.end(), 16, beta);
      two.inputs.write.insert(two.inputs.write.end(), 24, beta);
    }
    two.inputs.beta.clear();
    for (const std::string& row : takers(two.scenario)) {
      if (row == kEmulated) continue;  // it rounds other products
      SCOPED_TRACE(reproduce(two.scenario, row));
      const Results x = must_run(plain, row);
      for (const Output& out : must_run(two, row)) {
        if (out.name == "derase" || out.name == "dwrite") continue;
        EXPECT_LE(relative_rms(out.values, output(x, out.name).values), 2e-6) << out.name;
      }
    }
  }
}

}  // namespace
}  // namespace linattn::test
