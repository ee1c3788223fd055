// SPDX-License-Identifier: Apache-2.0
//
// Products of small matrices by register tiles: kRows rows of A, a panel of two vectors of B. A is
// read by broadcasts and may have any row stride; a panel of B is contiguous per row.
#pragma once

#include "cpu/simd.h"

namespace linattn::cpu::LINATTN_ISA {

// 12 sums, two vectors of B and a broadcast fill the 16 registers of AVX2; with 32 of AVX-512, 8
// rows divide every usual dim. The baseline, which nothing waits for, is kept small.
inline constexpr int kTileRows = kWidth == 16 ? 8 : kWidth == 8 ? 6 : 4;

template <int kValue>
struct Rank {
  static constexpr int kRows = kValue;
};

template <int kRows, class F>
LINATTN_INLINE void one_tile(int count, int row, F&& f) {
  if constexpr (kRows > 0) {
    if (count == kRows) return f(Rank<kRows>{}, row);
    one_tile<kRows - 1>(count, row, f);
  }
}

// f(Rank<rows>, first row) over [begin, end), in tiles of kTileRows. The last tiles share what is
// left evenly: a tile of one or two rows has too few sums to hide the latency of the multiply-add.
template <class F>
LINATTN_INLINE void for_tiles(int begin, int end, F&& f) {
  int row = begin;
  while (end - row >= kTileRows + 4 || end - row == kTileRows) {
    f(Rank<kTileRows>{}, row);
    row += kTileRows;
  }
  while (row < end) {
    int count = end - row;
    if (count > kTileRows) count = (count + 1) / 2;
    one_tile<kTileRows>(count, row, f);
    row += count;
  }
}

template <int kRows>
struct Tile {
  Vec sums[kRows][2];

  LINATTN_INLINE void clear() {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) sums[r][0] = sums[r][1] = Vec{};
  }

  // Row r times a[r][k], for rows r >= kFirst.
  template <int kFirst>
  LINATTN_INLINE void step(const float* a, int a_stride, const float* b) {
    const Vec b0 = load(b), b1 = load(b + kWidth);
#pragma GCC unroll 8
    for (int r = kFirst; r < kRows; ++r) {
      const Vec x = splat(a[r * a_stride]);
      sums[r][0] = fma(x, b0, sums[r][0]);
      sums[r][1] = fma(x, b1, sums[r][1]);
    }
  }

  // sums += A B, A [kRows, depth], B [depth, panel].
  LINATTN_INLINE void multiply(const float* a, int a_stride, const float* b, int b_stride,
                               int depth) {
#pragma GCC unroll 2
    for (int k = 0; k < depth; ++k) step<0>(a + k, a_stride, b + k * b_stride);
  }

  // The same for rows `first` .. of a lower triangular A: no zero of the upper triangle is
  // multiplied, since what it would meet may be NaN.
  LINATTN_INLINE void multiply_lower(const float* a, int a_stride, const float* b, int b_stride,
                                     int begin, int first) {
    multiply(a + begin, a_stride, b + begin * b_stride, b_stride, first - begin);
    triangle<0>(a + first, a_stride, b + first * b_stride, b_stride);
  }

 private:
  template <int kFirst>
  LINATTN_INLINE void triangle(const float* a, int a_stride, const float* b, int b_stride) {
    if constexpr (kFirst < kRows) {
      step<kFirst>(a + kFirst, a_stride, b + kFirst * b_stride);
      triangle<kFirst + 1>(a, a_stride, b, b_stride);
    }
  }
};

// out [columns, rows] = in [rows, columns]^T; both counts are multiples of kWidth.
inline void transpose_matrix(const float* in, int in_stride, int rows, int columns, float* out,
                             int out_stride) {
  for (int c = 0; c < columns; c += kWidth)
    for (int r = 0; r < rows; r += kWidth) {
      Vec block[kWidth];
#pragma GCC unroll 16
      for (int i = 0; i < kWidth; ++i) block[i] = load(in + (r + i) * in_stride + c);
      transpose(block);
#pragma GCC unroll 16
      for (int i = 0; i < kWidth; ++i) store(out + (c + i) * out_stride + r, block[i]);
    }
}

}  // namespace linattn::cpu::LINATTN_ISA
