// SPDX-License-Identifier: Apache-2.0
//
// Every template instance of every CUDA row, through every phase and option that it has, on small
// calls: what `make device-sanitize` runs. Only the public API is used, so an instance is what a
// problem selects: the class of its op, its dtype, its K padded to what is compiled.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "device/memory.h"
#include "ops/compare.h"
#include "ops/run.h"

namespace linattn::test {
namespace {

// Among them they have every gate input, beta input, state layout and dtype, and every option.
enum class Road {
  kServing,     // ragged and empty, a pool in place with null slots, checkpoints, start positions
  kSplit,       // one long sequence of one head: cut into pieces, or what stands for that
  kTransition,  // the state transition; K below its padding, strided heads, a norm, logits
  kStrong,      // gates that no factor holds: the safe route; surplus rows
  kMany,        // more heads and chunks than a workspace of bounded size holds at once
  kDecode,      // step: a token each, a pool in place with null slots and strides
  kColumns,     // step: accepted drafts, a state per token
  kTree,        // step: a draft tree
};
constexpr const char* kRoadNames[] = {"serving", "split",  "transition", "strong",
                                      "many",    "decode", "columns",    "tree"};

struct Instance {
  NamedOp op;
  DType dtype;
  std::int32_t key_dim;
  Road road;
};

std::string name_of(const Instance& i) {
  return std::string(i.op.name) + "_" + to_string(i.dtype) + "_k" + std::to_string(i.key_dim) +
         "_" + kRoadNames[static_cast<int>(i.road)];
}
void PrintTo(const Instance& i, std::ostream* stream) { *stream << name_of(i); }

std::vector<Instance> every_instance() {
  std::vector<Instance> all;
  const auto add = [&](NamedOp op, DType dtype, std::int32_t key_dim,
                       std::initializer_list<Road> roads) {
    for (const Road road : roads) all.push_back({op, dtype, key_dim, road});
  };
  const auto forward = {Road::kServing, Road::kSplit, Road::kTransition, Road::kStrong};
  const auto step = {Road::kDecode, Road::kColumns, Road::kTree};
  std::vector<NamedOp> ops(kClassOps.begin(), kClassOps.end());
  ops.push_back({"gdn2", gdn2});  // the same class as kda, with strengths per channel
  for (const NamedOp& op : ops) {
    for (const std::int32_t key_dim : {64, 128, 256}) {
      add(op, DType::kBFloat16, key_dim, forward);
      add(op, DType::kBFloat16, key_dim, step);
      if (key_dim <= 128) add(op, DType::kFloat16, key_dim, forward);
    }
    for (const std::int32_t key_dim : {64, 128, 256, 512}) {
      add(op, DType::kFloat32, key_dim, {Road::kServing, Road::kTransition, Road::kStrong});
      add(op, DType::kFloat32, key_dim, step);
    }
  }
  for (const NamedOp& op : ops) add(op, DType::kBFloat16, 256, {Road::kMany});
  add(ops.front(), DType::kBFloat16, 64, {Road::kMany});
  add(ops.front(), DType::kFloat16, 128, {Road::kMany});
  for (const NamedOp& op : kAllOps)  // gates that are constant or absent
    if (op.op.gate == Gate::kHeadConstant || op.op.gate == Gate::kNone) {
      add(op, DType::kBFloat16, 128, {Road::kServing, Road::kSplit});
      add(op, DType::kFloat32, 64, {Road::kColumns});
    }
  return all;
}

Scenario scenario(const Instance& i) {
  const bool step = i.road >= Road::kDecode;
  const auto made = [&](std::vector<std::int64_t> lengths, std::int32_t heads,
                        std::int32_t value_heads, std::int32_t key_dim, std::int32_t value_dim) {
    return make(i.op.op, step ? Pass::kStep : Pass::kForward, std::move(lengths), heads,
                value_heads, key_dim, value_dim, i.dtype);
  };
  Scenario s;
  const auto set = [&](GateInput gate, BetaInput beta) {  // where there is one
    if (i.op.op.gate != Gate::kNone) s.problem.gate_input = gate;
    if (gate == GateInput::kBounded && i.op.op.gate != Gate::kNone) s.lower_bound = -5;
    if (i.op.op.update != Update::kAdd) s.problem.beta_input = beta;
  };
  switch (i.road) {
    case Road::kServing:
      s = made({45, 0, 1, 70, 16}, 1, 2, i.key_dim, 48);
      s.options = kSlots | kInPlace | kHasInitial | kCheckpoints | kStarts;
      s.problem.gate_dtype = DType::kBFloat16;
      s.problem.checkpoint_dtype = DType::kBFloat16;
      s.problem.state_layout = StateLayout::kValueKey;
      break;
    case Road::kSplit:
      s = made({1100}, 1, 1, i.key_dim, 32);
      set(GateInput::kSoftplus, BetaInput::kValue);
      s.decay = Decay::kLong;
      break;
    case Road::kTransition:
      s = made({40, 33}, 2, 4, i.key_dim - 4, 20);
      s.options = kTransition | kHeadMajor | kInt64 | kL2Norm;
      s.keys = Keys::kRaw;
      s.problem.qk_l2norm = true;
      set(GateInput::kBounded, BetaInput::kLogit);
      break;
    case Road::kStrong:
      s = made({70, 33}, 1, 3, i.key_dim, 64);
      s.variable_length = true;
      s.surplus = 9;
      s.decay = i.op.op.gate == Gate::kChannel ? Decay::kMixed : Decay::kStrong;
      s.problem.state_dtype = DType::kBFloat16;
      s.problem.beta_dtype = DType::kBFloat16;
      set(GateInput::kDecay, BetaInput::kTwiceLogit);
      break;
    case Road::kMany:
      s = made({500, 0, 1100}, 8, 8192 / i.key_dim, i.key_dim, 16);
      break;
    case Road::kDecode:
      s = made({1, 1, 1, 1, 1, 1, 1}, 1, 2, i.key_dim, 80);
      s.options = kSlots | kInPlace | kHasInitial;
      s.problem.gate_dtype = DType::kBFloat16;
      s.problem.state_layout = StateLayout::kValueKey;
      break;
    case Road::kColumns:
      s = made({4, 1, 5, 3}, 1, 2, i.key_dim, 48);
      s.options = kSlots | kAccepted | kColumns;
      s.problem.state_dtype = DType::kFloat16;
      s.problem.state_layout =
          i.dtype == DType::kFloat32 ? StateLayout::kKeyValue : StateLayout::kValueKey;
      set(GateInput::kSoftplus, BetaInput::kLogit);
      break;
    case Road::kTree:
      s = made({7, 0, 8}, 2, 4, i.key_dim - 4, 20);
      s.options = kTree | kL2Norm;
      s.surplus = 3;
      s.problem.qk_l2norm = true;
      set(GateInput::kBounded, BetaInput::kTwiceLogit);
      break;
  }
  s.problem.max_tokens = std::max<std::int64_t>(s.tokens(), 1);
  for (const char c : name_of(i)) s.seed = s.seed * 131 + static_cast<unsigned char>(c);
  return s;
}

class Instances : public testing::TestWithParam<Instance> {};

TEST_P(Instances, AgreeWithOracle) {
  const Scenario s = scenario(GetParam());
  const std::vector<std::string> ran = expect_agreement(s).rows;
  // What a row came to refuse would go unseen.
  std::vector<std::string> expected{"cuda.recurrent"};
  if (s.pass == Pass::kForward && s.problem.dtype != DType::kFloat32)
    expected.insert(expected.begin(), "portable.forward");
#if LINATTN_HAS_SM90
  int major = 0;
  require(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
  if (s.pass == Pass::kForward && s.problem.dtype == DType::kBFloat16 && s.problem.key_dim <= 128 &&
      major == 9) {
    expected.emplace_back("sm90.forward");
    if (s.problem.op.update == Update::kAdd && s.problem.op.gate != Gate::kChannel &&
        !s.problem.qk_l2norm)
      expected.emplace_back("sm90.direct");
  }
#endif
  for (const std::string& row : expected)
    EXPECT_TRUE(std::find(ran.begin(), ran.end(), row) != ran.end()) << row << " did not run";
}

INSTANTIATE_TEST_SUITE_P(Every, Instances, testing::ValuesIn(every_instance()),
                         [](const auto& info) { return name_of(info.param); });

}  // namespace
}  // namespace linattn::test
