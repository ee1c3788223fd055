// SPDX-License-Identifier: Apache-2.0
// A plan takes the arguments of its own pass.
#include <linattn/linattn.h>

#ifdef MUST_FAIL
using Args = linattn::StepArgs;
#else
using Args = linattn::ForwardArgs;
#endif

void run(const linattn::ForwardPlan& plan, const Args& args) { plan.run(args); }
