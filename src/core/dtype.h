// SPDX-License-Identifier: Apache-2.0
//
// 16-bit floats on the host: storage only, arithmetic happens after to_float. Round to nearest,
// ties to even.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "linattn/problem.h"

namespace linattn {

struct BFloat16 {
  std::uint16_t bits;
};

struct Float16 {
  std::uint16_t bits;
};

inline float to_float(float x) { return x; }

inline float to_float(BFloat16 x) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16);
}

inline float to_float(Float16 x) {
  const std::uint32_t sign = (x.bits & 0x8000u) << 16;
  const std::uint32_t magnitude = x.bits & 0x7fffu;
  if (magnitude >= 0x7c00u)  // inf, NaN
    return std::bit_cast<float>(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  if (magnitude < 0x0400u)  // subnormal: the mantissa counts 2^-24
    return std::bit_cast<float>(
        sign | std::bit_cast<std::uint32_t>(static_cast<float>(magnitude) * 0x1p-24f));
  return std::bit_cast<float>(sign | ((magnitude << 13) + (112u << 23)));
}

template <class T>
T from_float(float x);

template <>
inline float from_float<float>(float x) {
  return x;
}

template <>
inline BFloat16 from_float<BFloat16>(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<std::uint16_t>((bits >> 16) | 0x40u)};
  return {static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

template <>
inline Float16 from_float<Float16>(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  const std::uint16_t sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {static_cast<std::uint16_t>(sign | 0x7e00u)};
  if (magnitude >= 0x47800000u)
    return {static_cast<std::uint16_t>(sign | 0x7c00u)};  // 2^16 and more
  if (magnitude <
      0x38800000u) {  // under 2^-14: adding 0.5 leaves the count of 2^-24 in the low bits, rounded
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return {
        static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u))};
  }
  const std::uint32_t rebased = magnitude - (112u << 23);
  return {static_cast<std::uint16_t>(sign | ((rebased + 0xfffu + ((rebased >> 13) & 1u)) >> 13))};
}

constexpr std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kBFloat16:
    case DType::kFloat16:
      return 2;
    case DType::kFloat32:
    case DType::kInt32:
      return 4;
    case DType::kInt64:
      return 8;
    case DType::kUnset:
      break;
  }
  return 0;
}

// One element of a tensor whose dtype is known at run time: for code where that costs nothing that
// matters.
inline float load(const void* data, DType dtype, std::int64_t index) {
  switch (dtype) {
    case DType::kBFloat16:
      return to_float(static_cast<const BFloat16*>(data)[index]);
    case DType::kFloat16:
      return to_float(static_cast<const Float16*>(data)[index]);
    default:
      return static_cast<const float*>(data)[index];
  }
}

inline void store(void* data, DType dtype, std::int64_t index, float value) {
  switch (dtype) {
    case DType::kBFloat16:
      static_cast<BFloat16*>(data)[index] = from_float<BFloat16>(value);
      break;
    case DType::kFloat16:
      static_cast<Float16*>(data)[index] = from_float<Float16>(value);
      break;
    default:
      static_cast<float*>(data)[index] = value;
  }
}

inline std::int64_t load_index(const void* data, DType dtype, std::int64_t index) {
  return dtype == DType::kInt64 ? static_cast<const std::int64_t*>(data)[index]
                                : static_cast<const std::int32_t*>(data)[index];
}

}  // namespace linattn
