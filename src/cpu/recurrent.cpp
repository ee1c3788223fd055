// SPDX-License-Identifier: Apache-2.0
//
// The oracle's forward pass, and what the passes share.
#include "cpu/recurrent.h"

#include <string>
#include <thread>
#include <utility>

namespace linattn::cpu {

std::string refuse_other_devices(const Problem&, Device device) {
  return device.type == Device::Type::kCpu ? std::string()
                                           : "device is " + to_string(device) + ", not cpu";
}

std::int64_t lanes_for(std::int64_t units) {
  // At least 4, so that set_threads can be tried on a small machine. Read once: a process that
  // narrows its affinity between the plan and the run must find the same.
  static const std::int64_t most = std::max<std::int64_t>(std::thread::hardware_concurrency(), 4);
  return std::min(units, most);
}

// ---- inputs
// ----------------------------------------------------------------------------------------------------

void load_row(const Tensor& tensor, DType dtype, std::int64_t offset, std::int64_t dim,
              double* row) {
  with_dtype(dtype, [&]<class T>(T) {
    const T* data = static_cast<const T*>(tensor.data) + offset;
    for (std::int64_t i = 0; i < dim; ++i) row[i] = to_float(data[i]);
  });
}

void store_row(const Tensor& tensor, DType dtype, std::int64_t offset, std::int64_t dim,
               const double* row) {
  with_dtype(dtype, [&]<class T>(T) {
    T* data = static_cast<T*>(tensor.data) + offset;
    for (std::int64_t i = 0; i < dim; ++i) data[i] = from_float<T>(static_cast<float>(row[i]));
  });
}

void zero_row(const Tensor& tensor, DType dtype, std::int64_t offset, std::int64_t dim) {
  with_dtype(dtype,
             [&]<class T>(T) { std::fill_n(static_cast<T*>(tensor.data) + offset, dim, T{}); });
}

namespace {

// visit(index in [K, V], index in the stored matrix) for every element.
template <class Visit>
void for_each_element(const Problem& p, const Visit& visit) {
  const std::int64_t keys = p.key_dim, values = p.value_dim;
  const bool key_value = p.state_layout == StateLayout::kKeyValue;
  for (std::int64_t key = 0; key < keys; ++key)
    for (std::int64_t value = 0; value < values; ++value)
      visit(key * values + value, key_value ? key * values + value : value * keys + key);
}

}  // namespace

void load_state(const Problem& p, const State& stored, DType dtype, std::int64_t slot,
                std::int64_t head, double* state) {
  with_dtype(dtype, [&]<class T>(T) {
    const T* data =
        static_cast<const T*>(stored.data) + slot * stored.slot_stride + head * stored.head_stride;
    for_each_element(p, [&](std::int64_t i, std::int64_t at) { state[i] = to_float(data[at]); });
  });
}

void store_state(const Problem& p, const State& stored, DType dtype, std::int64_t slot,
                 std::int64_t head, const double* state) {
  with_dtype(dtype, [&]<class T>(T) {
    T* data = static_cast<T*>(stored.data) + slot * stored.slot_stride + head * stored.head_stride;
    for_each_element(p, [&](std::int64_t i, std::int64_t at) {
      data[at] = from_float<T>(static_cast<float>(state[i]));
    });
  });
}

double Reader::query_key(const Tensor& tensor, std::int64_t first, std::int64_t n, std::int64_t t,
                         std::int64_t head, double* row) const {
  vector(tensor, first, n, t, head, p_.key_dim, row);
  if (!p_.qk_l2norm) return 1;
  double sum = kNormEpsilon;
  for (std::int64_t key = 0; key < p_.key_dim; ++key) sum += row[key] * row[key];
  const double inverse_norm = 1 / std::sqrt(sum);
  for (std::int64_t key = 0; key < p_.key_dim; ++key) row[key] *= inverse_norm;
  return inverse_norm;
}

void Reader::log_decay(std::int64_t n, std::int64_t t, std::int64_t value_head, double* row) const {
  if (p_.op.gate == Gate::kNone) {
    row[0] = 0;
    return;
  }
  const std::int64_t width = gate_width();
  load_row(a_.g, p_.gate_dtype, offset(a_.g, n, t, value_head), width, row);
  GateParameters<double> parameters = gate_parameters(value_head, 0);
  with_gate_input(p_.gate_input, [&]<class Input>(Input) {
    for (std::int64_t i = 0; i < width; ++i) {
      if (a_.dt_bias != nullptr) parameters.dt_bias = a_.dt_bias[value_head * width + i];
      row[i] = Input::log_decay(row[i], parameters);
    }
  });
}

void Reader::decay(std::int64_t n, std::int64_t t, std::int64_t value_head, double* row) const {
  log_decay(n, t, value_head, row);
  for (std::int64_t i = 0; i < gate_width(); ++i) row[i] = std::exp(row[i]);
}

void Reader::strengths(std::int64_t n, std::int64_t t, std::int64_t value_head,
                       const Token& x) const {
  with_beta_input(p_.beta_input, [&]<class Beta>(Beta) {
    if (p_.op.update == Update::kEraseWrite) {
      load_row(a_.erase, p_.beta_dtype, offset(a_.erase, n, t, value_head), p_.key_dim,
               x.erase_key);
      load_row(a_.write, p_.beta_dtype, offset(a_.write, n, t, value_head), p_.value_dim, x.write);
      for (std::int64_t key = 0; key < p_.key_dim; ++key)
        x.erase_key[key] = Beta::strength(x.erase_key[key]) * x.k[key];
      for (std::int64_t value = 0; value < p_.value_dim; ++value)
        x.write[value] = Beta::strength(x.write[value]);
      return;
    }
    double beta = 1;
    if (a_.beta.data != nullptr)
      load_row(a_.beta, p_.beta_dtype, offset(a_.beta, n, t, value_head), 1, &beta);
    beta = Beta::strength(beta);
    for (std::int64_t key = 0; key < p_.key_dim; ++key) x.erase_key[key] = beta * x.k[key];
    std::fill_n(x.write, p_.value_dim, beta);
  });
}

// ---- forward
// ---------------------------------------------------------------------------------------------------

namespace {

struct ForwardBuffers {
  WorkspaceLayout layout;
  std::int64_t lanes;
  TokenRows rows;
  Slot<double> state;   // [lanes, K, V]
  Slot<double> matrix;  // [lanes, K, K] the transition
  Slot<double> zero;    // [lanes, K]

