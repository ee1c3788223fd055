// SPDX-License-Identifier: Apache-2.0
//
// The scan and output stages: a warp holds 16 value columns of the state, transposed, [16, K] in
// accumulators, and meets each chunk's operands there:
//
//   R^T = beta V^T - S^T k^T      S^T <- 2^G S^T + R^T x      O^T = S^T q^T + R^T p^T
//
// S^T and R^T become operands without leaving their registers; V and O are transposed among lanes.
#pragma once

#include "cuda/portable/prepare.cuh"
#include "cuda/portable/traits.h"

namespace linattn::portable {

inline constexpr int kStrengthPitch = kChunk + 4;

// A lane's part of a state in memory: rows are value columns, columns are key channels.
struct StatePlace {
  std::int64_t offset;  // of its first element
  MatrixStrides strides;
  int first_key, keys;        // its channels are first_key + 0, 1, 8, 9, 16, ... below keys
  int first_column, columns;  // its columns are first_column + 0, 8 below columns
};

// Not inlined: one copy of the code for every dtype, layout and reason to move a state.
template <int kTiles>
__device__ __forceinline__ void move_state(Accumulator* tiles, void* data, DType dtype,
                                           StatePlace place, bool load) {
  cuda::with_dtype(dtype, [&]<class T>(T) {
    T* at = static_cast<T*>(data) + place.offset;
#pragma unroll 1
    for (int tile = 0; tile < kTiles; ++tile, at += 8 * place.strides.key)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const bool exists = place.first_key + tile * 8 + e % 2 < place.keys &&
                            place.first_column + e / 2 * 8 < place.columns;
        T* element = at + e % 2 * place.strides.key + e / 2 * 8 * place.strides.value;
        if (load) {
          tiles[tile].c[e] = exists ? cuda::to_float(*element) : 0.0f;
        } else if (exists) {
          *element = cuda::from_float<T>(tiles[tile].c[e]);
        }
      }
  });
}

template <class Traits>
struct StateWarp {
  using Operand = typename Traits::Operand;
  using Gate = typename Traits::Gate;
  using Update = typename Traits::Update;
  using Io = typename Traits::Io;
  static constexpr int kPitch = Traits::kPitch;
  static constexpr int kTiles = Traits::kKeyDim / 8;
  static constexpr int kTokenTiles = kChunk / 8;

  const ForwardParams& p;
  // Rows of this sequence and value head: token 0.
  const std::uint16_t* v;
  std::uint16_t* out_rows;
  const void* write_rows;  // null but for gdn2
  float* own_strengths;    // gdn2: shared memory of this warp
  int column;              // the warp's first value column; of an extra block, of the identity
  int columns;             // V, or K in an extra block
  bool extra;              // no value and no output: the transition
  int lane;

  Accumulator state[kTiles];

  typename Traits::Fetch& fetch;

  __device__ __forceinline__ bool in_columns(int c) const { return c < columns; }

