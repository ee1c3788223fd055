// SPDX-License-Identifier: Apache-2.0
#include "cuda/recurrent/launch_tile.cuh"

namespace linattn::cuda {

void launch_any_layout(const Problem& problem, const RecurrentArgs& args, Queue queue) {
  const auto launch = [&]<class M>(M) { launch_tile<SharedTile<M>>(problem, args, queue); };
  if (problem.state_layout == StateLayout::kValueKey)
    with_mapping<StateLayout::kValueKey>(problem.key_dim, launch);
  else
    with_mapping<StateLayout::kKeyValue>(problem.key_dim, launch);
}

}  // namespace linattn::cuda
