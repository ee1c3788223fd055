// SPDX-License-Identifier: Apache-2.0
//
// The intra stage: scores of a chunk, the inverse, and the two operands x and p that take the
// inverse off the state's chain:  state += x^T R,  out += p R  with R = beta v - k S.
#pragma once

#include <type_traits>

#include "cuda/portable/mma.cuh"
#include "cuda/portable/stage.cuh"

namespace linattn::portable {

template <class OperandPolicy, int kKeyDimPadded, class GatePolicy, class UpdatePolicy>
struct PrepareTraits {
  using Operand = OperandPolicy;
  using Type = typename Operand::Type;
  using Gate = GatePolicy;
  using Update = UpdatePolicy;
  using Stage = portable::Stage<Operand, kKeyDimPadded, Update>;
  using Rows = PieceMatrix<Operand, kChunk>;  // of what products read here

  static constexpr int kKeyDim = kKeyDimPadded;
  static constexpr int kTokens = 4;  // of a thread, and 8 channels
  static constexpr int kGroups = kChunk / kTokens;
  static constexpr int kOctets = kKeyDim / 8;
  static constexpr int kThreads = kGroups * kOctets;
  static_assert(kThreads == kKeyDim && kOctets <= 32);
  static constexpr int kWarps = kThreads / 32;
  // Per multiprocessor, by registers: as many as leave no spill.
  static constexpr int kBlocks = kKeyDim == 256      ? 2
                                 : sizeof(Type) == 4 ? 384 / kKeyDim
                                 : kKeyDim == 64     ? (Gate::kPerChannel ? 6 : 8)
                                                     : (Gate::kPerChannel ? 4 : 5);
  static constexpr int kPitch = kChunk + 4;  // 16-byte rows whose starts differ in banks

  // A gate per head leaves k as it came: its norm and decay go into the inverse, if there is one.
  static constexpr bool kFactorInInverse = !Gate::kPerChannel && Update::kReadsState;

  struct Shared {
    alignas(16) Type k[kChunk * kKeyDim];      // [C, K] left operand of A_kk
    alignas(16) Type q[kChunk * kKeyDim];      // [C, K] left operand of A_qk
    alignas(16) Type right[kChunk * kKeyDim];  // [C, K] right operand of both
    alignas(16) Type a_qk[kChunk * kChunk];
    alignas(16) Type inverse_t[kChunk * kChunk];                         // transposed
    alignas(16) Type inverse_x[kFactorInInverse ? kChunk * kChunk : 8];  // the same, times factors
    alignas(16) float lower[kChunk * kPitch];                            // A_kk, strictly lower
    alignas(16) float x_scale[kKeyDim];
    alignas(16) float anchor[Gate::kPerChannel ? kKeyDim : 1];
    alignas(16) float before[Gate::kPerChannel ? kGroups : 1][Gate::kPerChannel ? kKeyDim : 1];
    alignas(16) float beta[kChunk];
    alignas(16) float norms[2][kChunk];  // of q and k
    alignas(16) unsigned char job[128];  // PrepareJob
    // Where decays are not in the operands: a gate per head, and the safe route.
    float row_factor[2][kChunk];  // on rows of A_kk and A_qk
    float column_factor[kChunk];  // on their columns
    // Of a gate per head:
    float cumulative[kChunk];    // G
    float right_factor[kChunk];  // on k in x

    // [C, K] G of the safe route, which has no use for left operands.
    __device__ float* all_decays() { return reinterpret_cast<float*>(k); }
  };
};

template <class Traits>
struct Intra {
  using Operand = typename Traits::Operand;
  using Type = typename Traits::Type;
  using Piece = typename Operand::Piece;
  using A = typename Operand::A;
  using Gate = typename Traits::Gate;
  using Update = typename Traits::Update;
  using Rows = typename Traits::Rows;
  using Shared = typename Traits::Shared;
  using Stage = typename Traits::Stage;
  using StageRows = typename Stage::Rows;
  using Channels = typename Stage::Channels;
  using Scores = typename Stage::Scores;

  Shared& shared;
  Stage& stage;
  int thread;

  __device__ __forceinline__ int warp() const { return thread / 32; }
  __device__ __forceinline__ int lane() const { return thread % 32; }
  __device__ __forceinline__ int row() const { return thread % 32 / 4; }
  __device__ __forceinline__ int piece() const { return thread % 4; }

