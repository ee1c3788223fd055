// SPDX-License-Identifier: Apache-2.0
//
// The parts of a fused step, from tensors.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "arguments.h"
#include "inputs.h"
#include "linattn/linattn.h"

namespace linattn_ffi {

// Of q, k and v: one tensor whose channels follow each other, or three.
struct Parts {
  std::array<Array, 3> arrays;

  Parts(Reader& r, const char* q, const char* k, const char* v)
      : arrays{r.array(q), r.array(k), r.array(v)} {
    if (static_cast<bool>(arrays[1]) != static_cast<bool>(arrays[2]) || (arrays[1] && !arrays[0]))
      invalid(std::string(q) + " came with one of " + k + " and " + v +
              "; expected one tensor for q, k and v, or three");
  }

  explicit operator bool() const { return static_cast<bool>(arrays[0]); }
  bool packed() const { return !arrays[1]; }

  // visit(part, its tensor, its first channel there, the channels of the tensor).
  template <class Visit>
  void each(const std::array<std::int64_t, 3>& channels, const Visit& visit) const {
    std::int64_t first = 0;
    for (std::size_t i = 0; i < 3; ++i) {
      visit(i, arrays[packed() ? 0 : i], packed() ? first : 0,
            packed() ? channels[0] + channels[1] + channels[2] : channels[i]);
      first += channels[i];
    }
  }
};

struct Fused {
  Parts weight, bias, state;
  Array read_slots, write_slots, accepted, z, norm_weight;
  float norm_epsilon;

  static constexpr int kCount = 9 + 5 + 1;

  explicit Fused(Reader& r)
      : weight(r, "conv_weight", "conv_weight_k", "conv_weight_v"),
        bias(r, "conv_bias", "conv_bias_k", "conv_bias_v"),
        state(r, "conv_state", "conv_state_k", "conv_state_v"),
        read_slots(r.array("conv_read_slots")),
        write_slots(r.array("conv_write_slots")),
        accepted(r.array("conv_accepted")),
        z(r.array("z")),
        norm_weight(r.array("norm_weight")),
        norm_epsilon(static_cast<float>(r.real(0))) {}

  void fill(Inputs& in, linattn::StepArgs& a) const {
    if (weight) convolution(in, a);
    if (!weight && (bias || state))
      invalid("conv_weight is absent; expected it with the biases and states of a convolution");
    a.conv_read_slots = int32s(read_slots, {in.sequences}, "[N]");
    a.conv_write_slots = int32s(write_slots, {in.sequences}, "[N]");
    a.conv_accepted = int32s(accepted, {in.sequences}, "[N]");
    if (z) in.like_value(z);
    a.z = tensor(z);
    norm_weight.expect_shape({in.value_dim}, "[V]");
    norm_weight.expect_contiguous();
    if (norm_weight) in.problem.norm_dtype = norm_weight.expect_float();
    a.norm_weight = norm_weight.data;
    a.norm_epsilon = norm_epsilon;
  }

 private:
  static const void* at(const Array& x, std::int64_t elements) {
    return static_cast<const char*>(x.data) + elements * (x.type.bits / 8);
  }

  void convolution(Inputs& in, linattn::StepArgs& a) const {
    const std::int64_t keys = in.heads * in.key_dim;
    const std::array<std::int64_t, 3> channels{keys, keys, in.value_heads * in.value_dim};
    const std::array<linattn::Conv*, 3> convs{&a.conv_q, &a.conv_k, &a.conv_v};
    const Array& one = weight.arrays[0];
    const std::int64_t width = one.dims == 2 ? one.shape[1] : 0;
    in.problem.conv_width = static_cast<std::int32_t>(width);
    in.problem.conv_dtype = one.expect_float();
    weight.each(channels,
                [&](std::size_t i, const Array& x, std::int64_t first, std::int64_t count) {
                  x.expect_shape({count, width}, "[channels, width]");
                  x.expect_dtype(in.problem.conv_dtype, " as conv_weight");
                  convs[i]->weight = at(x, first * x.stride[0]);
                  convs[i]->weight_channel_stride = x.stride[0];
                  convs[i]->weight_tap_stride = x.stride[1];
                });
    if (bias)
      bias.each(channels,
                [&](std::size_t i, const Array& x, std::int64_t first, std::int64_t count) {
                  x.expect_shape({count}, "[channels]");
                  x.expect_dtype(in.problem.conv_dtype, " as conv_weight");
                  x.expect_contiguous();
                  convs[i]->bias = at(x, first);
                });
    if (!state) return;
    const Array& rows = state.arrays[0];
    a.conv_entries = rows.dims == 3 ? rows.shape[2] : 0;
    in.problem.conv_state_dtype = rows.expect_float();
    state.each(channels,
               [&](std::size_t i, const Array& x, std::int64_t first, std::int64_t count) {
                 const std::int64_t slots = x.dims == 3 ? x.shape[0] : 0;
                 x.expect_shape({slots, count, a.conv_entries}, "[slots, channels, entries]");
                 x.expect_dtype(in.problem.conv_state_dtype, " as conv_state");
                 convs[i]->state = const_cast<void*>(at(x, first * x.stride[1]));
                 convs[i]->slots = slots;
                 convs[i]->slot_stride = x.stride[0];
                 convs[i]->channel_stride = x.stride[1];
                 convs[i]->entry_stride = x.stride[2];
               });
  }
};

}  // namespace linattn_ffi
