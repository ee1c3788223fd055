// SPDX-License-Identifier: Apache-2.0
//
// The oracle: the recurrence as docs/math.md writes it, token by token, all arithmetic and every
// state in double. It takes any op, any dims, any dtype, and every field of the arguments. A pass
// gives its worker threads lanes: slices of the workspace that each hold one state and the rows of
// one token.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <utility>

#include "core/dtype.h"
#include "core/registry.h"
#include "core/workspace.h"
#include "cpu/thread_pool.h"
#include "linattn/plan.h"
#include "recurrence/dispatch.h"

namespace linattn::cpu {

std::string refuse_other_devices(const Problem&, Device device);

std::size_t recurrent_forward_bytes(const Problem&, Sizes);
std::size_t recurrent_backward_bytes(const Problem&, Sizes);
std::size_t recurrent_step_bytes(const Problem&, Sizes);

void run_recurrent_forward(const Problem&, const ForwardArgs&, Workspace, Queue);
void run_recurrent_backward(const Problem&, const BackwardArgs&, Workspace, Queue);
void run_recurrent_step(const Problem&, const StepArgs&, Workspace, Queue);

// ---- lanes
// -----------------------------------------------------------------------------------------------------

// Lanes for so many independent units of work. It does not depend on set_threads, which may change
// between the plan and the run: more threads than lanes stay idle.
std::int64_t lanes_for(std::int64_t units);

// task(unit, lane) for every unit; no two units share a lane at the same time.
template <class Task>
void for_each_unit(std::int64_t units, std::int64_t lanes, const Task& task) {
  std::atomic<std::int64_t> next{0};
  const auto work = [&](std::int64_t lane, int) {
    for (std::int64_t unit; (unit = next.fetch_add(1)) < units;) task(unit, lane);
  };
  parallel_for(lanes,
               std::ref(work));  // a reference fits into std::function: run allocates nothing
}

// ---- inputs
// ----------------------------------------------------------------------------------------------------

// What the arguments of all passes begin with.
struct Inputs {
  std::size_t size;
  LINATTN_INPUTS
};
static_assert(offsetof(ForwardArgs, out) == sizeof(Inputs) &&
              offsetof(StepArgs, out) == sizeof(Inputs) &&
              offsetof(BackwardArgs, dout) == sizeof(Inputs));

template <class Args>
Inputs inputs_of(const Args& args) {
  Inputs inputs;
  std::memcpy(static_cast<void*>(&inputs), &args, sizeof inputs);
  return inputs;
}

void load_row(const Tensor& tensor, DType dtype, std::int64_t offset, std::int64_t dim,
              double* row);
void store_row(const Tensor& tensor, DType dtype, std::int64_t offset, std::int64_t dim,
               const double* row);
void zero_row(const Tensor& tensor, DType dtype, std::int64_t offset, std::int64_t dim);

// state is [K, V] in double, whatever the layout of the stored one.
void load_state(const Problem& p, const State& stored, DType dtype, std::int64_t slot,
                std::int64_t head, double* state);
void store_state(const Problem& p, const State& stored, DType dtype, std::int64_t slot,
                 std::int64_t head, const double* state);

// The slot that ids[index] names, -1 if that is a null id. Without ids it is n, which is never
// null.
inline std::int64_t slot_of(const std::int32_t* ids, std::int64_t index, std::int64_t n,
                            std::int32_t first_slot) {
  if (ids == nullptr) return n;
  return ids[index] < std::max(first_slot, 0) ? -1 : ids[index];
}

// One token of one value head.
struct Token {
  double* q;          // [K] scale q, normalised before if the problem says so
  double* k;          // [K] normalised likewise
  double* v;          // [V]
  double* decay;      // [1] or [K]: e^a
  double* erase_key;  // [K] b k, for updates that read the state
  double* write;      // [V] w, likewise
  double* e;          // [max(K, V)] what is written along k
  double* out;        // [max(K, V)]
};

// A Token's rows, for every lane.
class TokenRows {
 public:
  TokenRows(WorkspaceLayout& layout, const Problem& p, std::int64_t lanes)
      : key_dim_(p.key_dim),
        value_dim_(p.value_dim),
        wide_(std::max(p.key_dim, p.value_dim)),
        rows_(layout.book<double>(lanes * count())) {}

  Token in(Workspace workspace, std::int64_t lane) const {
    double* next = rows_.in(workspace) + lane * count();
    const auto take = [&](std::int64_t n) { return std::exchange(next, next + n); };
    Token x{};
    x.q = take(key_dim_), x.k = take(key_dim_), x.decay = take(key_dim_),
    x.erase_key = take(key_dim_);
    x.v = take(value_dim_), x.write = take(value_dim_);
    x.e = take(wide_), x.out = take(wide_);
    return x;
  }

