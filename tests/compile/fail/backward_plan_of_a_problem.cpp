// SPDX-License-Identifier: Apache-2.0
// A backward plan is made from its forward plan, so that the two agree on what is saved.
#include <linattn/linattn.h>

#ifdef MUST_FAIL
linattn::BackwardPlan make(const linattn::Problem& problem) {
  return linattn::BackwardPlan(problem, linattn::Device::cpu());
}
#else
linattn::BackwardPlan make(const linattn::ForwardPlan& forward) {
  return linattn::BackwardPlan(forward);
}
#endif
