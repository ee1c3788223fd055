// SPDX-License-Identifier: Apache-2.0
#include "cuda/portable/scan_instance.cuh"
#include "cuda/sm90/scan.cuh"

namespace linattn::portable {

template struct ScanInstance<sm90::OperandSwizzled, 64, UpdateDelta>;

}  // namespace linattn::portable
