// SPDX-License-Identifier: Apache-2.0
//
// Vectors of kWidth floats, written once with the compilers' vector extensions. A file that is
// compiled for one instruction set defines LINATTN_ISA (avx2, avx512, baseline) before it includes
// this header or one that includes it. Everything lives in that namespace: inline functions of two
// instruction sets must never be merged by the linker, so nothing here calls an inline function of
// another header either.
#pragma once

#include <cstdint>
#include <utility>

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

#if !defined(LINATTN_ISA)
#error "define LINATTN_ISA first"
#endif

namespace linattn::cpu::LINATTN_ISA {

#if defined(__AVX512F__)
inline constexpr int kWidth = 16;
#elif defined(__AVX2__)
inline constexpr int kWidth = 8;
#else
inline constexpr int kWidth = 4;
#endif

using Vec = float __attribute__((vector_size(kWidth * 4)));
using VecInt = std::int32_t __attribute__((vector_size(kWidth * 4)));
using VecUint = std::uint32_t __attribute__((vector_size(kWidth * 4)));
using VecHalf = std::uint16_t __attribute__((vector_size(kWidth * 2)));

#define LINATTN_INLINE [[gnu::always_inline]] inline

template <class To, class From>
LINATTN_INLINE To bits_as(From x) {
  static_assert(sizeof(To) == sizeof(From));
  To y;
  __builtin_memcpy(&y, &x, sizeof y);
  return y;
}

LINATTN_INLINE Vec load(const float* p) {
  Vec x;
  __builtin_memcpy(&x, p, sizeof x);
  return x;
}
LINATTN_INLINE void store(float* p, Vec x) { __builtin_memcpy(p, &x, sizeof x); }

// x - 0 is x for every x, -0 and NaN included: compilers make a broadcast of it.
LINATTN_INLINE Vec splat(float x) { return x - Vec{}; }
LINATTN_INLINE VecUint splat_bits(std::uint32_t x) { return x - VecUint{}; }

LINATTN_INLINE Vec fma(Vec a, Vec b, Vec c) {
#if defined(__AVX512F__)
  return (Vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__) && defined(__AVX2__)
  return (Vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  return a * b + c;
#endif
}

LINATTN_INLINE Vec select(VecInt mask, Vec yes, Vec no) { return mask ? yes : no; }
// A NaN in b comes through, one in a does not.
LINATTN_INLINE Vec max(Vec a, Vec b) { return select(a > b, a, b); }
LINATTN_INLINE Vec min(Vec a, Vec b) { return select(a < b, a, b); }
LINATTN_INLINE Vec abs(Vec x) { return bits_as<Vec>(bits_as<VecUint>(x) & 0x7fffffffu); }

LINATTN_INLINE bool any(VecInt mask) {
  std::int32_t found = 0;
  for (int lane = 0; lane < kWidth; ++lane) found |= mask[lane];
  return found != 0;
}
LINATTN_INLINE float sum(Vec x) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  const __m128 half =
      _mm_add_ps(_mm256_castps256_ps128((__m256)x), _mm256_extractf128_ps((__m256)x, 1));
  const __m128 pair = _mm_add_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)));
#else
  float total[kWidth];
  store(total, x);
  for (int half = kWidth / 2; half > 0; half /= 2)
    for (int lane = 0; lane < half; ++lane) total[lane] += total[lane + half];
  return total[0];
#endif
}
LINATTN_INLINE float maximum(Vec x) {
  float most = x[0];
  for (int lane = 1; lane < kWidth; ++lane) most = x[lane] > most ? x[lane] : most;
  return most;
}

// To the nearest integer, ties to even, for |x| < 2^22.
LINATTN_INLINE Vec round(Vec x) {
  const Vec magic = splat(0x1.8p23f);
  return (x + magic) - magic;
}

// 2^n for integer n; 0 below the normal range, infinity above it.
LINATTN_INLINE Vec power_of_two(Vec n) {
  n = max(splat(-127.0f), min(splat(128.0f), n));
  return bits_as<Vec>((__builtin_convertvector(n, VecInt) + 127) << 23);
}

// exp(r) and exp(-r) for |r| <= ln(2) / 2, from their even and odd parts: 1 ulp.
struct ExpPair {
  Vec plus, minus;
};
LINATTN_INLINE ExpPair exp_pair(Vec r) {
  const Vec z = r * r;
  Vec even = fma(z, splat(1.0f / 720), splat(1.0f / 24));
  even = fma(even, z, splat(0.5f));
  even = fma(even, z, splat(1.0f));
  Vec odd = fma(z, splat(1.0f / 5040), splat(1.0f / 120));
  odd = fma(odd, z, splat(1.0f / 6));
  odd = fma(odd, z, splat(1.0f)) * r;
  return {even + odd, even - odd};
}

