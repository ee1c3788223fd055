// SPDX-License-Identifier: Apache-2.0
//
// The part of the CUDA runtime that the library and tests/device call, on the CPU: one device,
// whose work is done when it is asked for. A stream that is captured keeps its work for the graph.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "simt.h"

using Work = std::function<void()>;

struct CUgraph_st {
  std::vector<Work> work;
};
struct CUgraphExec_st {
  std::vector<Work> work;
};
struct CUstream_st {
  CUgraph_st* captured = nullptr;  // not null: a capture is going on
  bool spoilt = false;             // by a wait
};
struct CUevent_st {};

namespace {

// What kernels are planned for: an H200.
constexpr int kMultiprocessors = 132;
constexpr int kSharedBytes = 227 << 10, kSharedBytesByDefault = 48 << 10;
constexpr std::size_t kMemory = std::size_t{2} << 30;

std::recursive_mutex& lock() {
  static std::recursive_mutex mutex;
  return mutex;
}
std::map<const void*, int>& dynamic_shared_limits() {
  static std::map<const void*, int> limits;
  return limits;
}
thread_local cudaError_t last_error = cudaSuccess;

cudaError_t done(cudaError_t status) {
  if (status != cudaSuccess) last_error = status;
  return status;
}

cudaError_t submit(cudaStream_t stream, Work work) {
  const std::lock_guard guard(lock());
  if (stream != nullptr && stream->captured != nullptr) {
    if (stream->spoilt) return done(cudaErrorStreamCaptureInvalidated);
    stream->captured->work.push_back(std::move(work));
  } else {
    work();
  }
  return cudaSuccess;
}

cudaError_t wait(cudaStream_t stream) {
  if (stream == nullptr || stream->captured == nullptr) return cudaSuccess;
  stream->spoilt = true;
  return done(cudaErrorStreamCaptureUnsupported);
}

}  // namespace

cudaError_t simt::launch(const cudaLaunchConfig_t& config, const void* kernel, Work body) {
  const dim3 grid = config.gridDim, block = config.blockDim;
  const std::lock_guard guard(lock());
  const auto limit = dynamic_shared_limits().find(kernel);
  const int most = limit == dynamic_shared_limits().end() ? kSharedBytesByDefault : limit->second;
  const unsigned threads = block.x * block.y * block.z;
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.y > 65535 || grid.z > 65535 ||
      grid.x > 0x7fffffffu || threads == 0 || threads > 1024)
    return done(cudaErrorInvalidConfiguration);
  if (config.dynamicSmemBytes > static_cast<std::size_t>(most)) return done(cudaErrorInvalidValue);
  return submit(config.stream, [grid, block, bytes = config.dynamicSmemBytes,
                                body = std::move(body)] { run_grid(grid, block, bytes, body); });
}

extern "C" {

// ---- the device

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  return done(device == 0 ? cudaSuccess : cudaErrorInvalidDevice);
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = kMultiprocessors;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = kSharedBytes;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      *value = 9;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = 0;
      return cudaSuccess;
    default:
      return done(cudaErrorInvalidValue);
  }
}
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) { return cudaRuntimeGetVersion(version); }

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value > kSharedBytes)
    return done(cudaErrorInvalidValue);
  const std::lock_guard guard(lock());
  dynamic_shared_limits()[kernel] = value;
  return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  *attributes = {};
  attributes->ptxVersion = attributes->binaryVersion = 90;
  return cudaSuccess;
}

// ---- errors

cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return last_error; }
const char* cudaGetErrorString(cudaError_t error) {
  static thread_local std::string text;
  text = "simulated CUDA error " + std::to_string(error);
  return text.c_str();
}
const char* cudaGetErrorName(cudaError_t error) { return cudaGetErrorString(error); }

// ---- memory: full of NaN until it is written

cudaError_t cudaMalloc(void** data, std::size_t bytes) {
  *data = nullptr;
  if (bytes > kMemory) return done(cudaErrorMemoryAllocation);
  *data = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  if (*data == nullptr) return done(cudaErrorMemoryAllocation);
  std::memset(*data, 0xff, bytes);
  return cudaSuccess;
}
cudaError_t cudaFree(void* data) {
  std::free(data);
  return cudaSuccess;
}
cudaError_t cudaMallocAsync(void** data, std::size_t bytes, cudaStream_t) {
  return cudaMalloc(data, bytes);
}
cudaError_t cudaFreeAsync(void* data, cudaStream_t) { return cudaFree(data); }
cudaError_t cudaMallocHost(void** data, std::size_t bytes) { return cudaMalloc(data, bytes); }
cudaError_t cudaFreeHost(void* data) { return cudaFree(data); }
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *free = *total = kMemory;
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  return submit(stream, [=] { std::memcpy(to, from, bytes); });
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  return cudaMemcpyAsync(to, from, bytes, kind, nullptr);
}
cudaError_t cudaMemsetAsync(void* data, int value, std::size_t bytes, cudaStream_t stream) {
  return submit(stream, [=] { std::memset(data, value, bytes); });
}
cudaError_t cudaMemset(void* data, int value, std::size_t bytes) {
  return cudaMemsetAsync(data, value, bytes, nullptr);
}

// ---- streams, events, graphs

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new CUstream_st;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) { return wait(stream); }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return wait(stream); }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  return submit(stream, [=] { function(data); });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  if (stream == nullptr || stream->captured != nullptr) return done(cudaErrorIllegalState);
  stream->captured = new CUgraph_st;
  stream->spoilt = false;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = std::exchange(stream->captured, nullptr);
  if (!stream->spoilt) return cudaSuccess;
  delete std::exchange(*graph, nullptr);
  return done(cudaErrorStreamCaptureInvalidated);
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long) {
  *executable = new CUgraphExec_st{graph->work};
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete executable;
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  for (const Work& work : executable->work)
    if (const cudaError_t status = submit(stream, work); status != cudaSuccess) return status;
  return cudaSuccess;
}

}  // extern "C"
