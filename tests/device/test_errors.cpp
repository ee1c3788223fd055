// SPDX-License-Identifier: Apache-2.0
//
// Failures of CUDA calls: named, and without a trace in later calls.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>
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

  PackedCall call_;
};

TEST_F(Errors, ALaunchThatFailsDoesNotPoisonTheNext) {
  for_each_plan<ForwardArgs>(call_.problem(), [&](const ForwardPlan& plan, const std::string&) {
    call_.run(plan);  // what is lazy is loaded

    // A wait inside a capture spoils it: every launch into the stream fails from then on.
    require(cudaStreamBeginCapture(gpu().stream(), cudaStreamCaptureModeGlobal));
    EXPECT_NE(cudaStreamSynchronize(gpu().stream()), cudaSuccess);
    cudaGetLastError();
    try {
      call_.enqueue(plan, gpu().stream());
      ADD_FAILURE() << "a launch into a spoilt capture was taken for good";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kCuda) << error.what();
      EXPECT_NE(std::string(error.what()).find("cuda/"), std::string::npos) << error.what();
    }
    EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
    cudaGraph_t graph = nullptr;
    EXPECT_NE(cudaStreamEndCapture(gpu().stream(), &graph), cudaSuccess);
    cudaGetLastError();

    EXPECT_NO_THROW(call_.enqueue(plan, gpu().stream()));
    wait(gpu().stream());
  });
}

// An error that the caller left behind is the caller's.
TEST_F(Errors, AnEarlierErrorIsNotTakenForOurs) {
  for_each_plan<ForwardArgs>(call_.problem(), [&](const ForwardPlan& plan, const std::string&) {
    call_.prepare(plan);
    void* data = nullptr;
    EXPECT_NE(cudaMalloc(&data, std::size_t{1} << 50), cudaSuccess);
    EXPECT_NO_THROW(call_.enqueue(plan, gpu().stream()));
    cudaGetLastError();
    wait(gpu().stream());
  });
}

// In a process of its own, which it costs: a kernel that reads where no memory is. The failure
// comes with the wait, or with a later launch of the same call, and from then on every call names
// it.
void break_the_context(PackedCall& call, const ForwardPlan& plan) {
  const auto says = [](const std::string& text) {
    return text.find("illegal memory access") != std::string::npos;
  };
  call.prepare(plan);
  call.forward.q.data = reinterpret_cast<void*>(std::uintptr_t{1} << 32);
  for (int i = 0; i < 4; ++i) try {
      call.enqueue(plan, gpu().stream());
      if (i > 0) std::_Exit(3);
      if (cudaStreamSynchronize(gpu().stream()) == cudaSuccess) std::_Exit(2);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kCuda || !says(error.what())) std::_Exit(4);
    }
  try {  // planning asks the device nothing, or says what it answered
    const ForwardPlan again(call.problem(), gpu().device(), plan.implementation().c_str());
  } catch (const Error& error) {
    if (!says(error.what())) std::_Exit(5);
  }
  std::_Exit(0);
}

TEST_F(Errors, ABrokenContextIsNamedByEveryLaterCall) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a program of its own, not a fork
  for_each_plan<ForwardArgs>(call_.problem(), [&](const ForwardPlan& plan, const std::string&) {
    EXPECT_EXIT(break_the_context(call_, plan), testing::ExitedWithCode(0), "");
    call_.run(plan);
  });
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
  EXPECT_NE(explain(wide, gpu().device()).find("key_dim is 513"), std::string::npos);
}

// A row whose grid spreads over the whole machine leaves such a problem to one that does not.
TEST_F(Errors, ALimitOnMultiprocessorsIsKept) {
  Problem limited = call_.problem();
  EXPECT_NE(ForwardPlan(limited, gpu().device()).implementation(), "cuda.recurrent");
  limited.sm_limit = 16;
  EXPECT_EQ(ForwardPlan(limited, gpu().device()).implementation(), "cuda.recurrent");
  EXPECT_NE(explain(limited, gpu().device()).find("sm_limit is 16"), std::string::npos);
}

// Chunks of a token or two are mostly padding: portable.forward takes such a call, and leaves it to
// the row that goes token by token, unless it is named.
TEST_F(Errors, TheCallsOfAFewTokensGoToTheNextRow) {
  const auto ran = [](std::int64_t tokens, const char* row, std::vector<std::int32_t> offsets) {
    PackedCall call({problem(), tokens, 2, 4}, gpu());
    call.upload();
    call.set("cu_seqlens", offsets);
    call.set("read_slots", {0, 1});
    call.set("write_slots", {2, 3});
    call.forward.checkpoints = {};
    call.forward.checkpoint_offsets = call.forward.checkpoint_positions =
        call.forward.checkpoint_slots = nullptr;
    const ForwardPlan plan(call.problem(), gpu().device(), row);
    call.run(plan);
    EXPECT_EQ(call.fetch(), "");
    return std::pair{plan.explain(call.forward), call.values("pool", DType::kFloat32)};
  };
  const auto [few, state] = ran(2, nullptr, {0, 1, 2});
  EXPECT_NE(few.find("portable.forward: yields to a later one"), std::string::npos) << few;
  EXPECT_TRUE(state == ran(2, "cuda.recurrent", {0, 1, 2}).second);
  const auto [named, other] = ran(2, "portable.forward", {0, 1, 2});
  EXPECT_NE(named.find("portable.forward: takes it"), std::string::npos) << named;
  EXPECT_FALSE(state == other);
  EXPECT_LE(distance(other, state), 1e-2);
  const auto [many, _] = ran(100, nullptr, {0, 60, 100});
  EXPECT_NE(many.find(".forward: takes it"), std::string::npos) << many;
}

// With one GPU this shows only that the current device stays; tests/python has the case of two.
TEST_F(Errors, TheCurrentDeviceStays) {
  const auto device = [] {
    int index = -1;
    require(cudaGetDevice(&index));
    return index;
  };
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    PackedCall call({small_problem(kda, dtype, StateLayout::kKeyValue), 16, 2, 4}, gpu());
    call.upload();
    const auto expect_stay = [&](const auto& plan, const std::string&) {
      const int before = device();
      call.run(plan);
      EXPECT_EQ(device(), before);
    };
    for_each_plan<ForwardArgs>(call.problem(), expect_stay);
    for_each_plan<StepArgs>(call.problem(), expect_stay);
  }
}

}  // namespace
}  // namespace linattn::test
