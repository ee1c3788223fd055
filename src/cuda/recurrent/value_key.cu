// SPDX-License-Identifier: Apache-2.0
#include "cuda/recurrent/launch_tile.cuh"

namespace linattn::cuda {

void launch_value_key(const Problem& problem, const RecurrentArgs& args, Queue queue) {
  launch_vectors<StateLayout::kValueKey>(problem, args, queue);
}

}  // namespace linattn::cuda