  ForwardBuffers(const Problem& p, Sizes n)
      : lanes(lanes_for(n.sequences * p.value_heads)),
        rows(layout, p, lanes),
        state(layout.book<double>(lanes * p.key_dim * p.value_dim)),
        matrix(layout.book<double>(lanes * p.key_dim * p.key_dim)),
        zero(layout.book<double>(lanes * p.key_dim)) {}
};

// Writes the checkpoints of one sequence as its tokens go by.
class Checkpoints {
 public:
  Checkpoints(const Problem& p, const ForwardArgs& a, std::int64_t n) : p_(p), a_(a) {
    if (a.checkpoints.data == nullptr) return;
    next_ = a.checkpoint_offsets[n];
    last_ = a.checkpoint_offsets[n + 1];
    start_ = a.start_positions == nullptr ? 0 : a.start_positions[n];
    while (next_ < last_ && a.checkpoint_positions[next_] < start_) ++next_;
  }

  // The state after `done` tokens of this call.
  void store(std::int64_t done, std::int64_t head, const double* state) {
    for (; next_ < last_ && a_.checkpoint_positions[next_] == start_ + done; ++next_) {
      const std::int64_t slot = slot_of(a_.checkpoint_slots, next_, 0, a_.first_slot);
      if (slot >= 0) store_state(p_, a_.checkpoints, p_.checkpoint_dtype, slot, head, state);
    }
  }

