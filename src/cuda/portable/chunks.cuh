// SPDX-License-Identifier: Apache-2.0
//
// Chunks of a sequence, and the numbers that order the chunks of all sequences. Sequence n's
// numbers begin at (its first row) / kChunk + n spare_numbers: no prefix sum is needed, numbers
// rise with n, and some belong to no chunk. Every sequence has at least one chunk, of no token if
// it is empty.
#pragma once

#include <cstdint>

#include "cuda/common/sequence.cuh"
#include "cuda/portable/params.h"

namespace linattn::portable {

// Chunks end at multiples of kChunk of the whole sequence, so the first one may be short.
struct Chunks {
  int length, skipped;  // tokens here; tokens of the first chunk that came before this call

  __device__ explicit Chunks(const cuda::Sequence& s)
      : length(static_cast<int>(s.length)),
        skipped(static_cast<int>(max(s.start_position, std::int64_t{0}) % kChunk)) {}
  __device__ __forceinline__ int count() const {
    return length == 0 ? 1 : (length + skipped + kChunk - 1) / kChunk;
  }
  __device__ __forceinline__ int first(int c) const {
    return c == 0 ? 0 : min(length, c * kChunk - skipped);
  }
  __device__ __forceinline__ int tokens(int c) const { return first(c + 1) - first(c); }
};

__device__ __forceinline__ std::int64_t first_number(const ForwardParams& p, std::int64_t n) {
  const std::int64_t row =
      p.args.cu_seqlens == nullptr ? n * p.sequence_length : cuda::load_offset(p.args, n);
  return row / kChunk + n * p.spare_numbers;
}

// The last sequence whose numbers begin at `number` or below. A whole warp searches; with offsets
// that do not rise it finds some sequence.
__device__ __forceinline__ std::int64_t sequence_at(const ForwardParams& p, std::int64_t number) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  std::int64_t low = 0, high = p.args.sequences;  // low's begin there or below
  while (high - low > 1) {
    const std::int64_t step = (high - low + 31) / 32, probe = low + lane * step;
    const bool below = probe < high && (lane == 0 || first_number(p, probe) <= number);
    const int last = 31 - __clz(static_cast<int>(__ballot_sync(0xffffffffu, below)));
    low += last * step;
    high = min(high, low + step);
  }
  return low;
}

}  // namespace linattn::portable
