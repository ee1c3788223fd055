// SPDX-License-Identifier: Apache-2.0
#include "core/check_fused.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/expect.h"

namespace linattn {
namespace {

using namespace checks;  // NOLINT: what this file is made of

class FusedCheck {
 public:
  FusedCheck(const Problem& problem, bool host, const StepArgs& args)
      : p_(problem), a_(args), host_(host) {}

  void all() {
    if (p_.conv_width == 0)
      no_convolution();
    else
      convolution();
    norm();
    if (!is_fused(p_)) return;
    const char* why = "the problem's steps are fused";
    if (a_.tokens > 0) {
      present(a_.q.data, "q", why);
      present(a_.out.data, "out", why);
    }
    absent(a_.parents, "parents", why);
    absent(a_.picks, "picks", why);
    expect(a_.layers == 0, "layers", a_.layers, "0, since the problem's steps are fused");
    const auto few = [&](std::int64_t tokens, const Name& name) {
      expect(tokens <= LINATTN_FUSED_TOKENS, name, tokens, [] {
        return "at most " + std::to_string(LINATTN_FUSED_TOKENS) +
               " tokens a sequence, since the problem's steps are fused";
      });
    };
    if (a_.cu_seqlens == nullptr) few(length(), "tokens / sequences");
    if (host_ && a_.cu_seqlens != nullptr)
      for (std::int64_t n = 0; n < a_.sequences; ++n) few(length(n), {"length of sequence", n});
  }

 private:
  void no_convolution() {
    const char* why = "the problem's conv_width is 0";
    absent(a_.conv_q.weight, "conv_q.weight", why);
    absent(a_.conv_k.weight, "conv_k.weight", why);
    absent(a_.conv_v.weight, "conv_v.weight", why);
    absent(a_.conv_q.state, "conv_q.state", why);
    absent(a_.conv_k.state, "conv_k.state", why);
    absent(a_.conv_v.state, "conv_v.state", why);
    absent(a_.conv_read_slots, "conv_read_slots", why);
    absent(a_.conv_write_slots, "conv_write_slots", why);
    absent(a_.conv_accepted, "conv_accepted", why);
  }

  void convolution() {
    expect(a_.conv_entries == 0 || a_.conv_entries >= p_.conv_width - 1, "conv_entries",
           a_.conv_entries, [&] {
             return "0 or at least " + std::to_string(p_.conv_width - 1) +
                    ", the problem's conv_width less one";
           });
    conv(a_.conv_q, {"conv_q.weight", "conv_q.bias", "conv_q.state"}, p_.heads * p_.key_dim);
    conv(a_.conv_k, {"conv_k.weight", "conv_k.bias", "conv_k.state"}, p_.heads * p_.key_dim);
    conv(a_.conv_v, {"conv_v.weight", "conv_v.bias", "conv_v.state"},
         p_.value_heads * p_.value_dim);
    const char* parts[] = {"conv_q.state", "conv_k.state", "conv_v.state"};
    const void* states[] = {a_.conv_q.state, a_.conv_k.state, a_.conv_v.state};
    for (int i = 0; i < 3; ++i)
      if (has_conv_state(a_)) present(states[i], parts[i], "another of q, k and v has a state");
    if (!has_conv_state(a_)) {
      const char* why = "conv_k.state is absent";
      absent(a_.conv_read_slots, "conv_read_slots", why);
      absent(a_.conv_write_slots, "conv_write_slots", why);
      absent(a_.conv_accepted, "conv_accepted", why);
      return;
    }
    if (a_.conv_accepted != nullptr) {
      const auto enough = [&](std::int64_t tokens) {
        const std::int64_t needed = p_.conv_width - 2 + tokens;
        expect(conv_entries() >= needed, "conv_entries", conv_entries(), [&] {
          return "at least " + std::to_string(needed) + ", conv_width - 2 and the " +
                 std::to_string(tokens) + " tokens of a sequence, since conv_accepted is given";
        });
      };
      if (a_.cu_seqlens == nullptr) enough(length());
      if (host_ && a_.cu_seqlens != nullptr)
        for (std::int64_t n = 0; n < a_.sequences; ++n) enough(length(n));
    }
    if (host_) conv_slots();
  }

  std::int64_t conv_entries() const {
    return a_.conv_entries == 0 ? p_.conv_width - 1 : a_.conv_entries;
  }

  struct ConvNames {
    const char *weight, *bias, *state;
  };

  void conv(const Conv& c, const ConvNames& names, std::int64_t channels) {
    present(c.weight, names.weight, "the problem has a conv_width");
    aligned(c.weight, names.weight, size_of(p_.conv_dtype));
    aligned(c.bias, names.bias, size_of(p_.conv_dtype));
    expect(c.weight_channel_stride >= 0, {names.weight, "_channel_stride"}, c.weight_channel_stride,
           "0 or more");
    expect(c.weight_tap_stride >= 0, {names.weight, "_tap_stride"}, c.weight_tap_stride,
           "0 or more");
    if (c.state == nullptr) return;
    aligned(c.state, names.state, size_of(p_.conv_state_dtype));
    expect(c.slots >= 0, {names.state, ": slots"}, c.slots, "0 or more");
    if (a_.conv_read_slots == nullptr || a_.conv_write_slots == nullptr)
      expect(c.slots == a_.sequences, {names.state, ": slots"}, c.slots, [&] {
        return std::to_string(a_.sequences) + ", one per sequence (no slot ids are given)";
      });
    no_overlap(names.state, 1,
               std::array{Axis{": channel_stride", channels, c.channel_stride},
                          Axis{": entry_stride", conv_entries(), c.entry_stride},
                          Axis{": slot_stride", c.slots, c.slot_stride}});
  }

