// SPDX-License-Identifier: Apache-2.0
//
// A captured call reads its lengths and slots anew at each replay (faults C-05 to C-07).
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "device/memory.h"
#include "device/packed_call.h"

namespace linattn::test {
namespace {

struct Content {
  std::vector<std::int32_t> cu_seqlens, read_slots, write_slots, starts, offsets, positions, slots;
};

// 200 rows and 5 sequences each; slots of 12.
const std::vector<Content>& contents() {
  static const std::vector<Content> all{
      {{0, 40, 80, 120, 160, 200},
       {0, 1, 2, 3, 4},
       {0, 1, 2, 3, 4},
       {0, 0, 0, 0, 0},
       {0, 0, 0, 0, 0, 0},
       {},
       {}},
      {{0, 0, 1, 150, 150, 190},
       {7, -1, 9, 11, 3},
       {8, 1, 9, 10, 2},
       {0, 64, 0, 0, 0},
       {0, 0, 1, 3, 3, 3},
       {64, 64, 128},
       {4, 5, 6}},
      {{0, 200, 200, 200, 200, 200},
       {0, -1, -1, -1, -1},
       {5, -1, -1, -1, -1},
       {64, 0, 0, 0, 0},
       {0, 3, 3, 3, 3, 3},
       {64, 128, 192},
       {0, -1, 2}},
      {{0, 64, 64, 65, 129, 129},
       {-1, 2, -1, 6, -1},
       {3, 2, 1, 0, -1},
       {0, 0, 0, 128, 0},
       {0, 1, 1, 1, 3, 3},
       {64, 128, 192},
       {7, 8, 9}},
  };
  return all;
}

void set(PackedCall& call, const Content& c) {
  call.set("cu_seqlens", c.cu_seqlens);
  call.set("read_slots", c.read_slots);
  call.set("write_slots", c.write_slots);
  call.set("start_positions", c.starts);
  call.set("checkpoint_offsets", c.offsets);
  call.set("checkpoint_positions", c.positions);
  call.set("checkpoint_slots", c.slots);
}

class GraphReplay : public testing::TestWithParam<DType> {};

TEST_P(GraphReplay, FollowsTheContentOfIndexTensors) {
  const DType dtype = GetParam();
  const double most = dtype == DType::kFloat32 ? 2e-6 : 1e-2;
  for (const Op op : {kda, gdn, gla, simple_gla}) {
    const PackedCall::Shape shape{small_problem(op, dtype, StateLayout::kValueKey), 200, 5, 12};
    for (const std::string& row : implementations(Pass::kForward)) {
      PackedCall call(shape, gpu());
      std::unique_ptr<ForwardPlan> plan;
      try {
        plan = std::make_unique<ForwardPlan>(call.problem(), Device::cuda(0), row.c_str());
      } catch (const Error&) {
        continue;
      }
      SCOPED_TRACE(row + " " + to_string(op));
      const Workspace workspace = call.workspace(plan->workspace_bytes(200, 5));
      call.upload();
      set(call, contents().front());
      const cudaGraphExec_t graph =
          gpu().capture([&](Stream stream) { plan->run(call.forward, workspace, stream); });
      for (const Content& content : contents()) {
        call.upload();
        set(call, content);
        gpu().replay(graph);
        EXPECT_EQ(call.fetch(), "");

        PackedCall expected(shape, host());
        const ForwardPlan oracle(expected.problem(), Device::cpu(), "cpu.recurrent");
        set(expected, content);
        expected.upload();
        set(expected, content);
        oracle.run(expected.forward, expected.workspace(oracle.workspace_bytes(200, 5)));
        EXPECT_EQ(expected.fetch(), "");
        for (const char* name : {"out", "pool", "checkpoints"}) {
          const DType of = std::string(name) == "out" ? dtype : DType::kFloat32;
          EXPECT_LE(distance(call.values(name, of), expected.values(name, of)), most) << name;
        }
      }
      require(cudaGraphExecDestroy(graph));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, GraphReplay, testing::Values(DType::kFloat32, DType::kBFloat16),
                         [](const auto& info) { return to_string(info.param); });

}  // namespace
}  // namespace linattn::test
