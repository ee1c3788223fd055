// SPDX-License-Identifier: Apache-2.0
//
// The scan kernel: one block walks the prepared chunks of a sequence, or of a piece of it, with a
// value head's state for a block of value columns:
//
//   R^T = beta V^T - S^T k^T      S^T <- 2^G S^T + R^T x      O^T = S^T q^T + R^T p^T
//
// A warp holds 16 columns x 64 channels of the state, transposed, in accumulators. Warps that share
// columns each sum S^T k^T and S^T q^T over their own channels and finish them for their own
// tokens. S^T and R^T become operands without leaving their registers; V and O are transposed among
// lanes.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/common/convert.cuh"
#include "cuda/common/gate.cuh"
#include "cuda/common/sequence.cuh"
#include "cuda/portable/chunks.cuh"
#include "cuda/portable/fetch.cuh"
#include "cuda/portable/job.cuh"
#include "cuda/portable/stage.cuh"
#include "cuda/portable/state.cuh"

namespace linattn::portable {

// gdn2: a chunk's write strengths, [16 columns, kPitch], for a warp. Not inlined: the other ops pay
// nothing for it.
template <int kPitch>
__device__ __noinline__ void stage_strengths(float* to, const ForwardParams& p, const ScanJob& job,
                                             int first, int count, int column, int columns) {
  const int token = static_cast<int>(threadIdx.x) % 32;
  const void* rows = p.args.write.data;
  const std::int64_t offset =
      cuda::row_offset(p.args, p.args.write, job.sequence, first + token, job.task.value_head) +
      column;
  __syncwarp();
  for (int c = 0; c < 16; ++c)
    to[c * kPitch + token] =
        token < count && column + c < columns
            ? cuda::strength(p.problem.beta_input,
                             cuda::load(rows, p.problem.beta_dtype, offset + c))
            : 0.0f;
  __syncwarp();
}

template <class Traits>
struct Scan {
  using Operand = typename Traits::Operand;
  using Type = typename Traits::Type;
  using Piece = typename Operand::Piece;
  using A = typename Operand::A;
  using Update = typename Traits::Update;
  using Io = typename Traits::Io;
  using Stage = typename Traits::Stage;
  using Rows = typename Traits::Rows;
  using Channels = typename Stage::Channels;
  using Scores = typename Stage::Scores;
  using Buffer = typename Traits::Buffer;
  using Exchange = typename Traits::Exchange;
  static constexpr int kSplits = Traits::kSplits;
  static constexpr int kTokenTiles = Traits::kTokenTiles;
  static constexpr int kOwnTiles = Traits::kOwnTiles;

  const ForwardParams& p;
  const ScanJob& job;
  std::uint16_t* out_rows;  // of the next chunk's first token; null: no output
  int split, group, lane;   // of the channels; of the columns in the block
  int column, columns;      // the warp's first column; V, or K in an extra block
  Exchange& exchange;       // of the warps that share the columns
  float* write_strengths;   // gdn2: shared memory of this warp; null: beta is all

  Accumulator state[Traits::kTiles];

  // strengths: of the block.
  __device__ __forceinline__ Scan(const ForwardParams& params, const ScanJob& of,
                                  Exchange* exchanges, float* strengths)
      : p(params),
        job(of),
        out_rows(of.out_rows(params)),
        split(static_cast<int>(threadIdx.x) / 32 / Traits::kGroups),
        group(static_cast<int>(threadIdx.x) / 32 % Traits::kGroups),
        lane(static_cast<int>(threadIdx.x) % 32),
        column(of.first_column(params, Traits::kValueBlock) + group * Traits::kWarpColumns),
        columns(of.columns(params)),
        exchange(exchanges[kSplits == 1 ? 0 : group]),
        write_strengths(strengths == nullptr
                            ? nullptr
                            : strengths + static_cast<int>(threadIdx.x) / 32 *
                                              Traits::kWarpColumns * Traits::kStrengthPitch) {}

  __device__ __forceinline__ int row() const { return lane / 4; }
  __device__ __forceinline__ int piece() const { return lane % 4; }
  // Token tiles in this warp's order: its own come first.
  __device__ __forceinline__ int tile_at(int u) const { return u ^ (split * kOwnTiles); }

