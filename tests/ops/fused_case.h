// SPDX-License-Identifier: Apache-2.0
//
// A fused step against three things apart: a convolution in double, the oracle's plain step of what
// it gives, and a norm in double.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ops/compare.h"
#include "ops/slice.h"
#include "support/random.h"

namespace linattn::test {

inline std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

inline Memory& memory_of(const std::string& row) {
  return of_the_cpu(row) ? host() : *memory_under_test();
}

// What is fused, and how it lies in memory.
struct Fusion {
  std::int32_t width = 0;  // 0: no convolution
  Activation conv = Activation::kSilu;
  DType conv_dtype = DType::kFloat32, conv_state_dtype = DType::kFloat32;
  bool bias = true, state = true;
  bool drafts = false;       // conv_accepted
  bool entries_last = true;  // a row is [channels, entries], otherwise [entries, channels]
  bool apart = false;        // a pool each for q, k and v
  std::int64_t more_entries = 0;
  Activation norm = Activation::kUnset;
  bool norm_weight = true;
  DType norm_dtype = DType::kFloat32;
  std::int32_t blocks = 0;  // sm_limit
};

struct FusedCase {
  std::string name;
  Op op = kda;
  DType dtype = DType::kBFloat16, state_dtype = DType::kFloat32;
  StateLayout layout = StateLayout::kValueKey;
  std::int32_t heads = 2, value_heads = 4, key_dim = 64, value_dim = 64;
  std::vector<std::int64_t> lengths;
  std::uint32_t options = 0;
  Fusion fusion{};
};

inline void PrintTo(const FusedCase& kind, std::ostream* stream) { *stream << kind.name; }

inline constexpr double kEpsilon = 3e-5;

// q, k or v: where its channels begin among those of all three.
struct ConvPart {
  std::int64_t heads, dim, first;
};

class FusedRun {
 public:
  explicit FusedRun(const FusedCase& kind) : f_(kind.fusion) {
    Scenario s = make(kind.op, Pass::kStep, kind.lengths, kind.heads, kind.value_heads,
                      kind.key_dim, kind.value_dim, kind.dtype);
    s.options = kind.options | kL2Norm;
    s.keys = Keys::kRaw;
    for (const char c : kind.name) s.seed = s.seed * 131 + static_cast<unsigned char>(c);
    Problem& p = s.problem;
    p.qk_l2norm = true;
    p.state_dtype = kind.state_dtype;
    p.state_layout = kind.layout;
    if (kind.op.update != Update::kAdd) p.beta_input = BetaInput::kLogit;
    plain_ = {s, draw(s)};
    fused_ = s;
    fused_.problem.conv_width = f_.width;
    if (f_.width > 0) {
      fused_.problem.conv_activation = f_.conv;
      fused_.problem.conv_dtype = f_.conv_dtype;
      fused_.problem.conv_state_dtype = f_.conv_state_dtype;
    }
    fused_.problem.norm_gate = f_.norm;
    fused_.problem.norm_dtype = f_.norm_dtype;
    fused_.problem.sm_limit = f_.blocks;
    draw_all();
  }

  const Scenario& scenario() const { return fused_; }
  const Inputs& inputs() const { return plain_.inputs; }
  bool pad(std::int64_t n) const {
    const std::int64_t first = f_.drafts ? accepted[index(n)] - 1 : 0;
    return route(plain_.scenario, plain_.inputs, n).pad || first < 0 ||
           first + f_.width - 1 > entries() ||
           (f_.width > 0 && f_.state && reads[index(n)] < 0 && writes[index(n)] < 0);
  }
  std::int64_t taken(std::int64_t n) const {
    const std::int64_t length = fused_.lengths[index(n)];
    const std::int64_t most = std::min<std::int64_t>(length, LINATTN_FUSED_TOKENS);
    return counts.empty() ? most : std::clamp<std::int64_t>(counts[index(n)], 0, most);
  }

