// SPDX-License-Identifier: Apache-2.0
//
// What linattn-bench times: one table, and what each case costs by count.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "linattn/linattn.h"

namespace linattn::bench {

// How fast a state forgets. A row of the table is timed once for each of its settings.
enum Gates : std::uint8_t {
  kForget = 1,     // within tens of tokens
  kLong = 2,       // within hundreds to thousands: log-uniform over channels
  kUnbounded = 4,  // softplus: nothing bounds the decay of a token
  kFixed = 8,      // the op's own constants, or no gate
};

// What a step does with the states of its tokens.
enum class Drafts : std::uint8_t {
  kNone,     // stores the last one
  kColumns,  // stores each in a slot of its own
  kTree,     // stores none; each token continues the one that half its number has
  kReplay,   // stores none, but a replay record
  kCommit,   // has neither q nor out: the inputs are such a record
};

constexpr float kLowerBound = -5;  // of bounded gates
constexpr double kFloorBandwidth = 4.3e12;
constexpr std::int32_t kConvWidth = 4;  // of fused steps

struct TimedCase {
  Op op;
  std::int64_t sequences = 1, tokens = 0;  // tokens of one sequence; ragged: of all
  std::int32_t heads = 0, value_heads = 0;
  Gates gates = kForget;
  Pass pass = Pass::kForward;
  Device::Type device = Device::Type::kCuda;
  DType dtype = DType::kBFloat16;  // q, k, v, out
  DType state_dtype = DType::kFloat32;
  std::int32_t key_dim = 128, value_dim = 128;
  StateLayout layout = StateLayout::kValueKey;
  Drafts drafts = Drafts::kNone;  // of a step
  bool scattered = false;         // of a step: states in random slots of a pool with gaps
  bool fused = false;             // a step: convolution, SiLU, gated norm
  bool ragged = false;
  bool score = false;  // among those that `make score` times

  std::int64_t total_tokens() const { return ragged ? tokens : sequences * tokens; }
};

// The table, in its order, one entry per setting.
const std::vector<TimedCase>& timed_cases();

// "kda_8x1024_h96_forget": op, sequences x tokens, heads, value heads if there are more, gates.
std::string name_of(const TimedCase&);
std::string name_of(Gates);
std::string name_of(Pass);
std::string name_of(Drafts);

// Tokens of each sequence.
std::vector<std::int64_t> lengths_of(const TimedCase&);

// Of a step: states that each sequence stores.
std::int64_t stored_states(const TimedCase&);

// Channels of q, k and v.
std::int64_t channels(const TimedCase&);

// Bytes of the floor. Forward: q, k, v, the gate as 16 bits and out, each once. Step: every state,
// read once, and every one that is stored, written once; if it is fused, the conv states too.
double floor_bytes(const TimedCase&);

// Multiply-adds of the chunked form at 32 tokens a chunk, each triangle counted once.
double multiply_adds(const TimedCase&);

// The same problem, small enough for the oracle.
TimedCase reduced(const TimedCase&);

}  // namespace linattn::bench