  __device__ __forceinline__ void load(const StateMatrix& from) {
    move_state<true>(elements(), from, place());
  }
  __device__ __forceinline__ void store(const StateMatrix& to) {
    move_state<false>(elements(), to, place());
  }
  // Zero, or the identity in an extra block.
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int tile = 0; tile < Traits::kTiles; ++tile)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        state[tile].c[e] =
            job.extra && place().key(tile, e) == column + row() + 8 * (e / 2) ? 1.0f : 0.0f;
  }

  // One chunk. meanwhile(): what may be done while the tensor cores are busy.
  template <class Meanwhile>
  __device__ __forceinline__ void step(const Buffer& buffer, const Chunks& chunks, int c,
                                       Meanwhile&& meanwhile) {
    const Stage& stage = buffer.stage;
    Accumulator writes[kTokenTiles] = {}, out[kTokenTiles] = {};  // [16 columns, C]
#pragma unroll
    for (int b = 0; b < Traits::kTiles / 4; ++b) {
      const A a[2] = {Operand::to_a(state[4 * b], state[4 * b + 1]),
                      Operand::to_a(state[4 * b + 2], state[4 * b + 3])};
      const int block = split * (Traits::kTiles / 4) + b;
      if constexpr (Update::kReadsState) multiply(writes, a, stage.k + block * Rows::kBlock);
      multiply(out, a, stage.q + block * Rows::kBlock);
    }
    meanwhile();
    sum_over_splits(writes, out);
    if (!Update::kReadsState || write_strengths == nullptr) {
      residual(writes, buffer, stage.strength, 0);
    } else {
      stage_strengths<Traits::kStrengthPitch>(write_strengths, p, job, chunks.first(c),
                                              chunks.tokens(c), column, job.extra ? 0 : columns);
      residual(writes, buffer, write_strengths, Traits::kStrengthPitch);
    }
    A a[2];
    share(writes, a);
#pragma unroll
    for (int tile = 0; tile < Traits::kTiles; ++tile) {
      const int block = 32 * (tile / 4) + 2 * (tile % 4);
      const float2 total = *reinterpret_cast<const float2*>(&stage.total[first_key() + block]);
      state[tile].c[0] *= total.x, state[tile].c[1] *= total.y;
      state[tile].c[2] *= total.x, state[tile].c[3] *= total.y;
      const Piece x = Channels::load(
          stage.x + Channels::place(Traits::kWarpKeys * split + permuted(0, row()), piece()) +
          block * Channels::kRow);
      Operand::mma(state[tile], a[0], x, 0);
      Operand::mma(state[tile], a[1], x, 1);
    }
    if (out_rows == nullptr) return;
#pragma unroll
    for (int u = 0; u < kOwnTiles; ++u) {
      const Piece rows = Scores::load(stage.p + row_place(u));
      Operand::mma(out[u], a[0], rows, 0);
      Operand::mma(out[u], a[1], rows, 1);
    }
    store_output(out, chunks.tokens(c));
  }

 private:
  __device__ __forceinline__ int first_key() const {
    return Traits::kWarpKeys * split + 8 * piece();
  }
  __device__ __forceinline__ auto& elements() {
    return reinterpret_cast<float (&)[4 * Traits::kTiles]>(state);
  }
  __device__ __forceinline__ StatePlace<8> place() const {
    return {first_key(), p.problem.key_dim, column + row(), columns};
  }
  // Of the lane's piece in a matrix whose rows are tokens.
  __device__ __forceinline__ int row_place(int u) const {
    return Rows::place(permuted(0, row()), piece()) + 2 * tile_at(u) * Rows::kRow;
  }

  // += a rows^T, over a block of the rows' columns.
  __device__ __forceinline__ void multiply(Accumulator (&sum)[kTokenTiles], const A (&a)[2],
                                           const Type* block) const {
#pragma unroll
    for (int u = 0; u < kTokenTiles; ++u) {
      const Piece rows = Rows::load(block + row_place(u));
      Operand::mma(sum[u], a[0], rows, 0);
      Operand::mma(sum[u], a[1], rows, 1);
    }
  }

  __device__ __forceinline__ void meet() const { ptx::bar_sync<32 * kSplits>(group + 1); }

  // Completes this warp's own tiles.
  __device__ __forceinline__ void sum_over_splits(Accumulator (&writes)[kTokenTiles],
                                                  Accumulator (&out)[kTokenTiles]) const {
    if constexpr (kSplits > 1) {
#pragma unroll
      for (int u = kOwnTiles; u < kTokenTiles; ++u) {
        if constexpr (Update::kReadsState) put(exchange.partial[0][split][tile_at(u)], writes[u]);
        put(exchange.partial[1][split][tile_at(u)], out[u]);
      }
      meet();
#pragma unroll
      for (int u = 0; u < kOwnTiles; ++u)
#pragma unroll
        for (int other = 1; other < kSplits; ++other) {
          const int from = split ^ other;
          if constexpr (Update::kReadsState) add(writes[u], exchange.partial[0][from][tile_at(u)]);
          add(out[u], exchange.partial[1][from][tile_at(u)]);
        }
    }
  }
  __device__ __forceinline__ void put(float4 (&to)[32], const Accumulator& tile) const {
    to[lane] = make_float4(tile.c[0], tile.c[1], tile.c[2], tile.c[3]);
  }
  __device__ __forceinline__ void add(Accumulator& tile, const float4 (&from)[32]) const {
    const float4 x = from[lane];
    tile.c[0] += x.x, tile.c[1] += x.y, tile.c[2] += x.z, tile.c[3] += x.w;
  }

  // From S^T k^T to what is written: beta V^T - S^T k^T of own tiles, or V^T of all of them. pitch:
  // of strengths from column to column.
  __device__ __forceinline__ void residual(Accumulator (&writes)[kTokenTiles], const Buffer& buffer,
                                           const float* strengths, int pitch) const {
#pragma unroll
    for (int u = 0; u < (Update::kReadsState ? kOwnTiles : kTokenTiles); ++u) {
      const int t = Update::kReadsState ? tile_at(u) : u;
      // V^T of the tile: [16 columns, 8 tokens].
      const auto* at =
          buffer.v + Traits::value_place(permuted(0, lane % 8) + 2 * t, 2 * group + lane / 8 % 2);
      std::uint32_t values[2];
      ptx::ldmatrix_x2_trans(values, at);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 v = cuda::widen_pair<Io>(values[half]);  // of two tokens
        float* r = writes[u].c + 2 * half;
        if constexpr (Update::kReadsState) {
          const float2 strength = *reinterpret_cast<const float2*>(
              strengths + (row() + 8 * half) * pitch + 8 * piece() + 2 * t);
          r[0] = strength.x * v.x - r[0];
          r[1] = strength.y * v.y - r[1];
        } else {
          r[0] = v.x, r[1] = v.y;
        }
      }
    }
  }

  // What is written, as an operand [16 columns, C]. If it depends on the state, own tiles go to the
  // other warps, and theirs come back.
  __device__ __forceinline__ void share(const Accumulator (&writes)[kTokenTiles], A (&a)[2]) const {
    if constexpr (kSplits == 1 || !Update::kReadsState) {
      a[0] = Operand::to_a(writes[0], writes[1]);
      a[1] = Operand::to_a(writes[2], writes[3]);
    } else {
      // Half of A's registers per tile.
      using Half = typename Exchange::Half;
#pragma unroll
      for (int u = 0; u < kOwnTiles; ++u) {
        const A both = Operand::to_a(writes[u], writes[u]);
        const int t = tile_at(u);
        exchange.writes[t / 2][lane].half[t % 2] = reinterpret_cast<const Half&>(both);
      }
      meet();
#pragma unroll
      for (int d = 0; d < 2; ++d)
        reinterpret_cast<typename Exchange::Tiles&>(a[d]) = exchange.writes[d][lane];
    }
  }

  // Own tiles.
  __device__ __forceinline__ void store_output(const Accumulator (&out)[kTokenTiles], int count) {
    const int c = column + 2 * piece(), token = permuted(0, row()) + 2 * split * kOwnTiles;
    std::uint16_t* at = out_rows + token * p.args.out.token_stride + c;
#pragma unroll
    for (int u = 0; u < kOwnTiles; ++u, at += 2 * p.args.out.token_stride)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const std::uint32_t pair =
            ptx::movmatrix_trans(cuda::round_pair<Io>(out[u].c[2 * half], out[u].c[2 * half + 1]));
        if (token + 2 * u < count && c + 8 * half < columns)
          *reinterpret_cast<std::uint32_t*>(at + 8 * half) = pair;
      }
    out_rows += count * p.args.out.token_stride;
  }
};

}  // namespace linattn::portable
