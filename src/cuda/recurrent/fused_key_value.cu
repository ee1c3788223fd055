// SPDX-License-Identifier: Apache-2.0
#include "cuda/recurrent/launch_fused.cuh"

namespace linattn::cuda {

void launch_fused_key_value(const Problem& problem, const RecurrentArgs& args, Queue queue) {
  launch_fused<StateLayout::kKeyValue>(problem, args, queue);
}

}  // namespace linattn::cuda
