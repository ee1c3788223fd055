// SPDX-License-Identifier: Apache-2.0
//
// Each refusal of a problem names the field, what came and what was expected.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "support/valid_call.h"

namespace linattn::test {
namespace {

struct Refusal {
  const char* name;
  std::function<void(ValidCall&)> breaks;
  std::vector<std::string> words;  // argument, got, expected
};

void PrintTo(const Refusal& refusal, std::ostream* stream) { *stream << refusal.name; }

class ProblemRefusal : public testing::TestWithParam<Refusal> {};

TEST_P(ProblemRefusal, NamesFieldGotAndExpected) {
  ValidCall call;
  GetParam().breaks(call);
  try {
    const ForwardPlan plan(call.problem, call.device);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    for (const std::string& word : GetParam().words)
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
  }
}

using C = ValidCall;

const Refusal kRefusals[] = {
    {"device_type",
     [](C& c) { c.device.type = Device::Type::kUnset; },
     {"device.type is 0", "cpu or cuda"}},
    {"device_index", [](C& c) { c.device.index = -1; }, {"device.index is -1", "0 or more"}},
    {"gate_unset", [](C& c) { c.problem.op.gate = Gate::kUnset; }, {"problem.op.gate is 0"}},
    {"gate_unknown",
     [](C& c) { c.problem.op.gate = static_cast<Gate>(9); },
     {"problem.op.gate is 9", "a Gate"}},
    {"update_unset",
     [](C& c) { c.problem.op.update = Update::kUnset; },
     {"problem.op.update is 0", "an Update"}},
    {"update_unknown",
     [](C& c) { c.problem.op.update = static_cast<Update>(4); },
     {"problem.op.update is 4"}},
    {"max_tokens",
     [](C& c) { c.problem.max_tokens = 0; },
     {"problem.max_tokens is 0", "at least 1"}},
    {"max_sequences",
     [](C& c) { c.problem.max_sequences = -2; },
     {"problem.max_sequences is -2", "at least 1"}},
    {"heads", [](C& c) { c.problem.heads = 0; }, {"problem.heads is 0", "at least 1"}},
    {"value_heads_negative",
     [](C& c) { c.problem.value_heads = -1; },
     {"problem.value_heads is -1", "0 (the same as heads)"}},
    {"value_heads_no_multiple",
     [](C& c) {
       c.problem.heads = 2;
       c.problem.value_heads = 3;
     },
     {"problem.value_heads is 3", "a multiple of heads, 2"}},
    {"key_dim", [](C& c) { c.problem.key_dim = 0; }, {"problem.key_dim is 0", "at least 1"}},
    {"value_dim", [](C& c) { c.problem.value_dim = -4; }, {"problem.value_dim is -4"}},
    {"dtype",
     [](C& c) { c.problem.dtype = DType::kInt32; },
     {"problem.dtype is int32", "bf16, fp16 or fp32"}},
    {"gate_dtype",
     [](C& c) { c.problem.gate_dtype = DType::kInt64; },
     {"problem.gate_dtype is int64"}},
    {"beta_dtype",
     [](C& c) { c.problem.beta_dtype = DType::kInt32; },
     {"problem.beta_dtype is int32"}},
    {"state_dtype",
     [](C& c) { c.problem.state_dtype = DType::kInt32; },
     {"problem.state_dtype is int32"}},
    {"checkpoint_dtype",
     [](C& c) { c.problem.checkpoint_dtype = DType::kInt64; },
     {"problem.checkpoint_dtype is int64"}},
    {"gate_input_unset",
     [](C& c) { c.problem.gate_input = GateInput::kUnset; },
     {"problem.gate_input is 0", "cannot be told from its shape"}},
    {"gate_input_unknown",
     [](C& c) { c.problem.gate_input = static_cast<GateInput>(5); },
     {"problem.gate_input is 5"}},
    {"gate_input_without_gate",
     [](C& c) { c.problem.op = delta_rule; },
     {"problem.gate_input is set", "unset", "delta_rule has no gate"}},
    {"beta_input_unset",
     [](C& c) { c.problem.beta_input = BetaInput::kUnset; },
     {"problem.beta_input is 0", "cannot be told from its shape"}},
    {"beta_input_unknown",
     [](C& c) { c.problem.beta_input = static_cast<BetaInput>(7); },
     {"problem.beta_input is 7"}},
    {"beta_input_of_add",
     [](C& c) { c.problem.op = gla; },
     {"problem.beta_input is set", "gla takes no beta"}},
    {"beta_input_one_of_erase_write",
     [](C& c) {
       c.problem.op = gdn2;
       c.problem.beta_input = BetaInput::kOne;
     },
     {"problem.beta_input is one", "erase and write are tensors"}},
    {"state_layout_unset",
     [](C& c) { c.problem.state_layout = StateLayout::kUnset; },
     {"problem.state_layout is 0", "with K = V"}},
    {"state_layout_unknown",
     [](C& c) { c.problem.state_layout = static_cast<StateLayout>(3); },
     {"problem.state_layout is 3"}},
    {"checkpoint_interval",
     [](C& c) { c.problem.checkpoint_interval = -1; },
     {"problem.checkpoint_interval is -1", "at least 1"}},
    {"sm_limit", [](C& c) { c.problem.sm_limit = -1; }, {"problem.sm_limit is -1", "0 (all)"}},
    {"conv_of_a_forward",
     [](C& c) {
       c.problem.conv_width = 4;
       c.problem.conv_activation = Activation::kSilu;
     },
     {"problem.conv_width is set", "only steps are fused"}},
    {"norm_of_a_forward",
     [](C& c) { c.problem.norm_gate = Activation::kIdentity; },
     {"problem.norm_gate is set", "the pass is forward"}},
    {"conv_width",
     [](C& c) {
       c.problem.conv_width = 5;
       c.problem.conv_activation = Activation::kSilu;
     },
     {"problem.conv_width is 5", "2 to 4"}},
    {"conv_activation_unset",
     [](C& c) { c.problem.conv_width = 4; },
     {"problem.conv_activation is 0", "identity or silu"}},
    {"conv_activation_sigmoid",
     [](C& c) {
       c.problem.conv_width = 4;
       c.problem.conv_activation = Activation::kSigmoid;
     },
     {"problem.conv_activation is 3", "identity or silu"}},
    {"conv_activation_alone",
     [](C& c) { c.problem.conv_activation = Activation::kSilu; },
     {"problem.conv_activation is set", "conv_width is 0"}},
    {"conv_dtype",
     [](C& c) { c.problem.conv_dtype = DType::kInt32; },
     {"problem.conv_dtype is int32", "bf16, fp16 or fp32"}},
    {"conv_state_dtype",
     [](C& c) { c.problem.conv_state_dtype = DType::kInt64; },
     {"problem.conv_state_dtype is int64"}},
    {"norm_gate",
     [](C& c) { c.problem.norm_gate = static_cast<Activation>(7); },
     {"problem.norm_gate is 7", "silu or sigmoid"}},
    {"norm_dtype",
     [](C& c) { c.problem.norm_dtype = DType::kInt32; },
     {"problem.norm_dtype is int32"}},
};

INSTANTIATE_TEST_SUITE_P(Each, ProblemRefusal, testing::ValuesIn(kRefusals),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(ProblemDefaults, AreFilledIn) {
  ValidCall call;
  call.problem.value_heads = 0;
  call.problem.checkpoint_dtype = DType::kUnset;
  EXPECT_NO_THROW(ForwardPlan(call.problem, call.device));
}

}  // namespace
}  // namespace linattn::test
