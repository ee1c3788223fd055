// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "cuda/common/launch.cuh"
#include "cuda/recurrent/recurrent.cuh"

namespace linattn::cuda {

template <class Tile>
void launch_tile(const Problem& problem, const RecurrentArgs& args, Queue queue) {
  // With parents, beside the staged tokens: the state that every path of the tree starts from.
  constexpr int kKept =
      Tile::kKeysPerLane * Tile::kColumnsPerLane * Tile::kThreads * static_cast<int>(sizeof(float));
  static_assert(sizeof(RecurrentStorage<Tile>) <= 48 * 1024);
  const auto tiles = [](std::int32_t dim) { return (dim + Tile::kColumns - 1) / Tile::kColumns; };
  RecurrentParams params{};
  params.problem = problem;
  params.args = args;
  params.scale = args.scale;
  params.value_tiles = tiles(problem.value_dim);
  params.sequences = std::max<std::int64_t>(args.sequences, 1);
  params.layers = std::max<std::int64_t>(args.layers, 1);
  if (params.scale == 0) params.scale = 1 / std::sqrt(static_cast<float>(problem.key_dim));
  if (args.replay != nullptr) {
    const StepArgs record = commit_args(problem, args.replay, args.tokens, args.sequences);
    params.record_k = record.k, params.record_v = record.v, params.record_g = record.g;
  }
  if (args.transition.data != nullptr && args.sequences > 0)
    params.transition_tiles = tiles(problem.key_dim);
  std::int64_t blocks = static_cast<std::int64_t>(params.value_tiles + params.transition_tiles) *
                        problem.value_heads * params.sequences * params.layers;
  // A block stays on its multiprocessor: no more blocks than the limit occupy no more of them.
  blocks = std::min<std::int64_t>(
      blocks, problem.sm_limit > 0 ? problem.sm_limit : std::numeric_limits<std::int32_t>::max());
  const bool tree = args.parents != nullptr;
  if (tree) allow_shared_memory<recurrent_kernel<Tile>>(queue.device.index, kKept);
  launch(recurrent_kernel<Tile>,
         {dim3(static_cast<unsigned>(blocks)), dim3(Tile::kThreads),
          static_cast<std::size_t>(tree ? kKept : 0)},
         queue.stream, params);
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