 private:
  std::int64_t count() const { return 4 * key_dim_ + 2 * value_dim_ + 2 * wide_; }

  std::int64_t key_dim_, value_dim_, wide_;
  Slot<double> rows_;
};

// Reads the inputs of one call as doubles.
class Reader {
 public:
  // convolved: what stands for q, k and v, [T, 2 H K + HV V]; null: they do.
  Reader(const Problem& p, const Inputs& inputs, const double* convolved = nullptr)
      : p_(p), a_(inputs), convolved_(convolved) {}

  const Inputs& inputs() const { return a_; }
  std::int64_t begin(std::int64_t n) const {
    if (a_.cu_seqlens == nullptr) return a_.sequences == 0 ? 0 : n * (a_.tokens / a_.sequences);
    return load_index(a_.cu_seqlens,
                      a_.cu_seqlens_dtype == LINATTN_INT64 ? DType::kInt64 : DType::kInt32, n);
  }
  std::int64_t length(std::int64_t n) const { return begin(n + 1) - begin(n); }

  // Rows past the last offset; they count as tokens of a sequence after the last.
  std::int64_t surplus() const { return a_.tokens - begin(a_.sequences); }

  // Of token t of sequence n, in elements.
  std::int64_t offset(const Tensor& x, std::int64_t n, std::int64_t t, std::int64_t head) const {
    const std::int64_t token = a_.cu_seqlens == nullptr ? n * x.sequence_stride + t * x.token_stride
                                                        : (begin(n) + t) * x.token_stride;
    return token + head * x.head_stride;
  }

  double scale() const {
    return a_.scale != 0 ? a_.scale : 1 / std::sqrt(static_cast<double>(p_.key_dim));
  }
  std::int64_t key_head(std::int64_t value_head) const {
    return value_head / (p_.value_heads / p_.heads);
  }
  std::int64_t gate_width() const { return p_.op.gate == Gate::kChannel ? p_.key_dim : 1; }

  GateParameters<double> gate_parameters(std::int64_t value_head, std::int64_t key) const {
    const std::int64_t i = value_head * gate_width() + key;
    return GateParameters<double>::of(a_.a_log == nullptr ? 0 : a_.a_log[value_head],
                                      a_.dt_bias == nullptr ? 0 : a_.dt_bias[i], a_.lower_bound);
  }

  // The slot that sequence n starts from, -1: from zero.
  std::int64_t initial_slot(std::int64_t n, std::int64_t index) const {
    if (a_.initial_state.data == nullptr) return -1;
    if (a_.has_initial_state != nullptr && a_.has_initial_state[n] == 0) return -1;
    return slot_of(a_.read_slots, index, n, a_.first_slot);
  }
  void initial_state(std::int64_t slot, std::int64_t value_head, double* state) const {
    if (slot >= 0)
      load_state(p_, a_.initial_state, p_.state_dtype, slot, value_head, state);
    else
      std::fill_n(state, static_cast<std::int64_t>(p_.key_dim) * p_.value_dim, 0.0);
  }

  // All of x but e and out.
  void token(std::int64_t n, std::int64_t t, std::int64_t value_head, const Token& x) const {
    if (a_.q.data == nullptr) {  // of a step that only writes states
      std::fill_n(x.q, p_.key_dim, 0.0);
    } else {
      query_key(a_.q, 0, n, t, key_head(value_head), x.q);
      const double factor = scale();
      for (std::int64_t key = 0; key < p_.key_dim; ++key) x.q[key] *= factor;
    }
    query_key(a_.k, keys(), n, t, key_head(value_head), x.k);
    vector(a_.v, 2 * keys(), n, t, value_head, p_.value_dim, x.v);
    decay(n, t, value_head, x.decay);
    if (p_.op.update != Update::kAdd) strengths(n, t, value_head, x);
  }

  // H K and HV V.
  std::int64_t keys() const { return std::int64_t{p_.heads} * p_.key_dim; }
  std::int64_t values() const { return std::int64_t{p_.value_heads} * p_.value_dim; }

  // A row of q (first 0) or k (first keys()), normalised if the problem says so. Returns 1 / the
  // norm, or 1.
  double query_key(const Tensor& tensor, std::int64_t first, std::int64_t n, std::int64_t t,
                   std::int64_t head, double* row) const;
  // a, [gate_width()].
  void log_decay(std::int64_t n, std::int64_t t, std::int64_t value_head, double* row) const;
  // e^a, [gate_width()].
  void decay(std::int64_t n, std::int64_t t, std::int64_t value_head, double* row) const;

