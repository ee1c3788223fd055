// SPDX-License-Identifier: Apache-2.0
//
// The recurrence once more, for the tests alone. In double it checks the oracle (which may be wrong
// too). In float it says what fp32 arithmetic costs, with decays that are differences of a chunk's
// cumulative sum, as chunked code has.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "ops/call.h"
#include "ops/scenario.h"

namespace linattn::test {

template <class Real>
class RecurrenceModel {
 public:
  // Takes a widened scenario and resolved inputs: a state per sequence, slots in order.
  RecurrenceModel(const Scenario& scenario, const Inputs& inputs)
      : s_(scenario), p_(s_.problem), in_(inputs) {}

  Results results() {
    const std::int64_t hv = s_.value_heads(), size = hv * s_.matrix();
    std::int64_t stored = 0;
    for (const std::int64_t length : s_.lengths) stored += in_.write_columns > 0 ? length : 1;
    out_.assign(index(s_.tokens() * hv * p_.value_dim), 0.f);
    final_.assign(index(stored * size), 0.f);
    checkpoints_.assign(in_.checkpoint_slots.size() * index(size), 0.f);
    const bool transition = s_.has(kTransition);
    if (transition) transition_.assign(index(s_.sequences() * hv * p_.key_dim * p_.key_dim), 0.f);
    for (std::int64_t n = 0, entry = 0; n < s_.sequences(); ++n) {
      for (std::int64_t h = 0; h < hv; ++h) {
        sequence(n, h, entry);
        if (transition) matrix_of(n, h);
      }
      entry += in_.write_columns > 0 ? s_.lengths[index(n)] : 1;
    }
    Results all;
    const DType fp32 = DType::kFloat32;
    all.push_back({"out", Kind::kOut, fp32, std::move(out_), hv * p_.value_dim});
    all.push_back({"final_state", Kind::kState, fp32, std::move(final_), 0});
    if (!in_.checkpoint_offsets.empty())
      all.push_back({"checkpoints", Kind::kState, fp32, std::move(checkpoints_), 0});
    if (transition) all.push_back({"transition", Kind::kState, fp32, std::move(transition_), 0});
    return all;
  }

 private:
  static constexpr std::int64_t kChunk = 64;

  static std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

  std::vector<Real> row(const std::vector<float>& x, std::int64_t t, std::int64_t heads,
                        std::int64_t head, std::int64_t dim) const {
    const auto first = x.begin() + (t * heads + head) * dim;
    return {first, first + dim};
  }
  std::vector<Real> query_or_key(const std::vector<float>& x, std::int64_t t,
                                 std::int64_t head) const {
    std::vector<Real> values = row(x, t, p_.heads, head / s_.group(), p_.key_dim);
    if (!p_.qk_l2norm) return values;
    Real sum = 0;
    for (const Real value : values) sum += value * value;
    const Real factor = 1 / std::sqrt(sum + Real(1e-6));
    for (Real& value : values) value *= factor;
    return values;
  }

  // The factor of a row of the state. Float: exp of a difference of cumulative sums, unless one is
  // infinite.
  Real decay(Real log_decay, Real& cumulative) const {
    if constexpr (sizeof(Real) == sizeof(float)) {
      const Real before = cumulative;
      cumulative += log_decay;
      if (std::isfinite(cumulative)) return std::exp(cumulative - before);
      cumulative = 0;
      return std::exp(log_decay);
    }
    return std::exp(log_decay);
  }

  // One token into state [K, columns]; v is empty for the transition.
  void advance(std::int64_t t, std::int64_t head, const std::vector<Real>& k,
               const std::vector<Real>& v, std::vector<Real>& state, std::vector<Real>& cumulative,
               std::int64_t columns) const {
    const std::int64_t dim = p_.key_dim;
    for (std::int64_t i = 0; i < dim; ++i) {
      const Real factor =
          decay(static_cast<Real>(log_decay(s_, in_, t, head, i)), cumulative[index(i)]);
      for (std::int64_t j = 0; j < columns; ++j)
        state[index(i * columns + j)] = factor == 0 ? 0 : state[index(i * columns + j)] * factor;
    }
    std::vector<Real> written(index(columns), 0);
    const std::int64_t hv = s_.value_heads();
    if (p_.op.update == Update::kAdd) {
      if (!v.empty()) written = v;
    } else {
      std::vector<Real> erase_key = k;
      Real beta = 1;
      if (p_.op.update == Update::kEraseWrite) {
        for (std::int64_t i = 0; i < dim; ++i)
          erase_key[index(i)] *= static_cast<Real>(
              strength(p_.beta_input, in_.erase[index((t * hv + head) * dim + i)]));
      } else if (!in_.beta.empty()) {
        beta = static_cast<Real>(strength(p_.beta_input, in_.beta[index(t * hv + head)]));
      }
      for (std::int64_t i = 0; i < dim; ++i)
        for (std::int64_t j = 0; j < columns; ++j)
          written[index(j)] -= erase_key[index(i)] * state[index(i * columns + j)];
      for (std::int64_t j = 0; j < columns; ++j) {
        Real value = v.empty() ? 0 : v[index(j)];
        if (p_.op.update == Update::kEraseWrite && !v.empty())
          value *= static_cast<Real>(
              strength(p_.beta_input, in_.write[index((t * hv + head) * columns + j)]));
        written[index(j)] = beta * (written[index(j)] + value);
      }
    }
    for (std::int64_t i = 0; i < dim; ++i)
      for (std::int64_t j = 0; j < columns; ++j)
        state[index(i * columns + j)] += k[index(i)] * written[index(j)];
  }

