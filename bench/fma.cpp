// SPDX-License-Identifier: Apache-2.0
//
// How many fp32 multiply-adds one core of this machine does, with the widest vectors that it has:
// chains of dependent operations in registers, enough of them to hide the latency.
#include "fma.h"

#include <cstdint>
#include <ctime>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace linattn::bench {
namespace {

constexpr std::int64_t kTurns = 1 << 21;

// Every chain begins elsewhere, or the compiler would compute one of them only.
#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) float turn_avx2() {
  __m256 sums[12];
  for (int i = 0; i < 12; ++i) sums[i] = _mm256_set1_ps(0.01f * static_cast<float>(i));
  const __m256 factor = _mm256_set1_ps(0.999f), step = _mm256_set1_ps(1e-3f);
  for (std::int64_t n = 0; n < kTurns; ++n)
#pragma GCC unroll 12
    for (int i = 0; i < 12; ++i) sums[i] = _mm256_fmadd_ps(sums[i], factor, step);
  __m256 total = sums[0];
  for (int i = 1; i < 12; ++i) total = _mm256_add_ps(total, sums[i]);
  return _mm256_cvtss_f32(total);
}

__attribute__((target("avx512f"))) float turn_avx512() {
  __m512 sums[12];
  for (int i = 0; i < 12; ++i) sums[i] = _mm512_set1_ps(0.01f * static_cast<float>(i));
  const __m512 factor = _mm512_set1_ps(0.999f), step = _mm512_set1_ps(1e-3f);
  for (std::int64_t n = 0; n < kTurns; ++n)
#pragma GCC unroll 12
    for (int i = 0; i < 12; ++i) sums[i] = _mm512_fmadd_ps(sums[i], factor, step);
  __m512 total = sums[0];
  for (int i = 1; i < 12; ++i) total = _mm512_add_ps(total, sums[i]);
  return _mm512_cvtss_f32(total);
}
#endif

float turn_baseline() {
  using Vec = float __attribute__((vector_size(16)));
  Vec sums[12];
  for (int i = 0; i < 12; ++i) sums[i] = Vec{} + 0.01f * static_cast<float>(i);
  for (std::int64_t n = 0; n < kTurns; ++n)
#pragma GCC unroll 12
    for (int i = 0; i < 12; ++i) sums[i] = sums[i] * 0.999f + 1e-3f;
  Vec total = sums[0];
  for (int i = 1; i < 12; ++i) total += sums[i];
  return total[0];
}

struct Probe {
  float (*turn)();
  int width;
};

Probe widest() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return {turn_avx512, 16};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return {turn_avx2, 8};
#endif
  return {turn_baseline, 4};
}

}  // namespace

double fma_per_second() {
  const Probe probe = widest();
  double best = 0;
  for (int repeat = 0; repeat < 12; ++repeat) {
    // CPU time: this thread is the only one, and other processes may hold the core for a while.
    const std::clock_t begin = std::clock();
    const volatile float keep = probe.turn();
    static_cast<void>(keep);
    const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
    const double rate = static_cast<double>(kTurns) * 12 * probe.width / seconds;
    best = rate > best ? rate : best;
  }
  return best;
}

}  // namespace linattn::bench
