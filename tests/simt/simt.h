// SPDX-License-Identifier: Apache-2.0
//
// CUDA blocks on the CPU: what device code finds of the language when a C++ compiler compiles it.
// Included before every file of src/cuda by the build `simt`; include/cuda/common/ptx.cuh stands in
// for the instructions. A thread of a block is a fiber; fibers run one at a time, each until it
// waits, so that nothing of a block is shared by two processors. What is asynchronous on a GPU
// happens as late as it may here, and memory that must not be read yet holds NaN.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>

#undef __shared__
#undef __launch_bounds__
#undef __grid_constant__
#define __shared__ static  // blocks run one after the other
#define __launch_bounds__(...)
#define __grid_constant__
#define __noinline__

inline uint3 threadIdx, blockIdx;
inline dim3 blockDim, gridDim;

namespace simt {

// ---- threads of the running block

// All lanes of the calling thread's warp bring a value; the last to come runs finish(values, out),
// if that is given. Both stay readable until the second meeting from here.
struct Meeting {
  const void* values;  // of all 32 lanes
  void* out;           // kResultBytes
};
inline constexpr std::size_t kValueBytes = 64, kResultBytes = 1024;
using Finish = void (*)(const void* values, void* out);
Meeting meet(const char* what, const void* mine, std::size_t bytes, Finish finish = nullptr);

template <class T>
const T* exchange(const char* what, const T& mine) {
  static_assert(sizeof(T) <= kValueBytes);
  return static_cast<const T*>(meet(what, &mine, sizeof(T)).values);
}

inline int lane() { return static_cast<int>(threadIdx.x % 32); }

// id: 0 .. 15; threads: how many come; 0: all of the block that have not returned.
void barrier(const char* what, int id, int threads);

// The thread goes on when the counter has reached the value.
void wait_for(const char* what, const std::uint64_t& counter, std::uint64_t value);
// Runs when no thread of the block can go on otherwise, in the order of the calls.
void when_all_wait(std::function<void()> action);
// Runs when the calling thread asks for its actions, the first ones first, or at its end.
void defer(std::function<void()> action);
void close_group();                // of the thread's actions since the last one
void run_groups(std::size_t but);  // all groups but the last ones

// Shared memory of the launch.
unsigned char* dynamic_shared();

// State that a hardware object in shared memory has beside its bytes; zero at the block's start.
struct Barrier {
  std::uint64_t phases = 0;  // that have ended
  unsigned arrivals = 0, arrived = 0;
  std::int64_t bytes = 0;  // awaited
};
Barrier& barrier_at(const void* address);

[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

// ---- launches

// Runs body once per thread of the grid.
void run_grid(dim3 grid, dim3 block, std::size_t shared_bytes, const std::function<void()>& body);
// In the order of the configuration's stream: see runtime.cpp.
cudaError_t launch(const cudaLaunchConfig_t& config, const void* kernel,
                   std::function<void()> body);

}  // namespace simt

template <class Params>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(const Params),
                               const Params& params) {
  return simt::launch(*config, reinterpret_cast<const void*>(kernel),
                      [kernel, params] { kernel(params); });
}

// ---- built-in functions

inline void __syncthreads() { simt::barrier("__syncthreads", 0, 0); }
int __syncthreads_or(int predicate);

inline void full_warp(unsigned mask) {
  if (mask != 0xffffffffu) simt::fail("a mask of %x: only whole warps are simulated", mask);
}
inline void __syncwarp(unsigned mask = 0xffffffffu) {
  full_warp(mask);
  simt::exchange("__syncwarp", 0);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T x, int distance) {
  full_warp(mask);
  return simt::exchange("__shfl_xor_sync", x)[simt::lane() ^ distance];
}
template <class T>
T __shfl_sync(unsigned mask, T x, int from) {
  full_warp(mask);
  return simt::exchange("__shfl_sync", x)[from % 32];
}
template <class T>
T __shfl_up_sync(unsigned mask, T x, int distance) {
  full_warp(mask);
  const T* all = simt::exchange("__shfl_up_sync", x);
  return all[simt::lane() < distance ? simt::lane() : simt::lane() - distance];
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  full_warp(mask);
  const int* all = simt::exchange("__ballot_sync", predicate);
  unsigned bits = 0;
  for (int i = 0; i < 32; ++i) bits |= static_cast<unsigned>(all[i] != 0) << i;
  return bits;
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __reduce_max_sync(unsigned mask, int x) {
  full_warp(mask);
  const int* all = simt::exchange("__reduce_max_sync", x);
  return *std::max_element(all, all + 32);
}

template <class T>
T __ldg(const T* at) {
  return *at;
}
template <class T>
T __ldcg(const T* at) {
  return *at;
}
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float rsqrtf(float x) { return static_cast<float>(1 / std::sqrt(static_cast<double>(x))); }

template <class A, class B>
constexpr auto max(A a, B b) {
  using T = std::common_type_t<A, B>;
  return static_cast<T>(a) < static_cast<T>(b) ? static_cast<T>(b) : static_cast<T>(a);
}
template <class A, class B>
constexpr auto min(A a, B b) {
  using T = std::common_type_t<A, B>;
  return static_cast<T>(b) < static_cast<T>(a) ? static_cast<T>(b) : static_cast<T>(a);
}
