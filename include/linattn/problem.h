// SPDX-License-Identifier: Apache-2.0
//
// Problem: all that selects a kernel and is known once per layer. No pointer, no count of one call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "linattn/c.h"
#include "linattn/op.h"

namespace linattn {
inline namespace v0 {

enum class DType : std::int32_t {
  kUnset = 0,
  kBFloat16 = LINATTN_BFLOAT16,
  kFloat16 = LINATTN_FLOAT16,
  kFloat32 = LINATTN_FLOAT32,
  kInt32 = LINATTN_INT32,
  kInt64 = LINATTN_INT64,
};

enum class Pass : std::int32_t {
  kForward = LINATTN_FORWARD,
  kBackward = LINATTN_BACKWARD,
  kStep = LINATTN_STEP
};

enum class StateLayout : std::int32_t {
  kUnset = 0,
  kKeyValue = LINATTN_STATE_KEY_VALUE,  // [K, V]
  kValueKey = LINATTN_STATE_VALUE_KEY,  // [V, K]
};

struct Device {
  enum class Type : std::int32_t { kUnset = 0, kCpu = LINATTN_CPU, kCuda = LINATTN_CUDA };
  Type type = Type::kUnset;
  std::int32_t index = 0;

  static constexpr Device cpu() { return {Type::kCpu, 0}; }
  static constexpr Device cuda(std::int32_t index) { return {Type::kCuda, index}; }
  friend constexpr bool operator==(Device a, Device b) {
    return a.type == b.type && a.index == b.index;
  }
  friend constexpr bool operator!=(Device a, Device b) { return !(a == b); }
};

// A value: comparable, hashable, printable as the C++ that makes it. What shapes cannot tell has no
// default.
struct Problem {
  Op op{};
  DType dtype = DType::kBFloat16;  // q, k, v, out
  std::int64_t max_tokens = 0;     // bound of T over all calls
  std::int64_t max_sequences = 1;  // bound of N over all calls
  std::int32_t heads = 0;
  std::int32_t value_heads = 0;  // 0: heads
  std::int32_t key_dim = 0;
  std::int32_t value_dim = 0;
  GateInput gate_input = GateInput::kUnset;  // required with a gate
  DType gate_dtype = DType::kFloat32;
  BetaInput beta_input = BetaInput::kUnset;  // required unless the update is add
  DType beta_dtype = DType::kFloat32;        // beta, erase, write
  bool qk_l2norm = false;                    // x / sqrt(sum x^2 + 1e-6) over K
  StateLayout state_layout = StateLayout::kUnset;
  DType state_dtype = DType::kFloat32;
  DType checkpoint_dtype = DType::kUnset;  // unset: state_dtype
  std::int32_t checkpoint_interval = 64;   // every checkpoint position is a multiple of it
  bool save_for_backward = false;
  bool batch_invariant = false;
  std::int32_t sm_limit = 0;  // 0: all
  // Fused steps.
  std::int32_t conv_width = 0;                      // taps, 2 to 4; 0: no convolution
  Activation conv_activation = Activation::kUnset;  // identity or SiLU; required with one
  DType conv_dtype = DType::kUnset;                 // weights and biases; unset: dtype
  DType conv_state_dtype = DType::kUnset;           // unset: dtype
  Activation norm_gate = Activation::kUnset;        // of z, identity: without z; unset: no norm
  DType norm_dtype = DType::kUnset;                 // norm_weight; unset: dtype
};

namespace detail {

// Every field once: equality, the hash and the text all walk this.
template <class Visit>
constexpr void for_each_field(const Problem& p, Visit&& visit) {
  visit("op", p.op);
  visit("dtype", p.dtype);
  visit("max_tokens", p.max_tokens);
  visit("max_sequences", p.max_sequences);
  visit("heads", p.heads);
  visit("value_heads", p.value_heads);
  visit("key_dim", p.key_dim);
  visit("value_dim", p.value_dim);
  visit("gate_input", p.gate_input);
  visit("gate_dtype", p.gate_dtype);
  visit("beta_input", p.beta_input);
  visit("beta_dtype", p.beta_dtype);
  visit("qk_l2norm", p.qk_l2norm);
  visit("state_layout", p.state_layout);
  visit("state_dtype", p.state_dtype);
  visit("checkpoint_dtype", p.checkpoint_dtype);
  visit("checkpoint_interval", p.checkpoint_interval);
  visit("save_for_backward", p.save_for_backward);
  visit("batch_invariant", p.batch_invariant);
  visit("sm_limit", p.sm_limit);
  visit("conv_width", p.conv_width);
  visit("conv_activation", p.conv_activation);
  visit("conv_dtype", p.conv_dtype);
  visit("conv_state_dtype", p.conv_state_dtype);
  visit("norm_gate", p.norm_gate);
  visit("norm_dtype", p.norm_dtype);
}

inline std::int64_t integer(Op op) {
  return static_cast<std::int64_t>(op.gate) * 16 + static_cast<std::int64_t>(op.update);
}
template <class T>
std::int64_t integer(T value) {
  return static_cast<std::int64_t>(value);
}

}  // namespace detail

inline bool operator==(const Problem& a, const Problem& b) {
  std::int64_t mine[32], theirs[32];
  int count = 0, matched = 0;
  detail::for_each_field(a,
                         [&](const char*, auto value) { mine[count++] = detail::integer(value); });
  detail::for_each_field(
      b, [&](const char*, auto value) { theirs[matched++] = detail::integer(value); });
  for (int i = 0; i < count; ++i)
    if (mine[i] != theirs[i]) return false;
  return true;
}
inline bool operator!=(const Problem& a, const Problem& b) { return !(a == b); }

inline std::string to_string(DType dtype) {
  switch (dtype) {
    case DType::kBFloat16:
      return "bf16";
    case DType::kFloat16:
      return "fp16";
    case DType::kFloat32:
      return "fp32";
    case DType::kInt32:
      return "int32";
    case DType::kInt64:
      return "int64";
    case DType::kUnset:
      break;
  }
  return "unset";
}

inline std::string to_string(Device device) {
  switch (device.type) {
    case Device::Type::kCpu:
      return "cpu";
    case Device::Type::kCuda:
      return "cuda:" + std::to_string(device.index);
    case Device::Type::kUnset:
      break;
  }
  return "unset";
}

inline std::string to_string(Pass pass) {
  return pass == Pass::kForward ? "forward" : pass == Pass::kBackward ? "backward" : "step";
}

// The op's name; of two that are the same pair (lightning, retention) the first.
inline std::string to_string(Op op) {
  if (op == kda) return "kda";
  if (op == gdn) return "gdn";
  if (op == gla) return "gla";
  if (op == lightning) return "lightning";
  if (op == simple_gla) return "simple_gla";
  if (op == delta_rule) return "delta_rule";
  if (op == linear_attention) return "linear_attention";
  if (op == gdn2) return "gdn2";
  if (op == comba) return "comba";
  return "Op{Gate(" + std::to_string(static_cast<int>(op.gate)) + "), Update(" +
         std::to_string(static_cast<int>(op.update)) + ")}";
}

namespace detail {

inline std::string code(Op op) { return "linattn::" + to_string(op); }
inline std::string code(bool value) { return value ? "true" : "false"; }
inline std::string code(std::int32_t value) { return std::to_string(value); }
inline std::string code(std::int64_t value) { return std::to_string(value); }
inline std::string code(DType dtype) {
  const char* names[] = {"kUnset", "kBFloat16", "kFloat16", "kFloat32", "kInt32", "kInt64"};
  return std::string("linattn::DType::") + names[static_cast<int>(dtype)];
}
inline std::string code(GateInput input) {
  const char* names[] = {"kUnset", "kLogDecay", "kDecay", "kSoftplus", "kBounded"};
  return std::string("linattn::GateInput::") + names[static_cast<int>(input)];
}
inline std::string code(BetaInput input) {
  const char* names[] = {"kUnset", "kOne", "kValue", "kLogit", "kTwiceLogit"};
  return std::string("linattn::BetaInput::") + names[static_cast<int>(input)];
}
inline std::string code(Activation activation) {
  const char* names[] = {"kUnset", "kIdentity", "kSilu", "kSigmoid"};
  return std::string("linattn::Activation::") + names[static_cast<int>(activation)];
}
inline std::string code(StateLayout layout) {
  const char* names[] = {"kUnset", "kKeyValue", "kValueKey"};
  return std::string("linattn::StateLayout::") + names[static_cast<int>(layout)];
}

}  // namespace detail

// The C++ that makes the problem, without the fields that have their default.
inline std::string to_string(const Problem& problem) {
  std::int64_t defaults[32];
  int count = 0, index = 0;
  detail::for_each_field(
      Problem{}, [&](const char*, auto value) { defaults[count++] = detail::integer(value); });
  std::string text = "linattn::Problem{";
  detail::for_each_field(problem, [&](const char* name, auto value) {
    if (detail::integer(value) == defaults[index++]) return;
    if (text.back() != '{') text += ", ";
    text += "." + std::string(name) + " = " + detail::code(value);
  });
  return text + "}";
}

inline linattn_device to_c(Device device) {
  return {static_cast<std::int32_t>(device.type), device.index};
}

inline linattn_problem to_c(const Problem& p) {
  linattn_problem c;
  c.max_tokens = p.max_tokens;
  c.max_sequences = p.max_sequences;
  c.gate = static_cast<std::int32_t>(p.op.gate);
  c.update = static_cast<std::int32_t>(p.op.update);
  c.heads = p.heads;
  c.value_heads = p.value_heads;
  c.key_dim = p.key_dim;
  c.value_dim = p.value_dim;
  c.dtype = static_cast<std::int32_t>(p.dtype);
  c.gate_input = static_cast<std::int32_t>(p.gate_input);
  c.gate_dtype = static_cast<std::int32_t>(p.gate_dtype);
  c.beta_input = static_cast<std::int32_t>(p.beta_input);
  c.beta_dtype = static_cast<std::int32_t>(p.beta_dtype);
  c.qk_l2norm = p.qk_l2norm;
  c.state_layout = static_cast<std::int32_t>(p.state_layout);
  c.state_dtype = static_cast<std::int32_t>(p.state_dtype);
  c.checkpoint_dtype = static_cast<std::int32_t>(p.checkpoint_dtype);
  c.checkpoint_interval = p.checkpoint_interval;
  c.save_for_backward = p.save_for_backward;
  c.batch_invariant = p.batch_invariant;
  c.sm_limit = p.sm_limit;
  c.conv_width = p.conv_width;
  c.conv_activation = static_cast<std::int32_t>(p.conv_activation);
  c.conv_dtype = static_cast<std::int32_t>(p.conv_dtype);
  c.conv_state_dtype = static_cast<std::int32_t>(p.conv_state_dtype);
  c.norm_gate = static_cast<std::int32_t>(p.norm_gate);
  c.norm_dtype = static_cast<std::int32_t>(p.norm_dtype);
  return c;
}

}  // namespace v0
}  // namespace linattn

template <>
struct std::hash<linattn::Problem> {
  std::size_t operator()(const linattn::Problem& problem) const noexcept {
    std::size_t seed = 0;
    linattn::detail::for_each_field(problem, [&](const char*, auto value) {
      seed ^= std::hash<std::int64_t>{}(linattn::detail::integer(value)) + 0x9e3779b97f4a7c15u +
              (seed << 6) + (seed >> 2);
    });
    return seed;
  }
};
