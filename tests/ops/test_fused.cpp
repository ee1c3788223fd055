// SPDX-License-Identifier: Apache-2.0
//
// Fused steps: every row, every instance, every part alone and together.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "ops/fused_case.h"

namespace linattn::test {
namespace {

// Every instance of cuda.recurrent, each as a decode step and as a verification of drafts, and what
// can be fused in every combination.
std::vector<FusedCase> kinds() {
  constexpr DType kFp32 = DType::kFloat32, kBf16 = DType::kBFloat16, kFp16 = DType::kFloat16;
  constexpr Activation kNone = Activation::kUnset, kPlain = Activation::kIdentity,
                       kSilu = Activation::kSilu, kSigmoid = Activation::kSigmoid;
  const Op ops[] = {kda, gdn, gla, simple_gla, delta_rule, lightning, gdn2, comba};
  const DType dtypes[] = {kFp32, kBf16, kFp16};
  const Activation norms[] = {kSilu, kNone, kSigmoid, kPlain};
  std::vector<FusedCase> all;
  int i = 0;
  for (const StateLayout layout : {StateLayout::kValueKey, StateLayout::kKeyValue})
    for (const std::int32_t key_dim : {48, 100, 132})
      for (const DType state : {kFp32, kBf16, kFp16})
        for (const bool drafts : {false, true}) {
          FusedCase k{"", ops[i % 8], dtypes[(i + i / 3) % 3], state, layout, 1, 1, key_dim, 0, {},
                      0,  {}};
          k.heads = 1 + i % 2;
          k.value_heads = k.heads * (1 + i / 2 % 3);
          k.value_dim = key_dim == 48 ? 140 : key_dim == 100 ? 72 : 36;
          if (drafts) {
            k.lengths = {4, 0, 1, 8, 3};
            k.options = kSlots | kAccepted | kColumns;
          } else {
            k.lengths = {1, 1, 1, 1, 1, 1};
            k.options = kSlots | kInPlace | kHasInitial | kPackedQkv;
          }
          Fusion& f = k.fusion;
          f.width = 2 + (i / 2) % 3;
          f.drafts = drafts;
          f.more_entries = drafts ? 9 : i % 3;
          f.conv = i % 5 == 3 ? kPlain : kSilu;
          f.conv_dtype = dtypes[i % 3];
          f.conv_state_dtype = dtypes[i / 2 % 3];
          f.bias = i % 4 < 2;
          f.entries_last = i % 3 == 0;
          f.apart = i % 4 == 1;
          f.norm = norms[(i / 2) % 4];
          f.norm_weight = i % 3 != 1;
          f.norm_dtype = dtypes[(i + 1) % 3];
          k.name = to_string(k.op) + "_k" + std::to_string(key_dim) + "_" +
                   (layout == StateLayout::kValueKey ? "value_key_" : "key_value_") +
                   to_string(state) + (drafts ? "_drafts" : "_decode");
          all.push_back(k);
          ++i;
        }
  // One part alone, of strides that only the oracle takes, and past the last offset.
  FusedCase k{"norm_alone", kda, kBf16, kFp32, StateLayout::kValueKey, 2, 4, 64, 64, {2, 1}, 0, {}};
  k.fusion.norm = kSilu;
  all.push_back(k);
  k = {"norm_of_tiles", gdn2, kBf16, kBf16, StateLayout::kKeyValue, 1, 2, 48, 140, {3, 1}, 0, {}};
  k.fusion.norm = kSigmoid;
  all.push_back(k);
  k = {"norm_of_more_tiles",
       kda,
       kFp32,
       kFp32,
       StateLayout::kValueKey,
       2,
       2,
       100,
       136,
       {2, 8},
       0,
       {}};
  k.fusion.norm = kPlain;
  all.push_back(k);
  k = {"conv_of_tiles", comba, kBf16, kFp32, StateLayout::kValueKey, 1, 3, 128, 128, {1, 2}, 0, {}};
  k.fusion.width = 3;
  all.push_back(k);
  k = {"one_block", gdn, kBf16, kFp32, StateLayout::kKeyValue, 2, 6, 128, 128, {1, 2, 0, 3}, 0, {}};
  k.fusion.width = 4;
  k.fusion.norm = kSilu;
  k.fusion.blocks = 1;
  all.push_back(k);
  k = {"conv_alone", gdn, kFp32, kFp32, StateLayout::kValueKey, 2, 4, 64, 64, {2, 2}, 0, {}};
  k.fusion.width = 4;
  all.push_back(k);
  k.name = "conv_without_states";
  k.fusion.state = false;
  all.push_back(k);
  k.name = "padded";
  k.fusion.state = true;
  k.fusion.norm = kSigmoid;
  k.options = kPadded | kSlots | kFirstSlot;
  k.lengths = {1, 3, 2, 2, 1};
  all.push_back(k);
  return all;
}

class FusedStep : public testing::TestWithParam<FusedCase> {};

TEST_P(FusedStep, IsItsParts) { FusedRun(GetParam()).expect_right(); }

INSTANTIATE_TEST_SUITE_P(Each, FusedStep, testing::ValuesIn(kinds()),
                         [](const auto& info) { return info.param.name; });

FusedCase small(const std::string& name, std::vector<std::int64_t> lengths,
                std::uint32_t options = 0) {
  FusedCase k;
  k.name = name;
  k.lengths = std::move(lengths);
  k.options = options;
  k.fusion.width = 4;
  k.fusion.norm = Activation::kSilu;
  return k;
}

// A count leaves the row as a shorter call would, and the first tokens as they were.
TEST(FusedStep, CountsLimitIt) {
  FusedCase kind = small("counts", {4, 3, 2, 5}, kNoFinal);
  for (const bool drafts : {false, true}) {
    kind.fusion.drafts = drafts;
    kind.fusion.more_entries = drafts ? 5 : 0;
    FusedRun all(kind), some(kind);
    some.counts = {2, 9, 0, 1};
    const std::vector<std::string> rows = takers(all.scenario());
    for (const std::string& row : rows) {
      const Output whole = output(all.run_on(row), "out");
      std::vector<float> expected = whole.values;
      for (std::int64_t n = 0; n < 4; ++n)
        for (std::int64_t t = some.taken(n); t < all.scenario().lengths[index(n)]; ++t)
          std::fill_n(expected.begin() + (all.scenario().begin(n) + t) * whole.row_width,
                      whole.row_width, 0.f);
      expect_same(output(some.run_on(row), "out").values, expected, "out");
    }
  }
}

// Ids and counts of the conv states alone make a pad, whose state stays as it was.
TEST(FusedStep, ConvStatesMakePads) {
  FusedCase kind = small("pads", {2, 2, 2, 1}, kInPlace);
  kind.fusion.drafts = true;
  kind.fusion.more_entries = 3;
  FusedRun fused(kind);
  fused.reads[0] = fused.writes[0] = -1;
  fused.accepted[1] = 0;
  fused.accepted[2] = 5;
  for (const std::string& row : takers(fused.scenario())) {
    const Results results = fused.run_on(row);
    const Output& out = output(results, "out");
    for (std::int64_t i = 0; i < 6 * out.row_width; ++i) ASSERT_EQ(out.values[index(i)], 0);
    const std::int64_t size = 3 * fused.scenario().value_heads() * fused.scenario().matrix();
    std::vector<float> states = output(results, "final_state").values,
                       before = fused.inputs().initial;
    states.resize(index(size)), before.resize(index(size));
    expect_same(states, before, "states of pads");
  }
}

// Lengths that only a device knows: it takes eight tokens, and leaves what a row has entries for.
TEST(FusedStep, CutsWhatIsTooLong) {
  FusedCase kind = small("long", {12, 3}, kNoFinal);
  kind.fusion.drafts = true;
  kind.fusion.more_entries = 3;
  FusedRun fused(kind);
  fused.counts = {8, 8};
  for (const std::string& row : takers(fused.scenario())) {
    if (of_the_cpu(row)) continue;
    const Output limited = output(fused.run_on(row), "out");
    fused.counts.clear();
    const Output out = output(fused.run_on(row), "out");
    expect_same(out.values, limited.values, "out");
    for (std::int64_t i = 8 * out.row_width; i < 12 * out.row_width; ++i)
      ASSERT_EQ(out.values[index(i)], 0);
  }
}

// The record is of what the recurrence saw.
TEST(FusedStep, RecordsWhatIsConvolved) {
  FusedCase kind = small("replay", {3, 2}, kNoFinal);
  kind.fusion.drafts = true;
  kind.fusion.more_entries = 3;
  FusedRun fused(kind);
  const Drawn plain = fused.convolved_inputs();
  const auto elements = index(replay_elements(plain.scenario.problem, 5));
  Guarded expected(host(), "record", elements * sizeof(float), Poison::kNaN, true);
  expected.upload();
  const Outcome outcome = run(plain.scenario, plain.inputs, kOracle,
                              {.rounds = 1, .change = [&](Call& call) {
                                 call.step.replay = static_cast<float*>(expected.data());
                               }});
  ASSERT_EQ(outcome.refusal + outcome.fault + expected.fetch(), "");
  for (const std::string& row : takers(fused.scenario())) {
    Guarded record(memory_of(row), "record", elements * sizeof(float), Poison::kNaN, true);
    record.upload();
    fused.replay = static_cast<float*>(record.data());
    fused.run_on(row, 1);
    EXPECT_EQ(record.fetch(), "");
    std::vector<float> x, y;
    for (std::size_t i = 0; i < elements; ++i) {
      x.push_back(record.get(DType::kFloat32, static_cast<std::int64_t>(i)));
      y.push_back(expected.get(DType::kFloat32, static_cast<std::int64_t>(i)));
    }
    EXPECT_LE(relative_rms(x, y), 1e-5);
  }
}

// Fused and plain steps add in one order where a key's lanes are the same.
TEST(FusedStep, NothingFusedChangesNoBit) {
  FusedCase kind = small("bits", {3, 1});
  kind.fusion = {};
  kind.fusion.norm = Activation::kIdentity;
  kind.fusion.norm_weight = false;
  const FusedRun fused(kind);
  const Drawn plain{fused.scenario(), fused.inputs()};
  Drawn without = plain;
  without.scenario.problem.norm_gate = Activation::kUnset;
  for (const std::string& row : takers(plain.scenario))
    expect_same(output(must_run(plain, row), "final_state").values,
                output(must_run(without, row), "final_state").values, "final_state");
}

}  // namespace
}  // namespace linattn::test
