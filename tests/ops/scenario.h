// SPDX-License-Identifier: Apache-2.0
//
// A scenario is one call: problem, lengths, options. Inputs are its numbers, in logical order (no
// strides) and already rounded to their dtypes, so that every implementation and the oracle compute
// from the same values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cases.h"
#include "linattn/linattn.h"

namespace linattn::test {

struct Scenario {
  std::string name;
  Problem problem;
  Pass pass = Pass::kForward;
  std::vector<std::int64_t> lengths;  // [N]
  bool variable_length = false;       // cu_seqlens given; otherwise all lengths are equal
  std::int64_t surplus = 0;           // rows past the last offset
  float scale = 0, lower_bound = 0;
  Decay decay = Decay::kMild;
  Keys keys = Keys::kRandom;
  StateRange state = StateRange::kMild;
  std::uint32_t options = 0;
  std::uint64_t seed = 1;

  bool has(std::uint32_t option) const { return (options & option) != 0; }
  std::int64_t sequences() const { return static_cast<std::int64_t>(lengths.size()); }
  std::int64_t tokens() const;
  std::int64_t begin(std::int64_t n) const;  // first row of a sequence
  std::int64_t gate_dim() const { return problem.op.gate == Gate::kChannel ? problem.key_dim : 1; }
  std::int64_t value_heads() const {
    return problem.value_heads == 0 ? problem.heads : problem.value_heads;
  }
  std::int64_t group() const { return value_heads() / problem.heads; }
  std::int64_t matrix() const {
    return static_cast<std::int64_t>(problem.key_dim) * problem.value_dim;
  }
  bool raw_gate() const {
    return problem.gate_input == GateInput::kSoftplus || problem.gate_input == GateInput::kBounded;
  }
};

// All in logical order: [T, heads, dim], states [slots, HV, K, V]. An empty vector is an absent
// argument.
struct Inputs {
  std::vector<float> q, k, v, g, beta, erase, write, a_log, dt_bias;
  std::vector<float> initial;  // [initial_slots, HV, K, V]
  std::int64_t initial_slots = 0, final_slots = 0;
  std::int32_t first_slot = 0;
  std::vector<std::int32_t> read_slots, write_slots;
  std::vector<std::uint8_t> has_initial;
  std::vector<std::int32_t> start_positions;
  std::vector<std::int32_t> checkpoint_offsets, checkpoint_positions, checkpoint_slots;
  std::int64_t checkpoint_pool = 0;
  std::int64_t read_columns = 0, write_columns = 0;  // step
  std::vector<std::int32_t> accepted, parents;       // step
  std::vector<float> dout, dfinal;                   // backward; dfinal [N, HV, K, V]
};

// A problem of that op with what the tests mostly want; sequences of `lengths` tokens.
Scenario make(Op op, Pass pass, std::vector<std::int64_t> lengths, std::int32_t heads,
              std::int32_t value_heads, std::int32_t key_dim, std::int32_t value_dim,
              DType dtype = DType::kFloat32);
Scenario make(const Case& c);

Inputs draw(const Scenario& scenario);

// Rounds in place, as storing in that dtype does.
void round_to(DType dtype, std::vector<float>& values);

// What a sequence does with slots, by the contract of c.h.
struct Route {
  bool pad = false;        // nothing is computed, output rows are zero
  std::int64_t from = -1;  // slot that it starts from, -1: zero
};
Route route(const Scenario& scenario, const Inputs& inputs, std::int64_t n);
// The slot that takes the state after token t of sequence n (-1: none). t is ignored without write
// columns.
std::int64_t stored_in(const Scenario& scenario, const Inputs& inputs, std::int64_t n,
                       std::int64_t t);
// Whether checkpoint entry i of sequence n is written.
bool checkpoint_written(const Scenario& scenario, const Inputs& inputs, std::int64_t n,
                        std::int64_t i);

// The log decay and the strength that an input value stands for, in double.
double log_decay(const Scenario& scenario, const Inputs& inputs, std::int64_t row,
                 std::int64_t head, std::int64_t channel);
double strength(BetaInput input, double value);

// The same call with fp32 everywhere, contiguous, one state per sequence: what the oracle is asked
// for.
Scenario widened(const Scenario& scenario);
Inputs resolved(const Scenario& scenario, const Inputs& inputs);

}  // namespace linattn::test
