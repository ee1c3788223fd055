// SPDX-License-Identifier: Apache-2.0
//
// The caller's stream and no other, beside other kernels and from many threads (faults C-01, C-04,
// C-08).
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "device/memory.h"
#include "device/packed_call.h"

namespace linattn::test {
namespace {

constexpr std::int64_t kSequences = 4;

PackedCall::Shape shape(Op op, DType dtype, std::int64_t tokens) {
  return {small_problem(op, dtype, StateLayout::kKeyValue), tokens, kSequences, 2 * kSequences};
}

// Reads slots 0 .. N, writes slots N .. 2 N: a second run does what the first did.
void fill(PackedCall& call) {
  const auto t = static_cast<std::int32_t>(call.shape().tokens);
  std::vector<std::int32_t> chain, reads, writes;
  for (std::int32_t n = 0; n < kSequences; ++n)
    for (std::int32_t column = 0; column < PackedCall::kColumns; ++column) {
      reads.push_back(n);
      writes.push_back(column == 0 ? static_cast<std::int32_t>(kSequences) + n : -1);
    }
  for (std::int32_t i = 0; i < t; ++i) chain.push_back(i % (t / 4) - 1);
  call.upload();
  call.set("cu_seqlens", {0, t / 4, t / 2, 3 * (t / 4), t});
  call.set("read_slots", {0, 1, 2, 3});
  call.set("write_slots", {4, 5, 6, 7});
  call.set("read_columns", reads);
  call.set("write_columns", writes);
  call.set("accepted", {1, 1, 1, 1});
  call.set("parents", chain);
}

struct Content {
  std::vector<float> out, pool;
  bool operator==(const Content&) const = default;
};

Content content(PackedCall& call) {
  EXPECT_EQ(call.fetch(), "");
  return {call.values("out", call.problem().dtype), call.values("pool", DType::kFloat32)};
}

// q arrives late on stream A, from pinned memory, and the result is read on A, or on B behind an
// event: whoever launches elsewhere reads NaN.
template <class Args>
void expect_order(std::int64_t tokens) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    PackedCall call(shape(kda, dtype, tokens), gpu());
    for_each_plan<Args>(call.problem(), [&](const Plan<Args>& plan, const std::string&) {
      fill(call);
      call.run(plan);
      const Content expected = content(call);

      Guarded& q = call.buffer("q");
      void* late = nullptr;
      require(cudaMallocHost(&late, q.bytes()));
      require(cudaMemcpy(late, q.data(), q.bytes(), cudaMemcpyDeviceToHost));
      cudaStream_t a = nullptr, b = nullptr;
      cudaEvent_t ready = nullptr;
      for (cudaStream_t* stream : {&a, &b})
        require(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking));
      require(cudaEventCreateWithFlags(&ready, cudaEventDisableTiming));
      for (const cudaStream_t on : {a, b}) {
        fill(call);
        require(cudaMemset(q.data(), 0xff, q.bytes()));
        require(cudaDeviceSynchronize());
        const auto sleep = [](void*) {
          std::this_thread::sleep_for(std::chrono::milliseconds(30));
        };
        require(cudaLaunchHostFunc(a, sleep, nullptr));
        require(cudaMemcpyAsync(q.data(), late, q.bytes(), cudaMemcpyHostToDevice, a));
        require(cudaEventRecord(ready, a));
        if (on == b) require(cudaStreamWaitEvent(b, ready));
        call.enqueue(plan, on);
        wait(on);
        EXPECT_TRUE(content(call) == expected);
      }
      require(cudaEventDestroy(ready));
      for (const cudaStream_t stream : {a, b}) require(cudaStreamDestroy(stream));
      require(cudaFreeHost(late));
    });
  }
}

TEST(Streams, ForwardKeepsTheOrderOfItsStream) { expect_order<ForwardArgs>(300); }
TEST(Streams, StepKeepsTheOrderOfItsStream) { expect_order<StepArgs>(16); }

