// SPDX-License-Identifier: Apache-2.0
#include "cuda/recurrent/launch_fused.cuh"

namespace linattn::cuda {

void launch_fused_value_key(const Problem& problem, const RecurrentArgs& args, Queue queue) {
  launch_fused<StateLayout::kValueKey>(problem, args, queue);
}

}  // namespace linattn::cuda
