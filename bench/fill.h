// SPDX-License-Identifier: Apache-2.0
//
// Inputs by counter: element i of a tensor is a function of a seed and i, so that any number of
// threads, on either device, fill it in any order.
#pragma once

#include <cmath>
#include <cstdint>

#include "recurrence/host_device.h"

namespace linattn::bench {

struct Fill {
  enum class Draw : std::uint8_t {
    kNormal,     // mean a, deviation b
    kUniform,    // a .. b
    kLongDecay,  // -2 u m: u in 0 .. 1, m log-uniform in a .. b by channel, that is by i % channels
    kRamp,       // a + b i
  };
  Draw draw = Draw::kNormal;
  float a = 0, b = 1;
  std::int64_t channels = 1;
  std::uint64_t seed = 0;
};

LINATTN_HOST_DEVICE inline std::uint64_t random_bits(std::uint64_t seed, std::uint64_t index) {
  std::uint64_t z = seed * 0xd1342543de82ef95u + (index + 1) * 0x9e3779b97f4a7c15u;  // splitmix64
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// Inside 0 .. 1, from 24 bits.
LINATTN_HOST_DEVICE inline float unit_interval(std::uint64_t bits) {
  return (static_cast<float>(bits & 0xffffffu) + .5f) * 0x1p-24f;
}

LINATTN_HOST_DEVICE inline float value_at(const Fill& fill, std::int64_t index) {
  const std::uint64_t bits = random_bits(fill.seed, static_cast<std::uint64_t>(index));
  const float first = unit_interval(bits), second = unit_interval(bits >> 32);
  switch (fill.draw) {
    case Fill::Draw::kNormal:  // Box-Muller
      return fill.a + fill.b * std::sqrt(-2 * std::log(first)) * std::cos(6.2831853f * second);
    case Fill::Draw::kUniform:
      return fill.a + (fill.b - fill.a) * first;
    case Fill::Draw::kLongDecay: {
      const auto channel = static_cast<std::uint64_t>(index % fill.channels);
      const float where = unit_interval(random_bits(~fill.seed, channel));
      return -2 * first * fill.a * std::pow(fill.b / fill.a, where);
    }
    case Fill::Draw::kRamp:
      break;
  }
  return fill.a + fill.b * static_cast<float>(index);
}

}  // namespace linattn::bench
