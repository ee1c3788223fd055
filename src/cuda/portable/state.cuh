// SPDX-License-Identifier: Apache-2.0
//
// A warp's part of a state on its way from and to memory.
#pragma once

#include <cstdint>

#include "cuda/common/convert.cuh"
#include "cuda/common/sequence.cuh"
#include "cuda/portable/mma.cuh"

namespace linattn::portable {

// One head's matrix in a pool.
struct StateMatrix {
  void* data;  // null: none
  DType dtype;
  std::int64_t offset;  // of its first element
  cuda::MatrixStrides strides;
};

// A lane's part: rows are value columns, columns are key channels.
struct StatePlace {
  int first_key, keys;        // its channels are first_key + 0 .. 7 of every 32, below keys
  int first_column, columns;  // its columns are first_column + 0, 8 below columns
};

// Whether a lane's 8 channels lie side by side and aligned.
__device__ __forceinline__ bool is_wide(const StateMatrix& m, const StatePlace& place) {
  const std::uintptr_t bytes = cuda::bytes_of(m.dtype);
  const auto at = reinterpret_cast<std::uintptr_t>(m.data) + bytes * m.offset;
  return m.strides.key == 1 && place.keys % 8 == 0 && (at | bytes * m.strides.value) % 16 == 0;
}

template <bool kLoad, class T, int kTiles>
__device__ __forceinline__ void move_wide(Accumulator (&tiles)[kTiles], T* matrix,
                                          std::int64_t pitch, const StatePlace& place) {
  constexpr int kElements = 16 / sizeof(T);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int column = place.first_column + 8 * half;
    T* row = matrix + column * pitch + place.first_key;
#pragma unroll
    for (int b = 0; b < kTiles / 4; ++b) {
      const bool exists = column < place.columns && place.first_key + 32 * b < place.keys;
#pragma unroll
      for (int u = 0; u < 8; u += kElements) {
        alignas(16) T unit[kElements];
        auto* at = reinterpret_cast<uint4*>(row + 32 * b + u);
        auto& bits = *reinterpret_cast<uint4*>(unit);
        if constexpr (kLoad) bits = exists ? *at : uint4{0, 0, 0, 0};
#pragma unroll
        for (int i = 0; i < kElements; ++i) {
          float& x = tiles[4 * b + (u + i) / 2].c[2 * half + i % 2];
          if constexpr (kLoad) {
            x = cuda::to_float(unit[i]);
          } else {
            unit[i] = cuda::from_float<T>(x);
          }
        }
        if constexpr (!kLoad)
          if (exists) *at = bits;
      }
    }
  }
}

// One element after the other, whatever the strides; tiles lie in memory.
template <bool kLoad, class T>
__device__ __forceinline__ void move_elements(Accumulator* tiles, int count, T* matrix,
                                              cuda::MatrixStrides strides,
                                              const StatePlace& place) {
#pragma unroll 1
  for (int i = 0; i < 4 * count; ++i) {
    const int tile = i / 4, e = i % 4;
    const int key = place.first_key + 32 * (tile / 4) + 2 * (tile % 4) + e % 2;
    const int column = place.first_column + e / 2 * 8;
    const bool exists = key < place.keys && column < place.columns;
    T* at = matrix + key * strides.key + column * strides.value;
    if constexpr (kLoad) {
      tiles[tile].c[e] = exists ? cuda::to_float(*at) : 0.0f;
    } else if (exists) {
      *at = cuda::from_float<T>(tiles[tile].c[e]);
    }
  }
}

// Loads, or stores.
template <bool kLoad, int kTiles>
__device__ __forceinline__ void move_state(Accumulator (&tiles)[kTiles], const StateMatrix& matrix,
                                           const StatePlace& place) {
  if (is_wide(matrix, place)) {
    cuda::with_dtype(matrix.dtype, [&]<class T>(T) {
      move_wide<kLoad>(tiles, static_cast<T*>(matrix.data) + matrix.offset, matrix.strides.value,
                       place);
    });
    return;
  }
  Accumulator copy[kTiles];  // its address leaves this function, the state's must not
  if constexpr (!kLoad) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) copy[tile] = tiles[tile];
  }
  cuda::with_dtype(matrix.dtype, [&]<class T>(T) {
    move_elements<kLoad>(copy, kTiles, static_cast<T*>(matrix.data) + matrix.offset, matrix.strides,
                         place);
  });
  if constexpr (kLoad) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) tiles[tile] = copy[tile];
  }
}

}  // namespace linattn::portable
