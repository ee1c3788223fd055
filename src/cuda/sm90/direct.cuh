// SPDX-License-Identifier: Apache-2.0
//
// The scan of additive ops with a gate per head, or none, from q, k and v as they came: there is no
// prepare kernel and no stage. Decays are factors of tokens:
//
//   O^T = (S^T q^T) down + V^T P^T      S^T <- 2^G S^T + (up V)^T k
//
//   down_i = scale 2^G_i      up_j = 2^(G - G_j)      P_ij = scale 2^(G_i - G_j) q_i k_j, j <= i
//
// G_i is the cumulative decay of the chunk up to token i, G that of the whole chunk. Each of the
// four warps makes a quarter of P by mma.sync while S^T q^T runs.
#pragma once

#include <cstdint>

#include "cuda/common/convert.cuh"
#include "cuda/common/wgmma.cuh"
#include "cuda/portable/scan_kernel.cuh"
#include "cuda/sm90/columns.cuh"
#include "cuda/sm90/direct_pipeline.cuh"
#include "cuda/sm90/operand.cuh"

namespace linattn::sm90 {

// Names the operands of this scan; a stage it has not.
struct OperandDirect;

template <class Traits>
struct DirectScan;

template <int kKeyDimPadded>
struct DirectTraits : ColumnTraits {
  using Scan = DirectScan<DirectTraits>;
  using Pipeline = DirectPipeline<DirectTraits>;
  using Rows = SwizzledMatrix<128, portable::kChunk>;   // [C, K], a row a token
  using Scores = SwizzledMatrix<64, portable::kChunk>;  // [C, C], a row a token

  static constexpr int kKeyDim = kKeyDimPadded;

  // Of a chunk. Absent tokens and channels are zero, absent decays one.
  struct Buffer {
    alignas(Rows::kAlignment) std::uint16_t q[portable::kChunk * kKeyDim];
    alignas(Rows::kAlignment) std::uint16_t k[portable::kChunk * kKeyDim];
    alignas(16) Values v;
    alignas(16) float cumulative[portable::kChunk];  // G_i, log2
    alignas(16) float down[portable::kChunk];
    alignas(16) float up[portable::kChunk];
    float total, scale;  // 2^G; of queries
  };
  struct Exchange {
    // P of a chunk and of the next one: a warp may be behind by one.
    alignas(Scores::kAlignment) std::uint16_t scores[2][portable::kChunk * portable::kChunk];
    alignas(16) Values out;
  };

  static constexpr std::size_t kStrengthBytes = 0;
  static constexpr std::size_t kExchangeBytes = 9 << 10;
  static_assert(sizeof(Exchange) <= kExchangeBytes);
};

template <class Traits>
struct DirectScan : StateColumns<Traits::kKeyDim> {
  using Columns = StateColumns<Traits::kKeyDim>;
  using Buffer = typename Traits::Buffer;
  using Rows = typename Traits::Rows;
  using Scores = typename Traits::Scores;
  using Io = typename Traits::Io;
  using Columns::group, Columns::job, Columns::kTiles, Columns::lane, Columns::p, Columns::pair,
      Columns::round, Columns::row, Columns::state;

  std::uint16_t* scores;  // of even chunks; behind them those of odd ones

  __device__ __forceinline__ DirectScan(const portable::ForwardParams& params,
                                        const portable::ScanJob& of,
                                        typename Traits::Exchange* exchange, float* /*strengths*/)
      : Columns(params, of, exchange->out), scores(exchange->scores[0]) {}

  // One chunk. meanwhile(): what may be done while the tensor cores are busy.
  template <class Meanwhile>
  __device__ __forceinline__ void step(const Buffer& buffer, const portable::Chunks& chunks, int c,
                                       Meanwhile&& meanwhile) {
    std::uint16_t* const matrix = scores + (c & 1) * (portable::kChunk * portable::kChunk);
    Columns::lane = ptx::opaque(Columns::lane);  // places kept from chunk to chunk are many
    ptx::fence_proxy_async();                    // cp.async wrote q and k by the other proxy
    std::uint32_t a[kTiles / 2][4];
#pragma unroll
    for (int i = 0; i < kTiles / 2; ++i) round(state + 8 * i, a[i]);
    __syncwarp();  // see Scan::step
    const float total = buffer.total;
#pragma unroll
    for (int i = 0; i < 4 * kTiles; ++i) state[i] *= total;

    float out[16];  // [16 columns, C]
    const auto q = ptx::MatrixDescriptor::of(buffer.q, Rows::kSwizzle),
               k = ptx::MatrixDescriptor::transposed(buffer.k, Rows::kBox * 2),
               p_ij = ptx::MatrixDescriptor::of(matrix, Scores::kSwizzle);
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < kTiles / 2; ++i) ptx::wgmma_bf16(out, a[i], q + Rows::columns(i), i > 0);
    ptx::wgmma_commit_group();
    meanwhile();
    make_scores(buffer, matrix);
    std::uint32_t values[2][4], writes[2][4];  // V^T and (up V)^T as operands
    Columns::load_values(buffer.v, values);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float2 v = cuda::widen_pair<Io>(values[i / 4][i % 4]), up = of_tokens(buffer.up, i / 2);
      writes[i / 4][i % 4] = cuda::round_pair<Io>(v.x * up.x, v.y * up.y);
    }
    ptx::fence_proxy_async();  // the warps' scores, for all products
    ptx::bar_sync<32 * Traits::kGroups>(1);
    ptx::wgmma_wait_group<0>();
    ptx::wgmma_arrived(out);
#pragma unroll
    for (int tile = 0; tile < 4; ++tile) {
      const float2 down = of_tokens(buffer.down, tile);
      out[4 * tile] *= down.x, out[4 * tile + 1] *= down.y;
      out[4 * tile + 2] *= down.x, out[4 * tile + 3] *= down.y;
    }
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < 2; ++i)
      ptx::wgmma_bf16<false, true>(state, writes[i], k + static_cast<unsigned>(i) * 16 * 128);
