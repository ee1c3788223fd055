// SPDX-License-Identifier: Apache-2.0
//
// The intra stage: scores of a chunk, the inverse, and the two operands x and p that take the
// inverse off the state's chain:  state += x^T R,  out += p R  with R = beta v - k S.
#pragma once

#include "cuda/portable/prepare.cuh"
#include "cuda/portable/traits.h"

namespace linattn::portable {

inline constexpr int kLowerPitch = kChunk + 4;  // 16-byte rows whose starts differ in banks
inline constexpr int kMergePitch = kSubChunk + 4;

template <class Traits>
struct Intra {
  using Operand = typename Traits::Operand;
  using Type = typename Traits::Type;
  using Gate = typename Traits::Gate;
  using Update = typename Traits::Update;
  static constexpr int kPitch = Traits::kPitch;
  static constexpr int kWarps = Traits::kPrepareWarps;

  typename Traits::Scratch& scratch;
  typename Traits::Stage& stage;
  int warp, lane;

  // Where A_qk goes: without an inverse it is p itself.
  __device__ __forceinline__ Type* a_qk() const {
    if constexpr (Update::kReadsState) return scratch.a_qk;
    return stage.p;
  }
  __device__ __forceinline__ auto keys() const -> const Type* {
    if constexpr (Gate::kPerChannel) return scratch.right;
    return stage.k;
  }

  __device__ __forceinline__ void barrier() const {
    barrier_sync(kPrepareBarrier, Traits::kPrepareThreads);
  }

  // A_kk and A_qk by tensor cores; above the diagonal selected away, whatever it holds. A job is 16
  // x 16 of one of them.
  __device__ __forceinline__ void scores() const {
    constexpr int kBlocks = 3, kJobs = Update::kReadsState ? 2 * kBlocks : kBlocks;
    for (int job = warp; job < kJobs; job += kWarps) {
      const bool of_q = job < kBlocks;
      const int block = job % kBlocks, i0 = block == 0 ? 0 : 16, j0 = block == 2 ? 16 : 0;
      const Type* left = (of_q ? stage.q : stage.k) + i0 * kPitch;
      Accumulator score[2] = {};
#pragma unroll 4
      for (int c = 0; c < Traits::kKeyDim; c += 16) {
        const typename Operand::A a = Operand::load_a(left + c, kPitch, lane);
        typename Operand::B b[2];
        Operand::load_b(b, keys() + j0 * kPitch + c, kPitch, lane);
        Operand::mma(score[0], a, b[0]);
        Operand::mma(score[1], a, b[1]);
      }
#pragma unroll
      for (int side = 0; side < 2; ++side)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int i = i0 + lane / 4 + e / 2 * 8, j = j0 + 8 * side + lane % 4 * 2 + e % 2;
          float value = score[side].c[e];
          if constexpr (!Gate::kPerChannel)
            value *= j <= i ? exp2_of(scratch.cumulative[i] - scratch.cumulative[j]) *
                                  scratch.row_factor[of_q][i] * scratch.column_factor[j]
                            : 0.0f;  // exponents of i >= j only: at most 0
          if (of_q) {
            a_qk()[i * Traits::kChunkPitch + j] = Operand::round(j <= i ? value : 0.0f);
          } else {
            scratch.lower[i * kLowerPitch + j] = j < i ? value : 0.0f;
          }
        }
    }
  }

