// SPDX-License-Identifier: Apache-2.0
//
// Kinds of fault that other libraries had, sections 2-4: shapes, layouts, variable length. Entries
// of tests/faults.txt.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <regex>

#include "ops/compare.h"
#include "ops/slice.h"

namespace linattn::test {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr Op kClasses[] = {kda, gdn, gla, simple_gla};
constexpr Pass kPasses[] = {Pass::kForward, Pass::kBackward, Pass::kStep};
constexpr DType kDTypes[] = {DType::kFloat32, DType::kBFloat16};  // rows take one of them or both

Scenario scenario(Op op, Pass pass, std::vector<std::int64_t> lengths, std::int32_t key_dim = 32,
                  std::int32_t value_dim = 24, std::uint32_t options = 0,
                  DType dtype = DType::kFloat32, std::int32_t heads = 1,
                  std::int32_t value_heads = 2) {
  Scenario s = make(op, pass, std::move(lengths), heads, value_heads, key_dim, value_dim, dtype);
  s.options = options;
  return s;
}

Drawn drawn(const Scenario& s) { return {s, draw(s)}; }

// ---- 2. shapes
// --------------------------------------------------------------------------------------

TEST(Faults, S01_EveryShortLength) {
  for (const Op op : kClasses)
    for (const Pass pass : kPasses)
      for (const DType dtype : kDTypes)
        for (std::int64_t t = 1; t <= (pass == Pass::kStep ? kStepTokens : 17); ++t) {
          expect_agreement(scenario(op, pass, {t}, 16, 16, 0, dtype));
          Scenario packed = scenario(op, pass, {t, t, t}, 16, 16, 0, dtype);
          packed.variable_length = t % 2 == 0;
          expect_agreement(packed);
        }
}

// Two packed sequences; the second holds 1e4 or NaN: the first does not see it.
TEST(Faults, S03_NeighbourInTheTailsMask) {
  for (const DType dtype : kDTypes)
    for (const Op op : kClasses) {
      const Drawn whole = drawn(scenario(op, Pass::kForward, {40, 200}, 32, 24, 0, dtype));
      for (const std::string& row : takers(whole.scenario)) {
        const Results alone = must_run(rows_of(whole, 0, 0, 40), row);
        for (const float value : {1e4f, kNaN}) {
          Drawn spoilt = whole;
          for (auto* x : {&spoilt.inputs.q, &spoilt.inputs.k, &spoilt.inputs.v})
            std::fill(x->begin() + static_cast<std::int64_t>(x->size()) / 240 * 40, x->end(),
                      value);
          const Results all = must_run(spoilt, row);
          const std::vector<float>& x = output(all, "out").values;
          expect_same({x.begin(), x.begin() + 40 * 48}, output(alone, "out").values, row);
        }
      }
    }
}

// The harness ends every buffer at its last element, with guards, NaN and 1e30 behind it.
TEST(Faults, S04_LoadsPastTheEnd) {
  for (const Op op : kClasses)
    for (const Pass pass : kPasses)
      for (const std::int32_t dim : {96, 100, 112})
        for (const std::int64_t tokens : {1, 63, 65})
          expect_agreement(scenario(op, pass, {pass == Pass::kStep ? tokens % 8 : tokens}, dim, dim,
                                    0, DType::kBFloat16, 1, 1));
}

TEST(Faults, S05_NoTokens) {
  for (const Op op : kClasses)
    for (const Pass pass : kPasses)
      for (const DType dtype : kDTypes)
        for (const std::uint32_t options : {0u, std::uint32_t{kNoInitial}})
          for (const bool variable : {false, true})
            for (const std::size_t n : {1, 2}) {
              Scenario s =
                  scenario(op, pass, std::vector<std::int64_t>(n, 0), 16, 8, options, dtype);
              s.variable_length = variable;
              const Drawn d = drawn(s);
              for (const std::string& row : takers(s)) {
                const Results x = must_run(d, row, 2);
                std::vector<float> expected(n * 2 * 16 * 8, 0);
                if (!(options & kNoInitial)) expected = d.inputs.initial;
                if (pass != Pass::kBackward)
                  expect_same(output(x, "final_state").values, expected, row);
                else if (!(options & kNoInitial))
                  expect_same(output(x, "dinitial_state").values, d.inputs.dfinal, row);
              }
            }
}

TEST(Faults, S10_HeadDims) {
  const std::pair<int, int> dims[] = {{64, 64}, {64, 128},  {128, 64}, {128, 256}, {256, 128},
                                      {96, 96}, {100, 100}, {72, 72},  {16, 16},   {128, 512}};
  for (const auto& [k, v] : dims)
    for (const std::size_t n : {1, 8}) {
      expect_agreement(scenario(kda, Pass::kForward, std::vector<std::int64_t>(n, n == 1 ? 18 : 3),
                                k, v, 0, DType::kBFloat16, 1, 1));
      expect_agreement(scenario(kda, Pass::kStep, std::vector<std::int64_t>(n, 3), k, v, 0,
                                DType::kBFloat16, 1, 1));
    }
}

TEST(Faults, S11_GradientsOfEveryKeyDim) {
  for (const Op op : kClasses)
    for (const std::int32_t k : {32, 64, 100, 128, 256})
      expect_agreement(scenario(op, Pass::kBackward, {66}, k, 16, 0, DType::kFloat32, 1, 1));
}

// Head h of k is e_h, so the mapping of value heads shows.
TEST(Faults, S13_GroupedValueHeads) {
  const std::pair<int, int> heads[] = {{2, 4}, {3, 12}, {16, 32}};
  for (const auto& [h, hv] : heads)
    for (const Pass pass : kPasses)
      for (const DType dtype : kDTypes)
        for (const Op op : kClasses) {
          Drawn d = drawn(scenario(op, pass, {5}, 16, 8, 0, dtype, h, hv));
          for (std::size_t i = 0; i < d.inputs.k.size(); ++i)
            d.inputs.k[i] = i % 16 == i / 16 % static_cast<std::size_t>(h) ? 1.f : 0.f;
          expect_agreement(d.scenario, d.inputs);
        }
}
// S-14 is EveryGate.ZeroDecayEqualsNoGate and EveryDelta.BetaOneEqualsAbsentBeta.

// ---- 3. layouts
// -------------------------------------------------------------------------------------

// Strides of every kind give the bits of the contiguous call, gradients included.
void expect_layout_is_invisible(std::uint32_t layout, DType dtype, bool variable) {
  for (const Op op : kClasses)
    for (const Pass pass : kPasses) {
      const std::int64_t t = pass == Pass::kStep ? 5 : 66;
      Scenario plain = scenario(op, pass, {t, t, t}, 32, 24, 0, dtype, 2, 4);
      plain.variable_length = variable;
      Scenario strided = plain;
      strided.options |= layout;
      const Inputs in = draw(plain);
      for (const std::string& row : takers(plain)) {
        const Results first = must_run({plain, in}, row);
        const Outcome second = run(strided, in, row);
        const Results third = must_run({plain, in}, row);
        EXPECT_EQ(second.fault, "") << reproduce(strided, row);
        if (second.refusal.empty())
          EXPECT_EQ(difference(first, second.results), "") << reproduce(strided, row);
        else  // by name and number
          EXPECT_TRUE(std::regex_search(second.refusal, std::regex(" (is not aligned|stride)")))
              << second.refusal;
        EXPECT_EQ(difference(first, third), "") << "after a strided call";
      }
    }
}
TEST(Faults, L01_StridedGradients) { expect_layout_is_invisible(kPadded, DType::kFloat32, false); }
TEST(Faults, L01_TransposedGradients) {
  expect_layout_is_invisible(kHeadMajor, DType::kBFloat16, false);
}
TEST(Faults, L03_SlicesOfPackedQkv) {
  expect_layout_is_invisible(kPackedQkv, DType::kBFloat16, false);
  expect_layout_is_invisible(kPackedQkv, DType::kFloat32, true);
}
TEST(Faults, L03_HeadMajor) { expect_layout_is_invisible(kHeadMajor, DType::kFloat32, true); }
TEST(Faults, L03_SlicesOfLongerBuffers) {
  expect_layout_is_invisible(kSlice, DType::kFloat32, false);
}
TEST(Faults, L05_UnalignedPointers) {
  expect_layout_is_invisible(kUnaligned, DType::kBFloat16, false);
  expect_layout_is_invisible(kUnaligned, DType::kFloat32, true);
}
// Half an element off is refused: unit tests, CallRefusal.*_unaligned.

TEST(Faults, L06_PaddedPool) {
  for (const Op op : kClasses)
    for (const Pass pass : {Pass::kForward, Pass::kStep})
      for (const DType dtype : kDTypes)
        for (const DType state : kDTypes) {
          Scenario s = scenario(op, pass, {5, 1, 7, 3}, 32, 24, kSlots | kInPlace, dtype);
          s.problem.state_dtype = state;
          expect_agreement(s);
        }
}

// K = V = 128: zero but for S[k = 0, v = 5] = 1, in the documented layout.
TEST(Faults, L07_StateLayoutWhereKEqualsV) {
  for (const StateLayout layout : {StateLayout::kKeyValue, StateLayout::kValueKey})
    for (const Op op : kClasses)
      for (const DType dtype : kDTypes)
        for (const Pass pass : {Pass::kForward, Pass::kStep}) {
          Scenario s = scenario(op, pass, {1}, 128, 128, 0, dtype, 1, 1);
          s.problem.state_layout = layout;
          s.decay = Decay::kZero;
          Drawn d = drawn(s);
          for (auto* x : {&d.inputs.q, &d.inputs.k, &d.inputs.v, &d.inputs.initial})
            std::fill(x->begin(), x->end(), 0.f);
          d.inputs.q[0] = 1;
          d.inputs.initial[5] = 1;  // logical [K, V]
          for (const std::string& row : takers(s)) {
            const std::vector<float> out = output(must_run(d, row), "out").values;
            for (std::size_t v = 0; v < 128; ++v)
              ASSERT_NEAR(out[v], v == 5 ? 1 / std::sqrt(128.) : 0.,
                          dtype == DType::kFloat32 && full_precision(row) ? 1e-7 : 5e-4)
                  << row << " " << v;
          }
        }
}

TEST(Faults, L08_StridesWithSeveralHeads) {
  for (const DType dtype : kDTypes)
    for (const std::int32_t heads : {1, 2, 3}) {
      Scenario s = scenario(kda, Pass::kForward, {70}, 32, 24, 0, dtype, heads, heads);
      s.decay = Decay::kMixed;  // differs strongly from head to head
      const Drawn d = drawn(s);
      for (const std::string& row : takers(s)) {
        const Results all = must_run(d, row);
        for (std::int64_t h = 0; h < heads; ++h)
          expect_same(part(output(all, "out").values, heads, 24, 0, 70, h, 1),
                      output(must_run(head_of(d, h), row), "out").values, row);
      }
    }
}

// A gate that is one value for all heads: head stride 0.
TEST(Faults, L10_ExpandedGate) {
  for (const Pass pass : kPasses)
    for (const DType dtype : kDTypes) {
      const std::int64_t tokens = pass == Pass::kStep ? 8 : 66;
      Drawn d = drawn(scenario(gdn, pass, {tokens}, 16, 16, 0, dtype, 2, 2));
      for (std::size_t i = 1; i < d.inputs.g.size(); i += 2) d.inputs.g[i] = d.inputs.g[i - 1];
      for (const std::string& row : takers(d.scenario)) {
        const Outcome expanded = run(d.scenario, d.inputs, row, {.change = [](Call& call) {
                                       call.forward.g.head_stride = call.step.g.head_stride =
                                           call.backward.g.head_stride = 0;
                                     }});
        EXPECT_EQ(expanded.refusal + expanded.fault, "") << row;
        EXPECT_EQ(difference(must_run(d, row), expanded.results), "") << row;
      }
    }
}

// ---- 4. variable length
// -----------------------------------------------------------------------------

TEST(Faults, V01_EmptySequences) {
  for (const Op op : kClasses)
    for (const Pass pass : kPasses)
      for (const DType dtype : kDTypes) {
        const std::int64_t most = pass == Pass::kStep ? kStepTokens : 70;
        const Scenario s = scenario(op, pass, {0, most, 0, 0, 1, most - 6, 0}, 16, 24, 0, dtype);
        Drawn d = drawn(s);
        const std::int64_t size = 2 * 16 * 24;
        if (pass != Pass::kBackward)  // another constant in every sequence
          for (std::size_t i = 0; i < d.inputs.initial.size(); ++i)
            d.inputs.initial[i] = static_cast<float>(i / static_cast<std::size_t>(size) + 1);
        Drawn full = d;  // without the empties
        full.scenario.lengths = {most, 1, most - 6};
        full.inputs.initial_slots = 3;
        if (full.inputs.final_slots > 0) full.inputs.final_slots = 3;
        const auto keep = [&](const std::vector<float>& x) {
          std::vector<float> kept;
          for (const std::int64_t n : {1, 4, 5})
            if (!x.empty())
              kept.insert(kept.end(), x.begin() + n * size, x.begin() + (n + 1) * size);
          return kept;
        };
        full.inputs.initial = keep(d.inputs.initial);
        full.inputs.dfinal = keep(d.inputs.dfinal);
        for (const std::string& row : takers(s)) {
          SCOPED_TRACE(reproduce(s, row));
          const Results all = must_run(d, row, 2), without = must_run(full, row);
          for (const Output& out : all) {
            const bool by_sequence = out.name == "final_state" || out.name == "dinitial_state";
            expect_same(by_sequence ? keep(out.values) : out.values,
                        output(without, out.name).values, out.name);
            if (!by_sequence) continue;
            const std::vector<float>& passed =
                pass == Pass::kBackward ? d.inputs.dfinal : d.inputs.initial;
            for (const std::int64_t n : {0, 2, 3, 6})
              expect_same({out.values.begin() + n * size, out.values.begin() + (n + 1) * size},
                          {passed.begin() + n * size, passed.begin() + (n + 1) * size},
                          out.name + " of an empty sequence");
          }
        }
      }
}
TEST(Faults, V01_EmptySequencesManyTimes) {
  for (const DType dtype : kDTypes) {
    const Drawn d = drawn(scenario(kda, Pass::kForward, {0, 70, 0, 0, 1, 64, 0}, 8, 8, 0, dtype));
    for (const std::string& row : takers(d.scenario)) {
      const Results first = must_run(d, row);
      for (int i = 0; i < 50; ++i) ASSERT_EQ(difference(first, must_run(d, row)), "") << row;
    }
  }
}

TEST(Faults, V02_RowsPastTheLastOffsetAreZero) {
  for (const Op op : kClasses)
    for (const Pass pass : kPasses)
      for (const DType dtype : kDTypes) {
        Scenario s =
            pass == Pass::kStep ? scenario(op, pass, {3, 5}) : scenario(op, pass, {100, 30});
        s.problem.dtype = dtype;
        s.variable_length = true;
        s.surplus = 12;
        s.problem.max_tokens = s.tokens();
        expect_agreement(s);
      }
}

TEST(Faults, V03_BothOffsetTypesAgree) {
  for (const Pass pass : kPasses)
    for (const DType dtype : kDTypes) {
      const Scenario narrow = scenario(kda, pass, {1, 5, 0, 7}, 32, 24, 0, dtype);
      Scenario wide = narrow;
      wide.options |= kInt64;
      const Inputs in = draw(narrow);
      for (const std::string& row : takers(narrow))
        EXPECT_EQ(difference(must_run({narrow, in}, row), must_run({wide, in}, row)), "") << row;
    }
}
// V-04: unit tests, CallRefusal.cu_seqlens_*.

// Offsets changed in place between two calls of one plan: the second call follows the new content.
// On a GPU: GraphReplay.
TEST(Faults, V05_OffsetsAreNotRemembered) {
  for (const std::int64_t tokens : {std::int64_t{128}, kStepTokens}) {
    const Pass pass = tokens > kStepTokens ? Pass::kForward : Pass::kStep;
    Scenario s = scenario(kda, pass, {tokens / 2, tokens / 2}, 16, 16);
    s.variable_length = true;
    const Inputs in = draw(s);
    for (const std::string& row : takers(s, host())) {
      std::vector<std::int32_t> offsets{0, static_cast<std::int32_t>(tokens) / 2,
                                        static_cast<std::int32_t>(tokens)};
      Call call(s, in, host(), Poison::kNaN);
      const auto run_twice = [&](const auto& plan, auto& args) {
        Guarded scratch(host(), "workspace", plan.workspace_bytes(tokens, 2), Poison::kNaN, true);
        args.cu_seqlens = offsets.data();
        plan.run(args, {scratch.data(), scratch.bytes()});
        ++offsets[1];
        plan.run(args, {scratch.data(), scratch.bytes()});
      };
      if (pass == Pass::kForward)
        run_twice(ForwardPlan(s.problem, Device::cpu(), row.c_str()), call.forward);
      else
        run_twice(StepPlan(s.problem, Device::cpu(), row.c_str()), call.step);
      call.fetch();
      Scenario other = s;
      other.lengths = {tokens / 2 + 1, tokens / 2 - 1};
      EXPECT_EQ(difference(call.results(), must_run({other, in}, row)), "") << row;
    }
  }
}

TEST(Faults, V06_ManyKeysAndRaggedLengths) {
  for (const Op op : {kda, gla})
    for (const DType dtype : kDTypes) {
      for (const Pass pass : {Pass::kForward, Pass::kBackward})
        expect_agreement(scenario(op, pass, {37, 91, 20}, 256, 16, 0, dtype));
      expect_agreement(scenario(op, Pass::kStep, {7, 3, 8}, 256, 16, 0, dtype));
    }
}

TEST(Faults, V07_DocumentsDoNotTouch) {
  for (const Op op : kClasses)
    for (const Pass pass : kPasses)
      for (const DType dtype : kDTypes) {
        const std::int64_t first = pass == Pass::kStep ? 5 : 50, second = first - 2;
        const Drawn d = drawn(scenario(op, pass, {first, second}, 32, 24, 0, dtype));
        Drawn changed = d;
        const std::int64_t width = static_cast<std::int64_t>(d.inputs.v.size()) / (first + second);
        for (std::int64_t i = 0; i < first * width; ++i)
          changed.inputs.v[static_cast<std::size_t>(i)] += 1;
        round_to(dtype, changed.inputs.v);
        for (const std::string& row : takers(d.scenario)) {
          const Results x = must_run(d, row), y = must_run(changed, row);
          for (const Output& out : x)
            if (out.row_width > 0)
              expect_same({out.values.begin() + first * out.row_width, out.values.end()},
                          {output(y, out.name).values.begin() + first * out.row_width,
                           output(y, out.name).values.end()},
                          row + " " + out.name);
        }
      }
}

// Eight rows of which three are graph padding: length 0, slots -1.
TEST(Faults, V08_PaddingRowsOfLengthZero) {
  for (const Pass pass : {Pass::kForward, Pass::kStep})
    for (const DType dtype : kDTypes) {
      Scenario padded = scenario(kda, pass, {3, 1, 0, 5, 0, 2, 8, 0}, 16, 16, 0, dtype);
      Drawn d = drawn(padded);
      d.inputs.initial_slots = d.inputs.final_slots = 5;
      d.inputs.initial.resize(5 * 2 * 256);
      d.inputs.read_slots = d.inputs.write_slots = {0, 1, -1, 2, -1, 3, 4, -1};
      Drawn real = d;
      real.scenario.lengths = {3, 1, 5, 2, 8};
      real.inputs.read_slots.clear(), real.inputs.write_slots.clear();
      for (const std::string& row : takers(padded)) {
        const Results x = must_run(d, row, 2), y = must_run(real, row);
        expect_same(output(x, "out").values, output(y, "out").values, row);
        std::vector<float> states;
        for (const std::int64_t n : {0, 1, 3, 5, 6}) {
          const auto first = output(x, "final_state").values.begin() + n * 512;
          states.insert(states.end(), first, first + 512);
        }
        expect_same(states, output(y, "final_state").values, row);
      }
    }
}

}  // namespace
}  // namespace linattn::test
