// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/recurrent/fused.cuh"
#include "cuda/recurrent/launch_tile.cuh"

namespace linattn::cuda {

// K is at most kVectorMaxKeyDim, V at most kFusedMaxValueDim.
template <StateLayout kLayout>
void launch_fused(const Problem& problem, const RecurrentArgs& args, Queue queue) {
  const auto launch_as = [&]<class Tile>(Tile) {
    static_assert(sizeof(FusedStorage<RecurrentStorage<Tile>>) <= 48 * 1024);
    // With a norm: what comes before it.
    constexpr int kRowBytes = LINATTN_FUSED_TOKENS * static_cast<int>(sizeof(float));
    RecurrentParams params = params_of(problem, args);
    params.group = problem.conv_width == 0 ? 1 : problem.value_heads / problem.heads;
    if (params.args.conv_entries == 0) params.args.conv_entries = problem.conv_width - 1;
    if (params.args.norm_epsilon == 0)
      params.args.norm_epsilon = static_cast<float>(kDefaultNormEpsilon);
    const bool norm = problem.norm_gate != Activation::kUnset;
    if (norm)
      allow_shared_memory<fused_kernel<Tile>>(queue.device.index, kRowBytes * kFusedMaxValueDim);
    launch(
        fused_kernel<Tile>,
        {dim3(blocks_of(problem, problem.value_heads / params.group * params.sequences)),
         dim3(Tile::kThreads), static_cast<std::size_t>(norm ? kRowBytes * problem.value_dim : 0)},
        queue.stream, params);
  };
  with_wide_mapping(problem.key_dim, [&]<class M>(M) {
    if (problem.state_dtype == DType::kFloat32)
      launch_as(FusedTile<M, kLayout, 4>{});
    else
      launch_as(FusedTile<M, kLayout, 2>{});
  });
}

}  // namespace linattn::cuda
