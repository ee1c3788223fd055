// SPDX-License-Identifier: Apache-2.0
#include "ops/run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <utility>

#include "ops/run_log.h"

namespace linattn::test {

template <class Args>
std::optional<Plan<Args>> pinned(const Problem& problem, const std::string& row, Device device,
                                 std::string& refusal) {
  try {
    return Plan<Args>(problem, device, row.c_str());
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kUnsupported) throw;
    refusal = error.what();
    return std::nullopt;
  }
}

template std::optional<ForwardPlan> pinned(const Problem&, const std::string&, Device,
                                           std::string&);
template std::optional<StepPlan> pinned(const Problem&, const std::string&, Device, std::string&);

namespace {

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

struct BackwardPair {
  ForwardPlan forward;
  BackwardPlan backward;
};

// The row's plan and any forward plan that saves what it reads.
std::optional<BackwardPair> pinned_backward(const Scenario& s, const std::string& row,
                                            Device device, std::string& refusal) {
  for (const std::string& name : implementations(Pass::kForward)) {
    const auto forward = pinned<ForwardArgs>(s.problem, name, device, refusal);
    if (!forward) continue;
    try {
      return BackwardPair{*forward, BackwardPlan(*forward, row.c_str())};
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kUnsupported) throw;
      refusal = error.what();
    }
  }
  return std::nullopt;
}

template <class PlanType, class Args>
std::unique_ptr<Guarded> execute(const PlanType& plan, const Args& args, const Scenario& s,
                                 Memory& memory, Poison poison) {
  const std::size_t bytes = plan.workspace_bytes(s.tokens(), s.sequences());
  auto scratch = std::make_unique<Guarded>(memory, "workspace", bytes, poison, true);
  if (memory.guard() > 0) scratch->upload();
  const Workspace workspace{scratch->data(), bytes};
  memory.run([&](Stream stream) { plan.run(args, workspace, stream); });
  return scratch;
}

// One run under one poison; a call-level refusal is in outcome.refusal.
Outcome once(const Scenario& s, const Inputs& in, const std::string& row, Memory& memory,
             Poison poison, const std::function<void(Call&)>& change) {
  Outcome outcome;
  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::unique_ptr<Guarded>> scratch;
  const auto finish = [&](Call& call) {
    outcome.fault = call.fetch();
    for (const auto& one : scratch) {
      const std::string fault = memory.guard() > 0 ? one->fetch() : "";
      if (outcome.fault.empty()) outcome.fault = fault;
    }
    outcome.results = call.results();
    log_run(s.pass, row,
            std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  };
  try {
    if (s.pass == Pass::kForward) {
      const auto plan = pinned<ForwardArgs>(s.problem, row, memory.device(), outcome.refusal);
      if (!plan) return outcome;
      const std::size_t saved =
          s.problem.save_for_backward ? plan->saved_bytes(s.tokens(), s.sequences()) : 0;
      Call call(s, in, memory, poison, saved);
      if (change) change(call);
      scratch.push_back(execute(*plan, call.forward, s, memory, poison));
      finish(call);
    } else if (s.pass == Pass::kStep) {
      const auto plan = pinned<StepArgs>(s.problem, row, memory.device(), outcome.refusal);
      if (!plan) return outcome;
      Call call(s, in, memory, poison);
      if (change) change(call);
      scratch.push_back(execute(*plan, call.step, s, memory, poison));
      finish(call);
    } else {
      const auto pair = pinned_backward(s, row, memory.device(), outcome.refusal);
      if (!pair) return outcome;
      Call call(s, in, memory, poison, pair->forward.saved_bytes(s.tokens(), s.sequences()));
      if (change) change(call);
      scratch.push_back(execute(pair->forward, call.forward, s, memory, poison));
      scratch.push_back(execute(pair->backward, call.backward, s, memory, poison));
      finish(call);
    }
    outcome.refusal.clear();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kUnsupported) throw;
    outcome.refusal = error.what();
  }
  return outcome;
}

}  // namespace

Outcome run(const Scenario& s, const Inputs& in, const std::string& row, RunOptions options) {
  Memory& memory = options.memory != nullptr ? *options.memory
                   : of_the_cpu(row)         ? host()
                                             : *memory_under_test();
  Outcome first = once(s, in, row, memory, Poison::kNaN, options.change);
  if (!first.refusal.empty()) log_refusal(s.pass, row);
  if (!first.refusal.empty() || !first.fault.empty() || options.rounds < 2) return first;
  const Outcome second = once(s, in, row, memory, Poison::kLarge, options.change);
  first.fault = second.fault;
  if (first.fault.empty()) {
    const std::string found = difference(first.results, second.results);
    if (!found.empty()) first.fault = "second run, over other poison, differs: " + found;
  }
  return first;
}

std::vector<std::string> takers(const Scenario& s, Memory& memory) {
  std::vector<std::string> names;
  for (const std::string& name : implementations(s.pass)) {
    std::string refusal;
    bool takes = false;
    if (s.pass == Pass::kForward)
      takes = pinned<ForwardArgs>(s.problem, name, memory.device(), refusal).has_value();
    else if (s.pass == Pass::kStep)
      takes = pinned<StepArgs>(s.problem, name, memory.device(), refusal).has_value();
    else
      takes = pinned_backward(s, name, memory.device(), refusal).has_value();
    if (takes)
      names.push_back(name);
    else
      log_refusal(s.pass, name);
  }
  return names;
}