  // A_kk and A_qk by tensor cores; above the diagonal selected away, whatever it holds. A job is 16
  // rows of one of them.
  __device__ __forceinline__ void scores() const {
    constexpr int kJobs = Update::kReadsState ? 4 : 2;
#pragma unroll 1
    for (int job = warp(); job < kJobs; job += Traits::kWarps) {
      const bool of_q = job < 2;
      const Type* left = of_q ? shared.q : shared.k;
      const int tile = job % 2, j0 = 8 * piece();
      Accumulator score[4] = {};
#pragma unroll
      for (int b = 0; b < Stage::kBlocks; ++b) {
        const A a[2] = {Operand::template load_a<Rows>(left + b * Rows::kBlock, tile, 0, lane()),
                        Operand::template load_a<Rows>(left + b * Rows::kBlock, tile, 1, lane())};
#pragma unroll
        for (int t = 0; t < 4; ++t) {
          const Piece keys =
              Operand::template load_b<Rows>(shared.right + b * Rows::kBlock, t, lane());
          Operand::mma(score[t], a[0], keys, 0);
          Operand::mma(score[t], a[1], keys, 1);
        }
      }
#pragma unroll
      for (int lower = 0; lower < 2; ++lower) {
        const int i = permuted(2 * tile + lower, row());
        float x[8];
        gather(score, lower, x);
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          const int j = j0 + e;
          // Exponents of i >= j only: at most 0.
          if constexpr (!Gate::kPerChannel)
            x[e] *= j <= i ? ptx::ex2_approx(shared.cumulative[i] - shared.cumulative[j]) *
                                 shared.row_factor[of_q][i] * shared.column_factor[j]
                           : 0.0f;
          x[e] = j < i || (of_q && j == i) ? x[e] : 0.0f;
        }
        if (of_q) {
          Rows::store(shared.a_qk + Rows::place(i, piece()), Operand::round(x));
        } else {
          float4* to = reinterpret_cast<float4*>(&shared.lower[i * Traits::kPitch + j0]);
          to[0] = make_float4(x[0], x[1], x[2], x[3]);
          to[1] = make_float4(x[4], x[5], x[6], x[7]);
        }
      }
    }
  }

