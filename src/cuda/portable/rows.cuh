// SPDX-License-Identifier: Apache-2.0
//
// A thread's part of an input on its way to registers: 8 channels of neighbouring tokens.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "linattn/problem.h"

namespace linattn::portable {

// A thread's part of a tensor: 8 channels of neighbouring tokens.
struct Part {
  const char* first;     // its first token's
  std::int64_t stride;   // bytes from token to token
  int tokens, channels;  // that exist; channels is even
  bool wide;             // all 8 channels exist or none, and are aligned to 16 bytes
};

// 8 neighbours of a row as they came, of 16 bits (4 words) or 32 (8).
template <int kWords>
struct Eight {
  std::uint32_t r[kWords];
};
using Octet = Eight<4>;

// Absent elements are zero. The branches stand around the loops, so that all loads are in flight.
template <int kTokens, int kWords>
__device__ __forceinline__ void load_rows(const Part& part, Eight<kWords> (&rows)[kTokens]) {
  using Pair = std::conditional_t<kWords == 8, uint2, std::uint32_t>;  // of elements
#pragma unroll
  for (int t = 0; t < kTokens; ++t) rows[t] = {};
  const auto copy = [&]<class Unit>(int t, int unit, Unit) {
    reinterpret_cast<Unit*>(rows[t].r)[unit] =
        __ldg(reinterpret_cast<const Unit*>(part.first + t * part.stride) + unit);
  };
  if (part.wide) {
#pragma unroll
    for (int t = 0; t < kTokens; ++t)
      if (t < part.tokens && part.channels > 0)
#pragma unroll
        for (int unit = 0; unit < kWords / 4; ++unit) copy(t, unit, uint4{});
  } else {
#pragma unroll
    for (int t = 0; t < kTokens; ++t)
#pragma unroll
      for (int pair = 0; pair < 4; ++pair)
        if (t < part.tokens && 2 * pair < part.channels) copy(t, pair, Pair{});
  }
}

template <bool kFp16>
__device__ __forceinline__ void widen(const Octet& octet, float (&x)[8]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (kFp16) {
      const float2 pair = __half22float2(reinterpret_cast<const __half2&>(octet.r[i]));
      x[2 * i] = pair.x, x[2 * i + 1] = pair.y;
    } else {
      x[2 * i] = __uint_as_float(octet.r[i] << 16);
      x[2 * i + 1] = __uint_as_float(octet.r[i] & 0xffff0000u);
    }
  }
}

// The same for a tensor of any dtype: 16-bit elements lie in r[0 .. 3].
using Raw = Eight<8>;

template <int kTokens>
__device__ __forceinline__ void load_raw(const Part& part, DType dtype, Raw (&rows)[kTokens]) {
  if (dtype == DType::kFloat32) return load_rows(part, rows);
  Octet octets[kTokens];
  load_rows(part, octets);
#pragma unroll
  for (int t = 0; t < kTokens; ++t)
#pragma unroll
    for (int i = 0; i < 4; ++i) rows[t].r[i] = octets[t].r[i];
}

template <int kTokens>
__device__ __forceinline__ void widen(const Raw (&rows)[kTokens], DType dtype,
                                      float (&x)[kTokens][8]) {
  const auto each = [&](auto&& one) {
#pragma unroll
    for (int t = 0; t < kTokens; ++t) one(rows[t], x[t]);
  };
  const auto octet = [](const Raw& raw) { return Octet{{raw.r[0], raw.r[1], raw.r[2], raw.r[3]}}; };
  if (dtype == DType::kFloat32) {
    each([](const Raw& raw, float (&y)[8]) {
#pragma unroll
      for (int i = 0; i < 8; ++i) y[i] = __uint_as_float(raw.r[i]);
    });
  } else if (dtype == DType::kFloat16) {
    each([&](const Raw& raw, float (&y)[8]) { widen<true>(octet(raw), y); });
  } else {
    each([&](const Raw& raw, float (&y)[8]) { widen<false>(octet(raw), y); });
  }
}

}  // namespace linattn::portable