namespace {

void set_identity(const Scenario& s, std::int64_t n, std::vector<float>& transitions) {
  const std::int64_t dim = s.problem.key_dim;
  for (std::int64_t h = 0; h < s.value_heads(); ++h)
    for (std::int64_t i = 0; i < dim * dim; ++i)
      transitions[index((n * s.value_heads() + h) * dim * dim + i)] =
          i / dim == i % dim ? 1.f : 0.f;
}

// From the resolved call's outputs to the scenario's: drops what it does not store.
Results as_stored(const Scenario& s, const Inputs& in, Results results) {
  const std::int64_t size = s.value_heads() * s.matrix();
  Results kept;
  for (Output& out : results) {
    if (out.name == "final_state") {
      if (in.final_slots == 0) continue;
      std::size_t entry = 0;
      for (std::int64_t n = 0; n < s.sequences(); ++n) {
        const std::int64_t count = in.write_columns > 0 ? s.lengths[index(n)] : 1;
        for (std::int64_t t = 0; t < count; ++t, ++entry)
          if (stored_in(s, in, n, t) < 0)
            std::fill_n(out.values.begin() + static_cast<std::int64_t>(entry) * size, size, 0.f);
      }
    }
    if (out.name == "checkpoints")
      for (std::int64_t n = 0; n < s.sequences(); ++n)
        for (std::int64_t i = in.checkpoint_offsets[index(n)];
             i < in.checkpoint_offsets[index(n + 1)]; ++i)
          if (!checkpoint_written(s, in, n, i))
            std::fill_n(out.values.begin() + i * size, size, 0.f);
    if (out.name == "out")  // pads and rows past the last offset
      for (std::int64_t n = 0; n < s.sequences(); ++n)
        if (route(s, in, n).pad)
          std::fill_n(out.values.begin() + s.begin(n) * out.row_width,
                      s.lengths[index(n)] * out.row_width, 0.f);
    if (out.name == "transition")  // nothing happens to a pad: the identity
      for (std::int64_t n = 0; n < s.sequences(); ++n)
        if (route(s, in, n).pad) set_identity(s, n, out.values);
    if (out.name == "dinitial_state")  // what a sequence does not start from has no gradient
      for (std::int64_t n = 0; n < s.sequences(); ++n)
        if (route(s, in, n).from < 0) std::fill_n(out.values.begin() + n * size, size, 0.f);
    kept.push_back(std::move(out));
  }
  return kept;
}

}  // namespace

Results reference(const Scenario& s, const Inputs& in) {
  const Scenario wide = widened(s);
  const Inputs simple = resolved(s, in);
  Outcome outcome = run(wide, simple, kOracle, {.rounds = 1});
  if (!outcome.refusal.empty() || !outcome.fault.empty())
    ADD_FAILURE() << "the oracle: " << outcome.refusal << outcome.fault << "\n"
                  << reproduce(wide, kOracle);
  return as_stored(s, in, std::move(outcome.results));
}

Results rounded_to_storage(const Scenario& s, Results results) {
  const Problem& p = s.problem;
  for (Output& out : results) {
    DType dtype = p.dtype;
    if (out.kind == Kind::kState)
      dtype = out.name == "transition" ? DType::kFloat32
              : out.name == "checkpoints" && p.checkpoint_dtype != DType::kUnset
                  ? p.checkpoint_dtype
                  : p.state_dtype;
    if (out.name == "dg") dtype = p.gate_dtype;
    if (out.name == "dbeta" || out.name == "derase" || out.name == "dwrite") dtype = p.beta_dtype;
    if (out.name == "dinitial_state") dtype = p.state_dtype;
    if (out.name == "da_log" || out.name == "ddt_bias") dtype = DType::kFloat32;
    round_to(dtype, out.values);
    out.dtype = dtype;
  }
  return results;
}

std::string reproduce(const Scenario& s, const std::string& row) {
  std::string text = "REPRODUCE: ";
  if (const auto* info = testing::UnitTest::GetInstance()->current_test_info())
    text += std::string("--gtest_filter=") + info->test_suite_name() + "." + info->name() + " ";
  text += "implementation=" + row + " pass=" + to_string(s.pass) +
          " problem=" + to_string(s.problem) + " lengths={";
  for (std::size_t n = 0; n < s.lengths.size(); ++n)
    text += (n == 0 ? "" : ", ") + std::to_string(s.lengths[n]);
  return text + "} surplus=" + std::to_string(s.surplus) + " options=" + std::to_string(s.options) +
         " decay=" + std::to_string(static_cast<int>(s.decay)) +
         " keys=" + std::to_string(static_cast<int>(s.keys)) + " seed=" + std::to_string(s.seed);
}

}  // namespace linattn::test

#include "ops/recurrence_model.h"

namespace linattn::test {

template <class Real>
Results model(const Scenario& s, const Inputs& in, bool rounded) {
  Results results = as_stored(s, in, RecurrenceModel<Real>(widened(s), resolved(s, in)).results());
  return rounded ? rounded_to_storage(s, std::move(results)) : results;
}

template Results model<float>(const Scenario&, const Inputs&, bool);
template Results model<double>(const Scenario&, const Inputs&, bool);

}  // namespace linattn::test
