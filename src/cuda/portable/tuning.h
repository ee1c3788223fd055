// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace linattn::portable {

struct Tuning {
  int value_block;    // value columns of one block, 16 per state warp
  int prepare_warps;  // each takes 64 channels x 8 tokens at a time
  int blocks;         // per multiprocessor, by registers
};

// A state warp holds 16 value columns x K channels in K / 2 registers a lane, beside about 60
// others.
constexpr Tuning tuning(int key_dim) {
  if (key_dim == 64) return {.value_block = 64, .prepare_warps = 4, .blocks = 1};
  if (key_dim == 128)
    return {.value_block = 128, .prepare_warps = 4, .blocks = 1};  // 384 threads x 168 registers
  return {.value_block = 64,
          .prepare_warps = 4,
          .blocks = 1};  // 256: 128 registers of state, 255 in all
}

}  // namespace linattn::portable
