// SPDX-License-Identifier: Apache-2.0
#include "ops/slice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace linattn::test {

std::vector<float> part(const std::vector<float>& x, std::int64_t heads, std::int64_t dim,
                        std::int64_t first, std::int64_t last, std::int64_t head,
                        std::int64_t count) {
  std::vector<float> values;
  if (x.empty()) return values;
  for (std::int64_t row = first; row < last; ++row) {
    const auto start = x.begin() + (row * heads + head) * dim;
    values.insert(values.end(), start, start + count * dim);
  }
  return values;
}

Drawn rows_of(const Drawn& whole, std::int64_t n, std::int64_t first, std::int64_t last,
              const std::vector<float>& initial) {
  const Scenario& s = whole.scenario;
  const Inputs& in = whole.inputs;
  Drawn one = whole;
  one.scenario.lengths = {last - first};
  one.scenario.surplus = 0;
  const std::int64_t hv = s.value_heads(), h = s.problem.heads;
  const std::int64_t begin = s.begin(n) + first, end = s.begin(n) + last;
  const std::int64_t k = s.problem.key_dim, v = s.problem.value_dim;
  one.inputs.q = part(in.q, h, k, begin, end, 0, h);
  one.inputs.k = part(in.k, h, k, begin, end, 0, h);
  one.inputs.v = part(in.v, hv, v, begin, end, 0, hv);
  if (s.problem.op.gate != Gate::kHeadConstant)
    one.inputs.g = part(in.g, hv, s.gate_dim(), begin, end, 0, hv);
  one.inputs.beta = part(in.beta, hv, 1, begin, end, 0, hv);
  one.inputs.erase = part(in.erase, hv, k, begin, end, 0, hv);
  one.inputs.write = part(in.write, hv, v, begin, end, 0, hv);
  one.inputs.dout = part(in.dout, hv, v, begin, end, 0, hv);
  const std::int64_t size = s.matrix();
  if (in.initial_slots > 0) {
    one.inputs.initial = part(in.initial, hv, size, n, n + 1, 0, hv);
    one.inputs.initial_slots = 1;
  }
  if (!initial.empty()) {
    one.inputs.initial = initial;
    one.inputs.initial_slots = 1;
  }
  if (in.final_slots > 0) one.inputs.final_slots = 1;
  if (!in.dfinal.empty()) one.inputs.dfinal = part(in.dfinal, hv, size, n, n + 1, 0, hv);
  return one;
}

Drawn head_of(const Drawn& whole, std::int64_t head) {
  const Scenario& s = whole.scenario;
  const Inputs& in = whole.inputs;
  Drawn one = whole;
  const std::int64_t group = s.group(), h = s.problem.heads, hv = s.value_heads();
  const std::int64_t k = s.problem.key_dim, v = s.problem.value_dim, rows = s.tokens();
  const std::int64_t first = head * group, dim = s.gate_dim(), size = s.matrix();
  one.scenario.problem.heads = 1;
  one.scenario.problem.value_heads = static_cast<std::int32_t>(group);
  one.inputs.q = part(in.q, h, k, 0, rows, head, 1);
  one.inputs.k = part(in.k, h, k, 0, rows, head, 1);
  one.inputs.v = part(in.v, hv, v, 0, rows, first, group);
  const std::int64_t gate_rows = s.problem.op.gate == Gate::kHeadConstant ? 1 : rows;
  one.inputs.g = part(in.g, hv, dim, 0, gate_rows, first, group);
  one.inputs.a_log = part(in.a_log, hv, 1, 0, 1, first, group);
  one.inputs.dt_bias = part(in.dt_bias, hv, dim, 0, 1, first, group);
  one.inputs.beta = part(in.beta, hv, 1, 0, rows, first, group);
  one.inputs.erase = part(in.erase, hv, k, 0, rows, first, group);
  one.inputs.write = part(in.write, hv, v, 0, rows, first, group);
  one.inputs.dout = part(in.dout, hv, v, 0, rows, first, group);
  one.inputs.initial = part(in.initial, hv, size, 0, in.initial_slots, first, group);
  one.inputs.dfinal = part(in.dfinal, hv, size, 0, s.sequences(), first, group);
  return one;
}

Results must_run(const Drawn& drawn, const std::string& row, int rounds) {
  const Outcome outcome = run(drawn.scenario, drawn.inputs, row, {.rounds = rounds});
  EXPECT_EQ(outcome.refusal + outcome.fault, "") << reproduce(drawn.scenario, row);
  return outcome.results;
}

void expect_same(const std::vector<float>& x, const std::vector<float>& y,
                 const std::string& what) {
  ASSERT_EQ(x.size(), y.size()) << what;
  for (std::size_t i = 0; i < x.size(); ++i)
    if (std::memcmp(&x[i], &y[i], sizeof(float)) != 0) {
      ADD_FAILURE() << what << "[" << i << "]: " << x[i] << " against " << y[i];
      return;
    }
}

}  // namespace linattn::test
