// SPDX-License-Identifier: Apache-2.0
//
// A captured call reads its lengths and slots anew at each replay (faults C-05 to C-07).
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "device/memory.h"
#include "device/packed_call.h"

namespace linattn::test {
namespace {

using Content = std::vector<std::pair<const char*, std::vector<std::int32_t>>>;

// 200 rows and 5 sequences each; slots of 12.
const std::vector<Content> kForwardContents{
    {{"cu_seqlens", {0, 40, 80, 120, 160, 200}},
     {"read_slots", {0, 1, 2, 3, 4}},
     {"write_slots", {0, 1, 2, 3, 4}},
     {"start_positions", {0, 0, 0, 0, 0}},
     {"checkpoint_offsets", {0, 0, 0, 0, 0, 0}}},
    {{"cu_seqlens", {0, 0, 1, 150, 150, 190}},
     {"read_slots", {7, -1, 9, 11, 3}},
     {"write_slots", {8, 1, 9, 10, 2}},
     {"start_positions", {0, 64, 0, 0, 0}},
     {"checkpoint_offsets", {0, 0, 1, 3, 3, 3}},
     {"checkpoint_positions", {64, 64, 128}},
     {"checkpoint_slots", {4, 5, 6}}},
    {{"cu_seqlens", {0, 200, 200, 200, 200, 200}},
     {"read_slots", {0, -1, -1, -1, -1}},
     {"write_slots", {5, -1, -1, -1, -1}},
     {"start_positions", {64, 0, 0, 0, 0}},
     {"checkpoint_offsets", {0, 3, 3, 3, 3, 3}},
     {"checkpoint_positions", {64, 128, 192}},
     {"checkpoint_slots", {0, -1, 2}}},
    {{"cu_seqlens", {0, 64, 64, 65, 129, 129}},
     {"read_slots", {-1, 2, -1, 6, -1}},
     {"write_slots", {3, 2, 1, 0, -1}},
     {"start_positions", {0, 0, 0, 128, 0}},
     {"checkpoint_offsets", {0, 1, 1, 1, 3, 3}},
     {"checkpoint_positions", {64, 128, 192}},
     {"checkpoint_slots", {7, 8, 9}}},
};

// 12 rows and 3 sequences, 4 columns of slots each.
const std::vector<Content> kStepContents{
    {{"cu_seqlens", {0, 4, 8, 12}},
     {"accepted", {1, 1, 1}},
     {"read_columns", {0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2}},
     {"write_columns", {3, 4, 5, 6, 7, 8, 9, 10, 11, -1, -1, -1}},
     {"parents", {-1, 0, 1, 2, -1, 0, 1, 2, -1, 0, 1, 2}}},
    {{"cu_seqlens", {0, 1, 1, 5}},
     {"accepted", {4, 2, 3}},
     {"read_columns", {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}},
     {"write_columns", {3, -1, -1, -1, 5, -1, -1, -1, 10, 8, 9, 11}},
     {"parents", {-1, -1, 0, 0, 1, -1, -1, -1, -1, -1, -1, -1}}},
    {{"cu_seqlens", {0, 0, 4, 8}},
     {"accepted", {1, 0, 5}},  // 0, and 5 of 4 columns: pads
     {"read_columns", {0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8}},
     {"write_columns", {0, -1, -1, -1, 1, 2, 3, 4, 5, 6, 7, 8}},
     {"parents", {-1, 0, 0, -1, -1, 0, 1, 2, -1, -1, -1, -1}}},
};

void set(PackedCall& call, const Content& content) {
  for (const auto& [name, values] : content) call.set(name, values);
}

class GraphReplay : public testing::TestWithParam<DType> {
 protected:
  // What is replayed equals the oracle on every content.
  template <class Args>
  void expect_following(std::int64_t tokens, std::int64_t sequences,
                        const std::vector<Content>& contents,
                        Problem (*change)(Problem) = nullptr) {
    const double most = GetParam() == DType::kFloat32 ? 2e-6 : 1e-2;
    for (const Op op : {kda, gdn, gla, simple_gla}) {
      const Problem plain = small_problem(op, GetParam(), StateLayout::kValueKey);
      const PackedCall::Shape shape{change == nullptr ? plain : change(plain), tokens, sequences,
                                    12};
      PackedCall call(shape, gpu());
      for_each_plan<Args>(call.problem(), [&](const auto& plan, const std::string&) {
        call.prepare(plan);
        call.upload();
        set(call, contents.front());
        const cudaGraphExec_t graph =
            gpu().capture([&](Stream stream) { call.enqueue(plan, stream); });
        for (const Content& content : contents) {
          call.upload();
          set(call, content);
          gpu().replay(graph);
          EXPECT_EQ(call.fetch(), "");

          PackedCall expected(shape, host());
          expected.upload();
          set(expected, content);
          expected.run(Plan<Args>(expected.problem(), Device::cpu(), "cpu.recurrent"));
          EXPECT_EQ(expected.fetch(), "");
          for (const char* name : {"out", "pool", "checkpoints"}) {
            const DType of = std::string(name) == "out" ? GetParam() : DType::kFloat32;
            EXPECT_LE(distance(call.values(name, of), expected.values(name, of)), most) << name;
          }
          if (change != nullptr) {
            EXPECT_EQ(call.values("conv_state", GetParam()),
                      expected.values("conv_state", GetParam()));
          }
        }
        require(cudaGraphExecDestroy(graph));
      });
    }
  }
};

TEST_P(GraphReplay, ForwardFollowsTheContentOfIndexTensors) {
  expect_following<ForwardArgs>(200, 5, kForwardContents);
}
TEST_P(GraphReplay, StepFollowsTheContentOfIndexTensors) {
  expect_following<StepArgs>(12, 3, kStepContents);
}
TEST_P(GraphReplay, FusedStepFollowsTheContentOfIndexTensors) {
  std::vector<Content> contents = kStepContents;
  const std::vector<std::int32_t> slots[] = {{0, 1, 2}, {11, 3, -1}, {4, -1, 5}};
  for (std::size_t i = 0; i < contents.size(); ++i) {
    contents[i].emplace_back("conv_read_slots", slots[i]);
    contents[i].emplace_back("conv_write_slots", slots[(i + 1) % 3 == 0 ? i : 0]);
    contents[i].emplace_back("conv_accepted", std::vector<std::int32_t>{1, 7, 3});
  }
  expect_following<StepArgs>(12, 3, contents, fused);
}

// Two graphs of different sizes, replayed in turn, and a larger call between them: nothing that a
// graph uses has moved or grown.
TEST_P(GraphReplay, OutlivesOtherCalls) {
  const auto shape = [](std::int64_t tokens) {
    return PackedCall::Shape{small_problem(kda, GetParam(), StateLayout::kKeyValue), tokens, 5, 12};
  };
  PackedCall first(shape(200), gpu()), second(shape(1300), gpu()), large(shape(9000), gpu());
  large.upload();
  set(large, kForwardContents[0]);
  large.set("cu_seqlens", {0, 9000, 9000, 9000, 9000, 9000});
  for_each_plan<ForwardArgs>(first.problem(), [&](const ForwardPlan&, const std::string& row) {
    std::vector<cudaGraphExec_t> graphs;
    std::vector<std::vector<float>> expected;
    const auto plan_of = [&](const PackedCall& call) {
      return ForwardPlan(call.problem(), gpu().device(), row.c_str());
    };
    const auto replayed = [&](PackedCall& call, std::size_t i) {
      call.upload();
      set(call, kForwardContents[1 + i]);
      gpu().replay(graphs[i]);
      EXPECT_EQ(call.fetch(), "");
      return call.values("out", GetParam());
    };
    for (PackedCall* call : {&first, &second}) {
      const ForwardPlan plan = plan_of(*call);
      call->upload();
      set(*call, kForwardContents[0]);
      call->prepare(plan);
      graphs.push_back(gpu().capture([&](Stream stream) { call->enqueue(plan, stream); }));
      expected.push_back(replayed(*call, graphs.size() - 1));
    }
    for (int i = 0; i < 3; ++i) {
      large.run(plan_of(large));
      EXPECT_EQ(replayed(first, 0), expected[0]);
      EXPECT_EQ(replayed(second, 1), expected[1]);
    }
    for (const cudaGraphExec_t graph : graphs) require(cudaGraphExecDestroy(graph));
  });
}

INSTANTIATE_TEST_SUITE_P(DTypes, GraphReplay, testing::Values(DType::kFloat32, DType::kBFloat16),
                         [](const auto& info) { return to_string(info.param); });

}  // namespace
}  // namespace linattn::test
