// SPDX-License-Identifier: Apache-2.0
//
// The oracle's backward pass: the recurrence of docs/math.md differentiated token by token, from
// the last to the first. States are recomputed from those at the starts of chunks of sqrt(T)
// tokens, so that memory grows with the root of T and every state is the forward pass's to the last
// bit.
#include <cmath>

#include "cpu/recurrent.h"

namespace linattn::cpu {
namespace {

// Gradients of one token of one value head, and rows to compute them in.
struct Gradients {
  double* dout;        // [V]
  double* de;          // [V]
  double* dv;          // [V]
  double* dq;          // [K] of Token::q
  double* dk;          // [K] of Token::k
  double* derase_key;  // [K] of Token::erase_key
  double* dlog_decay;  // [1] or [K]
  double* raw;         // [max(K, V)] an input before its activation
  double* draw;        // [max(K, V)] its gradient
};

class GradientRows {
 public:
  GradientRows(WorkspaceLayout& layout, const Problem& p, std::int64_t lanes)
      : key_dim_(p.key_dim),
        value_dim_(p.value_dim),
        wide_(std::max(p.key_dim, p.value_dim)),
        rows_(layout.book<double>(lanes * count())) {}

  Gradients in(Workspace workspace, std::int64_t lane) const {
    double* next = rows_.in(workspace) + lane * count();
    const auto take = [&](std::int64_t n) { return std::exchange(next, next + n); };
    Gradients d{};
    d.dout = take(value_dim_), d.de = take(value_dim_), d.dv = take(value_dim_);
    d.dq = take(key_dim_), d.dk = take(key_dim_), d.derase_key = take(key_dim_),
    d.dlog_decay = take(key_dim_);
    d.raw = take(wide_), d.draw = take(wide_);
    return d;
  }

 private:
  std::int64_t count() const { return 3 * value_dim_ + 4 * key_dim_ + 2 * wide_; }

  std::int64_t key_dim_, value_dim_, wide_;
  Slot<double> rows_;
};

std::int64_t chunk_of(std::int64_t tokens) {
  auto chunk = static_cast<std::int64_t>(std::sqrt(static_cast<double>(tokens)));
  while (chunk * chunk < tokens) ++chunk;
  return std::max<std::int64_t>(chunk, 1);
}

// A lane takes tens of megabytes, where one of the forward pass takes a state.
constexpr std::int64_t kMostLanes = 32;

struct BackwardBuffers {
  WorkspaceLayout layout;
  std::int64_t lanes;
  std::int64_t chunk;      // tokens; a sequence has at most as many chunks
  std::int64_t sum_width;  // A_log, a constant g, dt_bias
  TokenRows tokens;
  GradientRows gradients;
  Slot<double> starts;     // [lanes, chunks, K, V] states before each chunk
  Slot<double> states;     // [lanes, chunk, K, V] states before each token of one chunk
  Slot<double> writes;     // [lanes, chunk, V] e of its tokens
  Slot<double> dstate;     // [lanes, K, V]
  Slot<double> query_key;  // [lanes, 2, T, K] dq and dk, summed over the value heads of a group
  Slot<double> sums;       // [N, HV, sum_width] sums over the tokens of a sequence

  BackwardBuffers(const Problem& p, Sizes n)
      : lanes(std::min(lanes_for(n.sequences * p.heads), kMostLanes)),
        chunk(chunk_of(n.tokens)),
        sum_width(2 + (p.op.gate == Gate::kChannel ? p.key_dim : 1)),
        tokens(layout, p, lanes),
        gradients(layout, p, lanes),
        starts(layout.book<double>(lanes * chunk * p.key_dim * p.value_dim)),
        states(layout.book<double>(lanes * chunk * p.key_dim * p.value_dim)),
        writes(layout.book<double>(lanes * chunk * p.value_dim)),
        dstate(layout.book<double>(lanes * p.key_dim * p.value_dim)),
        query_key(layout.book<double>(lanes * 2 * n.tokens * p.key_dim)),
        sums(layout.book<double>(n.sequences * p.value_heads * sum_width)) {}
};

// Eight partial sums in a fixed order: they vectorise without leave to reorder.
double dot(const double* __restrict a, const double* __restrict b, std::int64_t n) {
  double sum[8] = {};
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    for (int j = 0; j < 8; ++j) sum[j] += a[i + j] * b[i + j];
  for (; i < n; ++i) sum[i % 8] += a[i] * b[i];
  return ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
}

// One key head of one sequence, and the value heads of its group one after the other, so that dq
// and dk are summed in a fixed order.
template <GatePolicy Gate, UpdatePolicy Update>
class Group {
 public:
  Group(const Problem& p, const BackwardArgs& a, const Reader& reader,
        const BackwardBuffers& buffers, Workspace workspace, std::int64_t lane, std::int64_t n,
        std::int64_t head)
      : p_(p),
        a_(a),
        reader_(reader),
        n_(n),
        head_(head),
        keys_(p.key_dim),
        values_(p.value_dim),
        matrix_(keys_ * values_),
        length_(reader.length(n)),
        chunk_(buffers.chunk),
        x_(buffers.tokens.in(workspace, lane)),
        d_(buffers.gradients.in(workspace, lane)),
        starts_(buffers.starts.in(workspace) + lane * chunk_ * matrix_),
        states_(buffers.states.in(workspace) + lane * chunk_ * matrix_),
        writes_(buffers.writes.in(workspace) + lane * chunk_ * values_),
        dstate_(buffers.dstate.in(workspace) + lane * matrix_),
        dq_(buffers.query_key.in(workspace) + lane * 2 * a.tokens * keys_),
        dk_(dq_ + a.tokens * keys_),
        sums_(buffers.sums.in(workspace) + n * p.value_heads * buffers.sum_width),
        sum_width_(buffers.sum_width) {}

