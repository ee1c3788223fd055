// SPDX-License-Identifier: Apache-2.0
//
// An op is a pair of policies: how the state decays, and what is written into it.
//
//   S <- decay_t S                    gate:    none | a constant per head | per token and head |
//   and per key channel S <- S + k_t (x) e_t              update:  add (e = v) | delta (e = beta (v
//   - S^T k)) | erase and write o_t = scale S^T q_t
#pragma once

#include <cstdint>

#include "linattn/c.h"

namespace linattn {
inline namespace v0 {

enum class Gate : std::int32_t {
  kUnset = 0,
  kNone = LINATTN_GATE_NONE,
  kHeadConstant = LINATTN_GATE_HEAD_CONSTANT,  // g [HV]
  kHead = LINATTN_GATE_HEAD,                   // g [T, HV]
  kChannel = LINATTN_GATE_CHANNEL,             // g [T, HV, K]
};

enum class Update : std::int32_t {
  kUnset = 0,
  kAdd = LINATTN_UPDATE_ADD,
  kDelta = LINATTN_UPDATE_DELTA,             // beta [T, HV]
  kEraseWrite = LINATTN_UPDATE_ERASE_WRITE,  // erase [T, HV, K], write [T, HV, V]
};

struct Op {
  Gate gate = Gate::kUnset;
  Update update = Update::kUnset;

  friend constexpr bool operator==(Op a, Op b) { return a.gate == b.gate && a.update == b.update; }
  friend constexpr bool operator!=(Op a, Op b) { return !(a == b); }
};

inline constexpr Op kda{Gate::kChannel, Update::kDelta};           // Kimi Delta Attention
inline constexpr Op gdn{Gate::kHead, Update::kDelta};              // Gated DeltaNet
inline constexpr Op gla{Gate::kChannel, Update::kAdd};             // Gated Linear Attention
inline constexpr Op lightning{Gate::kHeadConstant, Update::kAdd};  // Lightning Attention
inline constexpr Op simple_gla{Gate::kHead, Update::kAdd};         // also Mamba-2's recurrence
inline constexpr Op retention{Gate::kHeadConstant,
                              Update::kAdd};  // RetNet: lightning with other constants
inline constexpr Op delta_rule{Gate::kNone, Update::kDelta};      // DeltaNet
inline constexpr Op linear_attention{Gate::kNone, Update::kAdd};  //
inline constexpr Op gdn2{Gate::kChannel, Update::kEraseWrite};    // Gated DeltaNet-2
inline constexpr Op comba{Gate::kHead, Update::kEraseWrite};  // Comba: erases less than it writes

// How g becomes the log decay (natural logarithm, <= 0); x = g + dt_bias.
enum class GateInput : std::int32_t {
  kUnset = 0,
  kLogDecay = LINATTN_INPUT_LOG_DECAY,  // g
  kDecay = LINATTN_INPUT_DECAY,         // log(g), g in [0, 1]
  kSoftplus = LINATTN_INPUT_SOFTPLUS,   // -exp(A_log) softplus(x)
  kBounded = LINATTN_INPUT_BOUNDED,     // lower_bound sigmoid(exp(A_log) x)
};

// How beta, erase and write become strengths.
enum class BetaInput : std::int32_t {
  kUnset = 0,
  kOne = LINATTN_BETA_ONE,                 // no tensor: 1
  kValue = LINATTN_BETA_VALUE,             // as given
  kLogit = LINATTN_BETA_LOGIT,             // sigmoid(x)
  kTwiceLogit = LINATTN_BETA_TWICE_LOGIT,  // 2 sigmoid(x): negative eigenvalues
};

// What a fused step's convolution ends with, and how z gates its norm.
enum class Activation : std::int32_t {
  kUnset = 0,
  kIdentity = LINATTN_ACTIVATION_IDENTITY,
  kSilu = LINATTN_ACTIVATION_SILU,        // x sigmoid(x)
  kSigmoid = LINATTN_ACTIVATION_SIGMOID,  // of a norm's gate only
};

}  // namespace v0
}  // namespace linattn
