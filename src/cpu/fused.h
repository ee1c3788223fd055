// SPDX-License-Identifier: Apache-2.0
//
// What a fused step adds to the oracle, in double: the convolution before the recurrence and the
// norm behind it.
#pragma once

#include <cstdint>

#include "cpu/recurrent.h"

namespace linattn::cpu {

// Of sequence n, the tokens that a step takes.
std::int64_t taken_tokens(const StepArgs& a, const Reader& reader, std::int64_t n);

// A sequence's row of the conv states.
struct ConvRow {
  bool pad = false;
  std::int64_t read_slot = -1;   // -1: zeros come before the first token
  std::int64_t write_slot = -1;  // -1: not stored
  std::int64_t first = 0;        // entry that is read first

  ConvRow(const Problem& p, const StepArgs& a, std::int64_t n);
};

// q, k and v of sequence n into `to`, [T, 2 H K + HV V].
void convolve(const Problem& p, const StepArgs& a, const Reader& reader, const ConvRow& row,
              std::int64_t n, double* to);
// What the call leaves in the row; after all of convolve.
void store_conv_state(const Problem& p, const StepArgs& a, const Reader& reader, const ConvRow& row,
                      std::int64_t n);

// o [V] of one token and value head, in place.
void normalize(const Problem& p, const StepArgs& a, const Reader& reader, std::int64_t n,
               std::int64_t t, std::int64_t head, double* o);

}  // namespace linattn::cpu