inline constexpr float kLn2 = 0.693147180559945f;
inline constexpr float kLog2e = 1.442695040888963f;

// 2^(n + f) and 2^-(n + f), n an integer, |n| <= 125 and |f| <= 1/2: n is added to the exponents'
// bits.
LINATTN_INLINE ExpPair exp2_pair_in_range(Vec n, Vec f) {
  const ExpPair e = exp_pair(f * kLn2);
  const VecUint shifted = bits_as<VecUint>(n + 0x1.8p23f) << 23;
  return {bits_as<Vec>(bits_as<VecUint>(e.plus) + shifted),
          bits_as<Vec>(bits_as<VecUint>(e.minus) - shifted)};
}
LINATTN_INLINE Vec exp2(Vec n, Vec f) { return exp_pair(f * kLn2).plus * power_of_two(n); }
LINATTN_INLINE Vec exp2(Vec x) {
  x = max(splat(-256.0f), min(splat(256.0f), x));
  const Vec n = round(x);
  return exp2(n, x - n);
}

LINATTN_INLINE Vec exp(Vec x) {
  x = max(splat(-120.0f), min(splat(120.0f), x));
  const Vec n = round(x * kLog2e);
  // ln 2 in two parts, the first of few bits, so that n times it is exact.
  const Vec r = fma(n, splat(2.12194440e-4f), fma(n, splat(-0.693359375f), x));
  return exp_pair(r).plus * power_of_two(n);
}

// Relative error under 2 ulp at both ends: no decay of a long memory is biased.
LINATTN_INLINE Vec sigmoid(Vec x) {
  const Vec e = exp(-abs(x));
  return select(x >= 0.0f, splat(1.0f), e) / (e + 1.0f);
}

// max(x, 0) + log1p(u) with u = exp(-|x|); log1p(u) = 2 atanh(u / (2 + u)).
LINATTN_INLINE Vec softplus(Vec x) {
  const Vec u = exp(-abs(x));
  const Vec s = u / (u + 2.0f);
  const Vec z = s * s;  // at most 1/9
  Vec p = fma(z, splat(1.0f / 13), splat(1.0f / 11));
  p = fma(p, z, splat(1.0f / 9));
  p = fma(p, z, splat(1.0f / 7));
  p = fma(p, z, splat(1.0f / 5));
  p = fma(p, z, splat(1.0f / 3));
  p = fma(p, z, splat(1.0f));
  return fma(s + s, p, select(x > 0.0f, x, Vec{}));
}

// Accurate relative to log2(x) next to x = 1 too. -infinity below the normal range, NaN for x < 0.
LINATTN_INLINE Vec log2(Vec x) {
  const VecUint bits = bits_as<VecUint>(x);
  const VecUint mantissa = bits & 0x007fffffu;
  const VecInt upper = mantissa > 0x3504f3u;  // above sqrt 2
  const VecInt exponent = bits_as<VecInt>(bits >> 23) - 127 - upper;
  const VecUint base = upper ? splat_bits(0x3f000000u) : splat_bits(0x3f800000u);
  const Vec m = bits_as<Vec>(mantissa | base);
  const Vec s = (m - 1.0f) / (m + 1.0f);  // at most 0.172
  const Vec z = s * s;
  Vec p = fma(z, splat(1.0f / 9), splat(1.0f / 7));
  p = fma(p, z, splat(1.0f / 5));
  p = fma(p, z, splat(1.0f / 3));
  p = fma(p, z, splat(1.0f));
  const Vec y = fma(s * p, splat(2 * kLog2e), __builtin_convertvector(exponent, Vec));
  const Vec infinity = splat(__builtin_inff());
  const Vec outside = select(x >= 0.0f, -infinity, splat(__builtin_nanf("")));
  return select((x >= 0x1p-126f) & (x < infinity), y, select(x >= infinity, infinity, outside));
}

// ---- 16-bit storage
// ---------------------------------------------------------------------------------------------

// Between 16 and 32 bits. With AVX2 compilers split these conversions in two.
LINATTN_INLINE VecUint widened(VecHalf x) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  return (VecUint)_mm256_cvtepu16_epi32(bits_as<__m128i>(x));
#else
  return __builtin_convertvector(x, VecUint);
#endif
}
LINATTN_INLINE VecHalf narrowed(VecUint x) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  const __m256i packed = _mm256_packus_epi32((__m256i)x, (__m256i)x);
  return bits_as<VecHalf>(_mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08)));