  void run() {
    std::fill_n(dq_, length_ * keys_, 0.0);
    std::fill_n(dk_, length_ * keys_, 0.0);
    const std::int64_t group = p_.value_heads / p_.heads;
    for (std::int64_t value_head = head_ * group; value_head < (head_ + 1) * group; ++value_head)
      run(value_head);
    for (std::int64_t t = 0; t < length_; ++t) {
      store_query_key(a_.q, a_.dq, t, dq_ + t * keys_);
      store_query_key(a_.k, a_.dk, t, dk_ + t * keys_);
    }
  }

 private:
  void run(std::int64_t value_head) {
    double* sums = sums_ + value_head * sum_width_;
    std::fill_n(sums, sum_width_, 0.0);
    const std::int64_t slot = reader_.initial_slot(n_, n_);
    const std::int64_t chunks = (length_ + chunk_ - 1) / chunk_;
    if (chunks > 0) reader_.initial_state(slot, value_head, starts_);
    for (std::int64_t c = 0; c + 1 < chunks; ++c) {
      double* next =
          std::copy_n(starts_ + c * matrix_, matrix_, starts_ + (c + 1) * matrix_) - matrix_;
      for (std::int64_t t = c * chunk_; t < (c + 1) * chunk_; ++t) {
        reader_.token(n_, t, value_head, x_);
        advance<Gate, Update>(x_, keys_, values_, next);
      }
    }
    if (a_.dfinal_state.data != nullptr)
      load_state(p_, a_.dfinal_state, p_.state_dtype, n_, value_head, dstate_);
    else
      std::fill_n(dstate_, matrix_, 0.0);
    for (std::int64_t c = chunks - 1; c >= 0; --c) {
      const std::int64_t first = c * chunk_, last = std::min(first + chunk_, length_);
      recompute(first, last, value_head);
      for (std::int64_t t = last - 1; t >= first; --t) {
        reader_.token(n_, t, value_head, x_);
        retreat(t, value_head, states_ + (t - first) * matrix_, writes_ + (t - first) * values_);
        store(t, value_head, sums);
      }
    }
    if (a_.dinitial_state.data == nullptr) return;
    if (slot < 0) std::fill_n(dstate_, matrix_, 0.0);  // it was not read
    store_state(p_, a_.dinitial_state, p_.state_dtype, n_, value_head, dstate_);
  }

  // The state before each token of a chunk, and what the token writes.
  void recompute(std::int64_t first, std::int64_t last, std::int64_t value_head) {
    std::copy_n(starts_ + first / chunk_ * matrix_, matrix_, states_);
    for (std::int64_t t = first; t < last; ++t) {
      double* state = states_ + (t - first) * matrix_;
      reader_.token(n_, t, value_head, x_);
      // What a decay of 0 forgets has no gradient either, so it may go from the state that came
      // before.
      forget<Gate>(x_.decay, keys_, values_, state);
      if (t + 1 < last) {
        std::copy_n(state, matrix_, state + matrix_);
        advance<Gate, Update>(x_, keys_, values_, state + matrix_);
      } else {
        compute_write<Gate, Update>(x_, keys_, values_, state);
      }
      std::copy_n(x_.e, values_, writes_ + (t - first) * values_);
    }
  }

