// SPDX-License-Identifier: Apache-2.0
#include "ops/scenario.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>

#include "core/dtype.h"
#include "support/random.h"

namespace linattn::test {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::vector<std::int64_t> lengths_of(Lengths kind, const Shape& shape) {
  const std::int64_t t = shape.tokens;
  std::vector<std::int64_t> all(static_cast<std::size_t>(shape.sequences), t);
  const std::int64_t ragged[] = {t, 1, t / 2 + 1, std::min<std::int64_t>(16, t), t - 1, 3};
  const std::int64_t empties[] = {0, t, 0, 0, 1, std::min<std::int64_t>(64, t), 0};
  for (std::size_t n = 0; n < all.size(); ++n) {
    if (kind == Lengths::kRagged || kind == Lengths::kSurplus)
      all[n] = std::clamp<std::int64_t>(ragged[n % 6], 0, t);
    if (kind == Lengths::kEmpties) all[n] = empties[n % 7];
    if (kind == Lengths::kNone) all[n] = 0;
  }
  return all;
}

// The log decay of a token; t counts inside the sequence.
double draw_decay(Random& random, Decay kind, std::int64_t t, std::int64_t head,
                  std::int64_t channel) {
  const double mild = random.uniform(-1, -.01), other = random.uniform();
  switch (kind) {
    case Decay::kMild:
      return mild;
    case Decay::kStrong:
      return other < .1 ? -20 : -2 - 6 * other;
    case Decay::kZero:
      return 0;
    case Decay::kLong:
      return -1e-5 * std::pow(1e3, other);
    case Decay::kOff:
      return t % 7 == 3 ? -std::numeric_limits<double>::infinity() : mild;
    case Decay::kMixed:
      return (head + channel) % 3 == 0 ? 0 : (head + channel) % 3 == 1 ? -50 : mild;
    case Decay::kDip: {
      const bool low = t == 0 || t == 14 || t == 15 || t == 31 || t == 60;
      return low && channel == (channel > 0 ? 1 : 0) ? -26 : 0;
    }
    case Decay::kConstant:
      return std::log1p(-std::exp2(-5. - static_cast<double>(head)));
  }
  return mild;
}

void normalise(float* x, std::int64_t count) {
  double sum = 0;
  for (std::int64_t i = 0; i < count; ++i) sum += static_cast<double>(x[i]) * x[i];
  if (sum == 0) return;
  for (std::int64_t i = 0; i < count; ++i) x[i] = static_cast<float>(x[i] / std::sqrt(sum));
}

std::vector<float> normals(Random& random, std::int64_t count, double scale = 1) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& x : values) x = static_cast<float>(scale * random.normal());
  return values;
}

class Draw {
 public:
  explicit Draw(const Scenario& s) : s_(s), p_(s.problem), random_(s.seed) {}

  Inputs all() {
    const std::int64_t rows = s_.tokens(), hv = s_.value_heads();
    queries_and_keys(rows);
    in_.v = normals(random_, rows * hv * p_.value_dim);
    round_to(p_.dtype, in_.v);
    gates(rows);
    strengths(rows);
    states();
    slots();
    if (s_.has(kHasInitial) && !in_.initial.empty())
      for (std::int64_t n = 0; n < s_.sequences(); ++n) in_.has_initial.push_back(random_.coin(.6));
    if (s_.has(kStarts) && s_.pass == Pass::kForward)
      for (std::int64_t n = 0; n < s_.sequences(); ++n)
        in_.start_positions.push_back(
            random_.pick(std::initializer_list<std::int32_t>{0, 5, 64, 100, 127}));
    if (s_.has(kCheckpoints) && s_.pass == Pass::kForward) checkpoints();
    if (s_.has(kTree) && s_.pass == Pass::kStep) tree(rows);
    if (s_.pass == Pass::kBackward) {
      if (!s_.has(kNoDout)) in_.dout = normals(random_, rows * hv * p_.value_dim);
      if (!s_.has(kNoDFinal)) in_.dfinal = normals(random_, s_.sequences() * hv * s_.matrix());
      round_to(p_.dtype, in_.dout);
      round_to(p_.state_dtype, in_.dfinal);
    }
    unused_are_nan();
    return std::move(in_);
  }

