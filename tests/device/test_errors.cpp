// SPDX-License-Identifier: Apache-2.0
//
// Failures of CUDA calls: named, and without a trace in later calls.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "device/memory.h"
#include "device/packed_call.h"

namespace linattn::test {
namespace {

Problem problem() {
  return {.op = kda,
          .dtype = DType::kBFloat16,
          .heads = 1,
          .value_heads = 2,
          .key_dim = 64,
          .value_dim = 64,
          .gate_input = GateInput::kLogDecay,
          .beta_input = BetaInput::kValue,
          .state_layout = StateLayout::kValueKey};
}

class Errors : public testing::Test {
 protected:
  Errors() : call_({problem(), 100, 2, 4}, gpu()) {
    call_.upload();
    call_.set("cu_seqlens", {0, 60, 100});
    call_.set("read_slots", {0, 1});
    call_.set("write_slots", {2, 3});
  }
  Workspace workspace(const ForwardPlan& plan) {
    return call_.workspace(plan.workspace_bytes(100, 2));
  }

  PackedCall call_;
};

std::vector<std::string> cuda_rows(const Problem& problem) {
  std::vector<std::string> rows;
  for (const std::string& row : implementations(Pass::kForward)) try {
      const ForwardPlan plan(problem, Device::cuda(0), row.c_str());
      rows.push_back(row);
    } catch (const Error&) {
    }
  return rows;
}

TEST_F(Errors, ALaunchThatFailsDoesNotPoisonTheNext) {
  for (const std::string& row : cuda_rows(call_.problem())) {
    SCOPED_TRACE(row);
    const ForwardPlan plan(call_.problem(), Device::cuda(0), row.c_str());
    const Workspace scratch = workspace(plan);
    plan.run(call_.forward, scratch, gpu().stream());  // what is lazy is loaded
    require(cudaStreamSynchronize(gpu().stream()));

    // A wait inside a capture spoils it: every launch into the stream fails from then on.
    require(cudaStreamBeginCapture(gpu().stream(), cudaStreamCaptureModeGlobal));
    EXPECT_NE(cudaStreamSynchronize(gpu().stream()), cudaSuccess);
    cudaGetLastError();
    try {
      plan.run(call_.forward, scratch, gpu().stream());
      ADD_FAILURE() << "a launch into a spoilt capture was taken for good";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kCuda) << error.what();
      EXPECT_NE(std::string(error.what()).find("cuda/"), std::string::npos) << error.what();
    }
    EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
    cudaGraph_t graph = nullptr;
    EXPECT_NE(cudaStreamEndCapture(gpu().stream(), &graph), cudaSuccess);
    cudaGetLastError();

    EXPECT_NO_THROW(plan.run(call_.forward, scratch, gpu().stream()));
    require(cudaStreamSynchronize(gpu().stream()));
  }
}

// An error that the caller left behind is the caller's.
TEST_F(Errors, AnEarlierErrorIsNotTakenForOurs) {
  for (const std::string& row : cuda_rows(call_.problem())) {
    SCOPED_TRACE(row);
    const ForwardPlan plan(call_.problem(), Device::cuda(0), row.c_str());
    const Workspace scratch = workspace(plan);
    void* data = nullptr;
    EXPECT_NE(cudaMalloc(&data, std::size_t{1} << 50), cudaSuccess);
    EXPECT_NO_THROW(plan.run(call_.forward, scratch, gpu().stream()));
    cudaGetLastError();
    require(cudaStreamSynchronize(gpu().stream()));
  }
}

TEST_F(Errors, RefusalsNameTheDevice) {
  try {
    const ForwardPlan plan(call_.problem(), Device::cuda(63));
    FAIL() << "device 63 was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_NE(std::string(error.what()).find("device index is 63"), std::string::npos)
        << error.what();
  }
  Problem wide = problem();
  wide.max_tokens = 1;
  wide.key_dim = 513;
  EXPECT_NE(explain(wide, Device::cuda(0)).find("key_dim is 513"), std::string::npos);
}

// With one GPU this shows only that the current device stays.
TEST_F(Errors, TheCurrentDeviceStays) {
  int before = -1, after = -1;
  require(cudaGetDevice(&before));
  const ForwardPlan plan(call_.problem(), Device::cuda(0));
  plan.run(call_.forward, workspace(plan), gpu().stream());
  require(cudaStreamSynchronize(gpu().stream()));
  require(cudaGetDevice(&after));
  EXPECT_EQ(before, after);
}

}  // namespace
}  // namespace linattn::test
