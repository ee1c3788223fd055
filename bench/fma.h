// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace linattn::bench {

// fp32 multiply-adds of one core per second; the fastest of a few tries.
double fma_per_second();

}  // namespace linattn::bench