 private:
  void queries_and_keys(std::int64_t rows) {
    const std::int64_t h = p_.heads, k = p_.key_dim;
    in_.q = normals(random_, rows * h * k);
    in_.k = normals(random_, rows * h * k);
    const std::vector<float> base = normals(random_, h * k);
    for (std::int64_t t = 0; t < rows; ++t)
      for (std::int64_t i = 0; i < h; ++i) {
        float* key = &in_.k[static_cast<std::size_t>((t * h + i) * k)];
        for (std::int64_t c = 0; c < k; ++c) {
          const float common = base[static_cast<std::size_t>(i * k + c)];
          if (s_.keys == Keys::kCorrelated) key[c] = common + .05f * key[c];
          if (s_.keys == Keys::kIdentical) key[c] = common;
          if (s_.keys == Keys::kOneHot) key[c] = c == t % k ? 1.f : 0.f;
        }
        if (s_.keys == Keys::kRaw) continue;
        normalise(key, k);
        normalise(&in_.q[static_cast<std::size_t>((t * h + i) * k)], k);
      }
    round_to(p_.dtype, in_.q);
    round_to(p_.dtype, in_.k);
  }

  void gates(std::int64_t rows) {
    if (p_.op.gate == Gate::kNone) return;
    const std::int64_t hv = s_.value_heads(), dim = s_.gate_dim();
    const bool constant = p_.op.gate == Gate::kHeadConstant;
    if (s_.raw_gate()) {
      if (p_.gate_input == GateInput::kSoftplus || !s_.has(kNoALog))
        for (std::int64_t h = 0; h < hv; ++h)
          in_.a_log.push_back(static_cast<float>(random_.uniform(-.5, 1)));
      if (!s_.has(kNoBias)) in_.dt_bias = normals(random_, hv * dim, .5);
    }
    for (std::int64_t n = 0, row = 0; n <= s_.sequences(); ++n) {  // the last: surplus rows
      const std::int64_t length =
          n < s_.sequences() ? s_.lengths[static_cast<std::size_t>(n)] : rows - row;
      for (std::int64_t t = 0; t < length && !constant; ++t, ++row)
        for (std::int64_t h = 0; h < hv; ++h)
          for (std::int64_t c = 0; c < dim; ++c)
            in_.g.push_back(gate_value(draw_decay(random_, s_.decay, t, h, c), h, h * dim + c));
    }
    for (std::int64_t h = 0; h < hv && constant; ++h)
      in_.g.push_back(gate_value(draw_decay(random_, s_.decay, 1, h, 0), h, h));
    round_to(p_.gate_dtype, in_.g);
  }

  // The g that stands for log decay a.
  float gate_value(double a, std::int64_t head, std::int64_t bias_index) {
    const double rate =
        in_.a_log.empty()
            ? 1
            : std::exp(static_cast<double>(in_.a_log[static_cast<std::size_t>(head)]));
    const double bias = in_.dt_bias.empty() ? 0 : in_.dt_bias[static_cast<std::size_t>(bias_index)];
    switch (p_.gate_input) {
      case GateInput::kDecay:
        return static_cast<float>(std::exp(a));
      case GateInput::kSoftplus: {
        const double y = std::min(-a / rate, 1e4);
        return static_cast<float>((y > 30 ? y : y == 0 ? -60 : std::log(std::expm1(y))) - bias);
      }
      case GateInput::kBounded: {
        const double share = std::clamp(a / s_.lower_bound, 1e-6, 1 - 1e-6);
        return static_cast<float>(std::log(share / (1 - share)) / rate - bias);
      }
      default:
        return static_cast<float>(a);
    }
  }

