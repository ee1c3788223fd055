// SPDX-License-Identifier: Apache-2.0
//
// The rows of the CPU. Threads: one pool per process (thread_pool.h).
#pragma once

#include "core/registry.h"

namespace linattn::cpu {

extern const Implementation<ForwardArgs>
    kChunkedForward;  // "cpu.chunked": the GPU algorithm, fp32 arithmetic
extern const Implementation<ForwardArgs>
    kEmulatedForward;  // "cpu.emulated": it rounds where a 16-bit kernel rounds
extern const Implementation<ForwardArgs>
    kRecurrentForward;  // "cpu.recurrent": the oracle, token by token in double
extern const Implementation<BackwardArgs> kRecurrentBackward;
extern const Implementation<StepArgs> kRecurrentStep;

}  // namespace linattn::cpu
