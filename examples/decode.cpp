// SPDX-License-Identifier: Apache-2.0
//
// Decode as an engine does it: a pool of states, each request naming its slot; slot ids below 0 are
// pads.
#include <linattn/linattn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

int main() {
  constexpr int kHeads = 2, kDim = 32, kSlots = 8, kRequests = 3;
  const linattn::Problem problem{.op = linattn::gdn,
                                 .dtype = linattn::DType::kFloat32,
                                 .max_tokens = 64,
                                 .max_sequences = 64,
                                 .heads = kHeads,
                                 .key_dim = kDim,
                                 .value_dim = kDim,
                                 .gate_input = linattn::GateInput::kLogDecay,
                                 .beta_input = linattn::BetaInput::kLogit,
                                 .qk_l2norm = true,
                                 .state_layout = linattn::StateLayout::kValueKey};
  const linattn::StepPlan plan(problem, linattn::Device::cpu());

  std::vector<float> pool(std::size_t{kSlots} * kHeads * kDim * kDim),
      q(kRequests * kHeads * kDim, 1.0f);
  std::vector<float> k(q), v(q), out(q.size(), -1.0f), g(kRequests * kHeads, -0.1f),
      logit(g.size(), 0.0f);
  const std::vector<std::int32_t> slots = {5, -1, 2};  // the second request is a pad
  std::vector<std::byte> memory(plan.workspace_bytes(kRequests, kRequests) + 256);
  const linattn::State states = linattn::contiguous_state(pool.data(), kSlots, kHeads, kDim, kDim);

  for (int token = 0; token < 4; ++token)
    plan.run({.tokens = kRequests,
              .sequences = kRequests,
              .q = linattn::contiguous(q.data(), kHeads, kDim, 1),
              .k = linattn::contiguous(k.data(), kHeads, kDim, 1),
              .v = linattn::contiguous(v.data(), kHeads, kDim, 1),
              .g = linattn::contiguous(g.data(), kHeads, 1, 1),
              .beta = linattn::contiguous(logit.data(), kHeads, 1, 1),
              .initial_state = states,
              .read_slots = slots.data(),
              .out = linattn::contiguous(out.data(), kHeads, kDim, 1),
              .final_state = states,
              .write_slots = slots.data()},
             linattn::aligned_workspace(memory.data(), memory.size()));

  const float request = out[0], pad = out[kHeads * kDim];
  std::printf("request 0: %g, pad: %g\n", request, pad);
  return pad == 0.0f && request > 0.0f ? EXIT_SUCCESS : EXIT_FAILURE;
}
