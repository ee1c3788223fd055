// SPDX-License-Identifier: Apache-2.0
//
// Faults that a build can seed, one at a time, to show that the tests notice them
// (tools/mutants.py). All are false in every other build.
#pragma once

namespace linattn::cpu {

#if defined(LINATTN_MUTANT_GATE_ROW)
inline constexpr bool kMutantGateRow = true;  // the last, short chunk reads its gate one row off
#else
inline constexpr bool kMutantGateRow = false;
#endif

#if defined(LINATTN_MUTANT_BETA_BF16)
inline constexpr bool kMutantBetaBf16 = true;  // beta is rounded to bf16
#else
inline constexpr bool kMutantBetaBf16 = false;
#endif

#if defined(LINATTN_MUTANT_DECAY_BF16)
inline constexpr bool kMutantDecayBf16 = true;  // the cumulative decay is rounded to bf16
#else
inline constexpr bool kMutantDecayBf16 = false;
#endif

}  // namespace linattn::cpu
