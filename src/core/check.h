// SPDX-License-Identifier: Apache-2.0
//
// The checks that come before every choice and every run. Each failure throws
// Error(kInvalidArgument) with a sentence that names the argument, what came and what was expected.
#pragma once

#include <string>
#include <utility>

#include "linattn/plan.h"
#include "linattn/problem.h"

namespace linattn {

[[noreturn]] void throw_invalid(const std::string& text);

// Fills in what has a default (value_heads, checkpoint_dtype); throws if the problem cannot be
// asked at all.
Problem check_problem(Problem problem, Device device);

// Pointers, counts, strides and alignment of one call; on the CPU also what the index tensors hold.
void check_arguments(const Problem& problem, Device device, const ForwardArgs& args);
void check_arguments(const Problem& problem, Device device, const BackwardArgs& args);
void check_arguments(const Problem& problem, Device device, const StepArgs& args);

}  // namespace linattn
