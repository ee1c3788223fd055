// SPDX-License-Identifier: Apache-2.0
//
// Update policies: what a token writes along its key. S is the decayed state, b the erase strength
// per key channel, w the write strength per value channel:
//
//   add     e = v
//   delta   e = w v - S^T (b k)      with beta, b and w are both beta; gdn2 gives the two apart
#pragma once

#include <concepts>

#include "recurrence/host_device.h"

namespace linattn {

struct UpdateAdd {
  static constexpr bool kReadsState = false;

  // One channel of e. `erased` is S^T (b k) of that channel.
  template <class Real>
  LINATTN_HOST_DEVICE static constexpr Real write(Real /*strength*/, Real v, Real /*erased*/) {
    return v;
  }
};

struct UpdateDelta {
  static constexpr bool kReadsState = true;

  template <class Real>
  LINATTN_HOST_DEVICE static constexpr Real write(Real strength, Real v, Real erased) {
    return strength * v - erased;
  }
};

template <class U>
concept UpdatePolicy = requires(float x) {
  { U::kReadsState } -> std::convertible_to<bool>;
  { U::write(x, x, x) } -> std::same_as<float>;
};

static_assert(UpdatePolicy<UpdateAdd> && UpdatePolicy<UpdateDelta>);

}  // namespace linattn
