// SPDX-License-Identifier: Apache-2.0
//
// Decays of a chunk with a gate per head: a lane a token.
#pragma once

#include <cstdint>

#include "cuda/common/convert.cuh"
#include "cuda/common/gate.cuh"
#include "cuda/common/ptx.cuh"
#include "cuda/portable/params.h"

namespace linattn::portable {

inline constexpr float kLog2e = 1.4426950408889634f;
// 2^-160 is zero in fp32. A decay below it forgets as much, and sums of it keep their digits and
// never meet inf - inf.
inline constexpr float kSmallestLog2Decay = -160.0f;

// g: the bits of the token's gate; bias: of the head.
__device__ __forceinline__ float head_log2_decay(const cuda::GateReader& gate, float bias,
                                                 std::uint32_t g, DType dtype) {
  return ptx::max_nan(kLog2e * gate.biased_log_decay(cuda::from_raw(g, dtype), bias),
                      kSmallestLog2Decay);
}

// Of the tokens up to this lane's.
__device__ __forceinline__ float cumulative_decay(float decay, int lane) {
#pragma unroll
  for (int distance = 1; distance < kChunk; distance *= 2) {
    const float before = __shfl_up_sync(0xffffffffu, decay, distance);
    if (lane >= distance) decay += before;
  }
  return decay;
}

}  // namespace linattn::portable
