// SPDX-License-Identifier: Apache-2.0
//
// Prints what each implementation of this build takes, as the Markdown table of README.md. It asks
// the registry: a plan pinned to the row is made for each op, each pair of dims and each dtype.
#include <linattn/linattn.h>

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace linattn;  // NOLINT: an example

const std::pair<const char*, Op> kOps[] = {{"kda", kda},
                                           {"gdn", gdn},
                                           {"gla", gla},
                                           {"lightning", lightning},
                                           {"simple_gla", simple_gla},
                                           {"retention", retention},
                                           {"delta_rule", delta_rule},
                                           {"linear_attention", linear_attention},
                                           {"gdn2", gdn2},
                                           {"comba", comba}};

Problem make_problem(Op op, int key_dim, int value_dim, DType dtype) {
  Problem problem{.op = op,
                  .dtype = dtype,
                  .max_tokens = 8192,
                  .heads = 4,
                  .key_dim = key_dim,
                  .value_dim = value_dim,
                  .state_layout = StateLayout::kValueKey};
  if (op.gate != Gate::kNone) problem.gate_input = GateInput::kLogDecay;
  if (op.update != Update::kAdd) problem.beta_input = BetaInput::kValue;
  return problem;
}

// Throws the row's refusal.
void ask(Pass pass, Device device, const std::string& name, Problem problem) {
  if (pass == Pass::kForward) {
    ForwardPlan(problem, device, name.c_str());
  } else if (pass == Pass::kStep) {
    StepPlan(problem, device, name.c_str());
  } else {
    problem.save_for_backward = true;
    BackwardPlan(ForwardPlan(problem, device), name.c_str());
  }
}

bool takes(Pass pass, const std::string& name, const Problem& problem) {
  for (const Device device : {Device::cpu(), Device::cuda(0)}) {
    try {
      ask(pass, device, name, problem);
      return true;
    } catch (const Error&) {
      continue;  // the next device
    }
  }
  return false;
}

std::string row(Pass pass, const std::string& name) {
  std::string line = "| `" + name + "` | " + to_string(pass) + " |";
  Op any{};
  for (const auto& [op_name, op] : kOps) {
    const bool yes = takes(pass, name, make_problem(op, 128, 128, DType::kBFloat16));
    if (yes && any == Op{}) any = op;  // the dims and dtypes are asked for the first one
    line += yes ? " yes |" : " - |";
  }
  const int pairs[][2] = {{64, 64},   {60, 100},  {96, 192}, {97, 33},
                          {128, 128}, {256, 256}, {512, 512}};
  std::string dims;
  bool all = true;
  for (const auto& [k, v] : pairs) {
    const bool yes = takes(pass, name, make_problem(any, k, v, DType::kBFloat16));
    if (yes) dims += (dims.empty() ? "" : ", ") + std::to_string(k) + "x" + std::to_string(v);
    all = all && yes;
  }
  if (all) dims = "any";
  std::string dtypes;
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16, DType::kFloat32})
    if (takes(pass, name, make_problem(any, 128, 128, dtype)))
      dtypes += (dtypes.empty() ? "" : ", ") + to_string(dtype);
  return line + " " + dims + " | " + dtypes + " |";
}

}  // namespace

int main() {
  std::string head = "| implementation | pass |", rule = "|---|---|";
  for (const auto& [name, op] : kOps) head += std::string(" ") + name + " |", rule += "---|";
  std::printf("%s K x V | dtypes |\n%s---|---|\n", head.c_str(), rule.c_str());
  for (const Pass pass : {Pass::kForward, Pass::kBackward, Pass::kStep})
    for (const std::string& name : implementations(pass))
      std::printf("%s\n", row(pass, name).c_str());
  return 0;
}
