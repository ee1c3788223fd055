// SPDX-License-Identifier: Apache-2.0
//
// A KDA prefill on the CPU, then one decoded token from its state. The lines between the marks
// stand in README.md.
#include <cstdio>
#include <cstdlib>
#include <vector>

// [readme]
#include <linattn/linattn.h>

constexpr int kHeads = 4, kDim = 64, kTokens = 100;

void prefill(float* q, float* k, float* v, float* g, float* beta, float* out, float* state) {
  const linattn::Problem problem{.op = linattn::kda,
                                 .dtype = linattn::DType::kFloat32,
                                 .max_tokens = 4096,
                                 .heads = kHeads,
                                 .key_dim = kDim,
                                 .value_dim = kDim,
                                 .gate_input = linattn::GateInput::kLogDecay,
                                 .beta_input = linattn::BetaInput::kValue,
                                 .qk_l2norm = true,
                                 .state_layout = linattn::StateLayout::kValueKey};
  const linattn::ForwardPlan plan(problem,
                                  linattn::Device::cpu());  // chooses; throws with every reason
  std::vector<std::byte> memory(plan.workspace_bytes(kTokens, 1) + 256);
  plan.run({.tokens = kTokens,
            .sequences = 1,  // enqueues, nothing more
            .q = linattn::contiguous(q, kHeads, kDim),
            .k = linattn::contiguous(k, kHeads, kDim),
            .v = linattn::contiguous(v, kHeads, kDim),
            .g = linattn::contiguous(g, kHeads, kDim),
            .beta = linattn::contiguous(beta, kHeads, 1),
            .out = linattn::contiguous(out, kHeads, kDim),
            .final_state = linattn::contiguous_state(state, 1, kHeads, kDim, kDim)},
           linattn::aligned_workspace(memory.data(), memory.size()));
}
// [readme]

int main() {
  const std::size_t rows = std::size_t{kTokens} * kHeads, size = rows * kDim;
  std::vector<float> q(size), k(size), v(size), g(size, -0.1f), beta(rows, 0.5f), out(size, -1.0f);
  for (std::size_t i = 0; i < size; ++i) {
    q[i] = static_cast<float>(i % 7) - 3;
    k[i] = static_cast<float>(i % 5) - 2;
    v[i] = static_cast<float>(i % 3) - 1;
  }
  std::vector<float> state(std::size_t{kHeads} * kDim * kDim);
  prefill(q.data(), k.data(), v.data(), g.data(), beta.data(), out.data(), state.data());
  std::printf("out[last] = %g, state[0] = %g\n", out.back(), state.front());
  return out.back() == -1.0f ? EXIT_FAILURE : EXIT_SUCCESS;
}
