// SPDX-License-Identifier: Apache-2.0
#include "cuda/portable/scan_instance.cuh"

namespace linattn::portable {

template struct ScanInstance<OperandTf32, 64, UpdateDelta>;

}  // namespace linattn::portable
