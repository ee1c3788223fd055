// SPDX-License-Identifier: Apache-2.0
//
// One case on one machine: its time, and its error against the oracle.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "machine.h"
#include "timed_case.h"

namespace linattn::bench {

struct Measurement {
  std::string implementation;
  std::string refusal;  // why nothing was measured; empty: it was
  double seconds = 0, least = 0, most = 0, host_seconds = 0;
  int repeats = 0, sets = 1;  // sets of tensors, used in turn
  bool graph = false;
  std::int64_t input_bytes = 0, traffic_bytes = 0, workspace_bytes = 0;
  std::optional<std::int64_t> saved_bytes;  // absent: no forward here saves for a backward
};

struct Check {
  std::string implementation;
  std::string refusal;
  double out_error = 0, state_error = 0;  // relative rms
  double out_bound = 0, state_bound = 0;
  bool passed() const { return out_error <= out_bound && state_error <= state_bound; }
};

// implementation: a row by its name; empty: the best one.
Measurement measure(Machine&, const TimedCase&, const std::string& implementation, int repeats);

// The case as it is given (reduce it first) against cpu.recurrent in double, on the same values.
Check check(Machine&, Machine& host, const TimedCase&, const std::string& implementation);

// Seconds of the case's floor on the machine.
double floor_seconds(Machine&, const TimedCase&);

}  // namespace linattn::bench
