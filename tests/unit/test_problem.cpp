// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <unordered_set>
#include <vector>

#include "linattn/linattn.h"

namespace linattn::test {
namespace {

Problem base() {
  return {.op = kda,
          .max_tokens = 64,
          .max_sequences = 2,
          .heads = 2,
          .value_heads = 4,
          .key_dim = 64,
          .value_dim = 32,
          .gate_input = GateInput::kLogDecay,
          .beta_input = BetaInput::kValue,
          .state_layout = StateLayout::kValueKey};
}

// The base with each field changed, one at a time.
std::vector<Problem> neighbours() {
  std::vector<Problem> all(26, base());
  std::size_t i = 0;
  all[i++].op = gdn;
  all[i++].dtype = DType::kFloat16;
  all[i++].max_tokens = 65;
  all[i++].max_sequences = 3;
  all[i++].heads = 4;
  all[i++].value_heads = 8;
  all[i++].key_dim = 65;
  all[i++].value_dim = 33;
  all[i++].gate_input = GateInput::kDecay;
  all[i++].gate_dtype = DType::kBFloat16;
  all[i++].beta_input = BetaInput::kLogit;
  all[i++].beta_dtype = DType::kFloat16;
  all[i++].qk_l2norm = true;
  all[i++].state_layout = StateLayout::kKeyValue;
  all[i++].state_dtype = DType::kBFloat16;
  all[i++].checkpoint_dtype = DType::kFloat32;
  all[i++].checkpoint_interval = 128;
  all[i++].save_for_backward = true;
  all[i++].batch_invariant = true;
  all[i++].sm_limit = 16;
  all[i++].conv_width = 3;
  all[i++].conv_activation = Activation::kIdentity;
  all[i++].conv_dtype = DType::kFloat32;
  all[i++].conv_state_dtype = DType::kFloat16;
  all[i++].norm_gate = Activation::kSigmoid;
  all[i++].norm_dtype = DType::kFloat32;
  return all;
}

TEST(Problem, EqualityHashAndTextSeeEveryField) {
  std::unordered_set<Problem> set{base()};
  std::unordered_set<std::string> texts{to_string(base())};
  EXPECT_EQ(base(), base());
  EXPECT_EQ(std::hash<Problem>{}(base()), std::hash<Problem>{}(base()));
  for (const Problem& other : neighbours()) {
    EXPECT_NE(other, base()) << to_string(other);
    EXPECT_NE(std::hash<Problem>{}(other), std::hash<Problem>{}(base())) << to_string(other);
    EXPECT_TRUE(set.insert(other).second) << to_string(other);
    EXPECT_TRUE(texts.insert(to_string(other)).second) << to_string(other);
    EXPECT_TRUE(set.count(other));
  }
}

// A field that these tests forget would be invisible to a plan cache: one neighbour per field.
TEST(Problem, HasANeighbourPerField) {
  std::size_t fields = 0;
  detail::for_each_field(base(), [&](const char*, auto) { ++fields; });
  EXPECT_EQ(fields, neighbours().size());
}

// The text is the C++ that makes the problem: this one was pasted from a run.
TEST(Problem, TextIsCode) {
  const Problem pasted = linattn::Problem{.op = linattn::kda,
                                          .max_tokens = 64,
                                          .max_sequences = 2,
                                          .heads = 2,
                                          .value_heads = 4,
                                          .key_dim = 64,
                                          .value_dim = 32,
                                          .gate_input = linattn::GateInput::kLogDecay,
                                          .beta_input = linattn::BetaInput::kValue,
                                          .state_layout = linattn::StateLayout::kValueKey};
  EXPECT_EQ(pasted, base());
  EXPECT_EQ(to_string(base()),
            "linattn::Problem{.op = linattn::kda, .max_tokens = 64, .max_sequences = 2, "
            ".heads = 2, .value_heads = 4, .key_dim = 64, .value_dim = 32, "
            ".gate_input = linattn::GateInput::kLogDecay, "
            ".beta_input = linattn::BetaInput::kValue, "
            ".state_layout = linattn::StateLayout::kValueKey}");
}

TEST(Problem, CrossesTheCAbiUnchanged) {
  for (Problem p : neighbours()) {
    // A convolution has both.
    if (p.conv_activation != Activation::kUnset) p.conv_width = 4;
    if (p.conv_width != 0 && p.conv_activation == Activation::kUnset)
      p.conv_activation = Activation::kSilu;
    const linattn_problem c = to_c(p);
    EXPECT_EQ(c.size, sizeof c);
    EXPECT_EQ(c.max_tokens, p.max_tokens);
    EXPECT_EQ(c.gate, static_cast<int>(p.op.gate));
    EXPECT_EQ(c.state_layout, static_cast<int>(p.state_layout));
    EXPECT_EQ(c.save_for_backward, p.save_for_backward ? 1 : 0);
    EXPECT_EQ(c.sm_limit, p.sm_limit);
    // The library's own text of the problem it received: in it every field survived.
    const Pass pass = is_fused(p) ? Pass::kStep : Pass::kForward;
    EXPECT_NE(explain(p, Device::cpu(), pass).find(to_string(p)), std::string::npos)
        << to_string(p);
  }
}

TEST(Op, NamesAreTheirConstants) {
  EXPECT_EQ(to_string(kda), "kda");
  EXPECT_EQ(to_string(gdn), "gdn");
  EXPECT_EQ(to_string(gla), "gla");
  EXPECT_EQ(to_string(lightning), "lightning");
  EXPECT_EQ(to_string(retention), "lightning");  // the same pair
  EXPECT_EQ(to_string(simple_gla), "simple_gla");
  EXPECT_EQ(to_string(delta_rule), "delta_rule");
  EXPECT_EQ(to_string(linear_attention), "linear_attention");
  EXPECT_EQ(to_string(gdn2), "gdn2");
  EXPECT_EQ(to_string(comba), "comba");
  EXPECT_EQ(to_string(Op{Gate::kNone, Update::kEraseWrite}), "Op{Gate(1), Update(3)}");
}

// What a record holds are the inputs of the additive op, whatever made them.
TEST(CommitProblem, IsTheAdditiveOpOverTheSameStates) {
  const Problem draft{.op = lightning,
                      .dtype = DType::kFloat16,
                      .max_tokens = 9,
                      .heads = 2,
                      .value_heads = 6,
                      .key_dim = 8,
                      .value_dim = 16,
                      .gate_input = GateInput::kSoftplus,
                      .gate_dtype = DType::kBFloat16,
                      .qk_l2norm = true,
                      .state_layout = StateLayout::kValueKey,
                      .state_dtype = DType::kBFloat16};
  const Problem commit = commit_problem(draft);
  EXPECT_EQ(commit, (Problem{.op = simple_gla,
                             .dtype = DType::kFloat32,
                             .max_tokens = 9,
                             .heads = 2,
                             .value_heads = 6,
                             .key_dim = 8,
                             .value_dim = 16,
                             .gate_input = GateInput::kLogDecay,
                             .state_layout = StateLayout::kValueKey,
                             .state_dtype = DType::kBFloat16}));
  EXPECT_EQ(replay_elements(draft, 5), 5 * (2 * 8 + 6 * 16 + 6));
  linattn_problem asked = to_c(draft), made{};
  asked.size = sizeof asked;
  ASSERT_EQ(linattn_commit_problem(&asked, &made), LINATTN_OK);
  EXPECT_EQ(made.update, LINATTN_UPDATE_ADD);
  EXPECT_EQ(made.gate, LINATTN_GATE_HEAD);
  EXPECT_EQ(linattn_commit_problem(&asked, nullptr), LINATTN_INVALID_ARGUMENT);
  // An older caller's struct is shorter.
  linattn_problem old{};
  old.size = offsetof(linattn_problem, qk_l2norm);
  old.qk_l2norm = 77;
  ASSERT_EQ(linattn_commit_problem(&asked, &old), LINATTN_OK);
  EXPECT_EQ(old.size, offsetof(linattn_problem, qk_l2norm));
  EXPECT_EQ(old.update, LINATTN_UPDATE_ADD);
  EXPECT_EQ(old.qk_l2norm, 77);
  old.size = 0;
  EXPECT_EQ(linattn_commit_problem(&asked, &old), LINATTN_INVALID_ARGUMENT);

  const float record[5 * (2 * 8 + 6 * 16 + 6)]{};
  const StepArgs args = commit_args(draft, record, 4, 2);
  EXPECT_EQ(args.v.data, record + 4 * 2 * 8);
  EXPECT_EQ(args.g.data, record + 4 * 2 * 8 + 4 * 6 * 16);
  EXPECT_EQ(args.v.sequence_stride, 2 * 6 * 16);
}

}  // namespace
}  // namespace linattn::test
