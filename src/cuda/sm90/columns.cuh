// SPDX-License-Identifier: Apache-2.0
//
// A warpgroup's 64 value columns of a head's state, transposed, in its accumulators, 16 to a warp:
// what scans by wgmma do with them beside their products.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/common/convert.cuh"
#include "cuda/common/wgmma.cuh"
#include "cuda/portable/job.cuh"
#include "cuda/portable/state.cuh"

namespace linattn::sm90 {

inline constexpr int kWarpColumns = 16, kGroups = 4, kValueBlock = kWarpColumns * kGroups;
// Rows of V and of outputs, whose starts differ in banks.
inline constexpr int kValuePitch = kValueBlock + 8;
using Values = std::uint16_t[portable::kChunk * kValuePitch];

// Of a unit of 8 columns.
__device__ constexpr int value_place(int token, int unit) { return token * kValuePitch + unit * 8; }

// What the scan kernel asks of either scan's traits alike.
struct ColumnTraits {
  using Io = __nv_bfloat16;
  static constexpr int kGroups = sm90::kGroups;
  static constexpr int kThreads = 32 * (kGroups + 1);  // a warp fetches
  static constexpr int kValueBlock = sm90::kValueBlock;
  static constexpr int kBlocks = 2;               // per multiprocessor
  static constexpr std::size_t kJobBytes = 1024;  // ScanJob and barriers
  static constexpr std::size_t kAlignmentBytes = 1024;
  __device__ static unsigned char* aligned(unsigned char* memory) {
    const auto at = reinterpret_cast<std::uintptr_t>(memory);
    return memory + (-at & (kAlignmentBytes - 1));
  }
  __device__ static constexpr int value_place(int token, int unit) {
    return sm90::value_place(token, unit);
  }
};

template <int kKeyDim>
struct StateColumns {
  using Io = __nv_bfloat16;
  static constexpr int kTiles = kKeyDim / 8;

  const portable::ForwardParams& p;
  const portable::ScanJob& job;
  std::uint16_t* out_rows;  // of the next chunk's first token, from `column` on
  int group, lane;          // of the columns in the block
  int column;               // the warp's first one
  std::uint16_t* staged;    // the block's output on its way to memory

  float state[4 * kTiles];  // [16 columns, K]

  __device__ __forceinline__ StateColumns(const portable::ForwardParams& params,
                                          const portable::ScanJob& of, Values& out)
      : p(params),
        job(of),
        group(static_cast<int>(threadIdx.x) / 32),
        lane(static_cast<int>(threadIdx.x) % 32),
        column(of.first_column(params, kValueBlock) + group * kWarpColumns),
        staged(out) {
    out_rows = of.out_rows(params) + column;
  }

  __device__ __forceinline__ int row() const { return lane / 4; }
  __device__ __forceinline__ int pair() const { return 2 * (lane % 4); }
  // V, or K in an extra block.
  __device__ __forceinline__ int columns() const { return job.columns(p); }
  __device__ __forceinline__ portable::StatePlace<2> place() const {
    return {pair(), p.problem.key_dim, column + row(), columns()};
  }

  __device__ __forceinline__ void load(const portable::StateMatrix& from) {
    portable::move_state<true>(state, from, place());
  }
  __device__ __forceinline__ void store(const portable::StateMatrix& to) {
    portable::move_state<false>(state, to, place());
  }
  // Zero, or the identity in an extra block.
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < 4 * kTiles; ++i)
      state[i] =
          job.extra && place().key(i / 4, i % 4) == column + row() + i % 4 / 2 * 8 ? 1.0f : 0.0f;
  }

  // Two neighbouring tiles of an accumulator as an operand.
  __device__ __forceinline__ static void round(const float* tiles, std::uint32_t (&a)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = cuda::round_pair<Io>(tiles[2 * i], tiles[2 * i + 1]);
  }

  // The warp's 16 columns of V, transposed: values[u / 2][u % 2 * 2 + half] has two tokens of tile
  // u, of the column row() + 8 half.
  __device__ __forceinline__ void load_values(const Values& v,
                                              std::uint32_t (&values)[2][4]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int token = 16 * i + lane / 16 * 8 + lane % 8, unit = 2 * group + lane / 8 % 2;
      ptx::ldmatrix_x4_trans(values[i], v + value_place(token, unit));
    }
  }

  // Through shared memory: a lane a token. Only where the job is with_output.
  __device__ __forceinline__ void store_output(const float (&out)[16], int count) {
    __syncwarp();  // the warp has read what it stored before
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int token = 16 * i + lane / 16 * 8 + lane % 8, unit = 2 * group + lane / 8 % 2;
      std::uint32_t r[4];
      round(out + 8 * i, r);
      ptx::stmatrix_x4_trans(r, staged + value_place(token, unit));
    }
    __syncwarp();
    const std::uint16_t* from = staged + value_place(lane, 2 * group);
    std::uint16_t* to = out_rows + lane * p.args.out.token_stride;
    const int left = lane < count ? columns() - column : 0;
    if (p.wide_out) {
#pragma unroll
      for (int i = 0; i < 16; i += 8)
        if (i < left) *reinterpret_cast<uint4*>(to + i) = *reinterpret_cast<const uint4*>(from + i);
    } else {
#pragma unroll 1
      for (int i = 0; i < 16 && i < left; ++i) to[i] = from[i];
    }
    out_rows += count * p.args.out.token_stride;
  }
};

}  // namespace linattn::sm90
