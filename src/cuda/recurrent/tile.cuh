// SPDX-License-Identifier: Apache-2.0
//
// Which thread holds which elements of a tile of the state, and how they come from memory and go
// back: the policies of recurrent.cuh.
//
//   SharedMatrix   any layout, dtype and alignment, through shared memory
//   VectorMatrix   straight from memory to the lane that holds it, four neighbours at a time: both
//                  layouts have a mapping under which neighbours in memory are one lane's
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "cuda/common/convert.cuh"
#include "linattn/problem.h"

namespace linattn::cuda {

// kLanes neighbouring lanes share kColumnsPerLane columns; each holds kKeysPerLane keys of them.
template <int kLanesPerColumn, int kKeysOfLane, int kColumnsOfLane, int kThreadsOfBlock>
struct BlockMapping {
  static constexpr int kLanes = kLanesPerColumn;
  static constexpr int kKeysPerLane = kKeysOfLane;
  static constexpr int kColumnsPerLane = kColumnsOfLane;
  static constexpr int kThreads = kThreadsOfBlock;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kKeys = kLanes * kKeysPerLane;
  static constexpr int kColumns = kThreads / kLanes * kColumnsPerLane;
  static constexpr int kWarpColumns = kColumns / kWarps;
  // Keys go in runs of four per lane, so that a lane reads 16 bytes and its neighbour the next 16.
  static constexpr int kRunKeys = 4 * kLanes;
  static constexpr int kRuns = kKeysPerLane / 4;
  // That are staged together.
  static constexpr int kTokens = kKeys <= 128 ? 8 : 4;

  using Registers = float[kColumnsPerLane][kKeysPerLane];

  __device__ __forceinline__ static int warp() { return static_cast<int>(threadIdx.x) / 32; }
  __device__ __forceinline__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }
  __device__ __forceinline__ static int key(int i) {
    return i / 4 * kRunKeys + lane() % kLanes * 4 + i % 4;
  }
  __device__ __forceinline__ static int column(int c) {
    return static_cast<int>(threadIdx.x) / kLanes * kColumnsPerLane + c;
  }
};

template <int kLanesPerColumn, int kKeysOfLane, int kColumnsOfLane>
struct Mapping : BlockMapping<kLanesPerColumn, kKeysOfLane, kColumnsOfLane, 128> {};

// Of a fused step, whose block has all columns of a head.
template <int kLanesPerColumn, int kKeysOfLane, int kColumnsOfLane>
struct WideMapping : BlockMapping<kLanesPerColumn, kKeysOfLane, kColumnsOfLane, 256> {};

// A block's columns of one head's matrix in memory.
struct MatrixTile {
  void* data;
  DType dtype;
  StateLayout layout;
  std::int64_t base;  // of the head's matrix, in elements
  int key_dim, width;
  int first_column, columns;  // the tile's
};

// A run of keys at a time through shared memory: rows of memory are contiguous along keys or along
// columns, and a lane holds neither. A warp's columns are its own, so warps need not wait for each
// other.
template <class M>
struct SharedMatrix {
  struct Storage {
    float runs[M::kWarps][M::kWarpColumns][M::kRunKeys + 1];
  };

  __device__ __forceinline__ static void load(const MatrixTile& from, Storage& storage,
                                              typename M::Registers& state) {
    auto& buffer = storage.runs[M::warp()];
#pragma unroll
    for (int run = 0; run < M::kRuns; ++run) {
#pragma unroll 1
      for (int first = 0; first < kPerLane; first += kBatch) {
        std::uint32_t raw[kBatch];
#pragma unroll
        for (int j = 0; j < kBatch; ++j) {
          const Place at = place(from, run, first + j);
          raw[j] = at.inside ? load_raw(from.data, from.dtype, at.offset) : 0;
        }
#pragma unroll
        for (int j = 0; j < kBatch; ++j) {
          const Place at = place(from, run, first + j);
          buffer[at.column][at.key] = from_raw(raw[j], from.dtype);
        }
      }
      __syncwarp();
      exchange(buffer, run, [](float& held, float& x) { held = x; }, state);
    }
  }

  __device__ __forceinline__ static void settle(DType, typename M::Registers&) {}

