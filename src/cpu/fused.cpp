// SPDX-License-Identifier: Apache-2.0
#include "cpu/fused.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "recurrence/activation.h"

namespace linattn::cpu {
namespace {

constexpr std::int64_t kMostInputs = 3 + LINATTN_FUSED_TOKENS;

// q, k or v.
struct Part {
  const Conv& conv;
  const Tensor& x;
  std::int64_t heads, dim, first;  // column of a row of all three
};

std::array<Part, 3> parts(const Problem& p, const StepArgs& a, const Reader& reader) {
  return {Part{a.conv_q, a.q, p.heads, p.key_dim, 0},
          Part{a.conv_k, a.k, p.heads, p.key_dim, reader.keys()},
          Part{a.conv_v, a.v, p.value_heads, p.value_dim, 2 * reader.keys()}};
}

// visit(part, channel, inputs) for every channel: its inputs are those before the first token, then
// the tokens.
template <class Visit>
void for_each_channel(const Problem& p, const StepArgs& a, const Reader& reader, const ConvRow& row,
                      std::int64_t n, const Visit& visit) {
  const std::int64_t length = taken_tokens(a, reader, n);
  for (const Part& part : parts(p, a, reader))
    for (std::int64_t channel = 0; channel < part.heads * part.dim; ++channel) {
      std::array<float, kMostInputs> inputs{};
      float* next = inputs.data();
      for (std::int64_t i = 0; i < p.conv_width - 1; ++i, ++next)
        if (row.read_slot >= 0)
          *next = load(part.conv.state, p.conv_state_dtype,
                       row.read_slot * part.conv.slot_stride + channel * part.conv.channel_stride +
                           (row.first + i) * part.conv.entry_stride);
      for (std::int64_t t = 0; t < length; ++t)
        *next++ = load(part.x.data, p.dtype,
                       reader.offset(part.x, n, t, channel / part.dim) + channel % part.dim);
      visit(part, channel, inputs.data());
    }
}

}  // namespace

std::int64_t taken_tokens(const StepArgs& a, const Reader& reader, std::int64_t n) {
  std::int64_t count = reader.length(n);
  if (a.counts != nullptr) count = std::clamp<std::int64_t>(a.counts[n], 0, count);
  return a.picks == nullptr ? count : std::min(count, a.picks_stride);
}

ConvRow::ConvRow(const Problem& p, const StepArgs& a, std::int64_t n) {
  if (p.conv_width == 0 || a.conv_k.state == nullptr) return;
  read_slot = slot_of(a.conv_read_slots, n, n, a.first_slot);
  write_slot = slot_of(a.conv_write_slots, n, n, a.first_slot);
  pad = read_slot < 0 && write_slot < 0;
  if (a.conv_accepted != nullptr) {
    const std::int64_t most = (a.conv_entries == 0 ? p.conv_width - 1 : a.conv_entries);
    first = static_cast<std::int64_t>(a.conv_accepted[n]) - 1;
    pad = pad || first < 0 || first + p.conv_width - 1 > most;
  }
  if (a.has_initial_state != nullptr && a.has_initial_state[n] == 0) read_slot = -1;
}

void convolve(const Problem& p, const StepArgs& a, const Reader& reader, const ConvRow& row,
              std::int64_t n, double* to) {
  const std::int64_t length = taken_tokens(a, reader, n);
  const std::int64_t columns = 2 * reader.keys() + reader.values();
  for_each_channel(
      p, a, reader, row, n, [&](const Part& part, std::int64_t channel, const float* inputs) {
        const Conv& c = part.conv;
        for (std::int64_t t = 0; t < length; ++t) {
          double sum = c.bias == nullptr ? 0 : load(c.bias, p.conv_dtype, channel);
          for (std::int64_t i = 0; i < p.conv_width; ++i)
            sum += double{load(c.weight, p.conv_dtype,
                               channel * c.weight_channel_stride + i * c.weight_tap_stride)} *
                   inputs[t + i];
          to[(reader.begin(n) + t) * columns + part.first + channel] =
              activate(p.conv_activation, sum);
        }
      });
}

void store_conv_state(const Problem& p, const StepArgs& a, const Reader& reader, const ConvRow& row,
                      std::int64_t n) {
  if (row.write_slot < 0) return;
  const std::int64_t length = taken_tokens(a, reader, n), before = p.conv_width - 1;
  const std::int64_t left = a.conv_accepted == nullptr ? length : std::min<std::int64_t>(length, 1);
  for_each_channel(
      p, a, reader, row, n, [&](const Part& part, std::int64_t channel, const float* inputs) {
        for (std::int64_t i = left; i < before + length; ++i)
          store(part.conv.state, p.conv_state_dtype,
                row.write_slot * part.conv.slot_stride + channel * part.conv.channel_stride +
                    (i - left) * part.conv.entry_stride,
                inputs[i]);
      });
}

void normalize(const Problem& p, const StepArgs& a, const Reader& reader, std::int64_t n,
               std::int64_t t, std::int64_t head, double* o) {
  double sum = 0;
  for (std::int64_t i = 0; i < p.value_dim; ++i) sum += o[i] * o[i];
  const double epsilon = a.norm_epsilon == 0 ? kDefaultNormEpsilon : double{a.norm_epsilon};
  const double factor = 1 / std::sqrt(sum / p.value_dim + epsilon);
  const std::int64_t z = reader.offset(a.z, n, t, head);
  for (std::int64_t i = 0; i < p.value_dim; ++i) {
    o[i] *= factor;
    if (a.norm_weight != nullptr) o[i] *= load(a.norm_weight, p.norm_dtype, i);
    if (a.z.data != nullptr) o[i] *= activate(p.norm_gate, double{load(a.z.data, p.dtype, z + i)});
  }
}

}  // namespace linattn::cpu
