// SPDX-License-Identifier: Apache-2.0
//
// Small problems for the oracle's own tests: inputs, calls through the public plans, and a second
// recurrence that was written from docs/math.md without a look at the first.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/dtype.h"
#include "linattn/linattn.h"
#include "support/random.h"

namespace linattn::test {

using Floats = std::vector<float>;

inline std::vector<Op> all_ops() {
  return {kda, gdn, gla, lightning, simple_gla, delta_rule, linear_attention, gdn2, comba};
}

inline std::vector<GateInput> gate_inputs(Op op) {
  if (op.gate == Gate::kNone) return {GateInput::kUnset};
  return {GateInput::kLogDecay, GateInput::kDecay, GateInput::kSoftplus, GateInput::kBounded};
}

inline std::vector<BetaInput> beta_inputs(Op op) {
  if (op.update == Update::kAdd) return {BetaInput::kUnset};
  std::vector<BetaInput> inputs{BetaInput::kValue, BetaInput::kLogit, BetaInput::kTwiceLogit};
  if (op.update == Update::kDelta) inputs.push_back(BetaInput::kOne);
  return inputs;
}

// The inputs of one call, rounded to the dtypes of the problem. Shapes are those of c.h,
// contiguous.
struct Case {
  Problem p;
  std::vector<std::int64_t> offsets;  // cu_seqlens; rows past the last one exist if tokens says so
  std::int64_t tokens = 0;
  float scale = 0;
  float lower_bound = 0;
  Floats q, k, v, g, beta, erase, write, a_log, dt_bias, initial, dout, dfinal;

