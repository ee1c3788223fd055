// SPDX-License-Identifier: Apache-2.0
//
// A warp's part of a state on its way from and to memory.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/common/convert.cuh"
#include "cuda/common/sequence.cuh"

namespace linattn::portable {

// One head's matrix in a pool.
struct StateMatrix {
  void* data;  // null: none
  DType dtype;
  std::int64_t offset;  // of its first element
  cuda::MatrixStrides strides;
};

// A lane's part: rows are value columns, columns are key channels, of which it holds runs of kRun
// neighbours, one of every 4 kRun: 8 where products take columns in the order of mma.cuh, 2 where
// they take them as they come.
template <int kRunLength>
struct StatePlace {
  static constexpr int kRun = kRunLength;
  static constexpr int kRunTiles = kRun / 2;  // tiles that a run is part of

  int first_key, keys;        // of its first run; channels below keys exist
  int first_column, columns;  // its columns are first_column + 0, 8 below columns

  __device__ __forceinline__ int key(int tile, int e) const {
    return first_key + 4 * kRun * (tile / kRunTiles) + 2 * (tile % kRunTiles) + e % 2;
  }
};

// Whether a lane's runs lie side by side and aligned.
template <class Place>
__device__ __forceinline__ bool is_wide(const StateMatrix& m, const Place& place) {
  const std::uintptr_t bytes = cuda::bytes_of(m.dtype);
  const auto at = reinterpret_cast<std::uintptr_t>(m.data) + bytes * m.offset;
  return m.strides.key == 1 && place.keys % 8 == 0 && (at | bytes * m.strides.value) % 16 == 0;
}

// tiles: kTiles tiles of four elements, one after the other.
template <bool kLoad, int kTiles, class T, class Place>
__device__ __forceinline__ void move_wide(float (&tiles)[4 * kTiles], T* matrix, std::int64_t pitch,
                                          const Place& place) {
  constexpr int kUnitBytes = sizeof(T) * Place::kRun < 16 ? sizeof(T) * Place::kRun : 16;
  constexpr int kElements = kUnitBytes / sizeof(T);
  using Unit = std::conditional_t<kUnitBytes == 16, uint4,
                                  std::conditional_t<kUnitBytes == 8, uint2, std::uint32_t>>;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int column = place.first_column + 8 * half;
    T* row = matrix + column * pitch + place.first_key;
#pragma unroll
    for (int run = 0; run < kTiles / Place::kRunTiles; ++run) {
      const int ahead = 4 * Place::kRun * run;
      const bool exists = column < place.columns && place.first_key + ahead < place.keys;
#pragma unroll
      for (int u = 0; u < Place::kRun; u += kElements) {
        alignas(16) T unit[kElements];
        auto* at = reinterpret_cast<Unit*>(row + ahead + u);
        auto& bits = *reinterpret_cast<Unit*>(unit);
        if constexpr (kLoad) bits = exists ? *at : Unit{};
#pragma unroll
        for (int i = 0; i < kElements; ++i) {
          float& x = tiles[4 * (Place::kRunTiles * run + (u + i) / 2) + 2 * half + i % 2];
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
template <bool kLoad, class T, class Place>
__device__ __forceinline__ void move_elements(float* tiles, int count, T* matrix,
                                              cuda::MatrixStrides strides, const Place& place) {
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    const int e = i % 4;
    const int key = place.key(i / 4, e);
    const int column = place.first_column + e / 2 * 8;
    const bool exists = key < place.keys && column < place.columns;
    T* at = matrix + key * strides.key + column * strides.value;
    if constexpr (kLoad) {
      tiles[i] = exists ? cuda::to_float(*at) : 0.0f;
    } else if (exists) {
      *at = cuda::from_float<T>(tiles[i]);
    }
  }
}

// Loads, or stores.
template <bool kLoad, int kCount, class Place>
__device__ __forceinline__ void move_state(float (&tiles)[kCount], const StateMatrix& matrix,
                                           const Place& place) {
  if (is_wide(matrix, place)) {
    cuda::with_dtype(matrix.dtype, [&]<class T>(T) {
      move_wide<kLoad, kCount / 4>(tiles, static_cast<T*>(matrix.data) + matrix.offset,
                                   matrix.strides.value, place);
    });
    return;
  }
  float copy[kCount];  // its address leaves this function, the state's must not
  if constexpr (!kLoad) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) copy[i] = tiles[i];
  }
  cuda::with_dtype(matrix.dtype, [&]<class T>(T) {
    move_elements<kLoad>(copy, kCount, static_cast<T*>(matrix.data) + matrix.offset, matrix.strides,
                         place);
  });
  if constexpr (kLoad) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) tiles[i] = copy[i];
  }
}

}  // namespace linattn::portable
