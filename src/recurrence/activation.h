// SPDX-License-Identifier: Apache-2.0
//
// Activations of what a fused step adds to the recurrence.
#pragma once

#include "linattn/op.h"
#include "recurrence/gate_input.h"
#include "recurrence/host_device.h"

namespace linattn {

// Of norms, where the problem's caller names none.
inline constexpr double kDefaultNormEpsilon = 1e-6;

template <class Real>
LINATTN_HOST_DEVICE Real activate(Activation activation, Real x) {
  if (activation == Activation::kSilu) return x * sigmoid(x);
  return activation == Activation::kSigmoid ? sigmoid(x) : x;
}

}  // namespace linattn
