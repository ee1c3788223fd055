// SPDX-License-Identifier: Apache-2.0
//
// Errors of results against the oracle's, and how large they may be.
#pragma once

#include <string>
#include <vector>

#include "ops/call.h"
#include "ops/scenario.h"

namespace linattn::test {

struct OutputError {
  double whole = 0;        // rms(x - ref) / rms(ref)
  double position = 0;     // the same over the rows of one position in their chunk of 64, the worst
  int worst = -1;          // that position
  std::int64_t count = 0;  // and how many values it has
};

// Of one output. NaN or inf in x where ref is finite is an infinite error.
OutputError error_of(const Scenario& scenario, const Output& x, const Output& ref);

// rms(x - ref) / rms(ref) of two vectors.
double relative_rms(const std::vector<float>& x, const std::vector<float>& ref);

// What a comparison that rounds nothing else may be off by: `fp32` where neither the tensors nor
// the row round to 16 bits.
double limit(const Scenario& scenario, const std::string& row, double fp32);

// Every implementation that takes the scenario against the oracle, with all of the hygiene. Fails
// the running test.
struct Agreement {
  std::vector<std::string> rows;  // that ran
};
Agreement expect_agreement(const Scenario& scenario);
Agreement expect_agreement(const Scenario& scenario, const Inputs& inputs);

}  // namespace linattn::test