  // From the gradient of the state after token t to that of the state before it, and all gradients
  // of the token.
  //
  //   S' = e^a S    e = w v - S'^T (b k)    S_t = S' + k e^T    o = S_t^T q
  void retreat(std::int64_t t, std::int64_t value_head, const double* state, const double* e) {
    if (a_.dout.data != nullptr)
      load_row(a_.dout, p_.dtype, reader_.offset(a_.dout, n_, t, value_head), values_, d_.dout);
    else
      std::fill_n(d_.dout, values_, 0.0);
    const double edo = dot(e, d_.dout, values_);
    double* __restrict de = d_.de;
    std::fill_n(de, values_, 0.0);
    for (std::int64_t key = 0; key < keys_; ++key) {
      double* __restrict dstate = dstate_ + key * values_;
      const double q = x_.q[key], k = x_.k[key];
      for (std::int64_t i = 0; i < values_; ++i) {
        dstate[i] += q * d_.dout[i];
        de[i] += k * dstate[i];
      }
      d_.dk[key] = dot(dstate, e, values_);
      d_.dq[key] = x_.decay[Gate::at(key)] * dot(state + key * values_, d_.dout, values_) + k * edo;
    }
    if (!Gate::kPerChannel) d_.dlog_decay[0] = 0;
    for (std::int64_t key = 0; key < keys_; ++key) {
      double* __restrict dstate = dstate_ + key * values_;
      const double* row = state + key * values_;
      const double decay = x_.decay[Gate::at(key)];
      if constexpr (Update::kReadsState) {
        d_.derase_key[key] = -decay * dot(row, de, values_);
        for (std::int64_t i = 0; i < values_; ++i) dstate[i] -= x_.erase_key[key] * de[i];
      }
      const double dlog_decay = decay * dot(row, dstate, values_);
      if constexpr (Gate::kPerChannel)
        d_.dlog_decay[key] = dlog_decay;
      else
        d_.dlog_decay[0] += dlog_decay;
      for (std::int64_t i = 0; i < values_; ++i) dstate[i] = decay == 0 ? 0 : decay * dstate[i];
    }
  }

  // Through the strengths, the norms' scale and the gate's activation, into the outputs.
  void store(std::int64_t t, std::int64_t value_head, double* sums) {
    if constexpr (Update::kReadsState)
      store_strengths(t, value_head);
    else
      std::copy_n(d_.de, values_, d_.dv);
    wanted(a_.dv, p_.dtype, t, value_head, values_, d_.dv);
    const double scale = reader_.scale();
    for (std::int64_t key = 0; key < keys_; ++key) {
      dq_[t * keys_ + key] += scale * d_.dq[key];
      dk_[t * keys_ + key] += d_.dk[key];
    }
    if (p_.op.gate != linattn::Gate::kNone) store_gate(t, value_head, sums);
  }

  // dv, the gradients of beta or of erase and write, and what the erased key adds to dk.
  void store_strengths(std::int64_t t, std::int64_t value_head) {
    for (std::int64_t i = 0; i < values_; ++i) d_.dv[i] = x_.write[i] * d_.de[i];
    with_beta_input(p_.beta_input, [&]<class Beta>(Beta) {
      if (p_.op.update == linattn::Update::kEraseWrite) {
        load_row(a_.erase, p_.beta_dtype, reader_.offset(a_.erase, n_, t, value_head), keys_,
                 d_.raw);
        for (std::int64_t key = 0; key < keys_; ++key) {
          d_.dk[key] += Beta::strength(d_.raw[key]) * d_.derase_key[key];
          d_.draw[key] = Beta::gradient(d_.derase_key[key] * x_.k[key], d_.raw[key]);
        }
        wanted(a_.derase, p_.beta_dtype, t, value_head, keys_, d_.draw);
        load_row(a_.write, p_.beta_dtype, reader_.offset(a_.write, n_, t, value_head), values_,
                 d_.raw);
        for (std::int64_t i = 0; i < values_; ++i)
          d_.draw[i] = Beta::gradient(d_.de[i] * x_.v[i], d_.raw[i]);
        wanted(a_.dwrite, p_.beta_dtype, t, value_head, values_, d_.draw);
        return;
      }
      const double beta = x_.write[0];
      double dbeta = dot(d_.de, x_.v, values_) + dot(d_.derase_key, x_.k, keys_);
      for (std::int64_t key = 0; key < keys_; ++key) d_.dk[key] += beta * d_.derase_key[key];
      if (a_.dbeta.data == nullptr) return;
      load_row(a_.beta, p_.beta_dtype, reader_.offset(a_.beta, n_, t, value_head), 1, d_.raw);
      dbeta = Beta::gradient(dbeta, d_.raw[0]);
      wanted(a_.dbeta, p_.beta_dtype, t, value_head, 1, &dbeta);
    });
  }