  std::vector<std::int32_t> reads, writes, accepted;  // of the conv states
  std::vector<std::int32_t> counts;                   // empty: all
  float* replay = nullptr;

  void attach(Call& call, Memory& memory) {
    buffers_.clear(), pools_.clear();
    StepArgs& a = call.step;
    const Problem& p = fused_.problem;
    if (f_.width > 0) {
      Conv* convs[] = {&a.conv_q, &a.conv_k, &a.conv_v};
      const void* weight = given(memory, "weight", p.conv_dtype, weight_);
      const void* bias = f_.bias ? given(memory, "bias", p.conv_dtype, bias_) : nullptr;
      for (int i = 0; i < 3; ++i) {
        Conv& c = *convs[i];
        const std::int64_t first = parts_[index(i)].first;
        // [channels, width] or [width, channels], by the same flag as the rows.
        c.weight_channel_stride = f_.entries_last ? f_.width : 1;
        c.weight_tap_stride = f_.entries_last ? 1 : channels_;
        c.weight = at(weight, p.conv_dtype, first * c.weight_channel_stride);
        c.bias = bias == nullptr ? nullptr : at(bias, p.conv_dtype, first);
      }
      if (f_.state) attach_states(memory, convs);
      if (f_.state) {
        a.conv_entries = f_.more_entries == 0 ? 0 : entries();
        a.conv_read_slots = ids(memory, "conv_read_slots", reads);
        a.conv_write_slots = ids(memory, "conv_write_slots", writes);
        if (f_.drafts) a.conv_accepted = ids(memory, "conv_accepted", accepted);
      }
    }
    if (f_.norm != Activation::kUnset) {
      if (f_.norm_weight) a.norm_weight = given(memory, "norm_weight", f_.norm_dtype, gain_);
      a.norm_epsilon = static_cast<float>(kEpsilon);
      if (f_.norm != Activation::kIdentity) {
        // Rows are strided, as of a packed projection.
        const std::int64_t row = plain_.scenario.value_heads() * p.value_dim;
        std::vector<float> strided(index(std::max<std::int64_t>(fused_.tokens(), 1) * (row + 5)));
        for (std::int64_t t = 0; t < fused_.tokens(); ++t)
          std::copy_n(z_.begin() + t * row, row, strided.begin() + t * (row + 5));
        a.z = contiguous(given(memory, "z", p.dtype, strided), plain_.scenario.value_heads(),
                         p.value_dim);
        a.z.token_stride = row + 5;
        const std::int64_t n = fused_.sequences();
        a.z.sequence_stride =
            fused_.variable_length || n == 0 ? 0 : fused_.tokens() / n * (row + 5);
      }
    }
    if (!counts.empty()) a.counts = ids(memory, "counts", counts);
    a.replay = replay;
    for (const auto& b : buffers_) b->upload();
    for (Pool& pool : pools_) pool.buffer->upload();
  }

  // The results of one row; conv states checked, bit for bit.
  Results run_on(const std::string& row, int rounds = 2) {
    SCOPED_TRACE(reproduce(fused_, row));
    Memory& memory = memory_of(row);
    const Outcome outcome =
        run(fused_, plain_.inputs, row,
            {.rounds = rounds, .change = [&](Call& call) { attach(call, memory); }});
    EXPECT_EQ(outcome.fault, "");
    refusal = outcome.refusal;
    if (refusal.empty()) expect_conv_states();
    return outcome.results;
  }
  std::string refusal;

  // By all rows that take it.
  void expect_right() {
    const Results expected = reference_results();
    std::vector<std::string> ran;
    for (const std::string& row : takers(fused_)) {
      SCOPED_TRACE(reproduce(fused_, row));
      const Results got = run_on(row);
      if (!refusal.empty()) continue;
      ran.push_back(row);
      for (const Output& x : got)
        EXPECT_LE(relative_rms(x.values, output(expected, x.name).values), most(x.dtype)) << x.name;
    }
    const bool strided = fused_.has(kPadded) || fused_.has(kUnaligned);
    if (memory_under_test()->device().type == Device::Type::kCuda && !strided) {
      EXPECT_EQ(ran, std::vector<std::string>{"cuda.recurrent"});
    }
    EXPECT_TRUE(strided || !ran.empty());
  }