 private:
  const Problem& p_;
  const ForwardArgs& a_;
  std::int64_t next_ = 0, last_ = 0, start_ = 0;
};

void store_transition(const Problem& p, const State& transition, std::int64_t n, std::int64_t head,
                      const double* matrix) {
  float* data = static_cast<float*>(transition.data) + n * transition.slot_stride +
                head * transition.head_stride;
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(p.key_dim) * p.key_dim; ++i)
    data[i] = static_cast<float>(matrix[i]);
}

// Null read and write ids together.
bool is_pad(const ForwardArgs& a, std::int64_t n) {
  return a.read_slots != nullptr && a.write_slots != nullptr &&
         slot_of(a.read_slots, n, n, a.first_slot) < 0 &&
         slot_of(a.write_slots, n, n, a.first_slot) < 0;
}

// One sequence and value head.
template <GatePolicy Gate, UpdatePolicy Update>
void forward_unit(const Problem& p, const ForwardArgs& a, const Reader& reader, std::int64_t n,
                  std::int64_t head, const Token& x, double* state, double* matrix, double* zero) {
  const std::int64_t keys = p.key_dim, values = p.value_dim;
  const bool transition = a.transition.data != nullptr;
  if (transition) {
    std::fill_n(matrix, keys * keys, 0.0);
    for (std::int64_t key = 0; key < keys; ++key) matrix[key * keys + key] = 1;
  }
  if (is_pad(a, n)) {  // its transition is that of no tokens
    if (transition) store_transition(p, a.transition, n, head, matrix);
    for (std::int64_t t = 0; t < reader.length(n); ++t)
      zero_row(a.out, p.dtype, reader.offset(a.out, n, t, head), values);
    return;
  }
  reader.initial_state(reader.initial_slot(n, n), head, state);
  Checkpoints checkpoints(p, a, n);
  checkpoints.store(0, head, state);
  for (std::int64_t t = 0; t < reader.length(n); ++t) {
    reader.token(n, t, head, x);
    if (transition) {  // the recurrence with nothing to write, on K columns that began as the
                       // identity
      Token only_state = x;
      only_state.v = only_state.write = zero;
      advance<Gate, Update>(only_state, keys, keys, matrix);
    }
    advance<Gate, Update>(x, keys, values, state);
    store_row(a.out, p.dtype, reader.offset(a.out, n, t, head), values, x.out);
    checkpoints.store(t + 1, head, state);
  }
  if (transition) store_transition(p, a.transition, n, head, matrix);
  const std::int64_t write_slot = slot_of(a.write_slots, n, n, a.first_slot);
  if (a.final_state.data != nullptr && write_slot >= 0)
    store_state(p, a.final_state, p.state_dtype, write_slot, head, state);
}

}  // namespace

std::size_t recurrent_forward_bytes(const Problem& p, Sizes n) {
  return ForwardBuffers(p, n).layout.bytes();
}

void run_recurrent_forward(const Problem& p, const ForwardArgs& a, Workspace workspace, Queue) {
  const ForwardBuffers buffers(p, {a.tokens, a.sequences});
  const Inputs inputs = inputs_of(a);
  const Reader reader(p, inputs);
  const std::int64_t keys = p.key_dim, values = p.value_dim;
  with_class(p.op, [&]<class Gate, class Update>(Gate, Update) {
    for_each_unit(
        a.sequences * p.value_heads, buffers.lanes, [&](std::int64_t unit, std::int64_t lane) {
          double* zero = buffers.zero.in(workspace) + lane * keys;
          std::fill_n(zero, keys, 0.0);
          forward_unit<Gate, Update>(p, a, reader, unit / p.value_heads, unit % p.value_heads,
                                     buffers.rows.in(workspace, lane),
                                     buffers.state.in(workspace) + lane * keys * values,
                                     buffers.matrix.in(workspace) + lane * keys * keys, zero);
        });
  });
  zero_rows(reader, a.out, p.dtype, a.sequences, reader.surplus(), p.value_heads, values);
}

}  // namespace linattn::cpu
