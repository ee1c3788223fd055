// SPDX-License-Identifier: Apache-2.0
//
// Refusals that belong to one pass: checkpoints of forward, gradients of backward, tables of step;
// workspace and saved.
#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "support/valid_call.h"

namespace linattn::test {
namespace {

using C = ValidCall;

struct Refusal {
  const char* name;
  void (C::*run)();
  std::function<void(C&)> breaks;
  std::vector<std::string> words;
};

void PrintTo(const Refusal& refusal, std::ostream* stream) { *stream << refusal.name; }

class PassRefusal : public testing::TestWithParam<Refusal> {};

template <class Body>
void expect_refused(Body&& body, const std::vector<std::string>& words) {
  try {
    body();
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.what();
    for (const std::string& word : words)
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
  }
}

TEST_P(PassRefusal, NamesArgumentGotAndExpected) {
  C call;
  GetParam().breaks(call);
  expect_refused([&] { (call.*GetParam().run)(); }, GetParam().words);
}

constexpr auto kForward = &C::run_forward;
constexpr auto kBackward = &C::run_backward;
constexpr auto kStep = &C::run_step;

const Refusal kRefusals[] = {
    {"checkpoint_offsets_alone",
     kForward,
     [](C& c) { c.forward.checkpoints = {}; },
     {"checkpoint_offsets is given", "checkpoints is absent"}},
    {"checkpoint_positions_alone",
     kForward,
     [](C& c) {
       c.forward.checkpoints = {};
       c.forward.checkpoint_offsets = nullptr;
     },
     {"checkpoint_positions is given", "checkpoints is absent"}},
    {"checkpoint_slots_alone",
     kForward,
     [](C& c) {
       c.forward.checkpoints = {};
       c.forward.checkpoint_offsets = c.forward.checkpoint_positions = nullptr;
     },
     {"checkpoint_slots is given", "checkpoints is absent"}},
    {"checkpoint_offsets_absent",
     kForward,
     [](C& c) { c.forward.checkpoint_offsets = nullptr; },
     {"checkpoint_offsets is absent", "checkpoints is given"}},
    {"checkpoint_positions_absent",
     kForward,
     [](C& c) { c.forward.checkpoint_positions = nullptr; },
     {"checkpoint_positions is absent"}},
    {"checkpoint_slots_absent",
     kForward,
     [](C& c) { c.forward.checkpoint_slots = nullptr; },
     {"checkpoint_slots is absent"}},
    {"checkpoint_offsets_first",
     kForward,
     [](C& c) { c.checkpoint_offsets[0] = 1; },
     {"checkpoint_offsets[0] is 1", "expected 0"}},
    {"checkpoint_offsets_falling",
     kForward,
     [](C& c) { c.checkpoint_offsets[2] = 1; },
     {"checkpoint_offsets[2] is 1"}},
    {"checkpoint_position_between",
     kForward,
     [](C& c) { c.checkpoint_positions[1] = 3; },
     {"checkpoint_positions[1] is 3", "checkpoint_interval, 2"}},
    {"checkpoint_position_negative",
     kForward,
     [](C& c) { c.checkpoint_positions[0] = -2; },
     {"checkpoint_positions[0] is -2"}},
    {"checkpoint_positions_falling",
     kForward,
     [](C& c) { c.checkpoint_positions[1] = 2; },
     {"checkpoint_positions[1] is 2", "more than the position before it"}},
    {"checkpoint_slot_past_pool",
     kForward,
     [](C& c) { c.checkpoint_slots[2] = 4; },
     {"checkpoint_slots[2] is 4", "under checkpoints.slots, 4"}},
    {"checkpoint_slot_twice",
     kForward,
     [](C& c) { c.checkpoint_slots[2] = 3; },
     {"checkpoint_slots[2] is 3", "a slot that no other checkpoint writes"}},
    {"checkpoints_overlap",
     kForward,
     [](C& c) { c.forward.checkpoints.slot_stride = 1; },
     {"checkpoints.", "must not overlap"}},
    {"start_position_negative",
     kForward,
     [](C& c) { c.starts[1] = -1; },
     {"start_positions[1] is -1", "0 or more"}},
    {"transition_slots",
     kForward,
     [](C& c) { c.forward.transition.slots = 3; },
     {"transition.slots is 3", "2, one per sequence"}},
    {"transition_heads_overlap",
     kForward,
     [](C& c) { c.forward.transition.head_stride = C::kKey * C::kValue; },
     {"transition.head_stride is 12", "at least 16"}},
    {"saved_unasked",
     kForward,
     [](C& c) { c.forward.saved = c.out.data(); },
     {"saved is given", "no save_for_backward"}},

    {"dout_unaligned",
     kBackward,
     [](C& c) { c.backward.dout.data = static_cast<std::byte*>(c.backward.dout.data) + 2; },
     {"dout is at an address"}},
    {"dout_stride",
     kBackward,
     [](C& c) { c.backward.dout.token_stride = -6; },
     {"dout.token_stride is -6"}},
    {"dfinal_slots",
     kBackward,
     [](C& c) { c.backward.dfinal_state.slots = 1; },
     {"dfinal_state.slots is 1", "2, one per sequence"}},
    {"dq_overlaps",
     kBackward,
     [](C& c) { c.backward.dq.token_stride = 3; },
     {"dq.token_stride is 3", "must not overlap"}},
    {"dk_is_k",
     kBackward,
     [](C& c) { c.backward.dk.data = c.k.data(); },
     {"dk is at the address of an input"}},
    {"dv_overlaps",
     kBackward,
     [](C& c) { c.backward.dv.head_stride = 0; },
     {"dv.head_stride is 0"}},
    {"dg_overlaps",
     kBackward,
     [](C& c) { c.backward.dg.token_stride = 1; },
     {"dg.token_stride is 1"}},
    {"dbeta_overlaps",
     kBackward,
     [](C& c) { c.backward.dbeta.token_stride = 0; },
     {"dbeta.token_stride is 0"}},
    {"dbeta_of_add",
     kBackward,
     [](C& c) {
       c.problem.op = gla;
       c.problem.beta_input = BetaInput::kUnset;
       c.forward.beta = c.backward.beta = {};
     },
     {"dbeta is given", "beta is absent"}},
    {"derase_of_delta",
     kBackward,
     [](C& c) { c.backward.derase = contiguous(c.gradients.data() + 900, 2, C::kKey); },
     {"derase is given", "erase is absent"}},
    {"dwrite_of_delta",
     kBackward,
     [](C& c) { c.backward.dwrite = contiguous(c.gradients.data() + 900, 2, C::kValue); },
     {"dwrite is given", "erase is absent"}},
    {"dg_without_gate",
     kBackward,
     [](C& c) {
       c.problem.op = delta_rule;
       c.problem.gate_input = GateInput::kUnset;
       c.backward.g = {};
       c.backward.a_log = c.backward.dt_bias = nullptr;
     },
     {"dg is given", "g is absent"}},
    {"dg_of_constant_overlaps",
     kBackward,
     [](C& c) {
       c.problem.op = Op{Gate::kHeadConstant, Update::kDelta};
       c.backward.g = {c.g.data(), 0, 0, 1};
       c.backward.dg = {c.gradients.data() + 400, 0, 0, 0};
     },
     {"dg.head_stride is 0"}},
    {"da_log_without_a_log",
     kBackward,
     [](C& c) {
       c.problem.gate_input = GateInput::kBounded;
       c.backward.lower_bound = -5;
       c.backward.a_log = nullptr;
     },
     {"da_log is given", "a_log is absent"}},
    {"ddt_bias_without_dt_bias",
     kBackward,
     [](C& c) { c.backward.dt_bias = nullptr; },
     {"ddt_bias is given", "dt_bias is absent"}},
    {"dinitial_without_initial",
     kBackward,
     [](C& c) {
       c.backward.initial_state = {};
       c.backward.read_slots = nullptr;
       c.backward.has_initial_state = nullptr;
     },
     {"dinitial_state is given", "initial_state is absent"}},
    {"dinitial_slots",
     kBackward,
     [](C& c) { c.backward.dinitial_state.slots = 4; },
     {"dinitial_state.slots is 4", "2, one per sequence"}},
    {"dinitial_overlaps",
     kBackward,
     [](C& c) { c.backward.dinitial_state.slot_stride = 3; },
     {"dinitial_state.slot_stride is 3"}},

    {"read_slot_stride_negative",
     kStep,
     [](C& c) { c.step.read_slot_stride = -1; },
     {"read_slot_stride is -1"}},
    {"write_slot_stride_negative",
     kStep,
     [](C& c) { c.step.write_slot_stride = -1; },
     {"write_slot_stride is -1"}},
    {"read_slots_absent",
     kStep,
     [](C& c) {
       c.verify();
       c.step.read_slots = nullptr;
       c.step.initial_state.slots = 2;
     },
     {"read_slots is absent", "read_slot_stride is set"}},
    {"accepted_absent",
     kStep,
     [](C& c) {
       c.verify();
       c.step.accepted = nullptr;
     },
     {"accepted is absent", "chooses the column"}},
    {"accepted_alone",
     kStep,
     [](C& c) { c.step.accepted = c.accepted.data(); },
     {"accepted is given", "read_slot_stride is 0"}},
    {"read_table_past_pool",
     kStep,
     [](C& c) {
       c.verify();
       c.read_table[3] = 4;
     },
     {"read_slots[3] is 4", "under initial_state.slots, 4"}},
    {"write_slots_absent",
     kStep,
     [](C& c) {
       c.verify();
       c.step.write_slots = nullptr;
     },
     {"write_slots is absent", "write_slot_stride is set"}},
    {"write_slot_stride_too_small",
     kStep,
     [](C& c) {
       c.verify();
       c.step.write_slot_stride = 3;
     },
     {"write_slot_stride is 3", "at least 4, the tokens of sequence 0"}},
    {"write_table_twice",
     kStep,
     [](C& c) {
       c.verify();
       c.write_table[5] = 0;
     },
     {"write_slots[5] is 0", "no other entry writes"}},
    {"write_table_past_pool",
     kStep,
     [](C& c) {
       c.verify();
       c.write_table[1] = 8;
     },
     {"write_slots[1] is 8", "under final_state.slots, 8"}},
    {"parents_forward",
     kStep,
     [](C& c) {
       c.verify();
       c.parents[1] = 1;
     },
     {"parents[1] is 1", "an earlier token of its sequence"}},
    {"parents_below",
     kStep,
     [](C& c) {
       c.verify();
       c.parents[5] = -2;
     },
     {"parents[5] is -2", "-1 or an earlier token"}},
    {"parents_of_other_sequence",
     kStep,
     [](C& c) {
       c.verify();
       c.parents[4] = 0;
     },
     {"parents[4] is 0", "under 0"}},
    {"replay_unaligned",
     kStep,
     [](C& c) { c.step.replay = reinterpret_cast<float*>(2); },
     {"replay is at an address", "multiple of 4"}},
    {"picks_without_stride",
     kStep,
     [](C& c) { c.step.picks = c.parents.data(); },
     {"picks_stride is 0", "the columns of picks"}},
    {"picks_stride_alone",
     kStep,
     [](C& c) { c.step.picks_stride = 2; },
     {"picks_stride is 2", "picks is absent"}},
    {"picks_with_parents",
     kStep,
     [](C& c) {
       c.verify();
       c.step.picks = c.parents.data();
       c.step.picks_stride = 1;
     },
     {"parents is given", "a path already"}},
    {"picks_of_other_sequence",
     kStep,
     [](C& c) {
       c.parents = {0, 99, 0, 0, 0, 0, 0, 0};
       c.step.picks = c.parents.data();
       c.step.picks_stride = 2;
     },
     {"picks[1] is 99", "a token of its sequence"}},
    {"q_absent", kStep, [](C& c) { c.step.q.data = nullptr; }, {"q is absent", "there are tokens"}},
    {"out_absent",
     kStep,
     [](C& c) { c.step.out.data = nullptr; },
     {"out is absent", "there are tokens"}},
    {"picks_twice",
     kStep,
     [](C& c) {
       c.parents = {0, 0, 0, 0, 0, 0, 0, 0};
       c.step.picks = c.parents.data();
       c.step.picks_stride = 2;
     },
     {"picks[1] is 0", "not picked before"}},
    {"nowhere_to_write",
     kStep,
     [](C& c) {
       c.step.q.data = c.step.out.data = c.step.final_state.data = nullptr;
       c.step.write_slots = nullptr;
       c.step.write_slot_stride = 0;
     },
     {"final_state is absent", "q and out are absent"}},
    {"layers_without_pools",
     kStep,
     [](C& c) { c.step.layers = 2; },
     {"pools is absent", "layers is set"}},
    {"pools_without_layers",
     kStep,
     [](C& c) { c.step.pools = &c.step.final_state.data; },
     {"pools is given", "layers is 0"}},
    {"layers_with_out",
     kStep,
     [](C& c) {
       c.step.layers = 1;
       c.step.pools = &c.step.final_state.data;
     },
     {"out is given", "only states are written"}},
    {"layers_of_the_delta_rule",
     kStep,
     [](C& c) {
       c.step.layers = 1;
       c.step.pools = &c.step.final_state.data;
       c.step.q.data = c.step.out.data = nullptr;
     },
     {"problem.op.update is not add", "layers is set"}},
};

INSTANTIATE_TEST_SUITE_P(Each, PassRefusal, testing::ValuesIn(kRefusals),
                         [](const auto& info) { return std::string(info.param.name); });

// Slots that a call does not use may hold anything below first_slot.
TEST(Slots, NullIdsAreAccepted) {
  C call;
  call.read_slots = {-1, -7}, call.write_slots = {-1, -1}, call.checkpoint_slots = {-1, -1, -1};
  EXPECT_NO_THROW(call.run_forward());
  EXPECT_NO_THROW(call.run_step());
  call.forward.first_slot = call.step.first_slot = 2;
  call.read_slots = {0, 1}, call.write_slots = {1, 1}, call.checkpoint_slots = {0, 0, 1};
  EXPECT_NO_THROW(call.run_forward());
  EXPECT_NO_THROW(call.run_step());
}

class WorkspaceCheck : public testing::Test {
 protected:
  C call;
  ForwardPlan plan{call.problem, call.device, "cpu.recurrent"};
  std::size_t bytes = plan.workspace_bytes(C::kTokens, C::kSequences);
  std::vector<std::byte> memory = std::vector<std::byte>(bytes + 512);
  std::byte* data = static_cast<std::byte*>(C::aligned(memory));
};

TEST_F(WorkspaceCheck, TooSmall) {
  ASSERT_GT(bytes, 0u);
  expect_refused(
      [&] { plan.run(call.forward, {data, bytes - 1}); },
      {"workspace.bytes is " + std::to_string(bytes - 1), "at least " + std::to_string(bytes)});
}
TEST_F(WorkspaceCheck, Absent) {
  expect_refused([&] { plan.run(call.forward, {nullptr, bytes}); }, {"workspace.data is null"});
}
TEST_F(WorkspaceCheck, Unaligned) {
  expect_refused([&] { plan.run(call.forward, {data + 128, bytes}); },
                 {"workspace.data is not aligned", "256"});
}
TEST_F(WorkspaceCheck, LargerIsFine) { EXPECT_NO_THROW(plan.run(call.forward, {data, bytes + 1})); }

TEST_F(WorkspaceCheck, BytesOutsideTheBounds) {
  expect_refused([&] { plan.workspace_bytes(9, 2); }, {"tokens is 9", "max_tokens, 8"});
  expect_refused([&] { plan.workspace_bytes(-1, 2); }, {"tokens is -1"});
  expect_refused([&] { plan.workspace_bytes(8, 4); }, {"sequences is 4", "max_sequences, 3"});
  expect_refused([&] { plan.workspace_bytes(8, -1); }, {"sequences is -1"});
}
TEST_F(WorkspaceCheck, BytesAreMonotone) {
  for (const std::string& name : cpu_implementations()) {
    const ForwardPlan one(call.problem, call.device, name.c_str());
    for (std::int64_t t = 0; t < 8; ++t)
      for (std::int64_t n = 0; n < 3; ++n) {
        EXPECT_LE(one.workspace_bytes(t, n), one.workspace_bytes(t + 1, n)) << name;
        EXPECT_LE(one.workspace_bytes(t, n), one.workspace_bytes(t, n + 1)) << name;
      }
  }
}

}  // namespace
}  // namespace linattn::test