// A stream-ordered workspace, given back behind the call and taken by another stream at once.
TEST(Streams, AWorkspaceMayBeFreedBehindTheCall) {
  PackedCall call(shape(kda, DType::kBFloat16, 4000), gpu());
  fill(call);
  call.set("cu_seqlens", {0, 4000, 4000, 4000, 4000});
  for_each_plan<ForwardArgs>(call.problem(), [&](const ForwardPlan& plan, const std::string&) {
    call.run(plan);
    const Content expected = content(call);
    const std::size_t bytes = plan.workspace_bytes(4000, kSequences);
    for (int i = 0; i < 5; ++i) {
      void* scratch = nullptr;
      require(cudaMallocAsync(&scratch, bytes + 1, gpu().stream()));
      plan.run(call.forward, {scratch, bytes}, gpu().stream());
      require(cudaFreeAsync(scratch, gpu().stream()));
      require(cudaMallocAsync(&scratch, bytes + 1, gpu().stream()));
      require(cudaMemsetAsync(scratch, 0xff, bytes + 1, gpu().stream()));
      require(cudaFreeAsync(scratch, gpu().stream()));
    }
    wait(gpu().stream());
    EXPECT_TRUE(content(call) == expected);
  });
}

// A race shows as a difference between runs, and rather while the machine is busy.
template <class Args>
void expect_same_bits(std::int64_t tokens) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16})
    for (const Op op : {kda, gdn, gla, simple_gla}) {
      PackedCall call(shape(op, dtype, tokens), gpu()), other(shape(op, dtype, tokens), gpu());
      cudaStream_t beside = nullptr;
      require(cudaStreamCreateWithFlags(&beside, cudaStreamNonBlocking));
      for_each_plan<Args>(call.problem(), [&](const Plan<Args>& plan, const std::string&) {
        for (PackedCall* one : {&call, &other}) fill(*one);
        call.run(plan);
        const Content expected = content(call);
        other.prepare(plan);
        for (int i = 0; i < 25; ++i) {
          for (int j = 0; j < 8; ++j) other.enqueue(plan, beside);
          for (int j = 0; j < 8; ++j) call.enqueue(plan, gpu().stream());
          wait(gpu().stream());
          ASSERT_TRUE(content(call) == expected) << "round " << i;
        }
        wait(beside);
        EXPECT_TRUE(content(other) == expected);
      });
      require(cudaStreamDestroy(beside));
    }
}

TEST(Streams, ForwardGivesTheSameBitsBesideOtherKernels) { expect_same_bits<ForwardArgs>(1300); }
TEST(Streams, StepGivesTheSameBitsBesideOtherKernels) { expect_same_bits<StepArgs>(16); }

// Eight threads, each with a stream, make and run their first plans at once.
int first_calls() {
  constexpr Op kOps[] = {kda, gdn, gla, simple_gla};
  struct Task {
    DeviceMemory memory;
    std::unique_ptr<PackedCall> call;
    Content first;
  };
  std::vector<std::unique_ptr<Task>> tasks;
  for (int i = 0; i < 8; ++i) {
    tasks.push_back(std::make_unique<Task>());
    const DType dtype = i < 4 ? DType::kBFloat16 : DType::kFloat32;
    tasks[i]->call = std::make_unique<PackedCall>(shape(kOps[i % 4], dtype, 16), tasks[i]->memory);
  }
  std::vector<std::thread> threads;
  for (const auto& task : tasks)
    threads.emplace_back([&task = *task] {
      for (int i = 0; i < 10; ++i) {
        fill(*task.call);
        const ForwardPlan forward(task.call->problem(), gpu().device());
        const StepPlan step(task.call->problem(), gpu().device());
        task.call->prepare(forward);
        task.call->enqueue(forward, task.memory.stream());
        wait(task.memory.stream());
        if (i == 0) task.first = content(*task.call);
        task.call->prepare(step);
        task.call->enqueue(step, task.memory.stream());
        wait(task.memory.stream());
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const auto& task : tasks) {
    fill(*task->call);
    task->call->run(ForwardPlan(task->call->problem(), gpu().device()));
    if (!(content(*task->call) == task->first)) return 1;
  }
  return testing::Test::HasFailure() ? 2 : 0;
}

TEST(Streams, FirstCallsFromManyThreads) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a program of its own, which has run no plan
  EXPECT_EXIT(std::_Exit(first_calls()), testing::ExitedWithCode(0), "");
  EXPECT_EQ(first_calls(), 0);
}

}  // namespace
}  // namespace linattn::test
