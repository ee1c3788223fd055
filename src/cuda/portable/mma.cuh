// SPDX-License-Identifier: Apache-2.0
//
// One warp's tensor-core products by mma.sync, for two kinds of operand: bf16 (m16n8k16) and tf32
// (two m16n8k8). Both are used as products of depth 16. Fragments, with lane = 4 * row + piece:
//
//   Accumulator [16, 8]   c[0], c[1]: (row, 2 piece), (row, 2 piece + 1);   c[2], c[3]: row + 8
//
// The order of a sum's terms is free, and so is the order of a product's columns. Both are chosen
// so that a lane owns 8 neighbours of every 32: what the hardware calls elements 2 piece,
// 2 piece + 1 of tile t is element 8 piece + 2 t, 8 piece + 2 t + 1 here. Then an operand is read
// by whole pieces of 8 elements, and an accumulator becomes an operand in its own registers.
#pragma once

#include <cuda_bf16.h>

#include <cstddef>
#include <cstdint>

#include "cuda/common/ptx.cuh"

namespace linattn::portable {

struct Accumulator {
  float c[4];
};

// The element of 32 that column `column` of tile `tile` stands for.
__device__ constexpr int permuted(int tile, int column) {
  return 8 * (column / 2) + 2 * tile + column % 2;
}

template <class OperandPolicy, int kRows>
struct PieceMatrix;

struct OperandBf16 {
  using Type = __nv_bfloat16;  // element in memory
  // Matrices of a stage: rows of channels, rows of a chunk's tokens.
  template <int kRows>
  using Channels = PieceMatrix<OperandBf16, kRows>;
  template <int kRows>
  using Tokens = PieceMatrix<OperandBf16, kRows>;

  struct A {  // [16, 16]
    std::uint32_t a[4];
  };
  struct alignas(16) Piece {  // 8 elements of a row
    std::uint32_t r[4];
  };

  __device__ static std::uint32_t pack(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<const std::uint32_t&>(pair);
  }
  __device__ static Type round(float x) { return __float2bfloat16_rn(x); }
  __device__ static Piece round(const float (&x)[8]) {
    return {pack(x[0], x[1]), pack(x[2], x[3]), pack(x[4], x[5]), pack(x[6], x[7])};
  }
  __device__ static void widen(const Piece& piece, float (&x)[8]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      x[2 * i] = __uint_as_float(piece.r[i] << 16);
      x[2 * i + 1] = __uint_as_float(piece.r[i] & 0xffff0000u);
    }
  }
  // Element by element; exact where one factor is a power of two.
  __device__ static Piece product(const Piece& x, const Piece& y) {
    Piece out;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const __nv_bfloat162 pair = __hmul2(reinterpret_cast<const __nv_bfloat162&>(x.r[i]),
                                          reinterpret_cast<const __nv_bfloat162&>(y.r[i]));
      out.r[i] = reinterpret_cast<const std::uint32_t&>(pair);
    }
    return out;
  }

  // The larger of the absolute values; not a number wins.
  __device__ static Piece larger(const Piece& x, const Piece& y) {
    Piece out;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const __nv_bfloat162 pair =
          __hmax2_nan(__habs2(reinterpret_cast<const __nv_bfloat162&>(x.r[i])),
                      __habs2(reinterpret_cast<const __nv_bfloat162&>(y.r[i])));
      out.r[i] = reinterpret_cast<const std::uint32_t&>(pair);
    }
    return out;
  }
  // Whether an element is larger than limit or not a number; none is negative.
  __device__ static bool exceeds(const Piece& x, float limit) {
    const __nv_bfloat162 all =
        __hmax2_nan(__hmax2_nan(reinterpret_cast<const __nv_bfloat162&>(x.r[0]),
                                reinterpret_cast<const __nv_bfloat162&>(x.r[1])),
                    __hmax2(reinterpret_cast<const __nv_bfloat162&>(x.r[2]),
                            reinterpret_cast<const __nv_bfloat162&>(x.r[3])));
    return !(__low2float(all) <= limit && __high2float(all) <= limit);
  }

  // d += A [16, 16] B [16, 8]: the terms that half `half` of B's pieces holds.
  __device__ static void mma(Accumulator& d, const A& a, const Piece& b, int half) {
    ptx::mma_m16n8k16_bf16(d.c, a.a[0], a.a[1], a.a[2], a.a[3], b.r[2 * half], b.r[2 * half + 1]);
  }

  // From two accumulators that stand side by side.
  __device__ static A to_a(const Accumulator& left, const Accumulator& right) {
    return {pack(left.c[0], left.c[1]), pack(left.c[2], left.c[3]), pack(right.c[0], right.c[1]),
            pack(right.c[2], right.c[3])};
  }
  // From the pieces of rows `row` and `row` + 8.
  __device__ static A to_a(const Piece& top, const Piece& bottom, int half) {
    return {top.r[2 * half], bottom.r[2 * half], top.r[2 * half + 1], bottom.r[2 * half + 1]};
  }
  // From a block of a matrix: rows permuted(2 tile ..) and permuted(2 tile + 1, ..) are A's.
  template <class Matrix>
  __device__ static A load_a(const Type* block, int tile, int half, int lane) {
    const int row = permuted(lane / 8 % 2, lane % 8), part = 2 * half + lane / 16;
    return load_matrices<A>(block + Matrix::place(row, part) + 4 * tile * Matrix::kRow);
  }
  // From a block of a matrix: rows permuted(tile, ..) are B's columns. Goes with load_a, whose
  // order of the sum is its own.
  template <class Matrix>
  __device__ static Piece load_b(const Type* block, int tile, int lane) {
    const int row = permuted(0, lane % 8);
    return load_matrices<Piece>(block + Matrix::place(row, lane / 8) + 2 * tile * Matrix::kRow);
  }
  // From a block of a matrix, transposed: its columns 16 (tile % 2) .. + 15 are A's rows, its rows
  // in the order of pieces A's columns.
  template <class Matrix>
  __device__ static A load_a_transposed(const Type* block, int tile, int half, int lane) {
    const int row = permuted(lane / 16, lane % 8), part = tile % 2 * 2 + lane / 8 % 2;
    const Type* at = block + Matrix::place(row, part) + 4 * half * Matrix::kRow;
    A out;
    ptx::ldmatrix_x4_trans(out.a, at);
    return out;
  }

 private:
  template <class Fragment>
  __device__ static Fragment load_matrices(const Type* row) {
    std::uint32_t r[4];
    ptx::ldmatrix_x4(r, row);
    return {{r[0], r[1], r[2], r[3]}};
  }
};

