// SPDX-License-Identifier: Apache-2.0
#include "measure.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "call.h"
#include "case.h"

namespace linattn::bench {
namespace {

constexpr int kMostSets = 64;
constexpr int kLeastGraphCalls = 16;

const char* pin(const std::string& implementation) {
  return implementation.empty() ? nullptr : implementation.c_str();
}

// The tensors of one call, times as many sets as it takes to exceed the cache twice.
std::vector<std::unique_ptr<Call>> make_calls(Machine& machine, const TimedCase& c) {
  std::vector<std::unique_ptr<Call>> calls;
  calls.push_back(std::make_unique<Call>(machine, c, 0));
  const std::int64_t bytes = calls.front()->input_bytes();
  if (bytes > machine.cache_bytes()) return calls;
  const std::int64_t sets =
      std::min<std::int64_t>(kMostSets, 2 * machine.cache_bytes() / bytes + 1);
  for (std::int64_t set = 1; set < sets; ++set)
    calls.push_back(std::make_unique<Call>(machine, c, static_cast<std::uint64_t>(set) * 100));
  return calls;
}

Workspace make_workspace(Machine& machine, std::size_t bytes, std::shared_ptr<void>& memory) {
  memory = machine.allocate(bytes);
  return {memory.get(), bytes};
}

template <class Args>
Plan<Args> make_plan(Machine& machine, const Problem& problem, const std::string& implementation) {
  return Plan<Args>(problem, machine.device(), pin(implementation));
}

std::optional<std::int64_t> saved_bytes(Machine& machine, const TimedCase& c,
                                        const std::string& implementation) {
  if (c.pass != Pass::kForward) return std::nullopt;
  Problem problem = problem_of(c);
  problem.save_for_backward = true;
  try {
    const auto plan = make_plan<ForwardArgs>(machine, problem, implementation);
    const BackwardPlan backward(plan);  // throws if nothing reads what is saved
    return static_cast<std::int64_t>(plan.saved_bytes(c.total_tokens(), c.sequences));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kUnsupported) throw;
    return std::nullopt;
  }
}

template <class Args>
void measure_pass(Machine& machine, const TimedCase& c, const std::string& implementation,
                  int repeats, Measurement& m) {
  const auto plan = make_plan<Args>(machine, problem_of(c), implementation);
  m.implementation = plan.implementation();
  m.saved_bytes = saved_bytes(machine, c, implementation);
  const std::size_t bytes = plan.workspace_bytes(c.total_tokens(), c.sequences);
  m.workspace_bytes = static_cast<std::int64_t>(bytes);

  const auto calls = make_calls(machine, c);
  std::vector<Args> args;
  args.reserve(calls.size());
  for (const auto& call : calls) args.push_back(call->template args<Args>());
  std::shared_ptr<void> memory;
  const Workspace workspace = make_workspace(machine, bytes, memory);
  m.sets = static_cast<int>(calls.size());
  m.input_bytes = calls.front()->input_bytes();
  m.traffic_bytes = calls.front()->traffic_bytes();
  m.graph = m.traffic_bytes < machine.graph_bytes();
  const int turns = m.graph ? (kLeastGraphCalls + m.sets - 1) / m.sets : 1;
  const Timing timing = machine.time(
      [&](int i, Stream stream) {
        plan.run(args[static_cast<std::size_t>(i % m.sets)], workspace, stream);
      },
      m.sets * turns, m.graph, repeats);
  m.seconds = median(timing.seconds);
  const auto [least, most] = std::minmax_element(timing.seconds.begin(), timing.seconds.end());
  m.least = *least;
  m.most = *most;
  m.host_seconds = timing.host_seconds;
  m.repeats = static_cast<int>(timing.seconds.size());
}

double relative_rms(const std::vector<float>& x, const std::vector<float>& reference) {
  double difference = 0, sum = 0;
  for (std::size_t i = 0; i < reference.size(); ++i) {
    const double d = static_cast<double>(x[i]) - reference[i];
    if (!std::isfinite(d)) return std::numeric_limits<double>::infinity();
    difference += d * d;
    sum += static_cast<double>(reference[i]) * reference[i];
  }
  return std::sqrt(difference / (sum == 0 ? 1 : sum));
}

template <class Args>
void run_once(Machine& machine, const TimedCase& c, const Plan<Args>& plan, const Call& call) {
  std::shared_ptr<void> memory;
  const Workspace workspace =
      make_workspace(machine, plan.workspace_bytes(c.total_tokens(), c.sequences), memory);
  const Args args = call.template args<Args>();
  machine.run([&](int, Stream stream) { plan.run(args, workspace, stream); });
}

template <class Args>
void check_pass(Machine& machine, Machine& host, const TimedCase& c,
                const std::string& implementation, Check& result) {
  const auto plan = make_plan<Args>(machine, problem_of(c), implementation);
  result.implementation = plan.implementation();
  const Call call(machine, c, 7);
  Call oracle(host, c, 7, Storage::kFp32);
  oracle.take_inputs(call);
  run_once(machine, c, plan, call);
  run_once(host, c, make_plan<Args>(host, oracle.problem(), "cpu.recurrent"), oracle);
  const std::string state = c.pass == Pass::kStep ? "initial_state" : "final_state";
  if (call.has("out")) result.out_error = relative_rms(call.values("out"), oracle.values("out"));
  const std::string kept = call.has("replay") ? "replay" : state;
  result.state_error = relative_rms(call.values(kept), oracle.values(kept));
}

// Runs f, and turns a refusal into its text.
template <class F>
std::string refusal_of(F&& f) {
  try {
    f();
    return "";
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kUnsupported) throw;
    return error.what();
  }
}

}  // namespace

Measurement measure(Machine& machine, const TimedCase& c, const std::string& implementation,
                    int repeats) {
  Measurement m;
  m.refusal = refusal_of([&] {
    if (c.pass == Pass::kStep)
      measure_pass<StepArgs>(machine, c, implementation, repeats, m);
    else
      measure_pass<ForwardArgs>(machine, c, implementation, repeats, m);
  });
  return m;
}

Check check(Machine& machine, Machine& host, const TimedCase& c,
            const std::string& implementation) {
  // The emulation of a 16-bit kernel rounds what comes in fp32, too.
  const test::Caps caps = test::caps(implementation == "cpu.emulated" ? DType::kBFloat16 : c.dtype);
  Check result;
  result.out_bound = caps.out;
  result.state_bound = std::max(caps.state, test::caps(c.state_dtype).state);
  result.refusal = refusal_of([&] {
    if (c.pass == Pass::kStep)
      check_pass<StepArgs>(machine, host, c, implementation, result);
    else
      check_pass<ForwardArgs>(machine, host, c, implementation, result);
  });
  return result;
}

double floor_seconds(Machine& machine, const TimedCase& c) {
  const double rate = machine.multiply_adds_per_second();
  return rate > 0 ? multiply_adds(c) / rate : floor_bytes(c) / kFloorBandwidth;
}

}  // namespace linattn::bench