  // Tokens of sequence n before its own, and its own.
  float input(int part, std::int64_t n, std::int64_t channel, std::int64_t i) const {
    const std::int64_t before = f_.width - 1;
    const ConvPart& x = parts_[index(part)];
    if (i < before) {
      if (!f_.state || reads[index(n)] < (fused_.has(kFirstSlot) ? 1 : 0)) return 0;
      if (!plain_.inputs.has_initial.empty() && plain_.inputs.has_initial[index(n)] == 0) return 0;
      const std::int64_t first = f_.drafts ? accepted[index(n)] - 1 : 0;
      return row_[index((reads[index(n)] * channels_ + x.first + channel) * entries() + first + i)];
    }
    const std::vector<float>* tensors[] = {&plain_.inputs.q, &plain_.inputs.k, &plain_.inputs.v};
    const std::int64_t token = fused_.begin(n) + i - before;
    return (*tensors[part])[index(token * x.heads * x.dim + channel)];
  }

  // The plain step of what is convolved, in the place of its inputs.
  Drawn convolved_inputs() const {
    Drawn d = plain_;
    if (f_.width > 0) {
      std::vector<float>* to[] = {&d.inputs.q, &d.inputs.k, &d.inputs.v};
      for (int i = 0; i < 3; ++i)
        for (std::int64_t n = 0; n < fused_.sequences(); ++n)
          for (std::int64_t t = 0; t < fused_.lengths[index(n)] && !pad(n); ++t)
            for (std::int64_t channel = 0, count = parts_[index(i)].heads * parts_[index(i)].dim;
                 channel < count; ++channel)
              (*to[i])[index((fused_.begin(n) + t) * count + channel)] =
                  static_cast<float>(convolved(i, n, channel, t));
      d.scenario.problem.dtype = DType::kFloat32;  // what is convolved is not rounded
    }
    return d;
  }

 private:
  struct Pool {
    std::unique_ptr<Guarded> buffer;
    std::int64_t slot_stride, channel_stride, entry_stride;
  };

  static constexpr std::int64_t kSpare = 3;

  std::int64_t slots() const { return fused_.sequences() + kSpare; }
  std::int64_t entries() const { return f_.width - 1 + f_.more_entries; }

  void draw_all() {
    const Problem& p = fused_.problem;
    const std::int64_t keys = std::int64_t{p.heads} * p.key_dim, hv = plain_.scenario.value_heads();
    parts_ = {{p.heads, p.key_dim, 0}, {p.heads, p.key_dim, keys}, {hv, p.value_dim, 2 * keys}};
    channels_ = 2 * keys + hv * p.value_dim;
    Random random(fused_.seed + 7);
    const auto normals = [&](std::int64_t count, double scale, DType dtype) {
      std::vector<float> values(index(count));
      for (float& x : values) x = static_cast<float>(scale * random.normal());
      round_to(dtype, values);
      return values;
    };
    weight_ = normals(channels_ * f_.width, .6, f_.conv_dtype);
    bias_ = normals(channels_, .3, f_.conv_dtype);
    row_ = normals(f_.width == 0 ? 0 : slots() * channels_ * entries(), 1, f_.conv_state_dtype);
    gain_ = normals(p.value_dim, 1, f_.norm_dtype);
    z_ = normals(fused_.tokens() * hv * p.value_dim, 1, p.dtype);
    // Some rows in place, some from one to another; some from zeros, some not kept.
    for (std::int64_t n = 0; n < fused_.sequences(); ++n) {
      const auto slot = static_cast<std::int32_t>(slots() - 1 - n);
      const auto first = static_cast<std::int32_t>(fused_.has(kFirstSlot) ? 1 : 0);
      const bool far = n == fused_.sequences() - 1 && n > 0;
      reads.push_back(n % 4 == 3 ? first - 1 : slot);
      writes.push_back(n % 5 == 2 ? first - 2 : far ? 1 : slot);
      accepted.push_back(
          1 + static_cast<std::int32_t>(f_.more_entries > 0 ? random.below(f_.more_entries) : 0));
      if (reads.back() < first && writes.back() < first) reads.back() = slot;
      if (route(plain_.scenario, plain_.inputs, n).pad) reads.back() = writes.back() = -1;
    }
  }