struct OperandTf32 {
  using Type = float;
  template <int kRows>
  using Channels = PieceMatrix<OperandTf32, kRows>;
  template <int kRows>
  using Tokens = PieceMatrix<OperandTf32, kRows>;

  struct A {
    std::uint32_t a[8];
  };
  struct alignas(16) Piece {
    std::uint32_t r[8];
  };

  __device__ static std::uint32_t bits(float x) { return ptx::cvt_rna_tf32(x); }
  __device__ static Type round(float x) { return __uint_as_float(bits(x)); }
  __device__ static Piece round(const float (&x)[8]) {
    Piece out;
#pragma unroll
    for (int i = 0; i < 8; ++i) out.r[i] = bits(x[i]);
    return out;
  }
  __device__ static void widen(const Piece& piece, float (&x)[8]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = __uint_as_float(piece.r[i]);
  }
  __device__ static Piece product(const Piece& x, const Piece& y) {
    Piece out;
#pragma unroll
    for (int i = 0; i < 8; ++i)
      out.r[i] = __float_as_uint(__uint_as_float(x.r[i]) * __uint_as_float(y.r[i]));
    return out;
  }

  __device__ static Piece larger(const Piece& x, const Piece& y) {
    Piece out;
#pragma unroll
    for (int i = 0; i < 8; ++i)
      out.r[i] = __float_as_uint(
          ptx::max_nan(fabsf(__uint_as_float(x.r[i])), fabsf(__uint_as_float(y.r[i]))));
    return out;
  }
  __device__ static bool exceeds(const Piece& x, float limit) {
    float all = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) all = ptx::max_nan(all, __uint_as_float(x.r[i]));
    return !(all <= limit);
  }

  __device__ static void mma(Accumulator& d, const A& a, const Piece& b, int half) {
#pragma unroll
    for (int i = 0; i < 2; ++i)
      ptx::mma_m16n8k8_tf32(d.c, a.a[4 * i], a.a[4 * i + 1], a.a[4 * i + 2], a.a[4 * i + 3],
                            b.r[4 * half + 2 * i], b.r[4 * half + 2 * i + 1]);
  }

  __device__ static A to_a(const Accumulator& left, const Accumulator& right) {
    return {bits(left.c[0]),  bits(left.c[2]),  bits(left.c[1]),  bits(left.c[3]),
            bits(right.c[0]), bits(right.c[2]), bits(right.c[1]), bits(right.c[3])};
  }
  __device__ static A to_a(const Piece& top, const Piece& bottom, int half) {
    const int i = 4 * half;
    return {top.r[i],     bottom.r[i],     top.r[i + 1], bottom.r[i + 1],
            top.r[i + 2], bottom.r[i + 2], top.r[i + 3], bottom.r[i + 3]};
  }
  template <class Matrix>
  __device__ static A load_a(const Type* block, int tile, int half, int lane) {
    const Type* at =
        block + Matrix::place(permuted(0, lane / 4), lane % 4) + 4 * tile * Matrix::kRow;
    return to_a(Matrix::load(at), Matrix::load(at + 2 * Matrix::kRow), half);
  }
  template <class Matrix>
  __device__ static Piece load_b(const Type* block, int tile, int lane) {
    return Matrix::load(block + Matrix::place(permuted(0, lane / 4), lane % 4) +
                        2 * tile * Matrix::kRow);
  }
  template <class Matrix>
  __device__ static A load_a_transposed(const Type* block, int tile, int half, int lane) {
    const int column = lane / 4, token = 8 * (lane % 4);
    A out;
#pragma unroll
    for (int octet = 0; octet < 2; ++octet) {
      const Type* at = block + Matrix::place(token, tile % 2 * 2 + octet) +
                       column / 4 * Matrix::kPlane + 4 * half * Matrix::kRow + column % 4;
#pragma unroll
      for (int i = 0; i < 4; ++i) out.a[2 * i + octet] = __float_as_uint(at[i * Matrix::kRow]);
    }
    return out;
  }
};

