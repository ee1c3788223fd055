// SPDX-License-Identifier: Apache-2.0
//
// Compiled with AVX-512 (F, BW, DQ, VL); elsewhere than on x86 it says that it is not there.
#include "cpu/chunked.h"

#if defined(__AVX512F__)

#define LINATTN_ISA avx512
#include "cpu/chunked_task.h"

namespace linattn::cpu::avx512 {

bool available() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
void run_task(const ChunkedCall& call, std::int64_t task, float* scratch) {
  run_any(call, task, scratch);
}

}  // namespace linattn::cpu::avx512

#else

namespace linattn::cpu::avx512 {

bool available() { return false; }
void run_task(const ChunkedCall& call, std::int64_t task, float* scratch) {
  baseline::run_task(call, task, scratch);
}

}  // namespace linattn::cpu::avx512

#endif
