// SPDX-License-Identifier: Apache-2.0
#include "core/plan.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "core/check.h"
#include "core/workspace.h"
#include "linattn/error.h"

namespace linattn {
namespace {

// LINATTN_VERBOSE=1 prints every choice and refusal; the only environment variable there is.
bool verbose() {
  static const bool on = [] {
    const char* value = std::getenv("LINATTN_VERBOSE");
    return value != nullptr && std::strcmp(value, "1") == 0;
  }();
  return on;
}

template <class Args>
std::string refusal_of_problem(const Implementation<Args>& row, const Problem& problem,
                               Device device, const std::string& pinned) {
  if (row.only_by_name && pinned != row.name) return "runs only when it is named";
  return row.refusal(problem, device);
}

template <class Args>
std::string line(const Implementation<Args>& row, const std::string& refusal) {
  return "  " + std::string(row.name) + ": " + (refusal.empty() ? "takes it" : refusal) + "\n";
}

std::string headline(const Problem& problem, Device device, Pass pass) {
  return to_string(pass) + " of " + to_string(problem) + " on " + to_string(device);
}

// Collects the rows that accept; throws with every reason if none does. A row must also read
// `saved_format` unless that is null.
template <class Args>
Rows<Args> choose(const Problem& problem, Device device, Pass pass, const std::string& pinned,
                  const char* saved_format = nullptr) {
  Rows<Args> chosen;
  std::string report;
  bool exists = pinned.empty();
  for (const Implementation<Args>* row : implementation_table<Args>()) {
    exists = exists || pinned == row->name;
    if (!pinned.empty() && pinned != row->name) continue;
    std::string refusal = refusal_of_problem(*row, problem, device, pinned);
    if (refusal.empty() && saved_format != nullptr &&
        std::strcmp(saved_format, row->saved_format) != 0)
      refusal = "reads saved format '" + std::string(row->saved_format) +
                "'; the forward plan saves '" + saved_format + "'";
    report += line(*row, refusal);
    if (refusal.empty()) chosen.rows.push_back(row);
  }
  if (!exists) {
    std::string names;
    for (const Implementation<Args>* row : implementation_table<Args>())
      names += " " + std::string(row->name);
    throw_invalid("implementation is '" + pinned + "'; expected one of" + names);
  }
  if (verbose())
    std::fprintf(stderr, "linattn: %s\n%s", headline(problem, device, pass).c_str(),
                 report.c_str());
  if (chosen.rows.empty())
    throw Error(ErrorCode::kUnsupported, "linattn: no implementation takes this problem: " +
                                             headline(problem, device, pass) + "\n" + report);
  return chosen;
}

// Rows of one plan that save differently cannot follow each other within `saved`: keep those like
// the best one.
void keep_one_format(Rows<ForwardArgs>& chosen) {
  const char* format = chosen.rows.front()->saved_format;
  std::erase_if(chosen.rows,
                [&](const auto* row) { return std::strcmp(row->saved_format, format) != 0; });
}

template <class Args>
std::string report(const Problem& problem, Device device) {
  std::string text;
  for (const Implementation<Args>* row : implementation_table<Args>())
    text += line(*row, refusal_of_problem(*row, problem, device, ""));
  return text;
}

template <class Args>
std::size_t row_bytes(const Implementation<Args>& row, const Problem& problem, Sizes sizes) {
  return row.workspace_bytes == nullptr ? 0 : row.workspace_bytes(problem, sizes);
}

template <class Args>
std::string refusal_of_call(const Implementation<Args>& row, const Problem& problem,
                            const Args& args) {
  return row.refusal_of == nullptr ? std::string() : row.refusal_of(problem, args);
}

// Why the row is not asked first; a plan that is pinned to it asks it all the same.
template <class Args>
const char* yields_of_call(const Implementation<Args>& row, const Problem& problem,
                           const Args& args, const std::string& pinned) {
  return row.yields_of == nullptr || !pinned.empty() ? nullptr : row.yields_of(problem, args);
}

void check_workspace(Workspace workspace, std::size_t needed) {
  if (workspace.bytes < needed)
    throw_invalid("workspace.bytes is " + std::to_string(workspace.bytes) + "; expected at least " +
                  std::to_string(needed));
  if (needed > 0 && workspace.data == nullptr)
    throw_invalid("workspace.data is null; expected " + std::to_string(needed) + " bytes");
  if (reinterpret_cast<std::uintptr_t>(workspace.data) % WorkspaceLayout::kAlignment != 0)
    throw_invalid("workspace.data is not aligned; expected a multiple of " +
                  std::to_string(WorkspaceLayout::kAlignment));
}

void check_pass(const Problem& problem, Pass pass) {
  if (pass != Pass::kStep && is_fused(problem))
    throw_invalid("problem." + std::string(problem.conv_width != 0 ? "conv_width" : "norm_gate") +
                  " is set; expected 0, since the pass is " + to_string(pass) +
                  ": only steps are fused");
}

}  // namespace

std::string explain_problem(const Problem& problem, Device device, Pass pass) {
  const Problem p = check_problem(problem, device);
  check_pass(p, pass);
  const std::string head = headline(problem, device, pass) + "\n";
  switch (pass) {
    case Pass::kForward:
      return head + report<ForwardArgs>(p, device);
    case Pass::kBackward:
      return head + report<BackwardArgs>(p, device);
    case Pass::kStep:
      return head + report<StepArgs>(p, device);
  }
  throw_invalid("pass is " + std::to_string(static_cast<int>(pass)) +
                "; expected forward, backward or step");
}

}  // namespace linattn

