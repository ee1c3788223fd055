// SPDX-License-Identifier: Apache-2.0
#include "cuda/portable/prepare_instance.cuh"

namespace linattn::portable {

template struct PrepareInstance<OperandTf32, 64, GateHead, UpdateAdd>;

}  // namespace linattn::portable