  __device__ __forceinline__ static void store(const MatrixTile& to, Storage& storage,
                                               typename M::Registers& state) {
    auto& buffer = storage.runs[M::warp()];
#pragma unroll
    for (int run = 0; run < M::kRuns; ++run) {
      exchange(buffer, run, [](float& held, float& x) { x = held; }, state);
#pragma unroll 2
      for (int j = 0; j < kPerLane; ++j) {
        const Place at = place(to, run, j);
        if (at.inside) cuda::store(to.data, to.dtype, at.offset, buffer[at.column][at.key]);
      }
      __syncwarp();
    }
  }

 private:
  static constexpr int kPerLane = M::kWarpColumns * M::kRunKeys / 32;
  static constexpr int kBatch = kPerLane < 8 ? kPerLane : 8;  // on their way together

  struct Place {
    int column, key;  // of the warp's, of the run's
    std::int64_t offset;
    bool inside;
  };

  // The lane's element j of a run, in the order of memory.
  __device__ __forceinline__ static Place place(const MatrixTile& m, int run, int j) {
    const bool key_value = m.layout == StateLayout::kKeyValue;
    const int x = M::lane() + 32 * j, first = M::warp() * M::kWarpColumns;
    Place p;
    p.column = key_value ? x % M::kWarpColumns : x / M::kRunKeys;
    p.key = key_value ? x / M::kWarpColumns : x % M::kRunKeys;
    const int key = run * M::kRunKeys + p.key;
    const int column = m.first_column + first + p.column;
    p.offset = m.base + (key_value ? std::int64_t{key} * m.width + column
                                   : std::int64_t{column} * m.key_dim + key);
    p.inside = key < m.key_dim && first + p.column < m.columns;
    return p;
  }

  template <class Move>
  __device__ __forceinline__ static void exchange(float (&buffer)[M::kWarpColumns][M::kRunKeys + 1],
                                                  int run, Move&& move,
                                                  typename M::Registers& state) {
    const int first = M::warp() * M::kWarpColumns;
#pragma unroll
    for (int c = 0; c < M::kColumnsPerLane; ++c)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        move(state[c][4 * run + i], buffer[M::column(c) - first][M::lane() % M::kLanes * 4 + i]);
    __syncwarp();
  }
};

// kBytes: of an element. Rows and strides are multiples of four elements, and so is the address.
// 16-bit elements stay as they came until settle(), so that nothing waits for them before: the four
// in the registers of the first two.
template <class M, StateLayout kLayout, int kBytes>
struct VectorMatrix {
  static constexpr bool kKeyValue = kLayout == StateLayout::kKeyValue;
  static constexpr int kVectors = M::kColumnsPerLane * M::kKeysPerLane / 4;
  static_assert(!kKeyValue || M::kColumnsPerLane == 4);

  struct Storage {};

  __device__ __forceinline__ static void load(const MatrixTile& from, Storage&,
                                              typename M::Registers& state) {
    using Raw = std::conditional_t<kBytes == 4, float4, float2>;
    each_vector<Raw>(from, [&](int x, const Raw* at, bool inside) {
      // Not a generic load, which waits for its turn with those of shared memory.
      const Raw raw = inside ? __ldcg(at) : Raw{};
      element(state, x, 0) = raw.x;
      element(state, x, 1) = raw.y;
      if constexpr (kBytes == 4) {
        element(state, x, 2) = raw.z;
        element(state, x, 3) = raw.w;
      }
    });
  }

  __device__ __forceinline__ static void settle(DType dtype, typename M::Registers& state) {
    if constexpr (kBytes == 2) {
      if (dtype == DType::kBFloat16)
        unpack<DType::kBFloat16>(state);
      else
        unpack<DType::kFloat16>(state);
    }
  }

  __device__ __forceinline__ static void store(const MatrixTile& to, Storage&,
                                               typename M::Registers& state) {
    if constexpr (kBytes == 4) {
      store_as<float>(to, state);
    } else if (to.dtype == DType::kBFloat16) {
      store_as<bfloat16>(to, state);
    } else {
      store_as<float16>(to, state);
    }
  }

 private:
  // visit(x, where it is, whether it exists) of the lane's vectors.
  template <class Vector, class Visit>
  __device__ __forceinline__ static void each_vector(const MatrixTile& m, Visit&& visit) {
    const int key = M::key(0), column = M::column(0);
    const std::int64_t along = m.first_column + column;
    Vector* row = static_cast<Vector*>(m.data) +
                  (m.base + (kKeyValue ? key * m.width + along : along * m.key_dim + key)) / 4;
#pragma unroll
    for (int x = 0; x < kVectors; ++x) {
      const int key_past = kKeyValue ? M::key(x) - M::key(0) : x % M::kRuns * M::kRunKeys;
      const int column_past = kKeyValue ? 0 : x / M::kRuns;
      visit(x,
            row + (kKeyValue ? key_past * (m.width / 4)
                             : column_past * (m.key_dim / 4) + key_past / 4),
            key + key_past < m.key_dim && column + column_past < m.columns);
    }
  }

