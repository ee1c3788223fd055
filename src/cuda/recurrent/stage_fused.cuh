// SPDX-License-Identifier: Apache-2.0
//
// What a fused step stages otherwise than a plain one: q, k and v come convolved, and what the
// tiles of a head and the heads of a group share is staged once, if it is all there at a time.
#pragma once

#include <cstdint>

#include "cuda/common/gate.cuh"
#include "cuda/recurrent/conv.cuh"

namespace linattn::cuda {

template <class Storage>
struct FusedStorage : Storage {
  ConvRow conv;
};

// That shared memory has of all the sequence's tokens.
enum class Staged : int {
  kNothing,
  kKeys,  // q and k, normalised
  kHead,  // all but what belongs to columns
};

// q and k unless they are there, and the tile's columns of v, of `count` tokens: each warp has
// channels of one of them.
template <class Tile, template <class> class Block>
__device__ __forceinline__ void convolve(Block<Tile>& block, std::int64_t first, int count) {
  static_assert(Tile::kKeys % 32 == 0 && Tile::kColumns % 32 == 0);
  const Problem& p = block.p;
  const RecurrentArgs& a = block.a;
  const int key_head = block.head / (p.value_heads / p.heads);
  const int keys = block.has_keys() ? 0 : 2 * Tile::kKeys, channels = keys + Tile::kColumns;
#pragma unroll 1
  for (int x = threadIdx.x; x < count * channels; x += Tile::kThreads) {
    const int i = x / channels, t = static_cast<int>(first) + i;
    int channel = x % channels;
    float y = 0;
    if (channel < keys) {
      const bool of_k = channel >= Tile::kKeys;
      if (of_k) channel -= Tile::kKeys;
      if (channel < p.key_dim)
        y = channel_of(block, of_k ? a.conv_k : a.conv_q, of_k ? a.k : a.q, p.key_dim, key_head,
                       channel)(t);
      (of_k ? block.smem.k : block.smem.q)[i][channel] = y;
    } else {
      channel -= keys;
      if (channel < block.columns)
        y = channel_of(block, a.conv_v, a.v, p.value_dim, block.head,
                       block.first_column + channel)(t);
      block.smem.v[i][channel] = y;
    }
  }
}

// v, unless it is convolved, and write strengths of a tile's columns.
template <class Tile, template <class> class Block>
__device__ __forceinline__ void stage_columns(Block<Tile>& block, int count) {
  const Problem& p = block.p;
  const RecurrentArgs& a = block.a;
  const bool apart = p.op.update == Update::kEraseWrite, convolved = block.convolves();
  if (convolved && !apart) return;
  for (int x = threadIdx.x; x < count * Tile::kColumns; x += Tile::kThreads) {
    const int i = x / Tile::kColumns, column = x % Tile::kColumns;
    const bool inside = column < block.columns;
    const auto offset = [&](const Tensor& of) {
      return row_offset(a, of, block.s, i, block.head) + block.first_column + column;
    };
    if (!convolved) block.smem.v[i][column] = inside ? load(a.v.data, p.dtype, offset(a.v)) : 0.0f;
    if (apart)
      block.smem.write[i][column] =
          inside ? strength(p.beta_input, load(a.write.data, p.beta_dtype, offset(a.write))) : 0.0f;
  }
}

// Whether that was all.
template <class Tile, template <class> class Block>
__device__ __forceinline__ bool stage_fused(Block<Tile>& block, std::int64_t first, int count) {
  const bool all = block.staged == Staged::kHead;
  if (block.convolves()) convolve(block, first, count);
  if (all) stage_columns(block, count);
  if (all || block.convolves()) __syncthreads();
  return all;
}

}  // namespace linattn::cuda
