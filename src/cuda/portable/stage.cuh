// SPDX-License-Identifier: Apache-2.0
//
// What the prepare kernel hands to the scan kernel: the operands of one chunk and value head.
#pragma once

#include <cstddef>

#include "cuda/portable/mma.cuh"
#include "cuda/portable/params.h"

namespace linattn::portable {

// By tokens C and key channels K. Absent tokens and channels are zero (decays: one). Products read
// the matrices as the operand's policy lays them out.
template <class OperandPolicy, int kKeyDim, class Update>
struct Stage {
  using Operand = OperandPolicy;
  using Type = typename Operand::Type;
  using Rows = typename Operand::template Channels<kChunk>;     // a row a token
  using Channels = typename Operand::template Tokens<kKeyDim>;  // a row a channel
  using Scores = typename Operand::template Tokens<kChunk>;     // a row a token
  static constexpr int kBlocks = kKeyDim / 32;
  static constexpr std::size_t kKeyAlignment = Update::kReadsState ? Rows::kAlignment : 16;

  alignas(Rows::kAlignment) Type q[kChunk * kKeyDim];      // [C, K] scaled queries 2^G
  alignas(Channels::kAlignment) Type x[kKeyDim * kChunk];  // [K, C] on writes, into the state
  alignas(Scores::kAlignment) Type p[kChunk * kChunk];     // [C, C] on writes, into the output
  alignas(16) float total[kKeyDim];                        // 2^G of the whole chunk
  alignas(16) float strength[kChunk];                      // of writes: beta
  // [C, K] erased keys 2^G
  alignas(kKeyAlignment) Type k[Update::kReadsState ? kChunk * kKeyDim : 8];
};

}  // namespace linattn::portable
