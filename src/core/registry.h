// SPDX-License-Identifier: Apache-2.0
//
// An implementation is a row of one ordered table per pass. The table is the dispatch, the support
// matrix of the README, the list that the tests walk and the benchmark's menu.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "linattn/plan.h"
#include "linattn/problem.h"

namespace linattn {

// Actual counts of one call, or their bound.
struct Sizes {
  std::int64_t tokens = 0;
  std::int64_t sequences = 0;
};

// Where a run goes: the plan's device and the caller's stream.
struct Queue {
  Device device;
  Stream stream = nullptr;
};

// Bytes of `saved`: tokens T + sequences N + constant.
using SavedCoefficients = std::array<std::int64_t, 3>;

template <class Args>
struct Implementation {
  const char* name;  // "cpu.chunked": also its name in tests and benchmarks

  // Runs only when its name is pinned: an emulation, an experiment.
  bool only_by_name = false;

  // Why it does not take the problem, with numbers; empty: it does. The problem has passed
  // check_problem.
  std::string (*refusal)(const Problem&, Device) = nullptr;
  // The same for pointers, strides and counts of one call, which have passed check_arguments. null:
  // never refuses.
  std::string (*refusal_of)(const Problem&, const Args&) = nullptr;
  // Why a later row does a call better that this one takes; null: none does. null: never yields.
  const char* (*yields_of)(const Problem&, const Args&) = nullptr;
  // Monotone in both counts. null: 0.
  std::size_t (*workspace_bytes)(const Problem&, Sizes) = nullptr;
  // Enqueues, nothing more. The workspace is as large as workspace_bytes said.
  void (*run)(const Problem&, const Args&, Workspace, Queue) = nullptr;

  // What forward leaves in `saved` and backward reads; rows of a pair have the same format. "":
  // nothing.
  const char* saved_format = "";
  SavedCoefficients (*saved_coefficients)(const Problem&) = nullptr;
};

// Best first, the oracle last. Defined for the three argument structs in registry.cpp.
template <class Args>
std::span<const Implementation<Args>* const> implementation_table();

}  // namespace linattn