  // The safe route of a gate per channel: each score from differences of G, which are at most 0
  // where they count. A warp takes a row i and four columns at a time; lanes are channels.
  __device__ __noinline__ void elementwise_scores() const {
    constexpr int kPairs = Traits::kKeyDim / 64, kColumns = 4;
    for (int job = warp; job < kChunk * kChunk / kColumns; job += kWarps) {
      const int i = job / (kChunk / kColumns), j0 = job % (kChunk / kColumns) * kColumns;
      if (j0 > i) continue;
      float score[2 * kColumns] = {};  // kk, then qk
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) {
        const int c = pair * 64 + 2 * lane;
        const float2 q = load_pair(&stage.q[i * kPitch + c]),
                     k = load_pair(&stage.k[i * kPitch + c]);
        const float2 g = load_pair(&scratch.cumulative[i * Traits::kGatePitch + c]);
#pragma unroll
        for (int e = 0; e < kColumns; ++e) {
          const float2 right = load_pair(&scratch.right[(j0 + e) * kPitch + c]);
          const float2 h = load_pair(&scratch.cumulative[(j0 + e) * Traits::kGatePitch + c]);
          const float x = right.x * exp2_of(g.x - h.x), y = right.y * exp2_of(g.y - h.y);
          score[e] += k.x * x + k.y * y;
          score[kColumns + e] += q.x * x + q.y * y;
        }
      }
#pragma unroll
      for (int e = 0; e < 2 * kColumns; ++e) score[e] = cuda::warp_sum(score[e]);
      if (lane < kColumns) {
        float kk = 0, qk = 0;
#pragma unroll
        for (int e = 0; e < kColumns; ++e) {
          kk = lane == e ? score[e] : kk;
          qk = lane == e ? score[kColumns + e] : qk;
        }
        const int j = j0 + lane;
        a_qk()[i * Traits::kChunkPitch + j] = Operand::round(j <= i ? qk : 0.0f);
        if constexpr (Update::kReadsState) scratch.lower[i * kLowerPitch + j] = j < i ? kk : 0.0f;
      }
    }
  }

  // (I + A_kk)^-1 in fp32: substitution in the two diagonal blocks, then the block below them.
  // Doubling would cancel binomial numbers where keys repeat.
  __device__ __forceinline__ void invert() const {
    if (warp == 0) {  // lane: a column of one of the two blocks
      const int base = lane / kSubChunk * kSubChunk, column = lane % kSubChunk;
      float x[kSubChunk];
#pragma unroll
      for (int i = 0; i < kSubChunk; ++i) {
        const float* row = scratch.lower + (base + i) * kLowerPitch + base;
        float sum = i == column ? 1.0f : 0.0f;
#pragma unroll
        for (int l = 0; l < i; l += 4) {
          const float4 four = *reinterpret_cast<const float4*>(row + l);
          sum = fmaf(-four.x, x[l], sum);
          if (l + 1 < i) sum = fmaf(-four.y, x[l + 1], sum);
          if (l + 2 < i) sum = fmaf(-four.z, x[l + 2], sum);
          if (l + 3 < i) sum = fmaf(-four.w, x[l + 3], sum);
        }
        x[i] = sum;
      }
#pragma unroll
      for (int i = 0; i < kSubChunk; ++i)
        scratch.inverse[(base + i) * kLowerPitch + base + column] = x[i];
    }
    barrier();
    constexpr int kElements = kSubChunk * kSubChunk;
    for (int e = warp * 32 + lane; e < kElements; e += Traits::kPrepareThreads) {
      const int i = e / kSubChunk, j = e % kSubChunk;
      float sum = 0;
#pragma unroll
      for (int l = 0; l < kSubChunk; ++l)
        sum = fmaf(scratch.lower[(kSubChunk + i) * kLowerPitch + l],
                   scratch.inverse[l * kLowerPitch + j], sum);
      scratch.merge[i * kMergePitch + j] = sum;
    }
    barrier();
    for (int e = warp * 32 + lane; e < 3 * kElements; e += Traits::kPrepareThreads) {
      const int block = e / kElements, i = e % kElements / kSubChunk, j = e % kSubChunk;
      float value;
      if (block == 2) {
        value = 0;
#pragma unroll
        for (int l = 0; l < kSubChunk; ++l)
          value = fmaf(-scratch.inverse[(kSubChunk + i) * kLowerPitch + kSubChunk + l],
                       scratch.merge[l * kMergePitch + j], value);
        put_inverse(kSubChunk + i, j, value);
      } else {
        put_inverse(block * kSubChunk + i, block * kSubChunk + j,
                    scratch.inverse[(block * kSubChunk + i) * kLowerPitch + block * kSubChunk + j]);
      }
    }
    barrier();
  }

  __device__ __forceinline__ void put_inverse(int i, int j, float value) const {
    scratch.inverse_t[j * Traits::kChunkPitch + i] = Operand::round(value);
    if constexpr (!Gate::kPerChannel)
      scratch.inverse_x[j * Traits::kChunkPitch + i] =
          Operand::round(value * scratch.right_factor[i]);
  }

  // x = inverse^T k and p = A_qk inverse.
  __device__ __forceinline__ void products() const {
    constexpr int kTiles = Traits::kKeyDim / 16;
    const Type* left = scratch.inverse_t;
    if constexpr (!Gate::kPerChannel) left = scratch.inverse_x;
    for (int tile = warp; tile < 2 * kTiles + 2; tile += kWarps) {
      const bool of_x = tile < 2 * kTiles;
      const int m = of_x ? tile % 2 * 16 : (tile - 2 * kTiles) * 16;
      const int c = of_x ? tile / 2 * 16 : 0;
      if (of_x) {
        Accumulator x[2] = {};
#pragma unroll
        for (int depth = 0; depth < kChunk; depth += 16) {
          if (m > depth) continue;  // the transposed inverse is upper triangular
          const typename Operand::A a =
              Operand::load_a(left + m * Traits::kChunkPitch + depth, Traits::kChunkPitch, lane);
          typename Operand::B b[2];
          Operand::load_b_deep(b, keys() + depth * kPitch + c, kPitch, lane);
          Operand::mma(x[0], a, b[0]);
          Operand::mma(x[1], a, b[1]);
        }
#pragma unroll
        for (int side = 0; side < 2; ++side) {
          const int channel = c + 8 * side + lane % 4 * 2, row = m + lane / 4;
          float2 by = make_float2(1, 1);
          if constexpr (Gate::kPerChannel)
            by = *reinterpret_cast<const float2*>(&scratch.x_scale[channel]);
          Operand::store_pair(&stage.x[row * kPitch + channel], x[side].c[0] * by.x,
                              x[side].c[1] * by.y);
          Operand::store_pair(&stage.x[(row + 8) * kPitch + channel], x[side].c[2] * by.x,
                              x[side].c[3] * by.y);
        }
      } else {
#pragma unroll
        for (int n = 0; n < kChunk; n += 16) {
          Accumulator out[2] = {};
#pragma unroll
          for (int depth = 0; depth < kChunk; depth += 16) {
            const typename Operand::A a = Operand::load_a(
                scratch.a_qk + m * Traits::kChunkPitch + depth, Traits::kChunkPitch, lane);
            typename Operand::B b[2];
            Operand::load_b(b, scratch.inverse_t + n * Traits::kChunkPitch + depth,
                            Traits::kChunkPitch, lane);
            Operand::mma(out[0], a, b[0]);
            Operand::mma(out[1], a, b[1]);
          }
#pragma unroll
          for (int side = 0; side < 2; ++side) {
            Type* at = &stage.p[(m + lane / 4) * Traits::kChunkPitch + n + 8 * side + lane % 4 * 2];
            Operand::store_pair(at, out[side].c[0], out[side].c[1]);
            Operand::store_pair(at + 8 * Traits::kChunkPitch, out[side].c[2], out[side].c[3]);
          }
        }
      }
    }
  }
};

}  // namespace linattn::portable
