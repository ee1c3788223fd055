// SPDX-License-Identifier: Apache-2.0
//
// "cuda.recurrent": token by token in fp32, for every op, dim and option, on any CUDA device.
#pragma once

#include "core/registry.h"

namespace linattn::cuda {

extern const Implementation<ForwardArgs> kRecurrentForward;
extern const Implementation<StepArgs> kRecurrentStep;

}  // namespace linattn::cuda