// A matrix in memory as products read it: [kRows, 32 kBlocks], a block of 32 columns after the
// other, a row of it in four pieces. Pieces are shuffled so that 8 lanes that read pieces of two
// neighbouring rows, or one piece of the rows permuted(t, 0 .. 7), meet all banks.
template <class OperandPolicy, int kRows>
struct PieceMatrix {
  using Operand = OperandPolicy;
  using Type = typename Operand::Type;
  using Piece = typename Operand::Piece;
  static constexpr std::size_t kAlignment = 16;
  static constexpr int kUnits = sizeof(Piece) / 16;  // of a piece, 16 bytes each
  static constexpr int kUnitElements = 16 / sizeof(Type);
  // Elements from a piece to the same one of the next row, as long as row / 8 does not change; from
  // unit to unit; from block to block.
  static constexpr int kRow = 4 * kUnitElements;
  static constexpr int kPlane = kRows * kRow;
  static constexpr int kBlock = kUnits * kPlane;

  // Of a piece in its block, or in the matrix.
  __device__ static constexpr int place(int row, int piece, int block = 0) {
    return block * kBlock + row * kRow + (piece ^ (row / 8 & 3)) * kUnitElements;
  }
  __device__ static Piece load(const Type* at) {
    Piece out;
#pragma unroll
    for (int u = 0; u < kUnits; ++u)
      reinterpret_cast<uint4*>(out.r)[u] = *reinterpret_cast<const uint4*>(at + u * kPlane);
    return out;
  }
  __device__ static void store(Type* at, const Piece& piece) {
#pragma unroll
    for (int u = 0; u < kUnits; ++u)
      *reinterpret_cast<uint4*>(at + u * kPlane) = reinterpret_cast<const uint4*>(piece.r)[u];
  }
};

// The 8 neighbours that a lane owns in its rows of four tiles: row 0 or row 8 of the tiles.
__device__ inline void gather(const Accumulator (&tiles)[4], int lower, float (&x)[8]) {
#pragma unroll
  for (int t = 0; t < 4; ++t) {
    x[2 * t] = tiles[t].c[2 * lower];
    x[2 * t + 1] = tiles[t].c[2 * lower + 1];
  }
}

}  // namespace linattn::portable
