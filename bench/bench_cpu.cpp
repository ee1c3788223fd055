// SPDX-License-Identifier: Apache-2.0
//
// The CPU rows, op by op: nanoseconds per token and value head, and the share of the machine's
// multiply-adds.
//
//   linattn-bench [--threads N] [--tokens N] [--heads N] [--row NAME]
//   linattn-bench fma     multiply-adds of one core per second, for bench_cpu.py
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "bench_cpu_fma.h"
#include "linattn/linattn.h"

namespace {

using namespace linattn;  // NOLINT

constexpr std::int64_t kKeyDim = 128, kValueDim = 128, kChunk = 32;

struct Options {
  std::int64_t tokens = 2048, heads = 8;
  int threads = 0;
  std::string row = "cpu.chunked";
};

// Multiply-adds of one token and value head, each triangle counted once.
double work_of(Op op) {
  const double state = static_cast<double>(kKeyDim) * kValueDim, chunk = kChunk;
  if (op.update == Update::kAdd) return 2 * state + chunk / 2 * (kKeyDim + kValueDim);
  return 3 * state + chunk / 2 * (3 * kKeyDim + kValueDim) + chunk * chunk / 6;
}

double seconds_of(Op op, const Options& options) {
  const std::int64_t tokens = options.tokens, heads = options.heads;
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  const auto filled = [&](std::int64_t dim, float mean, float deviation) {
    std::vector<float> x(static_cast<std::size_t>(tokens * heads * dim));
    for (float& value : x) value = mean + deviation * normal(random);
    return x;
  };
  Problem problem{.op = op, .dtype = DType::kFloat32, .max_tokens = tokens};
  problem.heads = static_cast<std::int32_t>(heads);
  problem.key_dim = kKeyDim;
  problem.value_dim = kValueDim;
  problem.qk_l2norm = true;
  problem.state_layout = StateLayout::kKeyValue;
  const std::int64_t width = op.gate == Gate::kChannel ? kKeyDim : 1;
  const bool delta = op.update == Update::kDelta, erase_write = op.update == Update::kEraseWrite;
  if (op.gate != Gate::kNone) problem.gate_input = GateInput::kBounded;
  if (delta || erase_write) problem.beta_input = BetaInput::kLogit;
  const std::vector<float> q = filled(kKeyDim, 0, 1), k = filled(kKeyDim, 0, 1),
                           v = filled(kValueDim, 0, 1), g = filled(width, -1, 2),
                           strength = filled(kKeyDim, 0, 1);
  std::vector<float> out(v.size()), state(static_cast<std::size_t>(heads * kKeyDim * kValueDim));
  ForwardArgs args;
  args.tokens = tokens;
  args.sequences = 1;
  args.q = contiguous(q.data(), heads, kKeyDim, tokens);
  args.k = contiguous(k.data(), heads, kKeyDim, tokens);
  args.v = contiguous(v.data(), heads, kValueDim, tokens);
  args.out = contiguous(out.data(), heads, kValueDim, tokens);
  args.final_state = contiguous_state(state.data(), 1, heads, kKeyDim, kValueDim);
  if (op.gate == Gate::kHeadConstant)
    args.g = {const_cast<float*>(g.data()), 0, 0, 1};
  else if (op.gate != Gate::kNone)
    args.g = contiguous(g.data(), heads, width, tokens);
  if (op.gate != Gate::kNone) args.lower_bound = -5;
  if (delta) args.beta = contiguous(strength.data(), heads, 1, tokens);
  if (erase_write) args.erase = contiguous(strength.data(), heads, kKeyDim, tokens);
  if (erase_write) args.write = contiguous(strength.data(), heads, kValueDim, tokens);

  const ForwardPlan plan(problem, Device::cpu(), options.row.c_str());
  const std::size_t bytes = plan.workspace_bytes(tokens, 1);
  std::vector<char> memory(bytes + 256);
  void* aligned = memory.data();
  std::size_t room = memory.size();
  std::align(256, bytes, aligned, room);
  double best = 1e30;
  for (int repeat = 0; repeat < 5; ++repeat) {
    const auto begin = std::chrono::steady_clock::now();
    plan.run(args, {aligned, bytes});
    best = std::min(
        best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "fma") {
    std::printf("%.6g\n", bench::fma_per_second());
    return 0;
  }
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view name = argv[i];
    if (name == "--threads") options.threads = std::atoi(argv[i + 1]);
    if (name == "--tokens") options.tokens = std::atoll(argv[i + 1]);
    if (name == "--heads") options.heads = std::atoll(argv[i + 1]);
    if (name == "--row") options.row = argv[i + 1];
  }
  set_threads(options.threads);
  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  const int threads = options.threads == 0 ? cores : options.threads;
  const double rate = bench::fma_per_second();
  std::printf(
      "%s, T = %lld, H = %lld, K = V = 128, fp32, %d threads; one core does %.1f G "
      "multiply-adds/s\n",
      options.row.c_str(), static_cast<long long>(options.tokens),
      static_cast<long long>(options.heads), threads, rate * 1e-9);
  std::printf("%-18s %10s %14s %8s\n", "op", "ms", "ns/token/head", "share");
  for (const Op op : {kda, gdn, gla, lightning, simple_gla, delta_rule, linear_attention, gdn2}) {
    const double seconds = seconds_of(op, options);
    const double each = seconds / static_cast<double>(options.tokens * options.heads);
    std::printf("%-18s %10.2f %14.0f %7.0f%%\n", to_string(op).c_str(), seconds * 1e3, each * 1e9,
                100 * work_of(op) / each / (rate * std::min(threads, cores)));
  }
  return 0;
}
