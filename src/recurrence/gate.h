// SPDX-License-Identifier: Apache-2.0
//
// Gate policies: how wide the log decay of one token and value head is. No gate and a constant per
// head are GateHead too: there the log decay is 0, or g has token stride 0.
#pragma once

#include <concepts>
#include <cstdint>

#include "recurrence/host_device.h"

namespace linattn {

// GDN, simple GLA, lightning, retention, and the ops without a gate: one number decays the whole
// state.
struct GateHead {
  static constexpr bool kPerChannel = false;

  // Log decays of one token and value head.
  LINATTN_HOST_DEVICE static constexpr std::int64_t width(std::int64_t /*key_dim*/) { return 1; }
  // Where in those `key`'s is.
  LINATTN_HOST_DEVICE static constexpr std::int64_t at(std::int64_t /*key*/) { return 0; }
};

// KDA, GLA, gdn2: row `key` of the state has its own decay.
struct GateChannel {
  static constexpr bool kPerChannel = true;

  LINATTN_HOST_DEVICE static constexpr std::int64_t width(std::int64_t key_dim) { return key_dim; }
  LINATTN_HOST_DEVICE static constexpr std::int64_t at(std::int64_t key) { return key; }
};

template <class G>
concept GatePolicy = requires(std::int64_t n) {
  { G::kPerChannel } -> std::convertible_to<bool>;
  { G::width(n) } -> std::same_as<std::int64_t>;
  { G::at(n) } -> std::same_as<std::int64_t>;
};

static_assert(GatePolicy<GateHead> && GatePolicy<GateChannel>);

}  // namespace linattn
