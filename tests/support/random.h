// SPDX-License-Identifier: Apache-2.0
//
// One seeded generator whose numbers are the same with every compiler and standard library.
#pragma once

#include <cmath>
#include <cstdint>

namespace linattn::test {

class Random {
 public:
  // Seeds are mixed first: splitmix64 streams of neighbouring states are one stream, shifted.
  explicit Random(std::uint64_t seed) : state_(seed ^ 0x2545f4914f6cdd1du) { state_ = bits(); }

  std::uint64_t bits() {  // splitmix64
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
  double uniform(double low, double high) { return low + (high - low) * uniform(); }
  double normal() {  // Box-Muller, one of the pair
    const double radius = std::sqrt(-2 * std::log(1 - uniform()));
    return radius * std::cos(6.283185307179586 * uniform());
  }
  std::int64_t below(std::int64_t count) {
    return static_cast<std::int64_t>(bits() % static_cast<std::uint64_t>(count));
  }
  bool coin(double probability = .5) { return uniform() < probability; }
  template <class List>
  auto pick(const List& list) {
    return *(std::begin(list) + below(static_cast<std::int64_t>(std::size(list))));
  }

 private:
  std::uint64_t state_;
};

}  // namespace linattn::test