  // The safe route of a gate per channel, from undecayed operands, factors and G: blocks of 8 x 8
  // tokens by tensor cores, anchored at the last token before the rows, so that both exponents are
  // at most 0; blocks on the diagonal token by token. Both are exact for every gate that decays.
  __device__ __noinline__ static void safe_scores(Shared& shared, Stage& stage, int thread) {
    const float* decays = shared.all_decays();
    const int row = thread % 32 / 4, piece = thread % 4;
    const auto decays_of = [&](int token, int octet, float (&g)[8]) {
#pragma unroll
      for (int i = 0; i < 8; ++i) g[i] = decays[token * Traits::kKeyDim + 8 * octet + i];
    };
    for (int unit = thread; unit < kChunk * kChunk * static_cast<int>(sizeof(Type)) / 16;
         unit += Traits::kThreads)
      reinterpret_cast<uint4*>(shared.a_qk)[unit] = uint4{0, 0, 0, 0};
    __syncthreads();

    // Rows 8 I .. 8 I + 7 of both: A's upper half is k, its lower half q.
    constexpr int kBlocks = kChunk / 8;
#pragma unroll 1
    for (int job = thread / 32; job < kBlocks * kBlocks; job += Traits::kWarps) {
      const int rows = job / kBlocks, columns = job % kBlocks;
      if (columns >= rows) continue;
      const int i = 8 * rows + row, j = 8 * columns + row;
      Accumulator score{};
#pragma unroll 1
      for (int b = 0; b < Stage::kBlocks; ++b) {
        float anchor[8], g[8], x[8];
        decays_of(8 * rows - 1, 4 * b + piece, anchor);
        const auto decayed = [&]<class Matrix>(Matrix, const Type* matrix, int token, float sign) {
          Operand::widen(Matrix::load(matrix + Matrix::place(token, piece, b)), x);
#pragma unroll
          for (int e = 0; e < 8; ++e) x[e] *= ptx::ex2_approx(sign * (g[e] - anchor[e]));
          return Operand::round(x);
        };
        decays_of(i, 4 * b + piece, g);
        Piece top{};
        if constexpr (Update::kReadsState) top = decayed(StageRows{}, stage.k, i, 1.0f);
        const Piece bottom = decayed(StageRows{}, stage.q, i, 1.0f);
        decays_of(j, 4 * b + piece, g);
        const Piece keys = decayed(Rows{}, shared.right, j, -1.0f);
        Operand::mma(score, Operand::to_a(top, bottom, 0), keys, 0);
        Operand::mma(score, Operand::to_a(top, bottom, 1), keys, 1);
      }
#pragma unroll
      for (int e = 0; e < 2; ++e)
        put_scores(shared, i, 8 * columns + 2 * piece + e, score.c[e], score.c[2 + e]);
    }

    // A group of lanes takes a row, a lane 8 channels.
    const int octet = thread % Traits::kOctets;
    const auto row_of = [&]<class Matrix>(Matrix, const Type* matrix, int token, float (&x)[8]) {
      Operand::widen(Matrix::load(matrix + Matrix::place(token, octet % 4, octet / 4)), x);
    };
#pragma unroll 1
    for (int i = thread / Traits::kOctets; i < kChunk; i += Traits::kGroups) {
      float k[8] = {}, q[8], g[8];
      if constexpr (Update::kReadsState) row_of(StageRows{}, stage.k, i, k);
      row_of(StageRows{}, stage.q, i, q);
      decays_of(i, octet, g);
      const int last = __reduce_max_sync(0xffffffffu, i);  // a warp's rows, all in one block
#pragma unroll 1
      for (int j = i / 8 * 8; j <= last; ++j) {
        float right[8], h[8], kk = 0, qk = 0;
        row_of(Rows{}, shared.right, j, right);
        decays_of(j, octet, h);
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          const float x = right[e] * ptx::ex2_approx(g[e] - h[e]);
          kk = fmaf(k[e], x, kk);
          qk = fmaf(q[e], x, qk);
        }
#pragma unroll
        for (int distance = Traits::kOctets / 2; distance > 0; distance /= 2) {
          kk += __shfl_xor_sync(0xffffffffu, kk, distance);
          qk += __shfl_xor_sync(0xffffffffu, qk, distance);
        }
        if (octet == 0 && j <= i) put_scores(shared, i, j, kk, qk);
      }
    }
  }

  __device__ __forceinline__ static void put_scores(Shared& shared, int i, int j, float kk,
                                                    float qk) {
    kk *= shared.row_factor[0][i] * shared.column_factor[j];
    qk *= shared.row_factor[1][i] * shared.column_factor[j];
    shared.lower[i * Traits::kPitch + j] = kk;  // its diagonal is never read
    shared.a_qk[element(i, j)] = Operand::round(qk);
  }

  // (I + A_kk)^-1 in fp32 by one warp. Doubling would cancel binomial numbers where keys repeat,
  // so: two blocks of 16 tokens by substitution, a lane a column, and the block below by tensor
  // cores, -T22 A21 T11, each factor split into two tf32 numbers. Without a read of the state it is
  // the identity.
  __device__ __forceinline__ void invert() const {
    if (warp() != static_cast<int>(blockIdx.x) % Traits::kWarps) return;
    constexpr int kHalf = kChunk / 2, kPitch = Traits::kPitch;
    const int half = lane() / kHalf, column = lane() % kHalf;
    float x[kHalf];
    const float* block = shared.lower + half * (kHalf * kPitch + kHalf);  // the lane's
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      x[i] = i == column ? 1.0f : 0.0f;
      if constexpr (Update::kReadsState) {
        float sum[2] = {x[i], 0};
#pragma unroll
        for (int l = 0; l < i; l += 4) {
          const float4 four = *reinterpret_cast<const float4*>(&block[i * kPitch + l]);
          sum[0] = fmaf(-four.x, x[l], sum[0]);
          if (l + 1 < i) sum[1] = fmaf(-four.y, x[l + 1], sum[1]);
          if (l + 2 < i) sum[0] = fmaf(-four.z, x[l + 2], sum[0]);
          if (l + 3 < i) sum[1] = fmaf(-four.w, x[l + 3], sum[1]);
        }
        x[i] = sum[0] + sum[1];
      }
    }
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      float y[8];
#pragma unroll
      for (int e = 0; e < 8; ++e) y[e] = part / 2 == half ? x[part % 2 * 8 + e] : 0.0f;
      store_inverse(lane(), part, y);
    }
    if constexpr (Update::kReadsState) {
      __syncwarp();  // all have read their blocks
      float* place = shared.lower + half * kHalf * kPitch + kHalf + column;
#pragma unroll
      for (int i = 0; i < kHalf; ++i) place[i * kPitch] = x[i];
      __syncwarp();
      merge();
    }
  }

  // The block below, from T11 and T22 in the right half of `lower` and A21.
  __device__ __forceinline__ void merge() const {
    constexpr int kHalf = kChunk / 2, kPitch = Traits::kPitch;
    const float *t11 = shared.lower + kHalf, *t22 = t11 + kHalf * kPitch,
                *a21 = shared.lower + kHalf * kPitch;
    const int g = row(), t = piece();
    float z[2][4] = {}, y[2][4] = {};  // T22 A21; that times T11
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      const float* left = t22 + g * kPitch + 8 * step + t;
      const float a[4] = {left[0], left[8 * kPitch], left[4], left[8 * kPitch + 4]};
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
        const float* right = a21 + (8 * step + t) * kPitch + 8 * tile + g;
        multiply_split(z[tile], a, right[0], right[4 * kPitch]);
      }
    }
    // A tile of z stands for 8 terms of the sum, in an order that needs no exchange.
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      const float a[4] = {z[step][0], z[step][2], z[step][1], z[step][3]};
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
        const float* right = t11 + (8 * step + 2 * t) * kPitch + 8 * tile + g;
        multiply_split(y[tile], a, right[0], right[kPitch]);
      }
    }
