// SPDX-License-Identifier: Apache-2.0
//
// What the prepare kernel hands to the scan kernel: the operands of one chunk and value head.
#pragma once

#include "cuda/portable/mma.cuh"
#include "cuda/portable/params.h"

namespace linattn::portable {

// By tokens C and key channels K. Absent tokens and channels are zero (decays: one).
template <class OperandPolicy, int kKeyDim, class Update>
struct Stage {
  using Operand = OperandPolicy;
  using Type = typename Operand::Type;
  using Rows = PieceMatrix<Operand, kChunk>;       // a row a token
  using Channels = PieceMatrix<Operand, kKeyDim>;  // a row a channel
  static constexpr int kBlocks = kKeyDim / 32;

  alignas(16) Type k[Update::kReadsState ? kChunk * kKeyDim : 8];  // [C, K] erased keys 2^G
  alignas(16) Type q[kChunk * kKeyDim];                            // [C, K] scaled queries 2^G
  alignas(16) Type x[kKeyDim * kChunk];  // [K, C] what the writes are multiplied by into the state
  alignas(16) Type p[kChunk * kChunk];   // [C, C] what the writes are multiplied by into the output
  alignas(16) float total[kKeyDim];      // 2^G of the whole chunk
  alignas(16) float strength[kChunk];    // of writes: beta
};

}  // namespace linattn::portable
