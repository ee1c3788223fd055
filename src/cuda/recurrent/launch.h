// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/registry.h"
#include "linattn/plan.h"
#include "linattn/problem.h"

namespace linattn::cuda {

inline constexpr std::int32_t kRecurrentMaxKeyDim = 512;
inline constexpr std::int32_t kVectorMaxKeyDim = 256;
inline constexpr std::int32_t kVector = 4;  // elements of a state that move together
inline constexpr std::int32_t kFusedMaxValueDim = 1024;

// What forward and step can ask together, so that one kernel serves both: each leaves the other's
// fields at zero. Meanings and shapes as in c.h.
struct RecurrentArgs {
  std::size_t size = 0;
  LINATTN_INPUTS
  LINATTN_STATE_OUTPUTS
  // forward
  const std::int32_t* start_positions = nullptr;
  State checkpoints{};
  const std::int32_t* checkpoint_offsets = nullptr;
  const std::int32_t* checkpoint_positions = nullptr;
  const std::int32_t* checkpoint_slots = nullptr;
  State transition{};
  // step
  std::int64_t read_slot_stride = 0;
  const std::int32_t* accepted = nullptr;
  std::int64_t write_slot_stride = 0;
  const std::int32_t* parents = nullptr;
  float* replay = nullptr;
  const std::int32_t* counts = nullptr;
  const std::int32_t* picks = nullptr;
  std::int64_t picks_stride = 0;
  std::int64_t layers = 0;
  std::int64_t layer_stride = 0;
  void* const* pools = nullptr;
  // fused step
  Conv conv_q{};
  Conv conv_k{};
  Conv conv_v{};
  std::int64_t conv_entries = 0;
  const std::int32_t* conv_read_slots = nullptr;
  const std::int32_t* conv_write_slots = nullptr;
  const std::int32_t* conv_accepted = nullptr;
  Tensor z{};
  const void* norm_weight = nullptr;
  float norm_epsilon = 0;
};

// The queue's device is current. value_key and key_value: of states in that layout whose rows,
// strides and addresses are multiples of kVector elements; K at most kVectorMaxKeyDim; without
// checkpoints and transitions.
void launch_any_layout(const Problem& problem, const RecurrentArgs& args, Queue queue);
void launch_value_key(const Problem& problem, const RecurrentArgs& args, Queue queue);
void launch_key_value(const Problem& problem, const RecurrentArgs& args, Queue queue);
// Of fused steps, on the same states.
void launch_fused_value_key(const Problem& problem, const RecurrentArgs& args, Queue queue);
void launch_fused_key_value(const Problem& problem, const RecurrentArgs& args, Queue queue);

}  // namespace linattn::cuda