  // As read_slots and written_slots, of rows.
  void conv_slots() {
    const std::int64_t slots = std::min({a_.conv_q.slots, a_.conv_k.slots, a_.conv_v.slots});
    const auto id = [](const std::int32_t* ids, std::int64_t n) {
      return ids == nullptr ? n : std::int64_t{ids[n]};
    };
    const auto null = [&](const std::int32_t* ids, std::int64_t slot) {
      return ids != nullptr && slot < std::max(a_.first_slot, 0);
    };
    std::vector<std::int64_t> owner(static_cast<std::size_t>(slots), -1);
    const auto exists = [&](const Name& name, std::int64_t slot) {
      expect(slot < slots, name, slot,
             [&] { return "under " + std::to_string(slots) + ", the slots of the conv states"; });
    };
    for (std::int64_t n = 0; n < a_.sequences; ++n) {
      const std::int64_t slot = id(a_.conv_write_slots, n);
      if (null(a_.conv_write_slots, slot)) continue;
      exists({"conv_write_slots", n}, slot);
      expect(owner[static_cast<std::size_t>(slot)] < 0, {"conv_write_slots", n}, slot,
             "a slot that no other entry writes");
      owner[static_cast<std::size_t>(slot)] = n;
    }
    for (std::int64_t n = 0; n < a_.sequences; ++n) {
      const std::int64_t slot = id(a_.conv_read_slots, n);
      if (null(a_.conv_read_slots, slot)) continue;
      exists({"conv_read_slots", n}, slot);
      const std::int64_t writer = owner[static_cast<std::size_t>(slot)];
      if (writer >= 0 && writer != n)
        refuse("conv_write_slots",
               "writing slot " + std::to_string(slot) + " for sequence " + std::to_string(writer),
               "no slot that sequence " + std::to_string(n) + " reads");
    }
  }

  void norm() {
    const bool gated = p_.norm_gate == Activation::kSilu || p_.norm_gate == Activation::kSigmoid;
    if (gated) {
      if (a_.tokens > 0) strides(a_.z, "z", p_.dtype);
      if (a_.z.data != nullptr && a_.z.data == a_.out.data)
        refuse("out", "at the address of an input", "memory of its own");
    } else {
      absent(a_.z.data, "z", "the problem's norm_gate is not silu or sigmoid");
    }
    if (p_.norm_gate == Activation::kUnset) {
      absent(a_.norm_weight, "norm_weight", "the problem has no norm_gate");
      if (a_.norm_epsilon != 0)
        refuse("norm_epsilon", number(a_.norm_epsilon), "0, since the problem has no norm_gate");
      return;
    }
    aligned(a_.norm_weight, "norm_weight", size_of(p_.norm_dtype));
    if (!std::isfinite(a_.norm_epsilon) || a_.norm_epsilon < 0)
      refuse("norm_epsilon", number(a_.norm_epsilon), "a finite number, 0 (1e-6) or more");
  }

  std::int64_t length() const { return a_.sequences == 0 ? 0 : a_.tokens / a_.sequences; }
  std::int64_t length(std::int64_t n) const {
    const DType type = a_.cu_seqlens_dtype == LINATTN_INT64 ? DType::kInt64 : DType::kInt32;
    return load_index(a_.cu_seqlens, type, n + 1) - load_index(a_.cu_seqlens, type, n);
  }

  const Problem& p_;
  const StepArgs& a_;
  const bool host_;
};

}  // namespace

void check_fused(Problem& p) {
  if (p.conv_width == 0) {
    if (p.conv_activation != Activation::kUnset)
      refuse("problem.conv_activation", "set", "unset, since conv_width is 0");
  } else {
    expect(p.conv_width >= 2 && p.conv_width <= 4, "problem.conv_width", p.conv_width,
           "0 (no convolution) or 2 to 4 taps");
    expect_enum("conv_activation", p.conv_activation, LINATTN_ACTIVATION_SILU,
                "identity or silu, since conv_width is set");
  }
  if (p.norm_gate != Activation::kUnset)
    expect_enum("norm_gate", p.norm_gate, LINATTN_ACTIVATION_SIGMOID, "identity, silu or sigmoid");
  const auto complete = [&](const char* field, DType& dtype) {
    if (dtype == DType::kUnset && is_fused(p)) dtype = p.dtype;
    if (dtype != DType::kUnset) expect_float(field, dtype);
  };
  complete("conv_dtype", p.conv_dtype);
  complete("conv_state_dtype", p.conv_state_dtype);
  complete("norm_dtype", p.norm_dtype);
}

void check_fused(const Problem& problem, bool host, const StepArgs& args) {
  FusedCheck(problem, host, args).all();
}

}  // namespace linattn
