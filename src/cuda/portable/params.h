// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "linattn/plan.h"
#include "linattn/problem.h"
#include "recurrence/host_device.h"

namespace linattn::portable {

inline constexpr int kChunk = 32;  // one anchor in the middle covers 16 tokens of -5 to each side

// A long sequence with few heads is cut into pieces, exactly. Each piece is an affine map of its
// initial state:
//   summarise  every piece but the last from a zero state (V columns) and from the identity (K
//   columns): no output fold       state at the start of each piece, one after the other, in fp32
//   output     every piece from its state
enum class Phase { kOutput, kSummarise };

// Element strides of a state's matrix: one of the two is 1.
struct MatrixStrides {
  std::int64_t key, value;

  LINATTN_HOST_DEVICE static MatrixStrides of(StateLayout layout, std::int64_t key_dim,
                                              std::int64_t columns) {
    return layout == StateLayout::kKeyValue ? MatrixStrides{columns, 1} : MatrixStrides{1, key_dim};
  }
};

struct ForwardParams {
  ForwardArgs args;
  Problem problem;
  Phase phase;
  int pieces;        // per sequence, 1: not split
  int value_blocks;  // of V
  int extra_blocks;  // of K: the transition, or its piece of it
  int stages;
  bool wide_qk, wide_g, wide_v;  // rows may be copied by 16 bytes, otherwise by pairs of elements
  float* piece_state;       // [N, pieces, HV, V, K] fp32: a summary's end; after the fold the start
  float* piece_transition;  // [N, pieces, HV, K (column), K (row)] fp32
};

}  // namespace linattn::portable
