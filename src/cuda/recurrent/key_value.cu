// SPDX-License-Identifier: Apache-2.0
#include "cuda/recurrent/launch_tile.cuh"

namespace linattn::cuda {

void launch_key_value(const Problem& problem, const RecurrentArgs& args, Queue queue) {
  launch_vectors<StateLayout::kKeyValue>(problem, args, queue);
}

}  // namespace linattn::cuda
