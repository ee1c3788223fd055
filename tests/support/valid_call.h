// SPDX-License-Identifier: Apache-2.0
//
// A small call with everything in it, valid for the three passes: tests break one thing of it at a
// time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "linattn/linattn.h"
#include "support/rows.h"

namespace linattn::test {

// T = 6 in N = 2 sequences, H = 1, HV = 2, K = 4, V = 3; all fp32, on the CPU.
struct ValidCall {
  static constexpr std::int64_t kTokens = 6, kSequences = 2, kKey = 4, kValue = 3;

  Problem problem{.op = kda,
                  .dtype = DType::kFloat32,
                  .max_tokens = 8,
                  .max_sequences = 3,
                  .heads = 1,
                  .value_heads = 2,
                  .key_dim = kKey,
                  .value_dim = kValue,
                  .gate_input = GateInput::kSoftplus,
                  .beta_input = BetaInput::kValue,
                  .state_layout = StateLayout::kKeyValue,
                  .checkpoint_interval = 2};
  Device device = Device::cpu();

  std::vector<float> q = ramp(kTokens * kKey), k = ramp(kTokens * kKey);
  std::vector<float> v = ramp(kTokens * 2 * kValue), out = ramp(kTokens * 2 * kValue);
  std::vector<float> g = ramp(kTokens * 2 * kKey), beta = ramp(kTokens * 2);
  std::vector<float> erase = ramp(kTokens * 2 * kKey), write = ramp(kTokens * 2 * kValue);
  std::vector<float> a_log = ramp(2), dt_bias = ramp(2 * kKey);
  std::vector<float> initial = ramp(4 * 2 * kKey * kValue), final = ramp(4 * 2 * kKey * kValue);
  std::vector<float> checkpoints = ramp(4 * 2 * kKey * kValue);
  std::vector<float> transition = ramp(kSequences * 2 * kKey * kKey);
  std::vector<float> gradients = ramp(1000);
  std::vector<std::int32_t> offsets{0, 4, 6}, read_slots{3, 1}, write_slots{0, 2};
  std::vector<std::uint8_t> has_initial{1, 0};
  std::vector<std::int32_t> starts{2, 0}, checkpoint_offsets{0, 2, 3};
  std::vector<std::int32_t> checkpoint_positions{2, 4, 2}, checkpoint_slots{0, 3, 1};
  std::vector<std::int32_t> accepted{1, 2}, parents{-1, 0, 1, 1, -1, 0};
  std::vector<std::int32_t> read_table{3, 1, 0, 2}, write_table{0, 1, 2, 3, 4, 5, 6, 7};
  std::vector<float> table_states = ramp(8 * 2 * kKey * kValue);

  ForwardArgs forward;
  BackwardArgs backward;
  StepArgs step;

  ValidCall() {
    fill(forward), fill(step), fill(backward);
    outputs(forward), outputs(step);
    forward.start_positions = starts.data();
    forward.checkpoints = contiguous_state(checkpoints.data(), 4, 2, kKey, kValue);
    forward.checkpoint_offsets = checkpoint_offsets.data();
    forward.checkpoint_positions = checkpoint_positions.data();
    forward.checkpoint_slots = checkpoint_slots.data();
    forward.transition = contiguous_state(transition.data(), 2, 2, kKey, kKey);
    float* d = gradients.data();
    backward.dout = contiguous(d, 2, kValue);
    backward.dq = contiguous(d + 100, 1, kKey);
    backward.dk = contiguous(d + 200, 1, kKey);
    backward.dv = contiguous(d + 300, 2, kValue);
    backward.dg = contiguous(d + 400, 2, kKey);
    backward.dbeta = contiguous(d + 500, 2, 1);
    backward.da_log = d + 600;
    backward.ddt_bias = d + 610;
    backward.dfinal_state = contiguous_state(d + 700, 2, 2, kKey, kValue);
    backward.dinitial_state = contiguous_state(d + 800, 2, 2, kKey, kValue);
  }
  ValidCall(const ValidCall&) = delete;
  ValidCall& operator=(const ValidCall&) = delete;

  // The step with tables of slots: drafts verified.
  void verify() {
    step.read_slots = read_table.data();
    step.read_slot_stride = 2;
    step.accepted = accepted.data();
    step.final_state = contiguous_state(table_states.data(), 8, 2, kKey, kValue);
    step.write_slots = write_table.data();
    step.write_slot_stride = 4;
    step.parents = parents.data();
  }

  void run_forward() { run(ForwardPlan(problem, device), forward); }
  void run_step() { run(StepPlan(problem, device), step); }
  void run_backward() {
    Problem saving = problem;
    saving.save_for_backward = true;
    const ForwardPlan plan(saving, device);
    std::vector<std::byte> saved(plan.saved_bytes(kTokens, kSequences) + 256);
    ForwardArgs args = forward;
    args.saved = backward.saved == nullptr ? aligned(saved) : nullptr;
    if (backward.saved == nullptr) backward.saved = args.saved;
    run(BackwardPlan(plan), backward);
  }

  static void* aligned(std::vector<std::byte>& memory) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
    return memory.data() + (256 - address % 256) % 256;
  }

  template <class PlanType, class Args>
  static void run(const PlanType& plan, const Args& args) {
    const std::size_t bytes = plan.workspace_bytes(kTokens, kSequences);
    std::vector<std::byte> memory(bytes + 256);
    plan.run(args, {aligned(memory), bytes});
  }

 private:
  static std::vector<float> ramp(std::int64_t count) {
    std::vector<float> values(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = .01f * static_cast<float>(i % 17) - .07f;
    return values;
  }
  template <class Args>
  void fill(Args& a) {
    a.tokens = kTokens;
    a.sequences = kSequences;
    a.cu_seqlens = offsets.data();
    a.q = contiguous(q.data(), 1, kKey);
    a.k = contiguous(k.data(), 1, kKey);
    a.v = contiguous(v.data(), 2, kValue);
    a.g = contiguous(g.data(), 2, kKey);
    a.beta = contiguous(beta.data(), 2, 1);
    a.a_log = a_log.data();
    a.dt_bias = dt_bias.data();
    a.initial_state = contiguous_state(initial.data(), 4, 2, kKey, kValue);
    a.read_slots = read_slots.data();
    a.has_initial_state = has_initial.data();
  }
  template <class Args>
  void outputs(Args& a) {
    a.out = contiguous(out.data(), 2, kValue);
    a.final_state = contiguous_state(final.data(), 4, 2, kKey, kValue);
    a.write_slots = write_slots.data();
  }
};

}  // namespace linattn::test
