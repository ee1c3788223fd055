// SPDX-License-Identifier: Apache-2.0
#include "cpu/register.h"

#include "cpu/recurrent.h"

namespace linattn::cpu {

const Implementation<ForwardArgs> kRecurrentForward{
    .name = "cpu.recurrent",
    .refusal = refuse_other_devices,
    .workspace_bytes = recurrent_forward_bytes,
    .run = run_recurrent_forward,
};

// Recomputes the states: it reads nothing that a forward pass saves.
const Implementation<BackwardArgs> kRecurrentBackward{
    .name = "cpu.recurrent",
    .refusal = refuse_other_devices,
    .workspace_bytes = recurrent_backward_bytes,
    .run = run_recurrent_backward,
};

const Implementation<StepArgs> kRecurrentStep{
    .name = "cpu.recurrent",
    .refusal = refuse_other_devices,
    .workspace_bytes = recurrent_step_bytes,
    .run = run_recurrent_step,
};

}  // namespace linattn::cpu
