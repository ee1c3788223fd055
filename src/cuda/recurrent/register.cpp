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

std::string refusal(const Problem& problem, Device device) {
  const std::string of_device = device_refusal(device);
  if (!of_device.empty()) return of_device;
  if (problem.key_dim > kRecurrentMaxKeyDim)
    return "key_dim is " + std::to_string(problem.key_dim) + "; a block holds at most " +
           std::to_string(kRecurrentMaxKeyDim) + " rows of the state";
  return "";
}

// Whether the states move straight between memory and the lanes that hold them.
bool moves_as_vectors(const Problem& problem, const RecurrentArgs& args) {
  const bool value_key = problem.state_layout == StateLayout::kValueKey;
  const std::size_t bytes = kVector * size_of(problem.state_dtype);
  const auto fits = [&](const State& state) {
    return reinterpret_cast<std::uintptr_t>(state.data) % bytes == 0 &&
           (state.slot_stride | state.head_stride) % kVector == 0;
  };
  return problem.key_dim <= kVectorMaxKeyDim &&
         (value_key ? problem.key_dim : problem.value_dim) % kVector == 0 &&
         fits(args.initial_state) && fits(args.final_state) && args.checkpoints.data == nullptr &&
         args.transition.data == nullptr;
}

void launch(const Problem& problem, const RecurrentArgs& args, Queue queue) {
  if (args.tokens == 0 && args.sequences == 0) return;
  const DeviceGuard guard(queue.device);
  if (!moves_as_vectors(problem, args))
    launch_any_layout(problem, args, queue);
  else if (problem.state_layout == StateLayout::kValueKey)
    launch_value_key(problem, args, queue);
  else
    launch_key_value(problem, args, queue);
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
    .run = run_step,
};

}  // namespace linattn::cuda