  void keep(const std::vector<Real>& state, std::vector<float>& to, std::int64_t entry,
            std::int64_t head) const {
    const std::int64_t size = s_.matrix(), first = (entry * s_.value_heads() + head) * size;
    for (std::int64_t i = 0; i < size; ++i)
      to[index(first + i)] = static_cast<float>(state[index(i)]);
  }

  void keep_checkpoints(std::int64_t n, std::int64_t head, std::int64_t done,
                        const std::vector<Real>& state) {
    if (in_.checkpoint_offsets.empty()) return;
    const std::int64_t start = in_.start_positions.empty() ? 0 : in_.start_positions[index(n)];
    for (std::int64_t i = in_.checkpoint_offsets[index(n)];
         i < in_.checkpoint_offsets[index(n + 1)]; ++i)
      if (in_.checkpoint_positions[index(i)] == start + done) keep(state, checkpoints_, i, head);
  }

  void sequence(std::int64_t n, std::int64_t head, std::int64_t entry) {
    const std::int64_t length = s_.lengths[index(n)], columns = p_.value_dim, size = s_.matrix();
    std::vector<Real> state(index(size), 0), cumulative(index(p_.key_dim), 0);
    if (in_.initial_slots > 0) {
      const auto first = in_.initial.begin() + (n * s_.value_heads() + head) * size;
      state.assign(first, first + size);
    }
    const std::vector<Real> initial = state;
    std::vector<std::vector<Real>> after;  // of each token, where a tree needs them
    const double scale = s_.scale == 0 ? 1 / std::sqrt(static_cast<double>(p_.key_dim)) : s_.scale;
    keep_checkpoints(n, head, 0, state);
    for (std::int64_t t = 0; t < length; ++t) {
      const std::int64_t at = s_.begin(n) + t;
      if (!in_.parents.empty()) {
        const std::int32_t parent = in_.parents[index(at)];
        state = parent < 0 ? initial : after[index(parent)];
      }
      if (t % kChunk == 0) cumulative.assign(index(p_.key_dim), 0);
      advance(at, head, query_or_key(in_.k, at, head),
              row(in_.v, at, s_.value_heads(), head, columns), state, cumulative, columns);
      const std::vector<Real> q = query_or_key(in_.q, at, head);
      std::vector<Real> read(index(columns), 0);
      for (std::int64_t i = 0; i < p_.key_dim; ++i)
        for (std::int64_t j = 0; j < columns; ++j)
          read[index(j)] += q[index(i)] * state[index(i * columns + j)];
      for (std::int64_t j = 0; j < columns; ++j)
        out_[index((at * s_.value_heads() + head) * columns + j)] =
            static_cast<float>(static_cast<Real>(scale) * read[index(j)]);
      if (!in_.parents.empty()) after.push_back(state);
      if (in_.write_columns > 0) keep(state, final_, entry + t, head);
      keep_checkpoints(n, head, t + 1, state);
    }
    if (in_.write_columns == 0) keep(state, final_, entry, head);
  }

  void matrix_of(std::int64_t n, std::int64_t head) {
    const std::int64_t dim = p_.key_dim;
    std::vector<Real> state(index(dim * dim), 0), cumulative(index(dim), 0);
    for (std::int64_t i = 0; i < dim; ++i) state[index(i * dim + i)] = 1;
    for (std::int64_t t = 0; t < s_.lengths[index(n)]; ++t) {
      const std::int64_t at = s_.begin(n) + t;
      if (t % kChunk == 0) cumulative.assign(index(dim), 0);
      advance(at, head, query_or_key(in_.k, at, head), {}, state, cumulative, dim);
    }
    const std::int64_t first = (n * s_.value_heads() + head) * dim * dim;
    for (std::int64_t i = 0; i < dim * dim; ++i)
      transition_[index(first + i)] = static_cast<float>(state[index(i)]);
  }

  const Scenario s_;
  const Problem& p_;
  const Inputs in_;
  std::vector<float> out_, final_, checkpoints_, transition_;
};

}  // namespace linattn::test
