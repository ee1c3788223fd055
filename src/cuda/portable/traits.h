// SPDX-License-Identifier: Apache-2.0
//
// Sizes, warp roles and shared memory of the portable forward kernel. One block owns a value head's
// state for a block of value columns and walks the chunks of a sequence. State warps hold the state
// in registers; prepare warps run ahead.
#pragma once

#include <cuda_fp16.h>

#include <cstddef>
#include <type_traits>

#include "cuda/portable/mma.cuh"
#include "cuda/portable/params.h"
#include "cuda/portable/tuning.h"

namespace linattn::portable {

inline constexpr int kGroup = 8;  // tokens of one prepare thread
inline constexpr int kGroups = kChunk / kGroup;
inline constexpr int kSubChunk = 16;  // of the inverse
inline constexpr int kPad = 8;        // elements: rows of shared tiles start in different banks

template <class OperandPolicy, int kKeyDimPadded, class GatePolicy, class UpdatePolicy>
struct ForwardTraits {
  using Operand = OperandPolicy;
  using Type = typename Operand::Type;
  using Gate = GatePolicy;
  using Update = UpdatePolicy;
  using Io = std::conditional_t<std::is_same_v<Operand, OperandBf16>, __nv_bfloat16, __half>;

  static constexpr int kKeyDim = kKeyDimPadded;
  static constexpr Tuning kTuning = tuning(kKeyDim);
  static constexpr int kStateWarps = kTuning.value_block / 16;
  static constexpr int kPrepareWarps = kTuning.prepare_warps;
  static constexpr int kStateThreads = 32 * kStateWarps;
  static constexpr int kPrepareThreads = 32 * kPrepareWarps;
  static constexpr int kThreads = kStateThreads + kPrepareThreads;

  // A warp takes 64 channels of 8 tokens, a lane 2 channels.
  static constexpr int kPairBlocks = kKeyDim / 64;
  static_assert(kKeyDim % 64 == 0);
  static constexpr int kItems = kPairBlocks * kGroups / kPrepareWarps;  // of one prepare warp
  static_assert(kItems * kPrepareWarps == kPairBlocks * kGroups);

  static constexpr int kPitch = kKeyDim + kPad;
  static constexpr int kChunkPitch = kChunk + kPad;
  static constexpr int kGatePitch = kKeyDim + 4;
  static constexpr int kFactors = Gate::kPerChannel ? kKeyDim : 1;

  // What the prepare warps hand to the state warps, per chunk.
  struct Stage {
    alignas(16) Type
        k[kChunk * kPitch];  // [C, K] per channel: erase k 2^(G - anchor); per head: k as it came
    alignas(16) Type
        q[kChunk * kPitch];  // [C, K] per channel: scale q 2^(G - anchor); per head: q as it came
    alignas(16) Type x[kChunk * kPitch];  // [C, K] what the writes are multiplied by into the state
    alignas(16)
        Type p[kChunk * kChunkPitch];   // [C, C] what the writes are multiplied by into the output
    alignas(16) Type anchor[kFactors];  // 2^anchor, per channel
    alignas(16) float total[kFactors];  // 2^G of the whole chunk
    alignas(16) float k_factor[kChunk], q_factor[kChunk];  // per head: on S^T k and S^T q
    alignas(16) float v_factor[kChunk];                    // beta
  };

  // The next chunk's inputs on their way from memory. Every lane fetches just what it will read
  // itself.
  struct Fetch {
    static constexpr int kValuePitch = 16 + kPad;  // of a state warp's [C, 16 columns]
    alignas(16) Io v[2][kStateWarps][kChunk * kValuePitch];
    alignas(16) Io q[kChunk * kKeyDim];
    alignas(16) Io k[kChunk * kKeyDim];
    alignas(16) float g[Gate::kPerChannel ? kChunk * kKeyDim
                                          : 1];  // or 16-bit elements in the first half
  };

  // What the prepare warps keep among themselves.
  struct Scratch {
    Fetch fetch;
    alignas(16) Type right[Gate::kPerChannel ? kChunk * kPitch : 1];  // [C, K] k 2^(anchor - G)
    alignas(16) Type a_qk[kChunk * kChunkPitch];                      // [C, C]
    alignas(16) Type inverse_t[kChunk * kChunkPitch];                 // [C, C] transposed
    alignas(16)
        Type inverse_x[Gate::kPerChannel ? 1 : kChunk * kChunkPitch];  // the same, times k's factor
    alignas(16) float lower[kChunk * (kChunk + 4)];    // [C, C] A_kk, strictly lower
    alignas(16) float inverse[kChunk * (kChunk + 4)];  // [C, C]
    alignas(16) float merge[kSubChunk * (kSubChunk + 4)];
    alignas(16) float cumulative[Gate::kPerChannel ? kChunk * kGatePitch
                                                   : kChunk];  // G, per channel inside a group
    alignas(16) float group_total[kGroups][kFactors];
    alignas(16) float group_span[kGroups][kFactors];  // sum of |log2 decay|
    alignas(16) float x_scale[kFactors];
    float norm[2][kPairBlocks][kChunk];  // partial sums of q^2 and k^2
    float beta[kChunk];
    float right_factor[kChunk];   // per head: on k in x
    float row_factor[2][kChunk];  // per head: on rows of A_kk and A_qk
    float column_factor[kChunk];  // per head: on their columns
  };

  // gdn2: each state warp's write strengths and the chunk's erase strengths [C, K], behind the
  // stages.
  static constexpr int kWriteStrengths = kStateWarps * 16 * (kChunk + 4);
  static constexpr std::size_t kStrengthBytes =
      (kWriteStrengths + kChunk * kKeyDim) * sizeof(float);

  static constexpr std::size_t shared_bytes(int stages) {
    return sizeof(Scratch) + static_cast<std::size_t>(stages) * sizeof(Stage);
  }
};

}  // namespace linattn::portable