  std::vector<float> strength_values(std::int64_t count) {
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& x : values)
      x = static_cast<float>(p_.beta_input == BetaInput::kValue ? random_.uniform()
                                                                : random_.normal());
    round_to(p_.beta_dtype, values);
    return values;
  }

  void strengths(std::int64_t rows) {
    const std::int64_t hv = s_.value_heads();
    if (p_.op.update == Update::kDelta && p_.beta_input != BetaInput::kOne)
      in_.beta = strength_values(rows * hv);
    if (p_.op.update == Update::kEraseWrite) {
      in_.erase = strength_values(rows * hv * p_.key_dim);
      in_.write = strength_values(rows * hv * p_.value_dim);
    }
  }

  void states() {
    const std::int64_t n = s_.sequences();
    const bool accepted = s_.has(kAccepted) && s_.pass == Pass::kStep;
    const bool columns = s_.has(kColumns) && s_.pass == Pass::kStep;
    const std::int64_t longest =
        s_.lengths.empty() ? 0 : *std::max_element(s_.lengths.begin(), s_.lengths.end());
    if (accepted) in_.read_columns = 4;
    if (columns) in_.write_columns = std::max<std::int64_t>({longest, 1, in_.read_columns});
    const std::int64_t per_sequence =
        std::max<std::int64_t>(in_.read_columns, 1) + std::max<std::int64_t>(in_.write_columns, 1);
    const std::int64_t pool = s_.has(kSlots) ? n * per_sequence + 3 : n;
    if (!s_.has(kNoInitial)) {
      in_.initial_slots = pool;
      in_.initial = normals(random_, pool * s_.value_heads() * s_.matrix(),
                            s_.state == StateRange::kHuge ? 1e6 : 1);
      round_to(p_.state_dtype, in_.initial);
    }
    if (!s_.has(kNoFinal) && s_.pass != Pass::kBackward) in_.final_slots = pool;
    in_.first_slot = s_.has(kFirstSlot) ? 1 : 0;
  }

  void slots() {
    if (!s_.has(kSlots) || in_.initial_slots + in_.final_slots == 0) return;
    std::vector<std::int32_t> reads(
        static_cast<std::size_t>(std::max(in_.initial_slots, in_.final_slots) - in_.first_slot));
    std::iota(reads.begin(), reads.end(), in_.first_slot);
    for (std::size_t i = reads.size(); i > 1; --i)
      std::swap(reads[i - 1],
                reads[static_cast<std::size_t>(random_.below(static_cast<std::int64_t>(i)))]);
    std::size_t next = 0;
    const auto null = [&] { return in_.first_slot - 1 - (random_.coin() ? 0 : 1); };
    const std::int64_t read_columns = std::max<std::int64_t>(in_.read_columns, 1);
    const std::int64_t write_columns = std::max<std::int64_t>(in_.write_columns, 1);
    const bool columns = in_.write_columns > 0;
    for (std::int64_t n = 0; n < s_.sequences(); ++n) {
      const bool pad = n == 1 && s_.pass != Pass::kBackward && !columns && s_.sequences() > 2 &&
                       in_.initial_slots > 0 && in_.final_slots > 0;
      bool read_null = false;
      std::vector<std::int32_t> mine;
      for (std::int64_t j = 0; j < read_columns; ++j) {
        read_null = pad || (random_.coin(.2) && !columns);
        mine.push_back(reads[next++]);
        if (in_.initial_slots > 0) in_.read_slots.push_back(read_null ? null() : mine.back());
      }
      for (std::int64_t j = 0; j < write_columns && in_.final_slots > 0; ++j) {
        const bool reuse = s_.has(kInPlace) && j < read_columns && random_.coin(.8);
        const std::int32_t slot = reuse ? mine[static_cast<std::size_t>(j)] : reads[next++];
        const bool write_null = pad || (!read_null && random_.coin(.2));
        in_.write_slots.push_back(write_null ? null() : slot);
      }
      if (in_.read_columns > 0)
        in_.accepted.push_back(static_cast<std::int32_t>(n == 2 ? 0
                                                         : n == 3
                                                             ? read_columns + 1
                                                             : 1 + random_.below(read_columns)));
    }
  }

  void checkpoints() {
    const std::int64_t interval = p_.checkpoint_interval;
    in_.checkpoint_offsets.push_back(0);
    for (std::int64_t n = 0; n < s_.sequences(); ++n) {
      const std::int64_t start =
          in_.start_positions.empty() ? 0 : in_.start_positions[static_cast<std::size_t>(n)];
      const std::int64_t last = start + s_.lengths[static_cast<std::size_t>(n)] + 2 * interval;
      for (std::int64_t position = 0; position <= last; position += interval)
        if (random_.coin(.8)) {
          in_.checkpoint_positions.push_back(static_cast<std::int32_t>(position));
          in_.checkpoint_slots.push_back(0);
        }
      in_.checkpoint_offsets.push_back(static_cast<std::int32_t>(in_.checkpoint_slots.size()));
    }
    const auto entries = static_cast<std::int32_t>(in_.checkpoint_slots.size());
    in_.checkpoint_pool = entries + 2 + in_.first_slot;
    for (std::int32_t i = 0; i < entries; ++i)  // in falling order, some null
      in_.checkpoint_slots[static_cast<std::size_t>(i)] =
          random_.coin(.15) ? -1 : entries + in_.first_slot - i;
  }

  void tree(std::int64_t rows) {
    in_.parents.assign(static_cast<std::size_t>(rows), -1);
    for (std::int64_t n = 0; n < s_.sequences(); ++n)
      for (std::int64_t t = 0; t < s_.lengths[static_cast<std::size_t>(n)]; ++t)
        in_.parents[static_cast<std::size_t>(s_.begin(n) + t)] =
            static_cast<std::int32_t>(random_.below(t + 1) - 1);
  }

  // Rows and slots that nothing may use hold NaN, so that a use shows.
  void unused_are_nan() {
    const std::int64_t rows = s_.tokens();
    const auto fill = [&](std::vector<float>& x, std::int64_t first, std::int64_t last) {
      if (x.empty() || rows == 0) return;
      const auto width = static_cast<std::int64_t>(x.size()) / rows;
      std::fill(x.begin() + first * width, x.begin() + last * width, kNaN);
    };
    const auto fill_rows = [&](std::int64_t first, std::int64_t last) {
      for (auto* x : {&in_.q, &in_.k, &in_.v, &in_.beta, &in_.erase, &in_.write, &in_.dout})
        fill(*x, first, last);
      if (p_.op.gate != Gate::kHeadConstant) fill(in_.g, first, last);
    };
    fill_rows(rows - s_.surplus, rows);
    std::vector<bool> used(static_cast<std::size_t>(in_.initial_slots), false);
    for (std::int64_t n = 0; n < s_.sequences(); ++n) {
      const Route r = route(s_, in_, n);
      if (r.from >= 0) used[static_cast<std::size_t>(r.from)] = true;
      if (r.pad) fill_rows(s_.begin(n), s_.begin(n) + s_.lengths[static_cast<std::size_t>(n)]);
    }
    const std::int64_t size = s_.value_heads() * s_.matrix();
    for (std::size_t slot = 0; slot < used.size(); ++slot)
      if (!used[slot])
        std::fill_n(in_.initial.begin() + static_cast<std::int64_t>(slot) * size, size, kNaN);
    round_to(p_.state_dtype, in_.initial);
  }

  const Scenario& s_;
  const Problem& p_;
  Random random_;
  Inputs in_;
};

}  // namespace

