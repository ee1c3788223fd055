// SPDX-License-Identifier: Apache-2.0
#include "cuda/portable/scan_instance.cuh"

namespace linattn::portable {

template struct ScanInstance<OperandBf16, 128, UpdateDelta>;

}  // namespace linattn::portable
