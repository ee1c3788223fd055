// SPDX-License-Identifier: Apache-2.0
//
// A thread's part of an input on its way to registers: 8 channels of neighbouring tokens.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "linattn/problem.h"

namespace linattn::portable {

// 8 neighbours of a row, 16 bits each, as they came.
struct Octet {
  std::uint32_t r[4];
};

// A thread's part of a tensor: 8 channels of neighbouring tokens.
struct Part {
  const char* first;     // its first token's
  std::int64_t stride;   // bytes from token to token
  int tokens, channels;  // that exist; channels is even
  bool wide;             // all 8 channels exist or none, and are aligned to 16 bytes
};

// Absent elements are zero. The branches stand around the loops, so that all loads are in flight.
template <int kTokens>
__device__ __forceinline__ void load_octets(const Part& part, Octet (&rows)[kTokens]) {
  if (part.wide) {
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      rows[t] = {};
      if (t < part.tokens && part.channels > 0) {
        const uint4 raw = __ldg(reinterpret_cast<const uint4*>(part.first + t * part.stride));
        rows[t] = {{raw.x, raw.y, raw.z, raw.w}};
      }
    }
  } else {
#pragma unroll
    for (int t = 0; t < kTokens; ++t)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        rows[t].r[i] =
            t < part.tokens && 2 * i < part.channels
                ? __ldg(reinterpret_cast<const std::uint32_t*>(part.first + t * part.stride) + i)
                : 0;
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

// The same for a tensor of any dtype, as it came: 16-bit elements by pairs in r[0 .. 3].
struct Raw {
  std::uint32_t r[8];
};

template <int kTokens>
__device__ __forceinline__ void load_raw(const Part& part, DType dtype, Raw (&rows)[kTokens]) {
  if (dtype != DType::kFloat32) {
    Octet octets[kTokens];
    load_octets(part, octets);
#pragma unroll
    for (int t = 0; t < kTokens; ++t)
#pragma unroll
      for (int i = 0; i < 4; ++i) rows[t].r[i] = octets[t].r[i];
    return;
  }
#pragma unroll
  for (int t = 0; t < kTokens; ++t) rows[t] = {};
  if (part.wide) {
#pragma unroll
    for (int t = 0; t < kTokens; ++t)
      if (t < part.tokens && part.channels > 0) {
        const auto* at = reinterpret_cast<const uint4*>(part.first + t * part.stride);
#pragma unroll
        for (int i = 0; i < 8; i += 4) {
          const uint4 four = __ldg(at + i / 4);
          rows[t].r[i] = four.x, rows[t].r[i + 1] = four.y;
          rows[t].r[i + 2] = four.z, rows[t].r[i + 3] = four.w;
        }
      }
  } else {
#pragma unroll
    for (int t = 0; t < kTokens; ++t)
#pragma unroll
      for (int i = 0; i < 8; i += 2)
        if (t < part.tokens && i < part.channels) {
          const uint2 two =
              __ldg(reinterpret_cast<const uint2*>(part.first + t * part.stride) + i / 2);
          rows[t].r[i] = two.x, rows[t].r[i + 1] = two.y;
        }
  }
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
