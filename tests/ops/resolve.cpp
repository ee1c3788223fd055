// SPDX-License-Identifier: Apache-2.0
//
// The contract of c.h about slots, gates and strengths, written a second time for the tests.
#include <algorithm>
#include <cmath>
#include <cstddef>

#include "ops/scenario.h"

namespace linattn::test {
namespace {

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

}  // namespace

Route route(const Scenario& s, const Inputs& in, std::int64_t n) {
  Route r;
  if (!in.accepted.empty() &&
      (in.accepted[index(n)] < 1 || in.accepted[index(n)] > in.read_columns)) {
    r.pad = true;
    return r;
  }
  const std::int64_t column = in.accepted.empty() ? 0 : in.accepted[index(n)] - 1;
  const std::int64_t stride = std::max<std::int64_t>(in.read_columns, 1);
  std::int64_t slot = in.initial_slots == 0   ? -1
                      : in.read_slots.empty() ? n
                                              : in.read_slots[index(n * stride + column)];
  const bool null_read = !in.read_slots.empty() && slot < in.first_slot;
  if (null_read) slot = -1;
  bool null_write = !in.write_slots.empty();
  const std::int64_t columns = std::max<std::int64_t>(in.write_columns, 1);
  for (std::int64_t j = 0; j < columns && null_write; ++j)
    null_write = in.write_slots[index(n * columns + j)] < in.first_slot;
  r.pad = null_read && null_write;
  if (!in.has_initial.empty() && in.has_initial[index(n)] == 0) slot = -1;
  r.from = r.pad ? -1 : slot;
  static_cast<void>(s);
  return r;
}

std::int64_t stored_in(const Scenario& s, const Inputs& in, std::int64_t n, std::int64_t t) {
  if (in.final_slots == 0 || route(s, in, n).pad) return -1;
  if (in.write_slots.empty()) return n;
  const std::int64_t slot = in.write_columns > 0 ? in.write_slots[index(n * in.write_columns + t)]
                                                 : in.write_slots[index(n)];
  return slot < in.first_slot ? -1 : slot;
}

bool checkpoint_written(const Scenario& s, const Inputs& in, std::int64_t n, std::int64_t i) {
  const std::int64_t start = in.start_positions.empty() ? 0 : in.start_positions[index(n)];
  const std::int64_t position = in.checkpoint_positions[index(i)];
  return in.checkpoint_slots[index(i)] >= in.first_slot && position >= start &&
         position <= start + s.lengths[index(n)] && !route(s, in, n).pad;
}

double strength(BetaInput input, double value) {
  switch (input) {
    case BetaInput::kLogit:
      return 1 / (1 + std::exp(-value));
    case BetaInput::kTwiceLogit:
      return 2 / (1 + std::exp(-value));
    case BetaInput::kOne:
      return 1;
    default:
      return value;
  }
}

double log_decay(const Scenario& s, const Inputs& in, std::int64_t row, std::int64_t head,
                 std::int64_t channel) {
  const Problem& p = s.problem;
  if (p.op.gate == Gate::kNone) return 0;
  const std::int64_t dim = s.gate_dim(), c = dim == 1 ? 0 : channel;
  const std::int64_t of_head = head * dim + c;
  const double g = p.op.gate == Gate::kHeadConstant
                       ? in.g[index(head)]
                       : in.g[index(row * s.value_heads() * dim + of_head)];
  const double x = g + (in.dt_bias.empty() ? 0. : in.dt_bias[index(of_head)]);
  const double rate = in.a_log.empty() ? 1 : std::exp(static_cast<double>(in.a_log[index(head)]));
  switch (p.gate_input) {
    case GateInput::kDecay:
      return std::log(g);
    case GateInput::kSoftplus: {
      const double softplus = x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x));
      return softplus == 0 ? 0 : -rate * softplus;  // inf * 0
    }
    case GateInput::kBounded:
      return s.lower_bound / (1 + std::exp(-(x == 0 ? 0 : rate * x)));
    default:
      return g;
  }
}

Scenario widened(const Scenario& scenario) {
  Scenario s = scenario;
  s.options &= kTransition | kL2Norm | kNoDout | kNoDFinal;
  Problem& p = s.problem;
  p.dtype = p.gate_dtype = p.beta_dtype = p.state_dtype = DType::kFloat32;
  p.checkpoint_dtype = DType::kFloat32;
  p.state_layout = StateLayout::kKeyValue;
  p.batch_invariant = false;
  return s;
}

Inputs resolved(const Scenario& s, const Inputs& inputs) {
  Inputs in = inputs;
  const std::int64_t rows = s.tokens(), size = s.value_heads() * s.matrix();
  in.first_slot = 0;
  in.read_slots.clear(), in.write_slots.clear(), in.has_initial.clear(), in.accepted.clear();
  in.read_columns = 0;
  const auto clear = [&](std::vector<float>& x, std::int64_t first, std::int64_t last) {
    if (x.empty() || rows == 0) return;
    const auto width = static_cast<std::int64_t>(x.size()) / rows;
    std::fill(x.begin() + first * width, x.begin() + last * width, 0.f);
  };
  const auto clear_rows = [&](std::int64_t first, std::int64_t last) {
    for (auto* x : {&in.q, &in.k, &in.v, &in.beta, &in.erase, &in.write, &in.dout})
      clear(*x, first, last);
    if (s.problem.op.gate != Gate::kHeadConstant) clear(in.g, first, last);
  };
  clear_rows(rows - s.surplus, rows);
  if (in.initial_slots > 0) {
    in.initial_slots = s.sequences();
    in.initial.assign(index(s.sequences() * size), 0.f);
  }
  for (std::int64_t n = 0; n < s.sequences(); ++n) {
    const Route r = route(s, inputs, n);
    if (r.from >= 0)
      std::copy_n(inputs.initial.begin() + r.from * size, size, in.initial.begin() + n * size);
    if (r.pad) clear_rows(s.begin(n), s.begin(n) + s.lengths[index(n)]);
  }
  for (std::size_t i = 0; i < in.checkpoint_slots.size(); ++i)
    in.checkpoint_slots[i] = static_cast<std::int32_t>(i);
  in.checkpoint_pool = static_cast<std::int64_t>(in.checkpoint_slots.size());
  in.final_slots = s.pass == Pass::kBackward ? 0 : s.sequences();
  if (in.write_columns > 0) {
    in.final_slots = s.sequences() * in.write_columns;
    for (std::int64_t i = 0; i < in.final_slots; ++i)
      in.write_slots.push_back(static_cast<std::int32_t>(i));
  }
  return in;
}

}  // namespace linattn::test
