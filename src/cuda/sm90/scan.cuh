// SPDX-License-Identifier: Apache-2.0
//
// The scan by wgmma. A block is one warpgroup: 64 value columns of a head's state, transposed, in
// its accumulators, 16 to a warp.
//
//   R^T = beta V^T - S^T k^T      S^T <- 2^G S^T + R^T x      O^T = S^T q^T + R^T p^T
//
// S^T and R^T are operands from registers; k, q, x and p lie in shared memory as the stage brought
// them. Of a chunk two products wait for each other: R, and the new S.
#pragma once

#include <cstdint>

#include "cuda/common/convert.cuh"
#include "cuda/common/wgmma.cuh"
#include "cuda/portable/scan_kernel.cuh"
#include "cuda/sm90/columns.cuh"
#include "cuda/sm90/operand.cuh"
#include "cuda/sm90/pipeline.cuh"

namespace linattn::sm90 {

template <class Traits>
struct Scan;

template <int kKeyDimPadded, class UpdatePolicy>
struct ScanTraits : ColumnTraits {
  using Scan = sm90::Scan<ScanTraits>;
  using Pipeline = sm90::Pipeline<ScanTraits>;
  using Operand = OperandSwizzled;
  using Update = UpdatePolicy;
  using Stage = portable::Stage<Operand, kKeyDimPadded, Update>;

  static constexpr int kKeyDim = kKeyDimPadded;

  struct Buffer {
    Stage stage;
    alignas(16) Values v;
  };
  struct Exchange {
    Values out;
  };

  static constexpr int kStrengthPitch = portable::kChunk + 4;
  static constexpr std::size_t kStrengthBytes = kValueBlock * kStrengthPitch * sizeof(float);
  static constexpr std::size_t kExchangeBytes = 5 << 10;
  static_assert(sizeof(Exchange) <= kExchangeBytes);
};

template <class Traits>
struct Scan : StateColumns<Traits::kKeyDim> {
  using Columns = StateColumns<Traits::kKeyDim>;
  using Update = typename Traits::Update;
  using Io = typename Traits::Io;
  using Stage = typename Traits::Stage;
  using Buffer = typename Traits::Buffer;
  using Columns::column, Columns::columns, Columns::group, Columns::job, Columns::kTiles,
      Columns::p, Columns::pair, Columns::round, Columns::row, Columns::state;

  float* write_strengths;  // gdn2: shared memory of this warp; null: beta is all

  __device__ __forceinline__ Scan(const portable::ForwardParams& params,
                                  const portable::ScanJob& of, typename Traits::Exchange* exchange,
                                  float* strengths)
      : Columns(params, of, exchange->out),
        write_strengths(strengths == nullptr
                            ? nullptr
                            : strengths + group * kWarpColumns * Traits::kStrengthPitch) {}

  // One chunk. meanwhile(): what may be done while the tensor cores are busy.
  template <class Meanwhile>
  __device__ __forceinline__ void step(const Buffer& buffer, const portable::Chunks& chunks, int c,
                                       Meanwhile&& meanwhile) {
    const Stage& stage = buffer.stage;
    using Rows = typename Stage::Rows;
    using Channels = typename Stage::Channels;
    using Scores = typename Stage::Scores;
    float writes[16], out[16];   // [16 columns, C]
    std::uint32_t values[2][4];  // V^T as an operand
    Columns::load_values(buffer.v, values);
    if constexpr (Update::kReadsState) {
      if (write_strengths == nullptr) {
        strengthen(values, stage.strength, 0, writes);
      } else {
        portable::stage_strengths<Traits::kStrengthPitch>(write_strengths, p, job, chunks.first(c),
                                                          chunks.tokens(c), column,
                                                          job.extra ? 0 : columns());
        strengthen(values, write_strengths, Traits::kStrengthPitch, writes);
      }
    }
    std::uint32_t a[kTiles / 2][4];
#pragma unroll
    for (int i = 0; i < kTiles / 2; ++i) round(state + 8 * i, a[i]);
    // Here rather than beside the products: in a loop, ptxas lets nothing touch the registers of an
    // accumulator while any product runs. Without the barrier it begins before they are rounded,
    // and has not the registers for both.
    __syncwarp();
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const float2 total = *reinterpret_cast<const float2*>(&stage.total[8 * tile + pair()]);
      state[4 * tile] *= total.x, state[4 * tile + 1] *= total.y;
      state[4 * tile + 2] *= total.x, state[4 * tile + 3] *= total.y;
    }

    const auto q = ptx::MatrixDescriptor::of(stage.q, Rows::kSwizzle),
               x = ptx::MatrixDescriptor::of(stage.x, Channels::kSwizzle),
               scores = ptx::MatrixDescriptor::of(stage.p, Scores::kSwizzle);
    ptx::wgmma_fence();
    if constexpr (Update::kReadsState) {
      const auto k = ptx::MatrixDescriptor::of(stage.k, Rows::kSwizzle);
#pragma unroll
      for (int i = 0; i < kTiles / 2; ++i)
        ptx::wgmma_bf16<true>(writes, a[i], k + Rows::columns(i));
    }
    ptx::wgmma_commit_group();
#pragma unroll
    for (int i = 0; i < kTiles / 2; ++i) ptx::wgmma_bf16(out, a[i], q + Rows::columns(i), i > 0);
    ptx::wgmma_commit_group();
    meanwhile();
    if constexpr (Update::kReadsState) {
      ptx::wgmma_wait_group<1>();
      ptx::wgmma_arrived(writes);
    }
    std::uint32_t r[2][4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if constexpr (Update::kReadsState) {
        round(writes + 8 * i, r[i]);
      } else {
#pragma unroll
        for (int j = 0; j < 4; ++j) r[i][j] = values[i][j];
      }
    }
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < 2; ++i) ptx::wgmma_bf16(state, r[i], x + Channels::columns(i));
#pragma unroll
    for (int i = 0; i < 2; ++i) ptx::wgmma_bf16(out, r[i], scores + Scores::columns(i));
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>();
    ptx::wgmma_arrived(state);
    ptx::wgmma_arrived(out);
    if (job.with_output) Columns::store_output(out, chunks.tokens(c));
  }

 private:
  // beta V^T. pitch: of strengths from column to column.
  __device__ __forceinline__ void strengthen(const std::uint32_t (&values)[2][4],
                                             const float* strengths, int pitch,
                                             float (&writes)[16]) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float2 v = cuda::widen_pair<Io>(values[i / 4][i % 4]);
      const float2 strength = *reinterpret_cast<const float2*>(
          strengths + (row() + i % 2 * 8) * pitch + i / 2 * 8 + pair());
      writes[2 * i] = strength.x * v.x, writes[2 * i + 1] = strength.y * v.y;
    }
  }
};

}  // namespace linattn::sm90

namespace linattn::portable {

template <int kKeyDim, class Update>
struct ScanTraits<sm90::OperandSwizzled, kKeyDim, Update> : sm90::ScanTraits<kKeyDim, Update> {};

}  // namespace linattn::portable