  void attach_states(Memory& memory, Conv* const (&convs)[3]) {
    const Problem& p = fused_.problem;
    for (int i = 0; i < 3; ++i) {
      const ConvPart& part = parts_[index(i)];
      const std::int64_t count = f_.apart ? part.heads * part.dim : channels_;
      if (f_.apart || i == 0) {
        Pool pool{};
        pool.channel_stride = f_.entries_last ? entries() + 1 : 1;
        pool.entry_stride = f_.entries_last ? 1 : count + 2;
        pool.slot_stride =
            (f_.entries_last ? count * pool.channel_stride : entries() * pool.entry_stride) + 11;
        pool.buffer = std::make_unique<Guarded>(
            memory, "conv_state", index(slots() * pool.slot_stride) * size_of(p.conv_state_dtype),
            Poison::kNaN);
        pools_.push_back(std::move(pool));
      }
      Pool& pool = pools_.back();
      const std::int64_t first = f_.apart ? 0 : part.first;
      for (std::int64_t slot = 0; slot < slots(); ++slot)
        for (std::int64_t channel = 0; channel < part.heads * part.dim; ++channel)
          for (std::int64_t e = 0; e < entries(); ++e)
            pool.buffer->put(
                p.conv_state_dtype,
                slot * pool.slot_stride + (first + channel) * pool.channel_stride +
                    e * pool.entry_stride,
                row_[index((slot * channels_ + part.first + channel) * entries() + e)]);
      for (std::int64_t n = 0; n < fused_.sequences(); ++n)
        for_each_left(n, [&](std::int64_t e, std::int64_t) {
          for (std::int64_t channel = 0; channel < part.heads * part.dim; ++channel)
            pool.buffer->own(p.conv_state_dtype,
                             writes[index(n)] * pool.slot_stride +
                                 (first + channel) * pool.channel_stride + e * pool.entry_stride,
                             1);
        });
      Conv& c = *convs[i];
      c.state = pool.buffer->at(p.conv_state_dtype, first * pool.channel_stride);
      c.slots = slots();
      c.slot_stride = pool.slot_stride;
      c.channel_stride = pool.channel_stride;
      c.entry_stride = pool.entry_stride;
    }
  }

  // visit(entry, input) of what a sequence leaves in its row.
  template <class Visit>
  void for_each_left(std::int64_t n, const Visit& visit) const {
    if (pad(n) || writes[index(n)] < fused_.has(kFirstSlot)) return;
    const std::int64_t length = taken(n);
    const std::int64_t first = f_.drafts ? std::min<std::int64_t>(length, 1) : length;
    for (std::int64_t i = first; i < std::min(f_.width - 1 + length, first + entries()); ++i)
      visit(i - first, i);
  }

