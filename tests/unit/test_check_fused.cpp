// SPDX-License-Identifier: Apache-2.0
//
// Refusals of fused steps.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "support/valid_call.h"

namespace linattn::test {
namespace {

// The valid step with a convolution and a norm. H K = 4 and HV V = 6 channels.
struct C : ValidCall {
  static constexpr std::int64_t kChannels = 2 * 4 + 6, kEntries = 6;
  std::vector<float> weight = std::vector<float>(kChannels * 4, .1f);
  std::vector<float> rows = std::vector<float>(3 * kChannels * kEntries, .2f);
  std::vector<float> z = std::vector<float>(6 * 6, .3f), gain = std::vector<float>(3, 1.0f);
  std::vector<std::int32_t> conv_reads{2, 0}, conv_writes{2, 1}, conv_accepted{1, 2};

  C() {
    problem.conv_width = 4;
    problem.conv_activation = Activation::kSilu;
    problem.norm_gate = Activation::kSilu;
    step.conv_entries = kEntries;
    step.conv_q = part(0);
    step.conv_k = part(4);
    step.conv_v = part(8);
    step.conv_read_slots = conv_reads.data();
    step.conv_write_slots = conv_writes.data();
    step.z = contiguous(z.data(), 2, 3);
    step.norm_weight = gain.data();
    step.norm_epsilon = 1e-5f;
  }

  Conv part(std::int64_t first) {
    return {&weight[static_cast<std::size_t>(first * 4)],
            4,
            1,
            nullptr,
            &rows[static_cast<std::size_t>(first * kEntries)],
            3,
            kChannels * kEntries,
            kEntries,
            1};
  }
  void draft() { step.conv_accepted = conv_accepted.data(); }
  void without_conv() {
    problem.conv_width = 0;
    problem.conv_activation = Activation::kUnset;
    step.conv_q = step.conv_k = step.conv_v = {};
    step.conv_read_slots = step.conv_write_slots = nullptr;
  }
};

struct Refusal {
  const char* name;
  std::function<void(C&)> breaks;
  std::vector<std::string> words;
};

void PrintTo(const Refusal& refusal, std::ostream* stream) { *stream << refusal.name; }

class FusedRefusal : public testing::TestWithParam<Refusal> {};

TEST_P(FusedRefusal, NamesArgumentGotAndExpected) {
  C call;
  GetParam().breaks(call);
  try {
    call.run_step();
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.what();
    for (const std::string& word : GetParam().words)
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
  }
}

const Refusal kRefusals[] = {
    {"weight_absent",
     [](C& c) { c.step.conv_k.weight = nullptr; },
     {"conv_k.weight is absent", "conv_width"}},
    {"weight_without_conv",
     [](C& c) {
       c.without_conv();
       c.step.conv_v.weight = c.weight.data();
     },
     {"conv_v.weight is given", "conv_width is 0"}},
    {"slots_without_conv",
     [](C& c) {
       c.without_conv();
       c.step.conv_read_slots = c.conv_reads.data();
     },
     {"conv_read_slots is given", "conv_width is 0"}},
    {"bias_unaligned",
     [](C& c) { c.step.conv_q.bias = reinterpret_cast<const void*>(2); },
     {"conv_q.bias is at an address", "multiple of 4"}},
    {"tap_stride",
     [](C& c) { c.step.conv_q.weight_tap_stride = -1; },
     {"conv_q.weight_tap_stride is -1", "0 or more"}},
    {"entries", [](C& c) { c.step.conv_entries = 2; }, {"conv_entries is 2", "at least 3"}},
    {"some_states",
     [](C& c) { c.step.conv_k.state = nullptr; },
     {"conv_k.state is absent", "another of q, k and v"}},
    {"rows_overlap",
     [](C& c) { c.step.conv_v.channel_stride = 5; },
     {"conv_v.state: channel_stride is 5", "at least 6"}},
    {"slots_overlap",
     [](C& c) { c.step.conv_q.slot_stride = 7; },
     {"conv_q.state: slot_stride is 7"}},
    {"slots_of_no_ids",
     [](C& c) { c.step.conv_read_slots = nullptr; },
     {"conv_q.state: slots is 3", "one per sequence"}},
    {"ids_without_states",
     [](C& c) { c.step.conv_q.state = c.step.conv_k.state = c.step.conv_v.state = nullptr; },
     {"conv_read_slots is given", "state is absent"}},
    {"read_past_the_pool",
     [](C& c) { c.conv_reads[1] = 3; },
     {"conv_read_slots[1] is 3", "under 3"}},
    {"written_twice",
     [](C& c) { c.conv_writes[1] = 2; },
     {"conv_write_slots[1] is 2", "no other entry"}},
    {"written_and_read",
     [](C& c) { c.conv_writes[1] = 2, c.conv_writes[0] = 0; },
     {"conv_write_slots is writing slot", "reads"}},
    {"drafts_of_few_entries",
     [](C& c) {
       c.draft();
       c.step.conv_entries = 5;
     },
     {"conv_entries is 5", "at least 6", "conv_accepted is given"}},
    {"parents", [](C& c) { c.step.parents = c.parents.data(); }, {"parents is given", "fused"}},
    {"picks",
     [](C& c) {
       c.step.picks = c.parents.data();
       c.step.picks_stride = 2;
     },
     {"picks is given", "fused"}},
    {"out_absent",
     [](C& c) { c.step.q.data = c.step.out.data = nullptr; },
     {"q is absent", "fused"}},
    {"long_sequence",
     [](C& c) {
       c.problem.max_tokens = 64;
       c.step.tokens = 10;
       c.offsets = {0, 9, 10};
     },
     {"length of sequence[0] is 9", "at most 8"}},
    {"z_absent", [](C& c) { c.step.z = {}; }, {"z is absent"}},
    {"z_without_gate",
     [](C& c) { c.problem.norm_gate = Activation::kIdentity; },
     {"z is given", "norm_gate"}},
    {"z_is_out", [](C& c) { c.step.z = c.step.out; }, {"out is at the address of an input"}},
    {"weight_without_norm",
     [](C& c) {
       c.problem.norm_gate = Activation::kUnset;
       c.step.z = {};
     },
     {"norm_weight is given", "no norm_gate"}},
    {"epsilon", [](C& c) { c.step.norm_epsilon = -1; }, {"norm_epsilon is -1", "finite"}},
    {"epsilon_without_norm",
     [](C& c) {
       c.problem.norm_gate = Activation::kUnset;
       c.step.z = {};
       c.step.norm_weight = nullptr;
     },
     {"norm_epsilon is", "no norm_gate"}},
};

INSTANTIATE_TEST_SUITE_P(Each, FusedRefusal, testing::ValuesIn(kRefusals),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(FusedCheck, TakesTheValidCall) {
  C call;
  EXPECT_NO_THROW(call.run_step());
  call.draft();
  EXPECT_NO_THROW(call.run_step());
}

TEST(FusedCheck, NullRowsAreAccepted) {
  C call;
  call.conv_reads = {-1, -5}, call.conv_writes = {-1, 0};
  EXPECT_NO_THROW(call.run_step());
}

// A commit reads a record: nothing of its step is fused.
TEST(FusedCheck, CommitsAreNotFused) { EXPECT_FALSE(is_fused(commit_problem(C().problem))); }

}  // namespace
}  // namespace linattn::test
