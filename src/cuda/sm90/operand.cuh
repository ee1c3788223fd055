// SPDX-License-Identifier: Apache-2.0
//
// Operands in shared memory as wgmma reads them (wgmma.cuh): rows of 128 or 64 bytes, their units
// of 16 bytes shuffled by the row.
#pragma once

#include <cstddef>

#include "cuda/common/wgmma.cuh"
#include "cuda/portable/mma.cuh"

namespace linattn::sm90 {

// [kRows, 64 or 32 columns, and further ones behind]: the same interface as PieceMatrix.
template <int kRowBytes, int kRows>
struct SwizzledMatrix {
  using Type = portable::OperandBf16::Type;
  using Piece = portable::OperandBf16::Piece;
  static constexpr ptx::Swizzle kSwizzle =
      kRowBytes == 128 ? ptx::Swizzle::k128Bytes : ptx::Swizzle::k64Bytes;
  static constexpr std::size_t kAlignment = 8 * kRowBytes;
  static constexpr int kRow = kRowBytes / static_cast<int>(sizeof(Type));
  static constexpr int kBlocks = kRow / 32;  // of 32 columns, in a row
  static constexpr int kBox = kRows * kRow;  // elements of all rows

  // Of a piece of 8 elements in a block of 32 columns.
  __device__ static constexpr int place(int row, int piece, int block = 0) {
    const int shuffle = kRowBytes == 128 ? row & 7 : row / 2 & 3;
    return block / kBlocks * kBox + row * kRow + ((piece + block % kBlocks * 4) ^ shuffle) * 8;
  }
  // From a place in columns 0 .. 15 to the one 16 i columns on.
  __device__ static constexpr int further(int place, int i) {
    return (place ^ i % (2 * kBlocks) * 16) + i / (2 * kBlocks) * kBox;
  }
  __device__ static Piece load(const Type* at) { return *reinterpret_cast<const Piece*>(at); }
  __device__ static void store(Type* at, const Piece& piece) {
    *reinterpret_cast<Piece*>(at) = piece;
  }

  // Bytes from the matrix to its columns 16 i .. 16 i + 15.
  __device__ static constexpr unsigned columns(int i) {
    return static_cast<unsigned>(i / (2 * kBlocks) * kBox) * sizeof(Type) +
           static_cast<unsigned>(i % (2 * kBlocks)) * 32;
  }
};

// bf16 problems whose scan goes by wgmma; a chunk is prepared by mma.sync.
struct OperandSwizzled : portable::OperandBf16 {
  template <int kRows>
  using Channels = SwizzledMatrix<128, kRows>;
  template <int kRows>
  using Tokens = SwizzledMatrix<64, kRows>;
};

}  // namespace linattn::sm90