 private:
  // A row as it is given, or from `first` on as it is convolved.
  void vector(const Tensor& tensor, std::int64_t first, std::int64_t n, std::int64_t t,
              std::int64_t head, std::int64_t dim, double* row) const {
    if (convolved_ == nullptr)
      load_row(tensor, p_.dtype, offset(tensor, n, t, head), dim, row);
    else
      std::copy_n(convolved_ + (begin(n) + t) * (2 * keys() + values()) + first + head * dim, dim,
                  row);
  }
  void strengths(std::int64_t n, std::int64_t t, std::int64_t value_head, const Token& x) const;

  const Problem& p_;
  const Inputs& a_;
  const double* const convolved_;
};

// Zeroes rows 0 .. tokens - 1 of sequence n.
inline void zero_rows(const Reader& reader, const Tensor& tensor, DType dtype, std::int64_t n,
                      std::int64_t tokens, std::int64_t heads, std::int64_t dim) {
  for (std::int64_t t = 0; t < tokens; ++t)
    for (std::int64_t head = 0; head < heads; ++head)
      zero_row(tensor, dtype, reader.offset(tensor, n, t, head), dim);
}

// ---- the recurrence
// --------------------------------------------------------------------------------------------

// sum += c[key] rows[key], in the order of the keys. Four rows a turn, so that sum is loaded and
// stored a quarter as often.
template <class Coefficient>
void add_rows(std::int64_t keys, std::int64_t columns, const Coefficient& c,
              const double* __restrict rows, double* __restrict sum) {
  std::int64_t key = 0;
  for (; key + 4 <= keys; key += 4) {
    const double c0 = c(key), c1 = c(key + 1), c2 = c(key + 2), c3 = c(key + 3);
    const double* r0 = rows + key * columns;
    const double *r1 = r0 + columns, *r2 = r1 + columns, *r3 = r2 + columns;
    for (std::int64_t i = 0; i < columns; ++i)
      sum[i] = (((sum[i] + c0 * r0[i]) + c1 * r1[i]) + c2 * r2[i]) + c3 * r3[i];
  }
  for (; key < keys; ++key)
    for (std::int64_t i = 0; i < columns; ++i) sum[i] += c(key) * rows[key * columns + i];
}

// A decay of 0 forgets whatever was there; 0 times an infinity would not.
template <GatePolicy Gate>
void forget(const double* decay, std::int64_t keys, std::int64_t columns, double* state) {
  for (std::int64_t key = 0; key < keys; ++key)
    if (decay[Gate::at(key)] == 0) std::fill_n(state + key * columns, columns, 0.0);
}

// x.e [columns] <- what the token writes along its key into a state [K, columns] that has not
// decayed yet. The columns are V, or K for a transition.
template <GatePolicy Gate, UpdatePolicy Update>
void compute_write(const Token& x, std::int64_t keys, std::int64_t columns,
                   const double* __restrict state) {
  double* __restrict e = x.e;
  if constexpr (Update::kReadsState) {
    const auto erase = [&](std::int64_t key) { return x.erase_key[key] * x.decay[Gate::at(key)]; };
    std::fill_n(e, columns, 0.0);
    add_rows(keys, columns, erase, state, e);
    for (std::int64_t i = 0; i < columns; ++i) e[i] = Update::write(x.write[i], x.v[i], e[i]);
  } else {
    for (std::int64_t i = 0; i < columns; ++i) e[i] = Update::write(1.0, x.v[i], 0.0);
  }
}

// state <- decay state + k e^T, and x.out <- state^T q.
template <GatePolicy Gate, UpdatePolicy Update>
void advance(const Token& x, std::int64_t keys, std::int64_t columns, double* __restrict state) {
  forget<Gate>(x.decay, keys, columns, state);
  compute_write<Gate, Update>(x, keys, columns, state);
  const double* __restrict e = x.e;
  double* __restrict out = x.out;
  std::fill_n(out, columns, 0.0);
  std::int64_t key = 0;
  for (; key + 2 <= keys; key += 2) {
    double* __restrict s0 = state + key * columns;
    double* __restrict s1 = s0 + columns;
    const double a0 = x.decay[Gate::at(key)], k0 = x.k[key], q0 = x.q[key];
    const double a1 = x.decay[Gate::at(key + 1)], k1 = x.k[key + 1], q1 = x.q[key + 1];
    for (std::int64_t i = 0; i < columns; ++i) {
      const double n0 = a0 * s0[i] + k0 * e[i];
      const double n1 = a1 * s1[i] + k1 * e[i];
      s0[i] = n0;
      s1[i] = n1;
      out[i] = (out[i] + q0 * n0) + q1 * n1;
    }
  }
  for (; key < keys; ++key) {
    double* s = state + key * columns;
    for (std::int64_t i = 0; i < columns; ++i) {
      s[i] = x.decay[Gate::at(key)] * s[i] + x.k[key] * e[i];
      out[i] += x.q[key] * s[i];
    }
  }
}

}  // namespace linattn::cpu
