// SPDX-License-Identifier: Apache-2.0
//
// The kernel of a plain call: which tile of which state a block walks.
#pragma once

#include <cstdint>

#include "cuda/recurrent/recurrent.cuh"

namespace linattn::cuda {

// What a block does in a round, by the strides of the grid: tiles first, then heads. More than one
// round only where the grid is limited.
struct Unit {
  int tile, head;
  std::int64_t pair;  // of a layer and a sequence

  __device__ __forceinline__ static Unit of(int round, int tiles, int heads) {
    Unit unit{static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y), blockIdx.z};
    if (round == 0) return unit;
    const int across = static_cast<int>(gridDim.x), down = static_cast<int>(gridDim.y);
    const int rows = (tiles + across - 1) / across, columns = (heads + down - 1) / down;
    unit.tile += round % rows * across;
    unit.head += round / rows % columns * down;
    unit.pair += std::int64_t{round / rows / columns} * gridDim.z;
    return unit;
  }
};

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    recurrent_kernel(const __grid_constant__ RecurrentParams params) {
  __shared__ RecurrentStorage<Tile> smem;
  const Problem& p = params.problem;
  const RecurrentArgs& a = params.args;
  const int tiles = params.value_tiles + params.transition_tiles;
  const std::int64_t pairs = params.sequences * params.layers;
  for (int round = 0;; ++round) {
    const Unit unit = Unit::of(round, tiles, p.value_heads);
    if (unit.pair >= pairs) return;
    if (unit.tile >= tiles || unit.head >= p.value_heads) continue;
    int tile = unit.tile;
    const std::int64_t layer = params.layers == 1 ? 0 : unit.pair / params.sequences;
    const std::int64_t n = unit.pair - layer * params.sequences;
    const bool transition = Tile::kForward && tile >= params.value_tiles;
    if (transition) tile -= params.value_tiles;
    RecurrentBlock<Tile> block{params, p, a, smem, smem.sequence};
    block.head = unit.head;
    block.transition = transition;
    block.first_column = tile * Tile::kColumns;
    block.columns =
        min(Tile::kColumns, (transition ? p.key_dim : p.value_dim) - block.first_column);
    // Each by a warp of its own, so that they wait for memory together. Without sequences there are
    // rows to clear all the same.
    if (threadIdx.x == 0)
      smem.sequence =
          n < a.sequences ? sequence_of(a, n) : Sequence{n, 0, 0, 0, kNullSlot, kNullSlot, true};
    block.read_gate();
    if (threadIdx.x == 96) {
      smem.pool = a.pools == nullptr ? nullptr : a.pools[layer];
      smem.layer_offset = layer * a.layer_stride;
    }
    __syncthreads();
    block.run();
    if (!transition) block.zero_surplus();
    __syncthreads();  // the next unit writes to shared memory that a warp may still be reading
  }
}

}  // namespace linattn::cuda
