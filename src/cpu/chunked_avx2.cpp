// SPDX-License-Identifier: Apache-2.0
//
// Compiled with AVX2, FMA and F16C; elsewhere than on x86 it says that it is not there.
#include "cpu/chunked.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#define LINATTN_ISA avx2
#include "cpu/chunked_task.h"

namespace linattn::cpu::avx2 {

// Every CPU with AVX2 has F16C, which not every compiler can ask for.
bool available() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
void run_task(const ChunkedCall& call, std::int64_t task, float* scratch) {
  run_any(call, task, scratch);
}

}  // namespace linattn::cpu::avx2

#else

namespace linattn::cpu::avx2 {

bool available() { return false; }
void run_task(const ChunkedCall& call, std::int64_t task, float* scratch) {
  baseline::run_task(call, task, scratch);
}

}  // namespace linattn::cpu::avx2

#endif
