// SPDX-License-Identifier: Apache-2.0
//
// Parts of a scenario and its inputs, for tests that compare a call with a part of another.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "ops/run.h"
#include "ops/scenario.h"

namespace linattn::test {

struct Drawn {
  Scenario scenario;
  Inputs inputs;
};

// Rows [first, last) of sequence n as a scenario of its own, from the given state [1, HV, K, V]
// (empty: its own).
Drawn rows_of(const Drawn& whole, std::int64_t n, std::int64_t first, std::int64_t last,
              const std::vector<float>& initial = {});

// Query/key head h and its value heads, alone.
Drawn head_of(const Drawn& whole, std::int64_t head);

// Values of [rows, heads, dim] for rows [first, last) and heads [head, head + count).
std::vector<float> part(const std::vector<float>& x, std::int64_t heads, std::int64_t dim,
                        std::int64_t first, std::int64_t last, std::int64_t head,
                        std::int64_t count);

// The outputs of a run that must succeed; fails the running test with the line that reproduces it.
Results must_run(const Drawn& drawn, const std::string& row, int rounds = 1);

// EXPECT that two vectors have the same bits.
void expect_same(const std::vector<float>& x, const std::vector<float>& y, const std::string& what);

}  // namespace linattn::test