  __device__ __forceinline__ static float& element(typename M::Registers& state, int x, int i) {
    return kKeyValue ? state[i][x] : state[x / M::kRuns][x % M::kRuns * 4 + i];
  }

  template <DType kDType>
  __device__ __forceinline__ static void unpack(typename M::Registers& state) {
#pragma unroll
    for (int x = 0; x < kVectors; ++x) {
      const std::uint32_t low = __float_as_uint(element(state, x, 0)),
                          high = __float_as_uint(element(state, x, 1));
      element(state, x, 0) = from_raw(low & 0xffffu, kDType);
      element(state, x, 1) = from_raw(low >> 16, kDType);
      element(state, x, 2) = from_raw(high & 0xffffu, kDType);
      element(state, x, 3) = from_raw(high >> 16, kDType);
    }
  }

  template <class T>
  __device__ __forceinline__ static void store_as(const MatrixTile& to,
                                                  typename M::Registers& state) {
    struct alignas(4 * kBytes) Packed {
      T x[4];
    };
    each_vector<Packed>(to, [&](int x, Packed* at, bool inside) {
      if (inside)
        *at = {{from_float<T>(element(state, x, 0)), from_float<T>(element(state, x, 1)),
                from_float<T>(element(state, x, 2)), from_float<T>(element(state, x, 3))}};
    });
  }
};

// By a layout and its mapping alone, so that the path of a state changes no bit of a result. [V,
// K]: a row of the pool is a column, read by the lanes that share it. [K, V]: a row is a key's, of
// which a lane has four neighbouring columns; fewer lanes share them, so that more read a row
// together. f(Mapping{}).
template <StateLayout kLayout, class F>
void with_mapping(std::int32_t key_dim, F&& f) {
  constexpr bool kKeyValue = kLayout == StateLayout::kKeyValue;
  if (key_dim <= 64) {
    f(Mapping<8, 8, 4>{});
  } else if (key_dim <= 128) {
    f(std::conditional_t<kKeyValue, Mapping<8, 16, 4>, Mapping<16, 8, 4>>{});
  } else if (key_dim <= 256) {
    f(std::conditional_t<kKeyValue, Mapping<16, 16, 4>, Mapping<32, 8, 4>>{});
  } else {
    f(Mapping<32, 16, 2>{});
  }
}

// 32 elements a thread in either layout: with 64, two blocks have not registers enough.
template <class F>
void with_wide_mapping(std::int32_t key_dim, F&& f) {
  if (key_dim <= 64) {
    f(WideMapping<8, 8, 4>{});
  } else if (key_dim <= 128) {
    f(WideMapping<16, 8, 4>{});
  } else {
    f(WideMapping<32, 8, 4>{});
  }
}

// The tiles. kBlocks: on a multiprocessor; kForward: has what only forward calls ask for,
// checkpoints and transitions; kFused: has a convolution and a norm, but no draft trees and picks.

// Where states are most of the work: many blocks, each with few of their bytes on their way.
template <class M, StateLayout kLayout, int kBytes>
struct VectorTile : M {
  using Matrix = VectorMatrix<M, kLayout, kBytes>;
  static constexpr bool kForward = false;
  static constexpr bool kFused = false;
  // Five blocks leave 96 registers a thread, which fp32 states overflow, and the code of sm_80 and
  // sm_120 in any case.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1200
  static constexpr int kMost = 5;
#else
  static constexpr int kMost = 4;
#endif
  static constexpr int kBlocks = M::kColumnsPerLane * M::kKeysPerLane <= 32 ? kMost : 3;
};

template <class M>
struct SharedTile : M {
  using Matrix = SharedMatrix<M>;
  static constexpr bool kForward = true;
  static constexpr bool kFused = false;
  static constexpr int kBlocks = M::kColumnsPerLane * M::kKeysPerLane <= 32 ? 3 : 2;
};

template <class M, StateLayout kLayout, int kBytes>
struct FusedTile : M {
  using Matrix = VectorMatrix<M, kLayout, kBytes>;
  static constexpr bool kForward = false;
  static constexpr bool kFused = true;
  static constexpr int kBlocks = 2;
};

}  // namespace linattn::cuda