std::int64_t Scenario::tokens() const {
  return std::accumulate(lengths.begin(), lengths.end(), surplus);
}

std::int64_t Scenario::begin(std::int64_t n) const {
  return std::accumulate(lengths.begin(), lengths.begin() + n, std::int64_t{0});
}

void round_to(DType dtype, std::vector<float>& values) {
  if (dtype == DType::kBFloat16)
    for (float& x : values) x = to_float(from_float<BFloat16>(x));
  if (dtype == DType::kFloat16)
    for (float& x : values) x = to_float(from_float<Float16>(x));
}

Inputs draw(const Scenario& scenario) { return Draw(scenario).all(); }

Scenario make(Op op, Pass pass, std::vector<std::int64_t> lengths, std::int32_t heads,
              std::int32_t value_heads, std::int32_t key_dim, std::int32_t value_dim, DType dtype) {
  Scenario s;
  s.pass = pass;
  s.lengths = std::move(lengths);
  s.variable_length = std::any_of(s.lengths.begin(), s.lengths.end(),
                                  [&](auto n) { return n != s.lengths.front(); });
  Problem& p = s.problem;
  p.op = op;
  p.dtype = dtype;
  p.max_tokens = std::max<std::int64_t>(s.tokens(), 1);
  p.max_sequences = std::max<std::int64_t>(s.sequences(), 1);
  p.heads = heads;
  p.value_heads = value_heads;
  p.key_dim = key_dim;
  p.value_dim = value_dim;
  if (op.gate != Gate::kNone) p.gate_input = GateInput::kLogDecay;
  if (op.update != Update::kAdd) p.beta_input = BetaInput::kValue;
  p.state_layout = StateLayout::kKeyValue;
  p.save_for_backward = pass == Pass::kBackward;
  return s;
}

Scenario make(const Case& c) {
  const Shape& shape = c.shape;
  Scenario s = make(c.op.op, c.pass, lengths_of(c.lengths, shape), shape.heads, shape.value_heads,
                    shape.key_dim, shape.value_dim, c.dtype);
  s.name = name_of(c);
  s.variable_length = c.lengths != Lengths::kEqual;
  s.surplus = c.lengths == Lengths::kSurplus ? 9 : 0;
  s.decay = c.decay;
  s.keys = c.keys;
  s.state = c.state;
  s.options = c.options;
  s.scale = s.has(kScale) ? .37f : 0;
  Problem& p = s.problem;
  p.max_tokens = std::max<std::int64_t>(s.tokens(), 1);
  if (c.op.op.gate != Gate::kNone) p.gate_input = c.gate_input;
  p.gate_dtype = c.gate_dtype;
  if (c.op.op.update != Update::kAdd) p.beta_input = c.beta_input;
  p.beta_dtype = c.beta_dtype;
  p.qk_l2norm = s.has(kL2Norm);
  p.state_layout = c.layout;
  p.state_dtype = c.state_dtype;
  p.checkpoint_dtype = c.checkpoint_dtype;
  p.batch_invariant = s.has(kInvariant);
  if (p.gate_input == GateInput::kBounded) s.lower_bound = -5;
  for (const char* x = s.name.c_str(); *x != 0; ++x)
    s.seed = s.seed * 131 + static_cast<unsigned char>(*x);
  return s;
}

}  // namespace linattn::test
