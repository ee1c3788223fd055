// SPDX-License-Identifier: Apache-2.0
//
// What a row of the table of cases (cases.h) holds: an op, a shape, dtypes, ranges of the inputs
// and options; and from what its tolerance comes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "linattn/op.h"
#include "linattn/problem.h"

namespace linattn::test {

struct NamedOp {  // lightning and retention are one pair of policies, so the name is kept beside it
  const char* name;
  Op op;
};

inline constexpr std::array<NamedOp, 10> kAllOps{{{"kda", kda},
                                                  {"gdn", gdn},
                                                  {"gla", gla},
                                                  {"lightning", lightning},
                                                  {"simple_gla", simple_gla},
                                                  {"retention", retention},
                                                  {"delta_rule", delta_rule},
                                                  {"linear_attention", linear_attention},
                                                  {"gdn2", gdn2},
                                                  {"comba", comba}}};

// One op of each class that kernels are compiled for: {gate per channel, per head} x {delta, add}.
inline constexpr std::array<NamedOp, 4> kClassOps{
    {{"kda", kda}, {"gdn", gdn}, {"gla", gla}, {"simple_gla", simple_gla}}};
inline constexpr std::array<NamedOp, 5> kBetaOps{
    {{"kda", kda}, {"gdn", gdn}, {"delta_rule", delta_rule}, {"gdn2", gdn2}, {"comba", comba}}};
inline constexpr std::array<NamedOp, 6> kGateOps{{{"kda", kda},
                                                  {"gdn", gdn},
                                                  {"gla", gla},
                                                  {"simple_gla", simple_gla},
                                                  {"lightning", lightning},
                                                  {"gdn2", gdn2}}};

struct Shape {
  std::int64_t sequences, tokens;  // tokens of one sequence
  std::int32_t heads, value_heads, key_dim, value_dim;
};

enum class Lengths : std::uint8_t {
  kEqual,    // N sequences of T tokens, no cu_seqlens
  kPacked,   // the same with cu_seqlens
  kRagged,   // T, 1, T / 2 + 1, 16, T - 1, 3, ...
  kEmpties,  // 0, T, 0, 0, 1, 64, 0, ...
  kSurplus,  // ragged, and rows past the last offset
  kNone,     // all sequences empty
};

// Ranges of the log decay a.
enum class Decay : std::uint8_t {
  kMild,     // -1 .. -0.01
  kStrong,   // -8 .. -2, some tokens -20
  kZero,     // 0: nothing is forgotten
  kLong,     // -1e-2 .. -1e-5, log-uniform
  kOff,      // mild, every seventh token -inf
  kMixed,    // by channel and head: 0, -50, mild
  kDip,      // 0, but -26 at tokens 0, 14, 15, 31, 60 of channel 1
  kConstant  // one constant per head, 1 - 2^(-5 - h): RetNet's
};

enum class Keys : std::uint8_t {
  kRandom,      // N(0, 1), q and k of norm 1
  kCorrelated,  // a vector per head + 0.05 N(0, 1), norm 1
  kIdentical,   // that vector alone
  kOneHot,      // k_t = e_(t mod K)
  kRaw,         // N(0, 1), not normalised: for l2norm in the kernel
};

enum class StateRange : std::uint8_t {
  kMild,  // N(0, 1)
  kHuge,  // 1e6 N(0, 1)
};

enum Option : std::uint32_t {
  kL2Norm = 1u << 0,
  kNoInitial = 1u << 1,
  kNoFinal = 1u << 2,
  kSlots = 1u << 3,       // a pool with padded strides, ids in any order, some null, one pad
  kInPlace = 1u << 4,     // final_state is initial_state
  kFirstSlot = 1u << 5,   // slot 0 is null too
  kHasInitial = 1u << 6,  // has_initial_state with zeros in it
  kCheckpoints = 1u << 7,
  kStarts = 1u << 8,  // start_positions
  kTransition = 1u << 9,
  kPadded = 1u << 10,     // rows and heads with padding behind them
  kPackedQkv = 1u << 11,  // q, k, v are slices of one projection
  kSlice = 1u << 12,      // x[:, :T] of a longer buffer (no cu_seqlens)
  kHeadMajor = 1u << 13,  // [N, heads, T, dim]
  kUnaligned = 1u << 14,  // one element past an aligned address
  kInt64 = 1u << 15,      // cu_seqlens
  kScale = 1u << 16,      // not K^-1/2
  kNoBias = 1u << 17,     // dt_bias absent
  kNoALog = 1u << 18,     // a_log absent (bounded only)
  kInvariant = 1u << 19,  // batch_invariant
  kNoDout = 1u << 20,     // backward: gradient through the final state only
  kNoDFinal = 1u << 21,
  kSomeGradients = 1u << 22,  // backward: only dk and dg wanted
  kAccepted = 1u << 23,       // step: read_slots [N, 4] and accepted
  kColumns = 1u << 24,        // step: every token's state stored
  kTree = 1u << 25,           // step: parents
};

struct Case {
  const char* label = "";
  Shape shape{};
  Lengths lengths = Lengths::kEqual;
  DType dtype = DType::kFloat32;
  DType gate_dtype = DType::kFloat32;
  DType beta_dtype = DType::kFloat32;
  DType state_dtype = DType::kFloat32;
  DType checkpoint_dtype = DType::kUnset;
  GateInput gate_input = GateInput::kLogDecay;
  BetaInput beta_input = BetaInput::kValue;
  StateLayout layout = StateLayout::kKeyValue;
  Decay decay = Decay::kMild;
  Keys keys = Keys::kRandom;
  StateRange state = StateRange::kMild;
  std::uint32_t options = 0;
  NamedOp op{};
  Pass pass = Pass::kForward;
};

inline std::string name_of(const Case& c) {
  return std::string(c.op.name) + "_" + to_string(c.pass) + "_" + c.label;
}

// ---- tolerance: computed from a model of the precision, and capped
// --------------------------------

enum class ToleranceSource : std::uint8_t {
  kEmulated,       // 2 x the error of cpu.emulated, which rounds where a 16-bit kernel rounds
  kRoundingModel,  // 2 x the error of an fp32 recurrence (ops/recurrence_model.h)
};

constexpr ToleranceSource tolerance_source(DType dtype, Pass pass) {
  return dtype != DType::kFloat32 && pass == Pass::kForward ? ToleranceSource::kEmulated
                                                            : ToleranceSource::kRoundingModel;
}

// The largest relative rms that a computed tolerance may reach.
struct Caps {
  double out, state, gradient;
};

// Keys that repeat add their rounded parts up instead of averaging them out: a property of 16-bit
// write keys, which fp32 does not share.
constexpr double kRepeatedKeys = 6;
constexpr bool repeats(Keys keys, std::int32_t key_dim) {
  return keys == Keys::kCorrelated || keys == Keys::kIdentical || key_dim < 32;
}

// Beta up to 2 writes twice as much, and what is left of a key may grow in sign only: nothing
// averages out.
constexpr double kReflected = 2;

constexpr Caps caps(DType dtype) {
  if (dtype == DType::kBFloat16) return {.007, .005, .015};
  if (dtype == DType::kFloat16) return {.002, .002, .015};
  return {1e-5, 1e-5, 1e-5};
}

}  // namespace linattn::test