#pragma unroll
    for (int tile = 0; tile < 2; ++tile)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int i = kHalf + g + e / 2 * 8, at = element(8 * tile + 2 * t + e % 2, i);
        shared.inverse_t[at] = Operand::round(-y[tile][e]);
        if constexpr (Traits::kFactorInInverse)
          shared.inverse_x[at] = Operand::round(-y[tile][e] * shared.right_factor[i]);
      }
  }

  // d += a b to about 2^-21: [16, 8] += [16, 8] [8, 8], fragments of ptx::mma_m16n8k8_tf32.
  __device__ __forceinline__ static void multiply_split(float (&d)[4], const float (&a)[4],
                                                        float b0, float b1) {
    std::uint32_t high[6], low[6];  // 11 bits, and the next 11
#pragma unroll
    for (int i = 0; i < 6; ++i) {
      const float x = i < 4 ? a[i] : i == 4 ? b0 : b1;
      high[i] = __float_as_uint(x) & 0xffffe000u;
      low[i] = __float_as_uint(x - __uint_as_float(high[i]));
    }
    ptx::mma_m16n8k8_tf32(d, high[0], high[1], high[2], high[3], high[4], high[5]);
    ptx::mma_m16n8k8_tf32(d, high[0], high[1], high[2], high[3], low[4], low[5]);
    ptx::mma_m16n8k8_tf32(d, low[0], low[1], low[2], low[3], high[4], high[5]);
  }

  // Of a matrix of Rows with kChunk columns.
  __device__ __forceinline__ static int element(int token, int column) {
    constexpr int kElements = Rows::kUnitElements;
    return Rows::place(token, column / 8) + column % 8 / kElements * Rows::kPlane +
           column % kElements;
  }

  // Elements 8 part .. 8 part + 7 of the inverse's column.
  __device__ __forceinline__ void store_inverse(int column, int part, float (&y)[8]) const {
    Rows::store(shared.inverse_t + Rows::place(column, part), Operand::round(y));
    if constexpr (Traits::kFactorInInverse) {
#pragma unroll
      for (int e = 0; e < 8; ++e) y[e] *= shared.right_factor[8 * part + e];
      Rows::store(shared.inverse_x + Rows::place(column, part), Operand::round(y));
    }
  }

  // x = inverse^T k and p = A_qk inverse.
  __device__ __forceinline__ void products() const {
    const auto columns_of = [&](const Type* transposed, Piece(&columns)[4]) {
#pragma unroll
      for (int t = 0; t < 4; ++t)
        columns[t] =
            Rows::load(transposed + Rows::place(permuted(0, row()), piece()) + 2 * t * Rows::kRow);
    };
    Piece inverse[4];
    if constexpr (Traits::kFactorInInverse) {
      columns_of(shared.inverse_x, inverse);
    } else {
      columns_of(shared.inverse_t, inverse);
    }
#pragma unroll
    for (int tile = warp(); tile < Traits::kKeyDim / 16; tile += Traits::kWarps) {
      Accumulator product[4] = {};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const A a = Operand::template load_a_transposed<Rows>(
            shared.right + tile / 2 * Rows::kBlock, tile, half, lane());
#pragma unroll
        for (int t = 0; t < 4; ++t) Operand::mma(product[t], a, inverse[t], half);
      }
#pragma unroll
      for (int lower = 0; lower < 2; ++lower) {
        const int channel = 16 * tile + row() + 8 * lower;
        const float scale = shared.x_scale[channel];
        float x[8];
        gather(product, lower, x);
#pragma unroll
        for (int e = 0; e < 8; ++e) x[e] *= scale;
        if constexpr (!Gate::kPerChannel && !Update::kReadsState) {
#pragma unroll
          for (int e = 0; e < 8; ++e) x[e] *= shared.right_factor[8 * piece() + e];
        }
        Channels::store(stage.x + Channels::place(channel, piece()), Operand::round(x));
      }
    }
    if (warp() >= 2) return;
    columns_of(shared.inverse_t, inverse);
    const int i = 16 * warp() + row();
    const Piece top = Rows::load(shared.a_qk + Rows::place(i, piece())),
                bottom = Rows::load(shared.a_qk + Rows::place(i + 8, piece()));
    Accumulator product[4] = {};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const A a = Operand::to_a(top, bottom, half);
#pragma unroll
      for (int t = 0; t < 4; ++t) Operand::mma(product[t], a, inverse[t], half);
    }
#pragma unroll
    for (int lower = 0; lower < 2; ++lower) {
      float x[8];
      gather(product, lower, x);
      Scores::store(stage.p + Scores::place(i + 8 * lower, piece()), Operand::round(x));
    }
  }
};

}  // namespace linattn::portable