#pragma unroll
    for (int i = 0; i < 2; ++i) ptx::wgmma_bf16(out, values[i], p_ij + Scores::columns(i));
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>();
    ptx::wgmma_arrived(state);
    ptx::wgmma_arrived(out);
    if (job.with_output) Columns::store_output(out, chunks.tokens(c));
  }

 private:
  // A lane's two tokens of a tile.
  __device__ __forceinline__ float2 of_tokens(const float* factors, int tile) const {
    return *reinterpret_cast<const float2*>(factors + 8 * tile + pair());
  }

  // The warp's [16, 16] of P.
  __device__ __forceinline__ void make_scores(const Buffer& buffer, std::uint16_t* to) const {
    const auto lane = static_cast<unsigned>(Columns::lane);
    const unsigned first_row = static_cast<unsigned>(group) / 2 * 16,
                   first_column = static_cast<unsigned>(group) % 2 * 16;
    const int from_q = place<Rows>(first_row + lane % 16, lane / 16),
              from_k = place<Rows>(first_column + lane / 16 * 8 + lane % 8, lane / 8 % 2);
    const unsigned i = first_row + lane / 4, j = first_column + lane % 4 * 2;
    float sums[2][4] = {};
#pragma unroll
    for (int depth = 0; depth < kTiles / 2; ++depth) {
      std::uint32_t a[4], b[4];
      ptx::ldmatrix_x4(a, buffer.q + Rows::further(from_q, depth));
      ptx::ldmatrix_x4(b, buffer.k + Rows::further(from_k, depth));
      ptx::mma_m16n8k16_bf16(sums[0], a[0], a[1], a[2], a[3], b[0], b[1]);
      ptx::mma_m16n8k16_bf16(sums[1], a[0], a[1], a[2], a[3], b[2], b[3]);
    }
    const float scale = buffer.scale;
    const float now[2] = {buffer.cumulative[i], buffer.cumulative[i + 8]};
    const float2 before[2] = {*reinterpret_cast<const float2*>(buffer.cumulative + j),
                              *reinterpret_cast<const float2*>(buffer.cumulative + j + 8)};
    // Chosen, not multiplied: from later tokens on the decay is a growth without bounds.
    const auto score = [&](float sum, float before, unsigned half, unsigned column) {
      const float decayed = sum * scale * ptx::ex2_approx(now[half] - before);
      return column <= i + 8 * half ? decayed : 0.0f;
    };
    const int at = place<Scores>(i, j / 8) + static_cast<int>(j % 8);
#pragma unroll
    for (unsigned half = 0; half < 2; ++half)
#pragma unroll
      for (unsigned tile = 0; tile < 2; ++tile)
        *reinterpret_cast<std::uint32_t*>(to + (at ^ static_cast<int>(tile) * 8) +
                                          static_cast<int>(half) * 8 * Scores::kRow) =
            cuda::round_pair<Io>(
                score(sums[tile][2 * half], before[tile].x, half, j + 8 * tile),
                score(sums[tile][2 * half + 1], before[tile].y, half, j + 8 * tile + 1));
  }
  template <class Matrix>
  __device__ __forceinline__ static int place(unsigned row, unsigned unit) {
    return Matrix::place(static_cast<int>(row), static_cast<int>(unit));
  }
};

}  // namespace linattn::sm90

namespace linattn::portable {

template <int kKeyDim, class Update>
struct ScanTraits<sm90::OperandDirect, kKeyDim, Update> : sm90::DirectTraits<kKeyDim> {};

}  // namespace linattn::portable
