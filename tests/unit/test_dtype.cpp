// SPDX-License-Identifier: Apache-2.0
//
// 16-bit conversions, over all 65536 values and around every rounding border.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "core/dtype.h"

namespace linattn::test {
namespace {

// The value that the bits mean, from the definition: sign, exponent bits, mantissa bits.
double meaning(std::uint16_t bits, int exponent_bits) {
  const int mantissa_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1)
    return mantissa ? std::numeric_limits<double>::quiet_NaN()
                    : sign * std::numeric_limits<double>::infinity();
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

template <class T>
void check_all(int exponent_bits) {
  for (std::uint32_t i = 0; i < 0x10000; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    const double expected = meaning(bits, exponent_bits);
    const float value = to_float(T{bits});
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(value)) << i;
      EXPECT_TRUE(std::isnan(to_float(from_float<T>(value)))) << i;
      continue;
    }
    ASSERT_EQ(static_cast<double>(value), expected) << i;
    ASSERT_EQ(from_float<T>(value).bits, bits) << i;
  }
}

TEST(DType, EveryBFloat16IsExact) { check_all<BFloat16>(8); }
TEST(DType, EveryFloat16IsExact) { check_all<Float16>(5); }

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Between neighbours: below the middle down, above it up, the middle to the even one.
template <class T>
void check_rounding(std::uint16_t last_finite) {
  for (std::uint32_t i = 0; i < last_finite; ++i) {
    const T low{static_cast<std::uint16_t>(i)}, high{static_cast<std::uint16_t>(i + 1)};
    const double middle = (static_cast<double>(to_float(low)) + to_float(high)) / 2;
    const auto as_float = static_cast<float>(middle);
    if (as_float != middle) continue;  // bf16 subnormals at float's own end
    const std::uint16_t even = i % 2 == 0 ? low.bits : high.bits;
    ASSERT_EQ(from_float<T>(as_float).bits, even) << i;
    ASSERT_EQ(from_float<T>(std::nextafter(as_float, -kInfinity)).bits, low.bits) << i;
    ASSERT_EQ(from_float<T>(std::nextafter(as_float, kInfinity)).bits, high.bits) << i;
    ASSERT_EQ(from_float<T>(-as_float).bits, even | 0x8000) << i;
  }
}

TEST(DType, BFloat16RoundsToNearestEven) { check_rounding<BFloat16>(0x7f7f); }
TEST(DType, Float16RoundsToNearestEven) { check_rounding<Float16>(0x7bff); }

TEST(DType, OverflowIsInfinity) {
  EXPECT_EQ(from_float<Float16>(65519.f).bits, 0x7bff);
  EXPECT_EQ(from_float<Float16>(65520.f).bits, 0x7c00);
  EXPECT_EQ(from_float<Float16>(-1e30f).bits, 0xfc00);
  EXPECT_EQ(from_float<BFloat16>(std::numeric_limits<float>::max()).bits, 0x7f80);
  EXPECT_EQ(from_float<BFloat16>(-std::numeric_limits<float>::infinity()).bits, 0xff80);
  EXPECT_EQ(from_float<Float16>(std::numeric_limits<float>::infinity()).bits, 0x7c00);
}

// A NaN whose payload lies in the dropped bits only must not become infinity.
TEST(DType, NaNStaysNaN) {
  const float low = std::bit_cast<float>(0x7f800001u), all = std::bit_cast<float>(0xffffffffu);
  for (const float x : {low, all}) {
    EXPECT_TRUE(std::isnan(to_float(from_float<BFloat16>(x))));
    EXPECT_TRUE(std::isnan(to_float(from_float<Float16>(x))));
  }
}

TEST(DType, LoadAndStoreByName) {
  float memory[2] = {1.f, 2.f};
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    store(memory, dtype, 1, -1.5f);
    EXPECT_EQ(load(memory, dtype, 1), -1.5f);
  }
  EXPECT_EQ(size_of(DType::kBFloat16), 2u);
  EXPECT_EQ(size_of(DType::kFloat16), 2u);
  EXPECT_EQ(size_of(DType::kFloat32), 4u);
  EXPECT_EQ(size_of(DType::kInt32), 4u);
  EXPECT_EQ(size_of(DType::kInt64), 8u);
  EXPECT_EQ(size_of(DType::kUnset), 0u);
  const std::int64_t wide[] = {0, 1ll << 40};
  const std::int32_t narrow[] = {0, -7};
  EXPECT_EQ(load_index(wide, DType::kInt64, 1), 1ll << 40);
  EXPECT_EQ(load_index(narrow, DType::kInt32, 1), -7);
}

}  // namespace
}  // namespace linattn::test
