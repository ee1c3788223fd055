// SPDX-License-Identifier: Apache-2.0
#include "cuda/portable/launch.cuh"
#include "recurrence/gate.h"
#include "recurrence/update.h"

namespace linattn::portable {

template struct ForwardInstance<OperandBf16, 128, GateChannel, UpdateDelta>;

}  // namespace linattn::portable
