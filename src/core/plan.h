// SPDX-License-Identifier: Apache-2.0
//
// The choice among implementations, made once per problem, and the report of why not the others.
#pragma once

#include <atomic>
#include <string>
#include <variant>
#include <vector>

#include "core/registry.h"
#include "linattn/plan.h"

namespace linattn {

// The rows of one pass that take a problem, best first.
template <class Args>
struct Rows {
  std::vector<const Implementation<Args>*> rows;
};

std::string explain_problem(const Problem& problem, Device device, Pass pass);

}  // namespace linattn

// What a linattn_plan handle points to. Immutable after it is made.
struct linattn_plan {
  std::atomic<int> references{1};
  linattn::Problem problem;
  linattn::Device device;
  std::string pinned;  // the row the caller named, or empty
  std::variant<linattn::Rows<linattn::ForwardArgs>, linattn::Rows<linattn::BackwardArgs>,
               linattn::Rows<linattn::StepArgs>>
      rows;

  linattn_plan(const linattn::Problem& problem, linattn::Device device, linattn::Pass pass,
               std::string pinned);
  // The backward of a forward plan: rows that read what its best row saves.
  linattn_plan(const linattn_plan& forward, std::string pinned);

  std::size_t workspace_bytes(linattn::Sizes sizes) const;
  linattn::SavedCoefficients saved_coefficients() const;

  template <class Args>
  void run(const Args& args, linattn::Workspace workspace, linattn::Stream stream) const;
  template <class Args>
  std::string explain(const Args& args) const;
};
