// SPDX-License-Identifier: Apache-2.0
#include "cuda/recurrent/register.h"

#include <cstdint>
#include <cstring>
#include <string>

#include "core/dtype.h"
#include "cuda/common/check.h"
#include "cuda/recurrent/launch.h"

namespace linattn::cuda {
namespace {

static_assert(offsetof(ForwardArgs, start_positions) == offsetof(RecurrentArgs, start_positions) &&
              offsetof(StepArgs, read_slot_stride) == offsetof(RecurrentArgs, start_positions));

RecurrentArgs common_args(const void* args) {
  RecurrentArgs r;
  std::memcpy(static_cast<void*>(&r), args, offsetof(RecurrentArgs, start_positions));
  return r;
}

// Elements of a row of a state.
std::int32_t row_of(const Problem& problem) {
  return problem.state_layout == StateLayout::kValueKey ? problem.key_dim : problem.value_dim;
}

std::string refusal(const Problem& problem, Device device) {
  const std::string of_device = device_refusal(device);
  if (!of_device.empty()) return of_device;
  if (is_fused(problem)) {
    // A block of the general tile has not all columns of a head.
    if (problem.key_dim > kVectorMaxKeyDim || problem.value_dim > kFusedMaxValueDim)
      return "key_dim x value_dim is " + std::to_string(problem.key_dim) + " x " +
             std::to_string(problem.value_dim) + "; a fused step takes at most " +
             std::to_string(kVectorMaxKeyDim) + " x " + std::to_string(kFusedMaxValueDim);
    if (row_of(problem) % kVector != 0)
      return "a row of the states has " + std::to_string(row_of(problem)) +
             " elements; a fused step takes multiples of " + std::to_string(kVector);
  }
  if (problem.key_dim > kRecurrentMaxKeyDim)
    return "key_dim is " + std::to_string(problem.key_dim) + "; a block holds at most " +
           std::to_string(kRecurrentMaxKeyDim) + " rows of the state";
  return "";
}

// Whether the states can move straight between memory and the lanes that hold them.
template <class Args>
bool moves_as_vectors(const Problem& problem, const Args& args) {
  const std::size_t bytes = kVector * size_of(problem.state_dtype);
  const auto fits = [&](const State& state) {
    return reinterpret_cast<std::uintptr_t>(state.data) % bytes == 0 &&
           (state.slot_stride | state.head_stride) % kVector == 0;
  };
  return problem.key_dim <= kVectorMaxKeyDim && row_of(problem) % kVector == 0 &&
         fits(args.initial_state) && fits(args.final_state);
}

std::string refusal_of_step(const Problem& problem, const StepArgs& args) {
  if (!is_fused(problem) || moves_as_vectors(problem, args)) return "";
  return "the states' strides or addresses are not multiples of " + std::to_string(kVector) +
         " elements, as a fused step takes them";
}

void launch(const Problem& problem, const RecurrentArgs& args, Queue queue) {
  if (args.tokens == 0 && args.sequences == 0) return;
  const DeviceGuard guard(queue.device);
  const bool value_key = problem.state_layout == StateLayout::kValueKey;
  if (is_fused(problem))
    (value_key ? launch_fused_value_key : launch_fused_key_value)(problem, args, queue);
  else if (args.checkpoints.data != nullptr || args.transition.data != nullptr ||
           !moves_as_vectors(problem, args))
    launch_any_layout(problem, args, queue);
  else
    (value_key ? launch_value_key : launch_key_value)(problem, args, queue);
}

void run_forward(const Problem& problem, const ForwardArgs& args, Workspace, Queue queue) {
  RecurrentArgs r = common_args(&args);
  r.start_positions = args.start_positions;
  r.checkpoints = args.checkpoints;
  r.checkpoint_offsets = args.checkpoint_offsets;
  r.checkpoint_positions = args.checkpoint_positions;
  r.checkpoint_slots = args.checkpoint_slots;
  r.transition = args.transition;
  launch(problem, r, queue);
}

void run_step(const Problem& problem, const StepArgs& args, Workspace, Queue queue) {
  RecurrentArgs r = common_args(&args);
  r.read_slot_stride = args.read_slot_stride;
  r.accepted = args.accepted;
  r.write_slot_stride = args.write_slot_stride;
  r.parents = args.parents;
  r.replay = args.replay;
  r.counts = args.counts;
  r.picks = args.picks;
  r.picks_stride = args.picks_stride;
  r.layers = args.layers;
  r.layer_stride = args.layer_stride;
  r.pools = args.pools;
  r.conv_q = args.conv_q;
  r.conv_k = args.conv_k;
  r.conv_v = args.conv_v;
  r.conv_entries = args.conv_entries;
  r.conv_read_slots = args.conv_read_slots;
  r.conv_write_slots = args.conv_write_slots;
  r.conv_accepted = args.conv_accepted;
  r.z = args.z;
  r.norm_weight = args.norm_weight;
  r.norm_epsilon = args.norm_epsilon;
  launch(problem, r, queue);
}

}  // namespace

const Implementation<ForwardArgs> kRecurrentForward{
    .name = "cuda.recurrent",
    .refusal = refusal,
    .run = run_forward,
};

const Implementation<StepArgs> kRecurrentStep{
    .name = "cuda.recurrent",
    .refusal = refusal,
    .refusal_of = refusal_of_step,
    .run = run_step,
};

}  // namespace linattn::cuda