  std::int64_t sequences() const { return static_cast<std::int64_t>(offsets.size()) - 1; }
  std::int64_t gate_width() const { return p.op.gate == Gate::kChannel ? p.key_dim : 1; }
  std::int64_t matrix() const { return static_cast<std::int64_t>(p.key_dim) * p.value_dim; }
};

inline float rounded(float x, DType dtype) {
  float value;
  store(&value, dtype, 0, x);
  return load(&value, dtype, 0);
}

struct Shape {
  int heads = 2, value_heads = 4, key_dim = 3, value_dim = 2;
};

inline Case make_case(Op op, GateInput gate_input, BetaInput beta_input,
                      std::vector<std::int64_t> lengths, Shape shape = {}, std::uint64_t seed = 1) {
  Case c;
  c.offsets = {0};
  for (const std::int64_t length : lengths) c.offsets.push_back(c.offsets.back() + length);
  c.tokens = c.offsets.back();
  Problem& p = c.p;
  p.op = op;
  p.dtype = DType::kFloat32;
  p.max_tokens = c.tokens + 16;
  p.max_sequences = c.sequences() + 4;
  p.heads = shape.heads;
  p.value_heads = shape.value_heads;
  p.key_dim = shape.key_dim;
  p.value_dim = shape.value_dim;
  p.gate_input = gate_input;
  p.beta_input = beta_input;
  p.state_layout = seed % 2 == 0 ? StateLayout::kKeyValue : StateLayout::kValueKey;
  p.save_for_backward = true;
  Random random(seed);
  const auto fill = [&](Floats& x, std::int64_t count, double low, double high) {
    x.resize(static_cast<std::size_t>(count));
    for (float& value : x) value = static_cast<float>(random.uniform(low, high));
  };
  fill(c.q, c.tokens * p.heads * p.key_dim, -1, 1);
  fill(c.k, c.tokens * p.heads * p.key_dim, -1, 1);
  fill(c.v, c.tokens * p.value_heads * p.value_dim, -1, 1);
  fill(c.initial, c.sequences() * p.value_heads * c.matrix(), -1, 1);
  fill(c.dout, c.tokens * p.value_heads * p.value_dim, -1, 1);
  fill(c.dfinal, c.sequences() * p.value_heads * c.matrix(), -1, 1);
  if (op.gate != Gate::kNone) {
    const bool raw = gate_input == GateInput::kSoftplus || gate_input == GateInput::kBounded;
    const std::int64_t rows = op.gate == Gate::kHeadConstant ? 1 : c.tokens;
    const std::int64_t count = rows * p.value_heads * c.gate_width();
    if (raw) fill(c.g, count, -2, 2);
    if (gate_input == GateInput::kDecay) fill(c.g, count, .3, 1);
    if (gate_input == GateInput::kLogDecay) fill(c.g, count, -1, -.01);
    if (raw) fill(c.a_log, p.value_heads, -1, .5);
    if (raw) fill(c.dt_bias, p.value_heads * c.gate_width(), -.5, .5);
    if (gate_input == GateInput::kBounded) c.lower_bound = -3;
  }
  const bool value = beta_input == BetaInput::kValue;
  const double low = value ? .1 : -2, high = value ? .9 : 2;
  if (op.update == Update::kDelta && beta_input != BetaInput::kOne)
    fill(c.beta, c.tokens * p.value_heads, low, high);
  if (op.update == Update::kEraseWrite) {
    fill(c.erase, c.tokens * p.value_heads * p.key_dim, low, high);
    fill(c.write, c.tokens * p.value_heads * p.value_dim, low, high);
  }
  return c;
}

// ---- the second recurrence
// ---------------------------------------------------------------------------------------

// The inputs as doubles, to be perturbed.
struct Doubles {
  explicit Doubles(const Case& c)
      : q(wide(c.q)),
        k(wide(c.k)),
        v(wide(c.v)),
        g(wide(c.g)),
        beta(wide(c.beta)),
        erase(wide(c.erase)),
        write(wide(c.write)),
        a_log(wide(c.a_log)),
        dt_bias(wide(c.dt_bias)),
        initial(wide(c.initial)) {}
  static std::vector<double> wide(const Floats& x) { return {x.begin(), x.end()}; }
  std::vector<double> q, k, v, g, beta, erase, write, a_log, dt_bias, initial;
};

struct Reference {
  std::vector<double> out;    // [T, HV, V]
  std::vector<double> final;  // as the initial state
};

inline double activated(const Case& c, const Doubles& x, std::size_t g, std::size_t head,
                        std::size_t bias) {
  const double a = x.a_log.empty() ? 0 : x.a_log[head];
  const double raw = x.g[g] + (x.dt_bias.empty() ? 0 : x.dt_bias[bias]);
  switch (c.p.gate_input) {
    case GateInput::kLogDecay:
      return std::exp(x.g[g]);
    case GateInput::kDecay:
      return x.g[g];
    case GateInput::kSoftplus:
      return std::pow(1 + std::exp(raw), -std::exp(a));
    default:
      return std::exp(c.lower_bound / (1 + std::exp(-std::exp(a) * raw)));
  }
}

inline double strength(BetaInput input, double x) {
  if (input == BetaInput::kValue) return x;
  return (input == BetaInput::kTwiceLogit ? 2 : 1) * (1 / (1 + std::exp(-x)));
}

inline Reference brute_force(const Case& c, const Doubles& x) {
  const auto heads = static_cast<std::size_t>(c.p.heads),
             value_heads = static_cast<std::size_t>(c.p.value_heads);
  const auto keys = static_cast<std::size_t>(c.p.key_dim),
             values = static_cast<std::size_t>(c.p.value_dim);
  const double scale = c.scale == 0 ? std::pow(static_cast<double>(keys), -.5) : c.scale;
  const bool key_value = c.p.state_layout == StateLayout::kKeyValue;
  Reference r{std::vector<double>(static_cast<std::size_t>(c.tokens) * value_heads * values),
              x.initial};
  for (std::size_t n = 0; n + 1 < c.offsets.size(); ++n)
    for (std::size_t h = 0; h < value_heads; ++h) {
      double* S = &r.final[(n * value_heads + h) * keys * values];
      const auto at = [&](std::size_t key, std::size_t value) -> double& {
        return S[key_value ? key * values + value : value * keys + key];
      };
      for (auto t = static_cast<std::size_t>(c.offsets[n]);
           t < static_cast<std::size_t>(c.offsets[n + 1]); ++t) {
        const std::size_t key_row = (t * heads + h / (value_heads / heads)) * keys,
                          row = t * value_heads + h;
        double q_norm = 1, k_norm = 1;
        if (c.p.qk_l2norm) {
          q_norm = k_norm = 1e-6;
          for (std::size_t i = 0; i < keys; ++i) q_norm += x.q[key_row + i] * x.q[key_row + i];
          for (std::size_t i = 0; i < keys; ++i) k_norm += x.k[key_row + i] * x.k[key_row + i];
        }
        const auto q = [&](std::size_t i) { return scale * x.q[key_row + i] / std::sqrt(q_norm); };
        const auto k = [&](std::size_t i) { return x.k[key_row + i] / std::sqrt(k_norm); };
        for (std::size_t i = 0; i < keys; ++i)
          for (std::size_t j = 0; j < values; ++j) {
            if (c.p.op.gate == Gate::kHeadConstant) at(i, j) *= activated(c, x, h, h, h);
            if (c.p.op.gate == Gate::kHead) at(i, j) *= activated(c, x, row, h, h);
            if (c.p.op.gate == Gate::kChannel)
              at(i, j) *= activated(c, x, row * keys + i, h, h * keys + i);
          }
        for (std::size_t j = 0; j < values; ++j) {
          double e = x.v[row * values + j];
          const double beta = x.beta.empty() ? 1 : strength(c.p.beta_input, x.beta[row]);
          double erased = 0;
          for (std::size_t i = 0; i < keys; ++i)
            erased += k(i) * at(i, j) *
                      (x.erase.empty() ? 1 : strength(c.p.beta_input, x.erase[row * keys + i]));
          if (c.p.op.update == Update::kDelta) e = beta * (e - erased);
          if (c.p.op.update == Update::kEraseWrite)
            e = strength(c.p.beta_input, x.write[row * values + j]) * e - erased;
          for (std::size_t i = 0; i < keys; ++i) at(i, j) += k(i) * e;
          for (std::size_t i = 0; i < keys; ++i) r.out[row * values + j] += q(i) * at(i, j);
        }
      }
    }
  return r;
}

// ---- calls
// -------------------------------------------------------------------------------------------------------

// A tensor in the dtype of the problem.
class Buffer {
 public:
  Buffer() = default;
  Buffer(const Floats& x, DType dtype) : dtype_(dtype), bytes_(x.size() * size_of(dtype)) {
    for (std::size_t i = 0; i < x.size(); ++i)
      store(bytes_.data(), dtype, static_cast<std::int64_t>(i), x[i]);
  }
  static Buffer poisoned(std::int64_t count, DType dtype) {
    return {Floats(static_cast<std::size_t>(count), std::numeric_limits<float>::quiet_NaN()),
            dtype};
  }
  void* data() { return bytes_.empty() ? nullptr : bytes_.data(); }
  Floats floats() const {
    Floats x(bytes_.size() / size_of(dtype_));
    for (std::size_t i = 0; i < x.size(); ++i)
      x[i] = load(bytes_.data(), dtype_, static_cast<std::int64_t>(i));
    return x;
  }

