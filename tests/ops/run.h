// SPDX-License-Identifier: Apache-2.0
//
// Runs one implementation, by name, on one scenario, under both poisons.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ops/call.h"
#include "ops/scenario.h"
#include "support/memory.h"
#include "support/rows.h"

namespace linattn::test {

inline constexpr const char* kOracle = "cpu.recurrent";
inline constexpr const char* kEmulated = "cpu.emulated";
inline constexpr const char* kChunked = "cpu.chunked";

// Rows that round nothing but what they store; the others multiply 16-bit operands.
inline bool full_precision(const std::string& row) {
  return row == kOracle || row == kChunked || row == "cuda.recurrent";
}

struct Outcome {
  std::string refusal;  // not empty: it does not take the scenario, and nothing else holds
  std::string fault;    // a guard, an input or foreign memory changed; or the second run differs
  Results results;
};

struct RunOptions {
  int rounds = 2;            // 1: one poison only
  Memory* memory = nullptr;  // null: the host's for rows of the CPU, else memory_under_test()
  std::function<void(Call&)> change = nullptr;  // of the arguments, before the run
};

Outcome run(const Scenario& scenario, const Inputs& inputs, const std::string& row,
            RunOptions options = {});

// A plan pinned to a row; none, with the reason, if the row refuses the problem.
template <class Args>
std::optional<Plan<Args>> pinned(const Problem& problem, const std::string& row, Device device,
                                 std::string& refusal);

// The rows of the pass that take the scenario on that memory's device, by name, only_by_name rows
// too.
std::vector<std::string> takers(const Scenario& scenario, Memory& memory = *memory_under_test());

// The oracle on the widened scenario: fp32 outputs of double accumulation, by sequence, no strides.
// Entries that the scenario does not store are zero, as in a run's results.
Results reference(const Scenario& scenario, const Inputs& inputs);

// The second recurrence (recurrence_model.h) on the widened scenario, outputs rounded to the
// scenario's dtypes if `rounded`. Real = double: a check of the oracle. float: what fp32 arithmetic
// costs. Forward and step.
template <class Real>
Results model(const Scenario& scenario, const Inputs& inputs, bool rounded);

// Rounds every output to the dtype that the scenario stores it in.
Results rounded_to_storage(const Scenario& scenario, Results results);

// The line that reproduces a failure of the running test.
std::string reproduce(const Scenario& scenario, const std::string& row);

}  // namespace linattn::test
