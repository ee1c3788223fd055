// SPDX-License-Identifier: Apache-2.0
//
// Each refusal of a call names the argument, what came and what was expected, before anything runs.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "support/valid_call.h"

namespace linattn::test {
namespace {

using C = ValidCall;

enum class On { kForward, kBackward, kStep, kInputs /* all three */ };

struct Refusal {
  const char* name;
  On on;
  std::function<void(ValidCall&)> breaks;
  std::vector<std::string> words;
};

void PrintTo(const Refusal& refusal, std::ostream* stream) { *stream << refusal.name; }

class CallRefusal : public testing::TestWithParam<Refusal> {};

void expect_refused(const Refusal& refusal, void (ValidCall::*run)()) {
  C call;
  refusal.breaks(call);
  const std::vector<float> out = call.out, states = call.final, gradients = call.gradients;
  try {
    (call.*run)();
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.what();
    for (const std::string& word : refusal.words)
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
  }
  EXPECT_EQ(out, call.out);
  EXPECT_EQ(states, call.final);
  EXPECT_EQ(gradients, call.gradients);
}

TEST_P(CallRefusal, NamesArgumentGotAndExpected) {
  const On on = GetParam().on;
  if (on == On::kForward || on == On::kInputs) expect_refused(GetParam(), &C::run_forward);
  if (on == On::kStep || on == On::kInputs) expect_refused(GetParam(), &C::run_step);
  if (on == On::kBackward || on == On::kInputs) expect_refused(GetParam(), &C::run_backward);
}

TEST(ValidCall, IsValid) {
  C call;
  EXPECT_NO_THROW(call.run_forward());
  EXPECT_NO_THROW(call.run_step());
  EXPECT_NO_THROW(call.run_backward());
  call.verify();
  EXPECT_NO_THROW(call.run_step());
}

// Does the same to the arguments of the three passes.
template <class F>
std::function<void(C&)> all(F&& f) {
  return [f](C& c) { f(c.forward, c), f(c.backward, c), f(c.step, c); };
}

float* shifted(const void* data) {  // by one byte
  return reinterpret_cast<float*>(const_cast<std::byte*>(static_cast<const std::byte*>(data)) + 1);
}

const Refusal kInputRefusals[] = {
    {"tokens_negative", On::kInputs, all([](auto& a, C&) { a.tokens = -1; }), {"tokens is -1"}},
    {"tokens_above_bound",
     On::kInputs,
     all([](auto& a, C&) { a.tokens = 9; }),
     {"tokens is 9", "max_tokens, 8"}},
    {"sequences_negative",
     On::kInputs,
     all([](auto& a, C&) { a.sequences = -1; }),
     {"sequences is -1"}},
    {"sequences_above_bound",
     On::kInputs,
     all([](auto& a, C&) { a.sequences = 4; }),
     {"sequences is 4", "max_sequences, 3"}},
    {"tokens_no_multiple",
     On::kInputs,
     all([](auto& a, C&) {
       a.cu_seqlens = nullptr;
       a.tokens = 5;
     }),
     {"tokens is 5", "a multiple of sequences, 2", "cu_seqlens is absent"}},
    {"tokens_without_sequences",
     On::kInputs,
     all([](auto& a, C&) {
       a.cu_seqlens = nullptr;
       a.sequences = 0;
     }),
     {"tokens is 6", "a multiple of sequences, 0"}},
    {"cu_seqlens_dtype",
     On::kInputs,
     all([](auto& a, C&) { a.cu_seqlens_dtype = LINATTN_FLOAT32; }),
     {"cu_seqlens_dtype is 3", "int32 or int64"}},
    {"cu_seqlens_unaligned",
     On::kInputs,
     all([](auto& a, C& c) { a.cu_seqlens = shifted(c.offsets.data()); }),
     {"cu_seqlens is at an address", "4 bytes"}},
    {"cu_seqlens_first",
     On::kInputs,
     all([](auto&, C& c) { c.offsets = {1, 4, 6}; }),
     {"cu_seqlens[0] is 1", "expected 0"}},
    {"cu_seqlens_falling",
     On::kInputs,
     all([](auto&, C& c) { c.offsets = {0, 5, 4}; }),
     {"cu_seqlens[2] is 4", "at least 5"}},
    {"cu_seqlens_negative",
     On::kInputs,
     all([](auto&, C& c) { c.offsets = {0, -3, 6}; }),
     {"cu_seqlens[1] is -3", "at least 0"}},
    {"cu_seqlens_past_tokens",
     On::kInputs,
     all([](auto&, C& c) { c.offsets = {0, 4, 7}; }),
     {"cu_seqlens[2] is 7", "at most tokens, 6"}},
    {"q_absent", On::kInputs, all([](auto& a, C&) { a.q.data = nullptr; }), {"q is absent"}},
    {"k_absent", On::kInputs, all([](auto& a, C&) { a.k.data = nullptr; }), {"k is absent"}},
    {"v_absent", On::kInputs, all([](auto& a, C&) { a.v.data = nullptr; }), {"v is absent"}},
    {"g_absent", On::kInputs, all([](auto& a, C&) { a.g.data = nullptr; }), {"g is absent"}},
    {"beta_absent",
     On::kInputs,
     all([](auto& a, C&) { a.beta.data = nullptr; }),
     {"beta is absent"}},
    {"q_unaligned",
     On::kInputs,
     all([](auto& a, C& c) { a.q.data = shifted(c.q.data()); }),
     {"q is at an address", "1 more than a multiple of 4"}},
    {"v_sequence_stride",
     On::kInputs,
     all([](auto& a, C&) { a.v.sequence_stride = -1; }),
     {"v.sequence_stride is -1", "0 or more"}},
    {"k_token_stride",
     On::kInputs,
     all([](auto& a, C&) { a.k.token_stride = -4; }),
     {"k.token_stride is -4"}},
    {"g_head_stride",
     On::kInputs,
     all([](auto& a, C&) { a.g.head_stride = -1; }),
     {"g.head_stride is -1"}},
    {"g_without_gate",
     On::kInputs,
     all([](auto& a, C& c) {
       c.problem.op = delta_rule;
       c.problem.gate_input = GateInput::kUnset;
       a.a_log = a.dt_bias = nullptr;
     }),
     {"g is given", "delta_rule has no gate"}},
    {"g_token_stride_of_constant",
     On::kInputs,
     all([](auto& a, C& c) {
       c.problem.op = Op{Gate::kHeadConstant, Update::kDelta};
       a.g = {c.g.data(), 0, 2, 1};
     }),
     {"g.token_stride is 2", "one constant per head"}},
    {"g_sequence_stride_of_constant",
     On::kInputs,
     all([](auto& a, C& c) {
       c.problem.op = Op{Gate::kHeadConstant, Update::kDelta};
       a.g = {c.g.data(), 2, 0, 1};
     }),
     {"g.sequence_stride is 2", "one constant per head"}},
    {"a_log_absent",
     On::kInputs,
     all([](auto& a, C&) { a.a_log = nullptr; }),
     {"a_log is absent", "gate_input is softplus"}},
    {"a_log_with_log_decay",
     On::kInputs,
     all([](auto& a, C& c) {
       c.problem.gate_input = GateInput::kLogDecay;
       a.dt_bias = nullptr;
     }),
     {"a_log is given", "not softplus or bounded"}},
    {"dt_bias_with_decay",
     On::kInputs,
     all([](auto& a, C& c) {
       c.problem.gate_input = GateInput::kDecay;
       a.a_log = nullptr;
     }),
     {"dt_bias is given", "not softplus or bounded"}},
    {"a_log_unaligned",
     On::kInputs,
     all([](auto& a, C& c) { a.a_log = shifted(c.a_log.data()); }),
     {"a_log is at an address"}},
    {"dt_bias_unaligned",
     On::kInputs,
     all([](auto& a, C& c) { a.dt_bias = shifted(c.dt_bias.data()); }),
     {"dt_bias is at an address"}},
    {"lower_bound_absent",
     On::kInputs,
     all([](auto&, C& c) { c.problem.gate_input = GateInput::kBounded; }),
     {"lower_bound is 0", "a finite negative number"}},
    {"lower_bound_positive",
     On::kInputs,
     all([](auto& a, C& c) {
       c.problem.gate_input = GateInput::kBounded;
       a.lower_bound = 1;
     }),
     {"lower_bound is 1", "a finite negative number"}},
    {"lower_bound_infinite",
     On::kInputs,
     all([](auto& a, C& c) {
       c.problem.gate_input = GateInput::kBounded;
       a.lower_bound = -std::numeric_limits<float>::infinity();
     }),
     {"lower_bound is -inf"}},
    {"lower_bound_nan",
     On::kInputs,
     all([](auto& a, C& c) {
       c.problem.gate_input = GateInput::kBounded;
       a.lower_bound = std::nanf("");
     }),
     {"lower_bound is nan"}},
    {"lower_bound_unused",
     On::kInputs,
     all([](auto& a, C&) { a.lower_bound = -5; }),
     {"lower_bound is -5", "gate_input is not bounded"}},
    {"scale_infinite",
     On::kInputs,
     all([](auto& a, C&) { a.scale = std::numeric_limits<float>::infinity(); }),
     {"scale is inf", "a finite number"}},
    {"scale_nan", On::kInputs, all([](auto& a, C&) { a.scale = std::nanf(""); }), {"scale is nan"}},
    {"beta_with_one",
     On::kInputs,
     all([](auto&, C& c) { c.problem.beta_input = BetaInput::kOne; }),
     {"beta is given", "beta_input is one"}},
    {"beta_of_add",
     On::kInputs,
     all([](auto&, C& c) {
       c.problem.op = gla;
       c.problem.beta_input = BetaInput::kUnset;
     }),
     {"beta is given", "gla takes no beta"}},
    {"erase_of_delta",
     On::kInputs,
     all([](auto& a, C& c) { a.erase = contiguous(c.erase.data(), 2, C::kKey); }),
     {"erase is given", "kda takes no erase strength"}},
    {"write_of_delta",
     On::kInputs,
     all([](auto& a, C& c) { a.write = contiguous(c.write.data(), 2, C::kValue); }),
     {"write is given", "kda takes no write strength"}},
    {"beta_of_erase_write",
     On::kInputs,
     all([](auto&, C& c) { c.problem.op = gdn2; }),
     {"beta is given", "gdn2 takes no beta"}},
    {"erase_absent",
     On::kInputs,
     all([](auto& a, C& c) {
       c.problem.op = gdn2;
       a.beta = {};
       a.write = contiguous(c.write.data(), 2, C::kValue);
     }),
     {"erase is absent"}},
    {"write_absent",
     On::kInputs,
     all([](auto& a, C& c) {
       c.problem.op = gdn2;
       a.beta = {};
       a.erase = contiguous(c.erase.data(), 2, C::kKey);
     }),
     {"write is absent"}},
    {"read_slots_without_state",
     On::kInputs,
     all([](auto& a, C&) { a.initial_state = {}, a.has_initial_state = nullptr; }),
     {"read_slots is given", "initial_state is absent"}},
    {"has_initial_without_state",
     On::kInputs,
     all([](auto& a, C&) { a.initial_state = {}, a.read_slots = nullptr; }),
     {"has_initial_state is given", "initial_state is absent"}},
    {"initial_state_slots",
     On::kInputs,
     all([](auto& a, C&) { a.read_slots = nullptr; }),
     {"initial_state.slots is 4", "2, one per sequence"}},
    {"initial_state_slots_negative",
     On::kInputs,
     all([](auto& a, C&) { a.initial_state.slots = -1; }),
     {"initial_state.slots is -1"}},
    {"initial_state_slot_stride",
     On::kInputs,
     all([](auto& a, C&) { a.initial_state.slot_stride = -1; }),
     {"initial_state.slot_stride is -1"}},
    {"initial_state_head_stride",
     On::kInputs,
     all([](auto& a, C&) { a.initial_state.head_stride = -1; }),
     {"initial_state.head_stride is -1"}},
    {"initial_state_unaligned",
     On::kInputs,
     all([](auto& a, C& c) { a.initial_state.data = shifted(c.initial.data()); }),
     {"initial_state is at an address"}},
    {"read_slot_past_pool",
     On::kInputs,
     all([](auto&, C& c) { c.read_slots = {3, 4}; }),
     {"read_slots[1] is 4", "under initial_state.slots, 4"}},
};

INSTANTIATE_TEST_SUITE_P(Inputs, CallRefusal, testing::ValuesIn(kInputRefusals),
                         [](const auto& info) { return std::string(info.param.name); });

// Does the same to what forward and step write.
template <class F>
std::function<void(C&)> both(F&& f) {
  return [f](C& c) { f(c.forward, c), f(c.step, c); };
}

std::vector<Refusal> output_refusals() {
  std::vector<Refusal> all_of_them;
  static const Refusal kShared[] = {
      {"out_absent",
       On::kForward,
       both([](auto& a, C&) { a.out.data = nullptr; }),
       {"out is absent"}},
      {"out_is_q",
       On::kForward,
       both([](auto& a, C& c) { a.out.data = c.q.data(); }),
       {"out is at the address of an input", "memory of its own"}},
      {"out_is_v",
       On::kForward,
       both([](auto& a, C& c) { a.out.data = c.v.data(); }),
       {"out is at the address of an input"}},
      {"out_unaligned",
       On::kForward,
       both([](auto& a, C& c) { a.out.data = shifted(c.out.data()); }),
       {"out is at an address"}},
      {"out_heads_overlap",
       On::kForward,
       both([](auto& a, C&) { a.out.head_stride = 2; }),
       {"out.head_stride is 2", "at least 3", "must not overlap"}},
      {"out_tokens_overlap",
       On::kForward,
       both([](auto& a, C&) { a.out.token_stride = 4; }),
       {"out.token_stride is 4", "must not overlap"}},
      {"out_sequences_overlap",
       On::kForward,
       both([](auto& a, C&) {
         a.cu_seqlens = nullptr;
         a.out.sequence_stride = 0;
       }),
       {"out.sequence_stride is 0", "must not overlap"}},
      {"write_slots_without_state",
       On::kForward,
       both([](auto& a, C&) { a.final_state = {}; }),
       {"write_slots is given", "final_state is absent"}},
      {"final_state_slots",
       On::kForward,
       both([](auto& a, C&) { a.write_slots = nullptr; }),
       {"final_state.slots is 4", "2, one per sequence"}},
      {"final_state_heads_overlap",
       On::kForward,
       both([](auto& a, C&) { a.final_state.head_stride = 11; }),
       {"final_state.head_stride is 11", "at least 12"}},
      {"final_state_slots_overlap",
       On::kForward,
       both([](auto& a, C&) { a.final_state.slot_stride = 23; }),
       {"final_state.slot_stride is 23", "at least 24"}},
      {"write_slot_past_pool",
       On::kForward,
       both([](auto&, C& c) { c.write_slots = {0, 4}; }),
       {"write_slots[1] is 4", "under final_state.slots, 4"}},
      {"write_slot_twice",
       On::kForward,
       both([](auto&, C& c) { c.write_slots = {2, 2}; }),
       {"write_slots[1] is 2", "a slot that no other entry writes"}},
      {"write_slot_read_by_another",
       On::kForward,
       both([](auto& a, C& c) {
         a.final_state = a.initial_state;
         c.write_slots = {1, 2};
       }),
       {"write_slots is writing slot 1 for sequence 0", "no slot that sequence 1 reads"}},
  };
  for (const Refusal& refusal : kShared)
    for (const On on : {On::kForward, On::kStep}) {
      all_of_them.push_back(refusal);
      all_of_them.back().on = on;
    }
  return all_of_them;
}

INSTANTIATE_TEST_SUITE_P(Outputs, CallRefusal, testing::ValuesIn(output_refusals()),
                         [](const auto& info) {
                           return std::string(info.param.name) +
                                  (info.param.on == On::kStep ? "_step" : "_forward");
                         });

}  // namespace
}  // namespace linattn::test