 private:
  DType dtype_ = DType::kFloat32;
  std::vector<std::byte> bytes_;
};

// Aligned and poisoned.
class Scratch {
 public:
  explicit Scratch(std::size_t bytes) : memory_(bytes + 256, std::byte{0xff}) {
    void* data = memory_.data();
    std::size_t space = memory_.size();
    workspace = {std::align(256, bytes, data, space), bytes};
  }
  Workspace workspace;

 private:
  std::vector<std::byte> memory_;
};

// Owns the inputs of a case as the problem's dtypes store them.
class Inputs {
 public:
  explicit Inputs(const Case& c)
      : c_(c),
        q_(c.q, c.p.dtype),
        k_(c.k, c.p.dtype),
        v_(c.v, c.p.dtype),
        g_(c.g, c.p.gate_dtype),
        beta_(c.beta, c.p.beta_dtype),
        erase_(c.erase, c.p.beta_dtype),
        write_(c.write, c.p.beta_dtype),
        initial_(c.initial, c.p.state_dtype) {}

  template <class Args>
  Args args() {
    const Problem& p = c_.p;
    Args a{};
    a.tokens = c_.tokens;
    a.sequences = c_.sequences();
    a.cu_seqlens = c_.offsets.data();
    a.cu_seqlens_dtype = LINATTN_INT64;
    a.scale = c_.scale;
    a.lower_bound = c_.lower_bound;
    a.q = contiguous(q_.data(), p.heads, p.key_dim);
    a.k = contiguous(k_.data(), p.heads, p.key_dim);
    a.v = contiguous(v_.data(), p.value_heads, p.value_dim);
    if (p.op.gate != Gate::kNone) a.g = contiguous(g_.data(), p.value_heads, c_.gate_width());
    if (p.op.gate == Gate::kHeadConstant) a.g.token_stride = 0;
    if (!c_.beta.empty()) a.beta = contiguous(beta_.data(), p.value_heads, 1);
    if (!c_.erase.empty()) a.erase = contiguous(erase_.data(), p.value_heads, p.key_dim);
    if (!c_.write.empty()) a.write = contiguous(write_.data(), p.value_heads, p.value_dim);
    if (!c_.a_log.empty()) a.a_log = c_.a_log.data();
    if (!c_.dt_bias.empty()) a.dt_bias = c_.dt_bias.data();
    if (!c_.initial.empty()) a.initial_state = state(initial_);
    return a;
  }
  State state(Buffer& buffer) const {
    const std::int64_t slots =
        static_cast<std::int64_t>(buffer.floats().size()) / (c_.p.value_heads * c_.matrix());
    return contiguous_state(buffer.data(), slots, c_.p.value_heads, c_.p.key_dim, c_.p.value_dim);
  }
  Buffer& initial() { return initial_; }

