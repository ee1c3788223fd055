// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "cuda/common/launch.cuh"
#include "cuda/recurrent/recurrent_kernel.cuh"

namespace linattn::cuda {

// All but the tiles.
inline RecurrentParams params_of(const Problem& problem, const RecurrentArgs& args) {
  RecurrentParams params{};
  params.problem = problem;
  params.args = args;
  params.scale = args.scale;
  params.sequences = std::max<std::int64_t>(args.sequences, 1);
  params.layers = std::max<std::int64_t>(args.layers, 1);
  if (params.scale == 0) params.scale = 1 / std::sqrt(static_cast<float>(problem.key_dim));
  if (args.replay != nullptr) {
    const StepArgs record = commit_args(problem, args.replay, args.tokens, args.sequences);
    params.record_k = record.k, params.record_v = record.v, params.record_g = record.g;
  }
  return params;
}

// A block stays on its multiprocessor: no more blocks than the limit occupy no more of them.
inline unsigned blocks_of(const Problem& problem, std::int64_t units) {
  return static_cast<unsigned>(std::min<std::int64_t>(
      units, problem.sm_limit > 0 ? problem.sm_limit : std::numeric_limits<std::int32_t>::max()));
}

template <class Tile>
void launch_tile(const Problem& problem, const RecurrentArgs& args, Queue queue) {
  // With parents, beside the staged tokens: the state that every path of the tree starts from.
  constexpr int kKept =
      Tile::kKeysPerLane * Tile::kColumnsPerLane * Tile::kThreads * static_cast<int>(sizeof(float));
  static_assert(sizeof(RecurrentStorage<Tile>) <= 48 * 1024);
  const auto tiles = [](std::int32_t dim) { return (dim + Tile::kColumns - 1) / Tile::kColumns; };
  RecurrentParams params = params_of(problem, args);
  params.value_tiles = tiles(problem.value_dim);
  if (args.transition.data != nullptr && args.sequences > 0)
    params.transition_tiles = tiles(problem.key_dim);
  // A block stays on its multiprocessor: no more blocks than the limit occupy no more of them.
  constexpr std::int64_t kMostLayers = 65535;  // of a grid
  std::int64_t left =
      problem.sm_limit > 0 ? problem.sm_limit : std::numeric_limits<std::int64_t>::max();
  const auto take = [&](std::int64_t wanted) {
    const std::int64_t taken = std::min(wanted, left);
    left /= taken;
    return static_cast<unsigned>(taken);
  };
  dim3 grid;
  grid.z = take(std::min(params.sequences * params.layers, kMostLayers));
  grid.y = take(std::min<std::int64_t>(problem.value_heads, kMostLayers));
  grid.x = take(params.value_tiles + params.transition_tiles);
  const bool tree = args.parents != nullptr;
  if (tree) allow_shared_memory<recurrent_kernel<Tile>>(queue.device.index, kKept);
  launch(recurrent_kernel<Tile>,
         {grid, dim3(Tile::kThreads), static_cast<std::size_t>(tree ? kKept : 0)}, queue.stream,
         params);
}

// K is at most kVectorMaxKeyDim.
template <StateLayout kLayout>
void launch_vectors(const Problem& problem, const RecurrentArgs& args, Queue queue) {
  with_mapping<kLayout>(problem.key_dim, [&]<class M>(M) {
    if constexpr (M::kKeys <= kVectorMaxKeyDim) {
      if (problem.state_dtype == DType::kFloat32)
        launch_tile<VectorTile<M, kLayout, 4>>(problem, args, queue);
      else
        launch_tile<VectorTile<M, kLayout, 2>>(problem, args, queue);
    }
  });
}

}  // namespace linattn::cuda