#else
  return __builtin_convertvector(x, VecHalf);
#endif
}

LINATTN_INLINE Vec from_bf16(VecHalf x) { return bits_as<Vec>(widened(x) << 16); }
LINATTN_INLINE VecHalf to_bf16(Vec x) {
  const VecUint bits = bits_as<VecUint>(x);
  const VecUint rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const VecUint nan = (bits >> 16) | 0x40u;
  return narrowed((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

LINATTN_INLINE Vec from_fp16(VecHalf x) {
#if defined(__AVX512F__)
  return (Vec)_mm512_maskz_cvtph_ps(0xffff, bits_as<__m256i>(x));
#elif defined(__F16C__) && defined(__AVX2__)
  return (Vec)_mm256_cvtph_ps(bits_as<__m128i>(x));
#else
  const VecUint bits = widened(x);
  const VecUint magnitude = bits & 0x7fffu;
  const Vec small = __builtin_convertvector(bits_as<VecInt>(magnitude), Vec) * 0x1p-24f;
  const VecUint large = 0x7f800000u | (magnitude << 13);  // infinity, NaN
  VecUint y = (magnitude << 13) + (112u << 23);
  y = magnitude >= 0x7c00u ? large : y;
  y = magnitude < 0x0400u ? bits_as<VecUint>(small) : y;
  return bits_as<Vec>(y | ((bits & 0x8000u) << 16));
#endif
}
LINATTN_INLINE VecHalf to_fp16(Vec x) {
#if defined(__AVX512F__)
  return bits_as<VecHalf>(_mm512_maskz_cvtps_ph(0xffff, (__m512)x, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__F16C__) && defined(__AVX2__)
  return bits_as<VecHalf>(_mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT));
#else
  const VecUint bits = bits_as<VecUint>(x);
  const VecUint magnitude = bits & 0x7fffffffu;
  // Under 2^-14, adding 1/2 leaves the count of 2^-24 in the low bits, rounded.
  const VecUint small = bits_as<VecUint>(bits_as<Vec>(magnitude) + 0.5f) - 0x3f000000u;
  const VecUint rebased = magnitude - (112u << 23);
  VecUint y = (rebased + 0xfffu + ((rebased >> 13) & 1u)) >> 13;
  y = magnitude < 0x38800000u ? small : y;
  y = magnitude >= 0x47800000u ? splat_bits(0x7c00u) : y;  // 2^16 and more
  y = magnitude > 0x7f800000u ? splat_bits(0x7e00u) : y;
  return narrowed(y | ((bits >> 16) & 0x8000u));
#endif
}

LINATTN_INLINE Vec rounded_to_bf16(Vec x) { return from_bf16(to_bf16(x)); }
LINATTN_INLINE Vec rounded_to_fp16(Vec x) { return from_fp16(to_fp16(x)); }

// ---- transpose
// ----------------------------------------------------------------------------------------------------

namespace detail {

// Lanes of a and b at distance kStep change places, as a 2 x 2 block transpose.
template <int kStep, int... kLane>
LINATTN_INLINE void exchange(Vec& a, Vec& b, std::integer_sequence<int, kLane...>) {
#if defined(__clang__) || __GNUC__ >= 12
  const Vec low =
      __builtin_shufflevector(a, b, ((kLane & kStep) ? kWidth + kLane - kStep : kLane)...);
  const Vec high =
      __builtin_shufflevector(a, b, ((kLane & kStep) ? kWidth + kLane : kLane + kStep)...);
#else
  const Vec low =
      __builtin_shuffle(a, b, VecInt{((kLane & kStep) ? kWidth + kLane - kStep : kLane)...});
  const Vec high =
      __builtin_shuffle(a, b, VecInt{((kLane & kStep) ? kWidth + kLane : kLane + kStep)...});
#endif
  a = low;
  b = high;
}

template <int kStep>
LINATTN_INLINE void transpose_step(Vec (&rows)[kWidth]) {
  if constexpr (kStep > 0) {
#pragma GCC unroll 16
    for (int i = 0; i < kWidth; ++i)
      if ((i & kStep) == 0)
        exchange<kStep>(rows[i], rows[i + kStep], std::make_integer_sequence<int, kWidth>());
    transpose_step<kStep / 2>(rows);
  }
}

}  // namespace detail

LINATTN_INLINE void transpose(Vec (&rows)[kWidth]) { detail::transpose_step<kWidth / 2>(rows); }

}  // namespace linattn::cpu::LINATTN_ISA