 private:
  const Case& c_;
  Buffer q_, k_, v_, g_, beta_, erase_, write_, initial_;
};

struct Result {
  Floats out, final;
};

// One forward or step; change may set any further argument.
template <class Args>
Result run(const Case& c, const std::function<void(Args&)>& change = {}) {
  const Problem& p = c.p;
  Inputs inputs(c);
  Args a = inputs.args<Args>();
  Buffer out = Buffer::poisoned(c.tokens * p.value_heads * p.value_dim, p.dtype);
  Buffer final = Buffer::poisoned(c.sequences() * p.value_heads * c.matrix(), p.state_dtype);
  a.out = contiguous(out.data(), p.value_heads, p.value_dim);
  if (c.sequences() > 0) a.final_state = inputs.state(final);
  if (change) change(a);
  const Plan<Args> plan(p, Device::cpu(), "cpu.recurrent");
  Scratch scratch(plan.workspace_bytes(a.tokens, a.sequences));
  plan.run(a, scratch.workspace);
  return {out.floats(), final.floats()};
}

inline Result forward(const Case& c, const std::function<void(ForwardArgs&)>& change = {}) {
  return run<ForwardArgs>(c, change);
}
inline Result step(const Case& c, const std::function<void(StepArgs&)>& change = {}) {
  return run<StepArgs>(c, change);
}

// Bit patterns, so that NaN equals NaN and 0 differs from -0.
inline bool same_bits(const Floats& a, const Floats& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

template <class Truth>
double relative_error(const Floats& x, const Truth& truth) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double d = static_cast<double>(x[i]) - static_cast<double>(truth[i]);
    difference += d * d;
    norm += static_cast<double>(truth[i]) * static_cast<double>(truth[i]);
  }
  if (norm == 0) return difference == 0 ? 0 : std::numeric_limits<double>::infinity();
  return std::sqrt(difference / norm);
}

// Rows first .. last - 1 of a [T, ...] tensor.
inline Floats rows(const Floats& x, std::int64_t tokens, std::int64_t first, std::int64_t last) {
  const std::int64_t width =
      static_cast<std::int64_t>(x.size()) / std::max<std::int64_t>(tokens, 1);
  return {x.begin() + first * width, x.begin() + last * width};
}

// The same call with tokens first .. last - 1 only, as one sequence. For a case of one sequence.
inline Case part(const Case& c, std::int64_t first, std::int64_t last) {
  Case piece = c;
  for (Floats Case::* x :
       {&Case::q, &Case::k, &Case::v, &Case::beta, &Case::erase, &Case::write, &Case::dout})
    piece.*x = rows(c.*x, c.tokens, first, last);
  if (c.p.op.gate == Gate::kHead || c.p.op.gate == Gate::kChannel)
    piece.g = rows(c.g, c.tokens, first, last);
  piece.tokens = last - first;
  piece.offsets = {0, last - first};
  return piece;
}

inline std::string name_of(const Problem& p) { return to_string(p); }

}  // namespace linattn::test