  // sums: A_log, a g that is constant per head, dt_bias.
  void store_gate(std::int64_t t, std::int64_t value_head, double* sums) {
    const std::int64_t width = Gate::width(keys_);
    load_row(a_.g, p_.gate_dtype, reader_.offset(a_.g, n_, t, value_head), width, d_.raw);
    with_gate_input(p_.gate_input, [&]<class Input>(Input) {
      GateParameters<double> parameters = reader_.gate_parameters(value_head, 0);
      for (std::int64_t i = 0; i < width; ++i) {
        if (a_.dt_bias != nullptr) parameters.dt_bias = a_.dt_bias[value_head * width + i];
        const GateGradient<double> gradient =
            Input::gradient(d_.dlog_decay[i], d_.raw[i], parameters);
        d_.draw[i] = gradient.g;
        sums[0] += gradient.a_log;
        sums[2 + i] += gradient.g;
      }
    });
    if (p_.op.gate == linattn::Gate::kHeadConstant)
      sums[1] += d_.draw[0];
    else
      wanted(a_.dg, p_.gate_dtype, t, value_head, width, d_.draw);
  }

  void wanted(const Tensor& tensor, DType dtype, std::int64_t t, std::int64_t head,
              std::int64_t dim, const double* row) const {
    if (tensor.data != nullptr)
      store_row(tensor, dtype, reader_.offset(tensor, n_, t, head), dim, row);
  }

  // dy is the gradient of the row that the recurrence used: y = x / |x|, or x itself.
  void store_query_key(const Tensor& input, const Tensor& gradient, std::int64_t t, double* dy) {
    if (gradient.data == nullptr) return;
    if (p_.qk_l2norm) {
      const double inverse_norm = reader_.query_key(input, 0, n_, t, head_, d_.raw);
      const double along = dot(d_.raw, dy, keys_);
      for (std::int64_t key = 0; key < keys_; ++key)
        dy[key] = inverse_norm * (dy[key] - d_.raw[key] * along);
    }
    wanted(gradient, p_.dtype, t, head_, keys_, dy);
  }

  const Problem& p_;
  const BackwardArgs& a_;
  const Reader& reader_;
  const std::int64_t n_, head_, keys_, values_, matrix_, length_, chunk_;
  const Token x_;
  const Gradients d_;
  double *const starts_, *const states_, *const writes_, *const dstate_;
  double *const dq_, *const dk_;  // [length, K]
  double* const sums_;            // of the sequence
  const std::int64_t sum_width_;
};

// Sums over the sequences, in their order.
void store_sums(const Problem& p, const BackwardArgs& a, const double* sums,
                std::int64_t sum_width) {
  const auto total = [&](std::int64_t value_head, std::int64_t i) {
    double sum = 0;
    for (std::int64_t n = 0; n < a.sequences; ++n)
      sum += sums[(n * p.value_heads + value_head) * sum_width + i];
    return sum;
  };
  const std::int64_t width = sum_width - 2;
  for (std::int64_t head = 0; head < p.value_heads; ++head) {
    if (a.da_log != nullptr) a.da_log[head] = static_cast<float>(total(head, 0));
    if (a.dg.data != nullptr && p.op.gate == Gate::kHeadConstant) {
      const double dg = total(head, 1);
      store_row(a.dg, p.gate_dtype, head * a.dg.head_stride, 1, &dg);
    }
    if (a.ddt_bias != nullptr)
      for (std::int64_t i = 0; i < width; ++i)
        a.ddt_bias[head * width + i] = static_cast<float>(total(head, 2 + i));
  }
}

}  // namespace

std::size_t recurrent_backward_bytes(const Problem& p, Sizes n) {
  return BackwardBuffers(p, n).layout.bytes();
}

void run_recurrent_backward(const Problem& p, const BackwardArgs& a, Workspace workspace, Queue) {
  const BackwardBuffers buffers(p, {a.tokens, a.sequences});
  const Inputs inputs = inputs_of(a);
  const Reader reader(p, inputs);
  with_class(p.op, [&]<class Gate, class Update>(Gate, Update) {
    for_each_unit(a.sequences * p.heads, buffers.lanes, [&](std::int64_t unit, std::int64_t lane) {
      Group<Gate, Update>(p, a, reader, buffers, workspace, lane, unit / p.heads, unit % p.heads)
          .run();
    });
  });
  store_sums(p, a, buffers.sums.in(workspace), buffers.sum_width);
  const auto clear = [&](const Tensor& tensor, DType dtype, std::int64_t heads, std::int64_t dim) {
    if (tensor.data != nullptr)
      zero_rows(reader, tensor, dtype, a.sequences, reader.surplus(), heads, dim);
  };
  clear(a.dq, p.dtype, p.heads, p.key_dim);
  clear(a.dk, p.dtype, p.heads, p.key_dim);
  clear(a.dv, p.dtype, p.value_heads, p.value_dim);
  clear(a.dbeta, p.beta_dtype, p.value_heads, 1);
  clear(a.derase, p.beta_dtype, p.value_heads, p.key_dim);
  clear(a.dwrite, p.beta_dtype, p.value_heads, p.value_dim);
  if (p.op.gate != Gate::kHeadConstant)
    clear(a.dg, p.gate_dtype, p.value_heads, reader.gate_width());
}

}  // namespace linattn::cpu
