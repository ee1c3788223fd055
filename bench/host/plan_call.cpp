// SPDX-License-Identifier: Apache-2.0
//
// Nanoseconds of the host per call of the C++ API: checks, the choice of a row, and the row itself
// on a problem so small (one token, one head, K = V = 1) that its arithmetic hardly counts.
// bench_host.py runs it and prints its lines.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <limits>
#include <vector>

#include "linattn/linattn.h"

namespace {

template <class F>
void report(const char* what, F&& call) {
  using Clock = std::chrono::steady_clock;
  constexpr int kCalls = 20000, kRounds = 15;
  double best = std::numeric_limits<double>::infinity();
  for (int round = 0; round < kRounds; ++round) {
    const auto begin = Clock::now();
    for (int i = 0; i < kCalls; ++i) call();
    const std::chrono::duration<double, std::nano> spent = Clock::now() - begin;
    best = std::min(best, spent.count() / kCalls);
  }
  std::printf("%-28s %8.0f ns\n", what, best);
}

}  // namespace

int main() {
  linattn::Problem problem;
  problem.op = linattn::kda;
  problem.dtype = linattn::DType::kFloat32;
  problem.max_tokens = 1;
  problem.heads = problem.key_dim = problem.value_dim = 1;
  problem.gate_input = linattn::GateInput::kLogDecay;
  problem.beta_input = linattn::BetaInput::kValue;
  problem.state_layout = linattn::StateLayout::kKeyValue;
  const linattn::Device device = linattn::Device::cpu();
  const linattn::StepPlan step(problem, device);
  const linattn::ForwardPlan forward(problem, device);

  float q = 1, k = 1, v = 1, g = -1, beta = 1, out = 0, state = 0;
  const auto fill = [&](auto& a) {
    a.tokens = a.sequences = 1;
    a.q = linattn::contiguous(&q, 1, 1), a.k = linattn::contiguous(&k, 1, 1);
    a.v = linattn::contiguous(&v, 1, 1), a.g = linattn::contiguous(&g, 1, 1);
    a.beta = linattn::contiguous(&beta, 1, 1), a.out = linattn::contiguous(&out, 1, 1);
    a.initial_state = a.final_state = linattn::contiguous_state(&state, 1, 1, 1, 1);
  };
  linattn::StepArgs step_args;
  linattn::ForwardArgs forward_args;
  fill(step_args), fill(forward_args);
  std::vector<std::byte> memory(
      std::max(step.workspace_bytes(1, 1), forward.workspace_bytes(1, 1)) + 256);
  const linattn::Workspace workspace = linattn::aligned_workspace(memory.data(), memory.size());

  report("step plan: run", [&] { step.run(step_args, workspace); });
  report("forward plan: run", [&] { forward.run(forward_args, workspace); });
  report("forward plan: workspace_bytes", [&] { forward.workspace_bytes(1, 1); });
  report("make a forward plan", [&] { linattn::ForwardPlan(problem, device); });
}
