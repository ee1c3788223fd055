// SPDX-License-Identifier: Apache-2.0
//
// The checks of what a fused step adds.
#pragma once

#include "linattn/plan.h"
#include "linattn/problem.h"

namespace linattn {

// Fills in the dtypes that are unset.
void check_fused(Problem& problem);
// host: index tensors can be read here.
void check_fused(const Problem& problem, bool host, const StepArgs& args);

template <class Args>
bool has_conv_state(const Args& args) {
  if constexpr (requires { args.conv_k; })
    return args.conv_q.state != nullptr || args.conv_k.state != nullptr ||
           args.conv_v.state != nullptr;
  return false;
}

}  // namespace linattn
