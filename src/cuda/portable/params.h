// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "linattn/plan.h"
#include "linattn/problem.h"

namespace linattn::portable {

inline constexpr int kChunk = 32;  // one anchor in the middle covers 16 tokens of -5 to each side

inline constexpr int kMostBuffers = 6;  // chunks in a block's shared memory

// A long sequence with few heads is cut into pieces, exactly. Each piece is an affine map of its
// initial state:
//   summarise  every piece but the last from a zero state (V columns) and from the identity (K
//              columns): no output
//   fold       state at the start of each piece, one after the other, in fp32
//   output     every piece from its state
enum class Phase { kOutput, kSummarise };

// Chunks that are prepared and scanned together, by number (chunks.cuh): the workspace holds the
// stages of one segment.
struct Segment {
  int first, count;
};

struct ForwardParams {
  ForwardArgs args;
  Problem problem;
  // Rows may be read or written by 16 bytes, otherwise by pairs of elements.
  bool wide_qk, wide_g, wide_v, wide_out;

  std::int64_t sequence_length;  // without cu_seqlens
  Segment segment;
  int spare_numbers;  // chunks that a sequence may have beyond its tokens / kChunk, rounded down
  void* stages;       // [segment.count, HV] of Stage

  Phase phase;
  int sequences;       // most that one segment meets
  int pieces;          // of a sequence in a segment, 1: not split
  int value_blocks;    // of V
  int extra_blocks;    // of K: the transition, or its piece of it
  int buffers;         // stages in shared memory
  float* carried_in;   // [HV, V, K]: the state that the previous segment left
  float* carried_out;  // the same for the next one
  float* piece_state;  // [sequences, pieces, HV, V, K]: a summary's end; after the fold its start
  float* piece_transition;  // [sequences, pieces, HV, K (column), K (row)]
};

}  // namespace linattn::portable