using namespace linattn;  // NOLINT: the handle below lives outside the namespace, its members' types inside

linattn_plan::linattn_plan(const Problem& asked, Device on, Pass pass, std::string name)
    : problem(check_problem(asked, on)), device(on), pinned(std::move(name)) {
  check_pass(problem, pass);
  switch (pass) {
    case Pass::kForward:
      rows = choose<ForwardArgs>(problem, device, pass, pinned);
      if (problem.save_for_backward) keep_one_format(std::get<Rows<ForwardArgs>>(rows));
      break;
    case Pass::kStep:
      rows = choose<StepArgs>(problem, device, pass, pinned);
      break;
    case Pass::kBackward:
      throw_invalid(
          "pass is backward; expected forward or step (a backward plan is made from its forward "
          "plan)");
    default:
      throw_invalid("pass is " + std::to_string(static_cast<int>(pass)) +
                    "; expected forward or step");
  }
}

linattn_plan::linattn_plan(const linattn_plan& forward, std::string name)
    : problem(forward.problem), device(forward.device), pinned(std::move(name)) {
  const auto* chosen = std::get_if<Rows<ForwardArgs>>(&forward.rows);
  if (chosen == nullptr)
    throw_invalid("forward is a plan of another pass; expected a forward plan");
  if (!problem.save_for_backward)
    throw_invalid("forward is a plan without save_for_backward; expected one that saves");
  rows = choose<BackwardArgs>(problem, device, Pass::kBackward, pinned,
                              chosen->rows.front()->saved_format);
}

std::size_t linattn_plan::workspace_bytes(Sizes sizes) const {
  if (sizes.tokens < 0 || sizes.tokens > problem.max_tokens)
    throw_invalid("tokens is " + std::to_string(sizes.tokens) +
                  "; expected 0 to the problem's max_tokens, " +
                  std::to_string(problem.max_tokens));
  if (sizes.sequences < 0 || sizes.sequences > problem.max_sequences)
    throw_invalid("sequences is " + std::to_string(sizes.sequences) +
                  "; expected 0 to the problem's max_sequences, " +
                  std::to_string(problem.max_sequences));
  return std::visit(
      [&](const auto& chosen) {
        std::size_t bytes = 0;
        for (const auto* row : chosen.rows)
          bytes = std::max(bytes, row_bytes(*row, problem, sizes));
        return bytes;
      },
      rows);
}

SavedCoefficients linattn_plan::saved_coefficients() const {
  const auto* chosen = std::get_if<Rows<ForwardArgs>>(&rows);
  if (chosen == nullptr || !problem.save_for_backward) return {};
  const auto* row = chosen->rows.front();
  return row->saved_coefficients == nullptr ? SavedCoefficients{}
                                            : row->saved_coefficients(problem);
}

template <class Args>
void linattn_plan::run(const Args& args, Workspace workspace, Stream stream) const {
  const auto* chosen = std::get_if<Rows<Args>>(&rows);
  if (chosen == nullptr)
    throw_invalid("plan is of another pass; expected the pass of these arguments");
  check_arguments(problem, device, args);
  if constexpr (requires { args.checkpoints; }) {
    const auto c = saved_coefficients();
    if (args.saved == nullptr && c[0] * args.tokens + c[1] * args.sequences + c[2] > 0)
      throw_invalid("saved is absent; expected memory, since the problem has save_for_backward");
  }
  std::string reasons;
  const Implementation<Args>* taker = nullptr;
  for (const auto* row : chosen->rows) {
    const std::string refusal = refusal_of_call(*row, problem, args);
    if (!refusal.empty()) {
      reasons += line(*row, refusal);
      continue;
    }
    const bool yields = yields_of_call(*row, problem, args, pinned) != nullptr;
    if (taker == nullptr || !yields) taker = row;
    if (!yields) break;
  }
  if (taker != nullptr) {
    check_workspace(workspace, row_bytes(*taker, problem, {args.tokens, args.sequences}));
    taker->run(problem, args, workspace, {device, stream});
    return;
  }
  throw Error(ErrorCode::kUnsupported, "linattn: no implementation takes this call:\n" + reasons);
}

template <class Args>
std::string linattn_plan::explain(const Args& args) const {
  check_arguments(problem, device, args);
  std::string text;
  for (const auto* row : implementation_table<Args>()) {
    std::string refusal = refusal_of_problem(*row, problem, device, pinned);
    if (refusal.empty()) refusal = refusal_of_call(*row, problem, args);
    if (refusal.empty() && !pinned.empty() && pinned != row->name)
      refusal = "the plan is pinned to " + pinned;
    const char* yields = yields_of_call(*row, problem, args, pinned);
    if (refusal.empty() && yields != nullptr)
      refusal = std::string("yields to a later one: ") + yields;
    text += line(*row, refusal);
  }
  return text;
}

template void linattn_plan::run(const ForwardArgs&, Workspace, Stream) const;
template void linattn_plan::run(const BackwardArgs&, Workspace, Stream) const;
template void linattn_plan::run(const StepArgs&, Workspace, Stream) const;
template std::string linattn_plan::explain(const ForwardArgs&) const;
template std::string linattn_plan::explain(const BackwardArgs&) const;
template std::string linattn_plan::explain(const StepArgs&) const;
