// SPDX-License-Identifier: Apache-2.0
#include "cuda/portable/prepare_instance.cuh"
#include "cuda/sm90/operand.cuh"

namespace linattn::portable {

template struct PrepareInstance<sm90::OperandSwizzled, 64, GateChannel, UpdateDelta>;

}  // namespace linattn::portable
