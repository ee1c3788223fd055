// SPDX-License-Identifier: Apache-2.0
// A plan is made for one of the three kinds of arguments.
#include <linattn/linattn.h>

#ifdef MUST_FAIL
using Args = int;
#else
using Args = linattn::StepArgs;
#endif

void make(const linattn::Problem& problem) {
  linattn::Plan<Args> plan(problem, linattn::Device::cpu());
}