  // Zero, or the identity in an extra block.
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        state[tile].c[e] =
            extra && tile * 8 + lane % 4 * 2 + e % 2 == column + lane / 4 + e / 2 * 8 ? 1.0f : 0.0f;
  }

  __device__ __forceinline__ void load(const void* data, DType dtype, std::int64_t offset,
                                       MatrixStrides strides) {
    Accumulator loaded[kTiles];
    move_state<kTiles>(loaded, const_cast<void*>(data), dtype, place(offset, strides), true);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) state[tile] = loaded[tile];
  }

  __device__ __forceinline__ void store(void* data, DType dtype, std::int64_t offset,
                                        MatrixStrides strides) {
    Accumulator copy[kTiles];  // its address leaves this function, the state's must not
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) copy[tile] = state[tile];
    move_state<kTiles>(copy, data, dtype, place(offset, strides), false);
  }

  // Starts the copy of a chunk's rows of V; buffer alternates.
  __device__ __forceinline__ void fetch_values(int buffer, int first, int count) const {
    const int exist = columns - column;
    if (extra || exist <= 0) count = 0;
    const std::uint16_t* from = v;
    if (count > 0) from += first * p.args.v.token_stride + column;
    auto* to = reinterpret_cast<std::uint16_t*>(fetch.v[buffer][threadIdx.x / 32]);
    if (p.wide_v) {
      fetch_tile<std::uint16_t, 16, kChunk, 16>(to, Traits::Fetch::kValuePitch, from,
                                                p.args.v.token_stride, count, exist, lane);
    } else {
      fetch_tile<std::uint16_t, 4, kChunk, 16>(to, Traits::Fetch::kValuePitch, from,
                                               p.args.v.token_stride, count, exist, lane);
    }
    fetch_commit();
  }

  // V^T of 16 tokens: [16 columns, 2 tiles of 8 tokens].
  __device__ __forceinline__ void load_values(std::uint32_t (&values)[2][2], int buffer,
                                              int first_token) const {
    const auto* tile = fetch.v[buffer][threadIdx.x / 32] +
                       (first_token + lane % 8 + lane / 16 * 8) * Traits::Fetch::kValuePitch +
                       lane / 8 % 2 * 8;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(values[0][0]), "=r"(values[0][1]), "=r"(values[1][0]), "=r"(values[1][1])
                 : "r"(shared_address(tile)));
  }

  // gdn2: a chunk's write strengths, [16 columns, C] with a pitch of kChunk + 4, for this warp. Not
  // inlined: the other ops pay nothing for it.
  __device__ __noinline__ static void stage_strengths(float* to, const ForwardParams& p,
                                                      const void* rows, int first, int count,
                                                      int column, int columns) {
    const int token = static_cast<int>(threadIdx.x) % 32;
    const std::int64_t offset = (first + token) * p.args.write.token_stride + column;
    __syncwarp();
    for (int c = 0; c < 16; ++c)
      to[c * kStrengthPitch + token] =
          token < count && column + c < columns
              ? cuda::strength(p.problem.beta_input,
                               cuda::load(rows, p.problem.beta_dtype, offset + c))
              : 0.0f;
    __syncwarp();
  }

  // One chunk, whose rows of V are in `buffer`.
  __device__ __forceinline__ void chunk(const typename Traits::Stage& stage, int buffer, int first,
                                        int count, bool with_output) {
    // The write strength of a token, or of a token and column.
    const float* strengths = stage.v_factor;
    if (write_rows != nullptr) {
      stage_strengths(own_strengths, p, write_rows, first, count, column, extra ? 0 : columns);
      strengths = own_strengths;
    }
    Accumulator writes[kTokenTiles] = {};  // S^T k^T, then R^T: [16 columns, C]
    if constexpr (Update::kReadsState) read_state(writes, stage, stage.k);
#pragma unroll
    for (int t = 0; t < kTokenTiles; t += 2) {
      std::uint32_t values[2][2];
      load_values(values, buffer, 8 * t);
#pragma unroll
      for (int side = 0; side < 2; ++side)
        residual(writes[t + side], values[side], stage, strengths, t + side);
    }
    typename Operand::A a[kTokenTiles / 2];
#pragma unroll
    for (int depth = 0; depth < kTokenTiles / 2; ++depth)
      a[depth] = Operand::to_a(writes[2 * depth], writes[2 * depth + 1]);
    if (with_output) {
      Accumulator out[kTokenTiles] = {};  // S^T q^T, then O^T: [16 columns, C]
      read_state(out, stage, stage.q);
#pragma unroll
      for (int t = 0; t < kTokenTiles; ++t)
        if constexpr (!Gate::kPerChannel) scale(out[t], stage.q_factor, t);
#pragma unroll
      for (int depth = 0; depth < kTokenTiles / 2; ++depth)
#pragma unroll
        for (int t = 0; t < kTokenTiles; t += 2) {
          typename Operand::B b[2];
          Operand::load_b(b, stage.p + 8 * t * Traits::kChunkPitch + 16 * depth,
                          Traits::kChunkPitch, lane);
          Operand::mma(out[t], a[depth], b[0]);
          Operand::mma(out[t + 1], a[depth], b[1]);
        }
      store_output(out, first, count);
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; tile += 2) {
      decay(state[tile], stage, tile);
      decay(state[tile + 1], stage, tile + 1);
#pragma unroll
      for (int depth = 0; depth < kTokenTiles / 2; ++depth) {
        typename Operand::B b[2];
        Operand::load_b_deep(b, stage.x + 16 * depth * kPitch + 8 * tile, kPitch, lane);
        Operand::mma(state[tile], a[depth], b[0]);
        Operand::mma(state[tile + 1], a[depth], b[1]);
      }
    }
  }

 private:
  __device__ __forceinline__ StatePlace place(std::int64_t offset, MatrixStrides strides) const {
    const int key = lane % 4 * 2, first = column + lane / 4;
    return {offset + key * strides.key + first * strides.value,
            strides,
            key,
            p.problem.key_dim,
            first,
            columns};
  }

  // += S^T rows^T for the C rows of an operand.
  __device__ __forceinline__ void read_state(Accumulator (&sum)[kTokenTiles],
                                             const typename Traits::Stage& stage,
                                             const typename Traits::Type* rows) const {
#pragma unroll
    for (int depth = 0; depth < kTiles / 2; ++depth) {
      typename Operand::A a;
      if constexpr (Gate::kPerChannel) {
        a = Operand::to_a(state[2 * depth], state[2 * depth + 1], stage.anchor + 16 * depth, lane);
      } else {
        a = Operand::to_a(state[2 * depth], state[2 * depth + 1]);
      }
#pragma unroll
      for (int t = 0; t < kTokenTiles; t += 2) {
        typename Operand::B b[2];
        Operand::load_b(b, rows + 8 * t * kPitch + 16 * depth, kPitch, lane);
        Operand::mma(sum[t], a, b[0]);
        Operand::mma(sum[t + 1], a, b[1]);
      }
    }
  }

  // From S^T k^T of 8 tokens to what they write: beta V^T - S^T k^T, or V^T.
  __device__ __forceinline__ void residual(Accumulator& tile, const std::uint32_t (&values)[2],
                                           const typename Traits::Stage& stage,
                                           const float* strengths, int token_tile) const {
    const int column_pitch = write_rows == nullptr ? 0 : kStrengthPitch;
    if constexpr (Update::kReadsState && !Gate::kPerChannel)
      scale(tile, stage.k_factor, token_tile);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 v = load_pair(reinterpret_cast<const Io*>(&values[half]));  // of two tokens
      float2 strength = make_float2(1, 1);
      if constexpr (Update::kReadsState) {
        strength = *reinterpret_cast<const float2*>(
            strengths + (lane / 4 + 8 * half) * column_pitch + 8 * token_tile + lane % 4 * 2);
      }
      float* r = tile.c + 2 * half;
      r[0] = Update::kReadsState ? strength.x * v.x - r[0] : v.x;
      r[1] = Update::kReadsState ? strength.y * v.y - r[1] : v.y;
    }
  }

  __device__ __forceinline__ void decay(Accumulator& tile, const typename Traits::Stage& stage,
                                        int index) const {
    if constexpr (Gate::kPerChannel) {
      scale(tile, stage.total, index);
    } else {
      for (float& s : tile.c) s *= stage.total[0];
    }
  }

  __device__ __forceinline__ void scale(Accumulator& tile, const float* factors, int index) const {
    const float2 by = *reinterpret_cast<const float2*>(factors + 8 * index + lane % 4 * 2);
    tile.c[0] *= by.x;
    tile.c[1] *= by.y;
    tile.c[2] *= by.x;
    tile.c[3] *= by.y;
  }

  __device__ __forceinline__ void store_output(const Accumulator (&out)[kTokenTiles], int first,
                                               int count) const {
    const int c = column + lane % 4 * 2, row = lane / 4;
    std::uint16_t* at = out_rows + (first + row) * p.args.out.token_stride + c;
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t, at += 8 * p.args.out.token_stride)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const std::uint32_t pair = transpose8x8(pack(out[t].c[2 * half], out[t].c[2 * half + 1]));
        if (8 * t + row < count && in_columns(c + 8 * half))
          *reinterpret_cast<std::uint32_t*>(at + 8 * half) = pair;
      }
  }

  static __device__ __forceinline__ std::uint32_t pack(float low, float high) {
    if constexpr (std::is_same_v<Io, __nv_bfloat16>) {
      return OperandBf16::pack(low, high);
    } else {
      const __half2 pair = __floats2half2_rn(low, high);
      return reinterpret_cast<const std::uint32_t&>(pair);
    }
  }
};

}  // namespace linattn::portable
