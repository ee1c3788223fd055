// SPDX-License-Identifier: Apache-2.0
//
// The first GPU as a Memory of the conformance driver. Every second run is captured into a graph
// and replayed, so that a driver that runs twice and compares bits also compares the two ways to
// launch.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <source_location>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "support/memory.h"

namespace linattn::test {

// The test's own calls. Not linattn's check: a test must not lean on what it tests.
inline void require(cudaError_t status,
                    std::source_location where = std::source_location::current()) {
  if (status != cudaSuccess)
    throw std::runtime_error(std::string(cudaGetErrorString(status)) + " at line " +
                             std::to_string(where.line()) + " of " + where.function_name());
}

// Why there is no GPU to test on; "": there is.
inline std::string missing_gpu() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) return cudaGetErrorString(status);
  return count == 0 ? "no CUDA device" : "";
}

inline bool asked_for(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && std::string(value) == "1";
}

// A launch that has not ended by then hangs: the program ends, and its output names the test.
inline void wait(cudaStream_t stream) {
  constexpr std::chrono::seconds kMost{300};  // under a sanitizer kernels take a hundred times long
  const auto begin = std::chrono::steady_clock::now();
  while (cudaStreamQuery(stream) == cudaErrorNotReady) {
    cudaGetLastError();
    if (std::chrono::steady_clock::now() - begin > kMost) {
      std::fprintf(stderr, "a launch has not ended after %d s\n", static_cast<int>(kMost.count()));
      std::abort();
    }
    std::this_thread::yield();
  }
  require(cudaStreamSynchronize(stream));
}

class DeviceMemory : public Memory {
 public:
  DeviceMemory() { require(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }

  Device device() const override { return Device::cuda(0); }
  cudaStream_t stream() const { return stream_; }

  std::string lacks(std::size_t, std::size_t all) const override {
    if (!asked_for("LINATTN_TEST_LARGE")) return "LINATTN_TEST_LARGE is not 1";
    std::size_t free = 0, total = 0;
    require(cudaMemGetInfo(&free, &total));
    return free >= all ? "" : "less than " + std::to_string(all >> 30) + " GiB are free";
  }

  // compute-sanitizer watches: every buffer is an allocation of its own then.
  std::size_t guard() const override { return watched_ ? 0 : Memory::guard(); }

  void* allocate(std::size_t bytes) override {
    std::vector<void*>& idle = idle_[bytes];
    void* data = nullptr;
    if (idle.empty()) {
      require(cudaMalloc(&data, std::max<std::size_t>(bytes, 1)));
    } else {
      data = idle.back();
      idle.pop_back();
    }
    size_[data] = bytes;
    return data;
  }
  // Kept for the next buffer of the size: allocating costs more than a small case does.
  void release(void* data) override {
    const std::size_t bytes = size_.at(data);
    if (watched_ || bytes > kKeep)
      cudaFree(data);
    else
      idle_[bytes].push_back(data);
  }
  void upload(void* to, const void* from, std::size_t bytes) override {
    require(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_));
    require(cudaStreamSynchronize(stream_));
  }
  void download(void* to, const void* from, std::size_t bytes) override {
    require(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_));
    require(cudaStreamSynchronize(stream_));
  }
  void run(const std::function<void(Stream)>& enqueue) override {
    if (runs_++ % 2 == 0) {
      enqueue(stream_);
    } else {
      const cudaGraphExec_t graph = capture(enqueue);
      replay(graph);
      require(cudaGraphExecDestroy(graph));
    }
    wait(stream_);
    require(cudaGetLastError());
  }

  // In the strictest mode: an allocation or a wait inside fails.
  cudaGraphExec_t capture(const std::function<void(Stream)>& enqueue) {
    require(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal));
    cudaGraph_t graph = nullptr;
    try {
      enqueue(stream_);
    } catch (...) {
      cudaStreamEndCapture(stream_, &graph);
      cudaGetLastError();
      throw;
    }
    require(cudaStreamEndCapture(stream_, &graph));
    cudaGraphExec_t executable = nullptr;
    require(cudaGraphInstantiate(&executable, graph, 0));
    require(cudaGraphDestroy(graph));
    return executable;
  }
  void replay(cudaGraphExec_t graph) {
    require(cudaGraphLaunch(graph, stream_));
    wait(stream_);
  }

 private:
  static constexpr std::size_t kKeep = std::size_t{1} << 30;

  cudaStream_t stream_ = nullptr;
  std::map<std::size_t, std::vector<void*>> idle_;
  std::map<void*, std::size_t> size_;
  int runs_ = 0;
  const bool watched_ = asked_for("LINATTN_TEST_SANITIZER");
};

inline DeviceMemory& gpu() {
  static DeviceMemory memory;
  return memory;
}

}  // namespace linattn::test
