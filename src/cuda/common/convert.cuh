// SPDX-License-Identifier: Apache-2.0
//
// One element in memory, read and written as fp32. 16-bit stores round to nearest, ties to even.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "linattn/problem.h"

namespace linattn::cuda {

using bfloat16 = __nv_bfloat16;
using float16 = __half;

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float to_float(float16 x) { return __half2float(x); }

template <class T>
__device__ T from_float(float x);
template <>
__device__ __forceinline__ float from_float<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ bfloat16 from_float<bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ __forceinline__ float16 from_float<float16>(float x) {
  return __float2half_rn(x);
}

__device__ __forceinline__ int bytes_of(DType dtype) { return dtype == DType::kFloat32 ? 4 : 2; }

// f(T{}) for the storage type. Hoist it out of a loop where the loop's body is short.
template <class F>
__device__ __forceinline__ void with_dtype(DType dtype, F&& f) {
  if (dtype == DType::kBFloat16) {
    f(bfloat16{});
  } else if (dtype == DType::kFloat16) {
    f(float16{});
  } else {
    f(float{});
  }
}

template <class T>
__device__ __forceinline__ float load(const void* data, std::int64_t index) {
  return to_float(static_cast<const T*>(data)[index]);
}

template <class T>
__device__ __forceinline__ void store(void* data, std::int64_t index, float value) {
  static_cast<T*>(data)[index] = from_float<T>(value);
}

__device__ __forceinline__ float load(const void* data, DType dtype, std::int64_t index) {
  if (dtype == DType::kBFloat16) return load<bfloat16>(data, index);
  if (dtype == DType::kFloat16) return load<float16>(data, index);
  return load<float>(data, index);
}

__device__ __forceinline__ void store(void* data, DType dtype, std::int64_t index, float value) {
  if (dtype == DType::kBFloat16) {
    store<bfloat16>(data, index, value);
  } else if (dtype == DType::kFloat16) {
    store<float16>(data, index, value);
  } else {
    store<float>(data, index, value);
  }
}

// An element's bits, 16-bit ones zero-extended. A batch of such loads is in flight at once, where
// load() would wait for each to convert it.
__device__ __forceinline__ std::uint32_t load_raw(const void* data, DType dtype,
                                                  std::int64_t index) {
  if (dtype == DType::kFloat32) return static_cast<const std::uint32_t*>(data)[index];
  return static_cast<const std::uint16_t*>(data)[index];
}

__device__ __forceinline__ float from_raw(std::uint32_t raw, DType dtype) {
  if (dtype == DType::kFloat32) return __uint_as_float(raw);
  if (dtype == DType::kBFloat16) return __uint_as_float(raw << 16);
  return __half2float(__ushort_as_half(static_cast<unsigned short>(raw)));
}

// Two neighbours of 16 bits, the first one in the low half.
template <class T>
__device__ __forceinline__ float2 widen_pair(std::uint32_t pair) {
  if constexpr (std::is_same_v<T, bfloat16>) {
    return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
  } else {
    return __half22float2(reinterpret_cast<const __half2&>(pair));
  }
}
template <class T>
__device__ __forceinline__ std::uint32_t round_pair(float low, float high) {
  if constexpr (std::is_same_v<T, bfloat16>) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<const std::uint32_t&>(pair);
  } else {
    const __half2 pair = __floats2half2_rn(low, high);
    return reinterpret_cast<const std::uint32_t&>(pair);
  }
}

}  // namespace linattn::cuda