  void expect_conv_states() {
    for (const auto& b : buffers_) EXPECT_EQ(b->fetch(), "");
    for (Pool& pool : pools_) EXPECT_EQ(pool.buffer->fetch(), "");
    if (f_.width == 0 || !f_.state) return;
    const DType dtype = fused_.problem.conv_state_dtype;
    std::int64_t wrong = 0;
    for (int i = 0; i < 3; ++i) {
      const ConvPart& part = parts_[index(i)];
      Pool& pool = pools_[index(f_.apart ? i : 0)];
      const std::int64_t base = f_.apart ? 0 : part.first;
      for (std::int64_t n = 0; n < fused_.sequences(); ++n)
        for_each_left(n, [&](std::int64_t e, std::int64_t x) {
          for (std::int64_t channel = 0; channel < part.heads * part.dim; ++channel) {
            std::vector<float> expected{input(i, n, channel, x)};
            round_to(dtype, expected);
            wrong += pool.buffer->get(dtype, writes[index(n)] * pool.slot_stride +
                                                 (base + channel) * pool.channel_stride +
                                                 e * pool.entry_stride) != expected[0];
          }
        });
    }
    EXPECT_EQ(wrong, 0) << "entries of the conv states";
  }

  Results reference_results() const {
    const Drawn d = convolved_inputs();
    Results results = reference(d.scenario, d.inputs);
    if (f_.norm == Activation::kUnset) return results;
    for (Output& out : results) {
      if (out.name != "out") continue;
      const std::int64_t v = fused_.problem.value_dim;
      for (std::size_t row = 0; row < out.values.size(); row += index(v)) {
        double sum = 0;
        for (std::size_t i = row; i < row + index(v); ++i)
          sum += double{out.values[i]} * out.values[i];
        const double factor = 1 / std::sqrt(sum / static_cast<double>(v) + kEpsilon);
        for (std::size_t i = row; i < row + index(v); ++i) {
          double y = out.values[i] * factor;
          if (f_.norm_weight) y *= gain_[i - row];
          const double z = z_[i], s = 1 / (1 + std::exp(-z));
          if (f_.norm == Activation::kSilu) y *= z * s;
          if (f_.norm == Activation::kSigmoid) y *= s;
          out.values[i] = static_cast<float>(y);
        }
      }
    }
    return results;
  }

  double convolved(int part, std::int64_t n, std::int64_t channel, std::int64_t t) const {
    const std::int64_t c = parts_[index(part)].first + channel;
    double y = f_.bias ? bias_[index(c)] : 0;
    for (std::int64_t i = 0; i < f_.width; ++i)
      y += double{weight_[index(f_.entries_last ? c * f_.width + i : i * channels_ + c)]} *
           input(part, n, channel, t + i);
    return f_.conv == Activation::kSilu ? y / (1 + std::exp(-y)) : y;
  }

  static double most(DType dtype) {
    return dtype == DType::kFloat32 ? 1e-5 : dtype == DType::kBFloat16 ? 4e-3 : 6e-4;
  }

  static const void* at(const void* data, DType dtype, std::int64_t element) {
    return static_cast<const char*>(data) + static_cast<std::size_t>(element) * size_of(dtype);
  }
  const void* given(Memory& memory, const char* name, DType dtype,
                    const std::vector<float>& values) {
    buffers_.push_back(
        std::make_unique<Guarded>(memory, name, values.size() * size_of(dtype), Poison::kNaN));
    for (std::size_t i = 0; i < values.size(); ++i)
      buffers_.back()->put(dtype, static_cast<std::int64_t>(i), values[i]);
    return buffers_.back()->data();
  }
  const std::int32_t* ids(Memory& memory, const char* name,
                          const std::vector<std::int32_t>& values) {
    buffers_.push_back(std::make_unique<Guarded>(memory, name, values.size() * sizeof(std::int32_t),
                                                 Poison::kNaN));
    buffers_.back()->put_bytes(0, values.data(), values.size() * sizeof(std::int32_t));
    return static_cast<const std::int32_t*>(buffers_.back()->data());
  }

  Fusion f_;
  Drawn plain_;
  Scenario fused_;
  std::vector<ConvPart> parts_;
  std::int64_t channels_ = 0;
  std::vector<float> weight_, bias_, row_, gain_, z_;
  std::vector<std::unique_ptr<Guarded>> buffers_;
  std::vector<Pool> pools_;
};

}  // namespace linattn::test
