// SPDX-License-Identifier: Apache-2.0
// A stream is a pointer; the runtime's integers for default streams are not taken for one.
#include <linattn/linattn.h>

void run(const linattn::ForwardPlan& plan, const linattn::ForwardArgs& args) {
#ifdef MUST_FAIL
  plan.run(args, {}, 1);
#else
  plan.run(args, {}, nullptr);
#endif
}
