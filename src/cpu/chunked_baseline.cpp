// SPDX-License-Identifier: Apache-2.0
//
// For any CPU. The emulation is compiled here only: its results are then the same on every machine
// of one architecture.
#define LINATTN_ISA baseline
#define LINATTN_EMULATION
#include "cpu/chunked_task.h"

namespace linattn::cpu::baseline {

void run_task(const ChunkedCall& call, std::int64_t task, float* scratch) {
  run_any(call, task, scratch);
}

}  // namespace linattn::cpu::baseline
