// SPDX-License-Identifier: Apache-2.0
#include "core/check.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <unordered_set>
#include <vector>

#include "core/check_fused.h"
#include "core/dtype.h"
#include "core/expect.h"
#include "linattn/error.h"

namespace linattn {

void throw_invalid(const std::string& text) {
  throw Error(ErrorCode::kInvalidArgument, "linattn: " + text);
}

namespace {

using namespace checks;  // NOLINT: what this file is made of

// The checks of one call. All names are the argument structs' own.
template <class Args>
class CallCheck {
 public:
  CallCheck(const Problem& problem, Device device, const Args& args)
      : p_(problem), a_(args), host_(device.type == Device::Type::kCpu) {}

  void inputs() {
    counts();
    offsets();
    if (wants_out()) input(a_.q, "q", p_.dtype);
    input(a_.k, "k", p_.dtype);
    input(a_.v, "v", p_.dtype);
    gate();
    strengths();
    expect(a_.first_slot >= 0, "first_slot", a_.first_slot, "0 or more");
    if (!std::isfinite(a_.scale)) refuse("scale", number(a_.scale), "a finite number");
    if (a_.initial_state.data == nullptr) {
      absent(a_.read_slots, "read_slots", "initial_state is absent");
      if (!has_conv_state(a_))
        absent(a_.has_initial_state, "has_initial_state", "initial_state is absent");
    } else {
      state(a_.initial_state, "initial_state", p_.state_dtype, a_.read_slots == nullptr,
            p_.value_dim, false);
    }
  }

  void output(const Tensor& t, const char* name, DType dtype, std::int64_t heads,
              std::int64_t dim) {
    if (a_.tokens == 0) return;
    strides(t, name, dtype);
    for (const Tensor* in : {&a_.q, &a_.k, &a_.v, &a_.g, &a_.beta, &a_.erase, &a_.write})
      if (in->data == t.data) refuse(name, "at the address of an input", "memory of its own");
    const bool packed = a_.cu_seqlens != nullptr;
    no_overlap(name, dim,
               std::array{Axis{".head_stride", heads, t.head_stride},
                          Axis{".token_stride", packed ? a_.tokens : length(), t.token_stride},
                          Axis{".sequence_stride", packed ? 1 : a_.sequences, t.sequence_stride}});
  }

  // An output that may be absent.
  void wanted(const Tensor& t, const char* name, DType dtype, std::int64_t heads,
              std::int64_t dim) {
    if (t.data != nullptr) output(t, name, dtype, heads, dim);
  }

  void state(const State& s, const char* name, DType dtype, bool one_per_sequence,
             std::int64_t columns, bool written) {
    const std::int64_t matrix = p_.key_dim * columns;
    aligned(s.data, name, size_of(dtype));
    expect(s.slots >= 0, {name, ".slots"}, s.slots, "0 or more");
    if (one_per_sequence)
      expect(s.slots == a_.sequences, {name, ".slots"}, s.slots, [&] {
        return std::to_string(a_.sequences) + ", one per sequence (no slot ids are given)";
      });
    expect(s.slot_stride >= 0, {name, ".slot_stride"}, s.slot_stride, "0 or more");
    expect(s.head_stride >= 0, {name, ".head_stride"}, s.head_stride, "0 or more");
    if (written)
      no_overlap(name, matrix,
                 std::array{Axis{".head_stride", p_.value_heads, s.head_stride},
                            Axis{".slot_stride", s.slots, s.slot_stride}});
  }

  void state_outputs(std::int64_t write_slot_stride) {
    if (wants_out()) {
      if (a_.tokens > 0) present(a_.out.data, "out", "there are tokens");
      output(a_.out, "out", p_.dtype, p_.value_heads, p_.value_dim);
    }
    if (a_.final_state.data == nullptr) {
      absent(a_.write_slots, "write_slots", "final_state is absent");
      return;
    }
    state(a_.final_state, "final_state", p_.state_dtype, a_.write_slots == nullptr, p_.value_dim,
          true);
    if (host_ && a_.write_slots != nullptr) written_slots(write_slot_stride);
  }

  void forward() {
    inputs();
    if (host_ && a_.read_slots != nullptr) read_slots(1);
    state_outputs(0);
    const char* none = "checkpoints is absent";
    if (a_.checkpoints.data == nullptr) {
      absent(a_.checkpoint_offsets, "checkpoint_offsets", none);
      absent(a_.checkpoint_positions, "checkpoint_positions", none);
      absent(a_.checkpoint_slots, "checkpoint_slots", none);
    } else {
      checkpoints();
    }
    if (host_ && a_.start_positions != nullptr)
      for (std::int64_t n = 0; n < a_.sequences; ++n)
        expect(a_.start_positions[n] >= 0, {"start_positions", n}, a_.start_positions[n],
               "0 or more");
    if (a_.transition.data != nullptr)
      state(a_.transition, "transition", DType::kFloat32, true, p_.key_dim, true);
    if (!p_.save_for_backward) absent(a_.saved, "saved", "the problem has no save_for_backward");
  }

  void backward() {
    inputs();
    if (host_ && a_.read_slots != nullptr) read_slots(1);
    if (a_.dout.data != nullptr) strides(a_.dout, "dout", p_.dtype);
    if (a_.dfinal_state.data != nullptr)
      state(a_.dfinal_state, "dfinal_state", p_.state_dtype, true, p_.value_dim, false);
    const std::int64_t gate_dim = p_.op.gate == Gate::kChannel ? p_.key_dim : 1;
    wanted(a_.dq, "dq", p_.dtype, p_.heads, p_.key_dim);
    wanted(a_.dk, "dk", p_.dtype, p_.heads, p_.key_dim);
    wanted(a_.dv, "dv", p_.dtype, p_.value_heads, p_.value_dim);
    wanted(a_.dbeta, "dbeta", p_.beta_dtype, p_.value_heads, 1);
    wanted(a_.derase, "derase", p_.beta_dtype, p_.value_heads, p_.key_dim);
    wanted(a_.dwrite, "dwrite", p_.beta_dtype, p_.value_heads, p_.value_dim);
    if (p_.op.gate == Gate::kHeadConstant) {
      if (a_.dg.data != nullptr) {
        aligned(a_.dg.data, "dg", size_of(p_.gate_dtype));
        no_overlap("dg", 1, std::array{Axis{".head_stride", p_.value_heads, a_.dg.head_stride}});
      }
    } else {
      wanted(a_.dg, "dg", p_.gate_dtype, p_.value_heads, gate_dim);
    }
    only_with(a_.g.data, "g", {{a_.dg.data, "dg"}});
    only_with(a_.beta.data, "beta", {{a_.dbeta.data, "dbeta"}});
    only_with(a_.erase.data, "erase", {{a_.derase.data, "derase"}, {a_.dwrite.data, "dwrite"}});
    only_with(a_.a_log, "a_log", {{a_.da_log, "da_log"}});
    only_with(a_.dt_bias, "dt_bias", {{a_.ddt_bias, "ddt_bias"}});
    only_with(a_.initial_state.data, "initial_state", {{a_.dinitial_state.data, "dinitial_state"}});
    if (a_.dinitial_state.data != nullptr)
      state(a_.dinitial_state, "dinitial_state", p_.state_dtype, true, p_.value_dim, true);
  }

  void step() {
    inputs();
    expect(a_.read_slot_stride >= 0, "read_slot_stride", a_.read_slot_stride, "0 or more");
    expect(a_.write_slot_stride >= 0, "write_slot_stride", a_.write_slot_stride, "0 or more");
    if (a_.read_slot_stride > 0) {
      present(a_.read_slots, "read_slots", "read_slot_stride is set");
      present(a_.accepted, "accepted", "read_slot_stride is set and it chooses the column");
    } else {
      absent(a_.accepted, "accepted", "read_slot_stride is 0");
    }
    if (host_ && a_.read_slots != nullptr)
      read_slots(std::max<std::int64_t>(a_.read_slot_stride, 1));
    if (a_.write_slot_stride > 0) {
      present(a_.write_slots, "write_slots", "write_slot_stride is set");
      if (host_)
        for (std::int64_t n = 0; n < a_.sequences; ++n)
          expect(length(n) <= a_.write_slot_stride, "write_slot_stride", a_.write_slot_stride, [&] {
            return "at least " + std::to_string(length(n)) + ", the tokens of sequence " +
                   std::to_string(n);
          });
    }
    state_outputs(a_.write_slot_stride);
    if (a_.tokens > 0 && !wants_out() && a_.replay == nullptr)
      present(a_.final_state.data, "final_state", "q and out are absent");
    check_fused(p_, host_, a_);
    chosen_tokens();
    layers();
    aligned(a_.replay, "replay", 4);
    if (host_ && a_.parents != nullptr)
      for (std::int64_t n = 0; n < a_.sequences; ++n)
        for (std::int64_t t = 0; t < length(n); ++t) {
          const std::int32_t parent = a_.parents[begin(n) + t];
          expect(parent >= -1 && parent < t, {"parents", begin(n) + t}, parent, [&] {
            return "-1 or an earlier token of its sequence, under " + std::to_string(t);
          });
        }
  }

 private:
  // Steps that only write states have neither q nor out.
  bool wants_out() const {
    if constexpr (requires { a_.replay; }) return a_.q.data != nullptr || a_.out.data != nullptr;
    return true;
  }

  void chosen_tokens() {
    if (a_.picks == nullptr) {
      expect(a_.picks_stride == 0, "picks_stride", a_.picks_stride, "0, since picks is absent");
    } else {
      expect(a_.picks_stride > 0, "picks_stride", a_.picks_stride, "the columns of picks");
      absent(a_.parents, "parents", "picks is given, which are a path already");
    }
    if (!host_ || a_.picks == nullptr) return;
    std::unordered_set<std::int32_t> seen;
    for (std::int64_t n = 0; n < a_.sequences; ++n) {
      std::int64_t count = length(n);
      if (a_.counts != nullptr) count = std::clamp<std::int64_t>(a_.counts[n], 0, count);
      seen.clear();
      for (std::int64_t i = n * a_.picks_stride, end = i + std::min(count, a_.picks_stride);
           i < end; ++i) {
        expect(a_.picks[i] >= 0 && a_.picks[i] < length(n), {"picks", i}, a_.picks[i],
               [&] { return "a token of its sequence, under " + std::to_string(length(n)); });
        expect(seen.insert(a_.picks[i]).second, {"picks", i}, a_.picks[i],
               "a token that is not picked before");
      }
    }
  }

  void layers() {
    expect(a_.layers >= 0, "layers", a_.layers, "0 (one) or more");
    if (a_.layers == 0) {
      absent(static_cast<const void*>(a_.pools), "pools", "layers is 0");
      expect(a_.layer_stride == 0, "layer_stride", a_.layer_stride, "0, since layers is 0");
      return;
    }
    present(static_cast<const void*>(a_.pools), "pools", "layers is set");
    expect(a_.layer_stride >= 0, "layer_stride", a_.layer_stride, "0 or more");
    const char* set = "layers is set and only states are written";
    absent(a_.out.data, "out", set);
    absent(a_.replay, "replay", set);
    if (p_.op.update != Update::kAdd)
      refuse("problem.op.update", "not add", "add, since layers is set: a commit's op");
    if (p_.op.gate == Gate::kHeadConstant)
      refuse("problem.op.gate", "a constant per head", "one that tokens have, since layers is set");
    if (p_.op.gate != Gate::kNone && p_.gate_input != GateInput::kLogDecay)
      refuse("problem.gate_input", "not log decay", "log decay, since layers is set");
    if (a_.initial_state.data != a_.final_state.data)
      refuse("final_state", "another than initial_state", "initial_state, since layers is set");
    present(a_.final_state.data, "final_state", "layers is set, and it describes the pools");
    if (!host_) return;
    for (std::int64_t layer = 0; layer < a_.layers; ++layer) {
      present(a_.pools[layer], {"pools", layer}, "layers is set");
      aligned(a_.pools[layer], {"pools", layer}, size_of(p_.state_dtype));
    }
  }

  struct Named {
    const void* data;
    const char* name;
  };

  std::string op() const { return "op " + to_string(p_.op); }

  static void only_with(const void* of, const char* of_name,
                        std::initializer_list<Named> gradients) {
    if (of != nullptr) return;
    for (const Named& gradient : gradients)
      absent(gradient.data, gradient.name, [&] { return std::string(of_name) + " is absent"; });
  }

  std::int64_t length() const { return a_.sequences == 0 ? 0 : a_.tokens / a_.sequences; }
  std::int64_t begin(std::int64_t n) const {
    return a_.cu_seqlens == nullptr ? n * length() : load_index(a_.cu_seqlens, index_type(), n);
  }
  std::int64_t length(std::int64_t n) const { return begin(n + 1) - begin(n); }
  DType index_type() const {
    return a_.cu_seqlens_dtype == LINATTN_INT64 ? DType::kInt64 : DType::kInt32;
  }

  void counts() {
    expect(a_.tokens >= 0 && a_.tokens <= p_.max_tokens, "tokens", a_.tokens,
           [&] { return "0 to the problem's max_tokens, " + std::to_string(p_.max_tokens); });
    expect(a_.sequences >= 0 && a_.sequences <= p_.max_sequences, "sequences", a_.sequences,
           [&] { return "0 to the problem's max_sequences, " + std::to_string(p_.max_sequences); });
  }

  void offsets() {
    if (a_.cu_seqlens == nullptr) {
      if (a_.sequences == 0 ? a_.tokens != 0 : a_.tokens % a_.sequences != 0)
        refuse("tokens", std::to_string(a_.tokens),
               "a multiple of sequences, " + std::to_string(a_.sequences) +
                   ", since cu_seqlens is absent");
      return;
    }
    const std::int32_t type = a_.cu_seqlens_dtype;
    if (type != 0 && type != LINATTN_INT32 && type != LINATTN_INT64)
      refuse("cu_seqlens_dtype", std::to_string(type), "int32 or int64");
    aligned(a_.cu_seqlens, "cu_seqlens", size_of(index_type()));
    if (!host_) return;  // the host cannot see it without waiting; kernels clamp
    expect(begin(0) == 0, "cu_seqlens[0]", begin(0), "0");
    for (std::int64_t n = 0; n < a_.sequences; ++n)
      expect(begin(n + 1) >= begin(n), {"cu_seqlens", n + 1}, begin(n + 1),
             [&] { return "at least " + std::to_string(begin(n)) + ", the offset before it"; });
    expect(begin(a_.sequences) <= a_.tokens, {"cu_seqlens", a_.sequences}, begin(a_.sequences),
           [&] { return "at most tokens, " + std::to_string(a_.tokens); });
  }

  void input(const Tensor& t, const char* name, DType dtype) {
    if (a_.tokens > 0) strides(t, name, dtype);
  }

  void gate() {
    const bool raw = p_.gate_input == GateInput::kSoftplus || p_.gate_input == GateInput::kBounded;
    if (p_.op.gate == Gate::kNone) {
      absent(a_.g.data, "g", [&] { return op() + " has no gate"; });
    } else if (p_.op.gate == Gate::kHeadConstant) {
      strides(a_.g, "g", p_.gate_dtype);
      expect(a_.g.token_stride == 0, "g.token_stride", a_.g.token_stride,
             "0, since g is one constant per head");
      expect(a_.g.sequence_stride == 0, "g.sequence_stride", a_.g.sequence_stride,
             "0, since g is one constant per head");
    } else {
      input(a_.g, "g", p_.gate_dtype);
    }
    if (p_.gate_input == GateInput::kSoftplus) present(a_.a_log, "a_log", "gate_input is softplus");
    if (!raw) {
      absent(a_.a_log, "a_log", "gate_input is not softplus or bounded");
      absent(a_.dt_bias, "dt_bias", "gate_input is not softplus or bounded");
    }
    aligned(a_.a_log, "a_log", 4);
    aligned(a_.dt_bias, "dt_bias", 4);
    if (p_.gate_input == GateInput::kBounded) {
      if (!(a_.lower_bound < 0) || !std::isfinite(a_.lower_bound))
        refuse("lower_bound", number(a_.lower_bound),
               "a finite negative number, the smallest log decay");
    } else if (a_.lower_bound != 0) {
      refuse("lower_bound", number(a_.lower_bound), "0 (absent), since gate_input is not bounded");
    }
  }

  void strengths() {
    const bool delta = p_.op.update == Update::kDelta && p_.beta_input != BetaInput::kOne;
    const bool erase_write = p_.op.update == Update::kEraseWrite;
    if (delta) input(a_.beta, "beta", p_.beta_dtype);
    if (!delta)
      absent(a_.beta.data, "beta", [&] {
        return p_.beta_input == BetaInput::kOne ? "beta_input is one" : op() + " takes no beta";
      });
    if (erase_write) {
      input(a_.erase, "erase", p_.beta_dtype);
      input(a_.write, "write", p_.beta_dtype);
    } else {
      absent(a_.erase.data, "erase", [&] { return op() + " takes no erase strength"; });
      absent(a_.write.data, "write", [&] { return op() + " takes no write strength"; });
    }
  }

  void read_slots(std::int64_t stride) {
    for (std::int64_t i = 0; i < a_.sequences * stride; ++i)
      expect(a_.read_slots[i] < a_.initial_state.slots, {"read_slots", i}, a_.read_slots[i], [&] {
        return "under initial_state.slots, " + std::to_string(a_.initial_state.slots);
      });
  }

  // Written slots exist, differ from each other and are not what another sequence reads.
  void written_slots(std::int64_t stride) {
    const std::int64_t columns = std::max<std::int64_t>(stride, 1);
    std::vector<std::int64_t> owner(static_cast<std::size_t>(a_.final_state.slots), -1);
    for (std::int64_t n = 0; n < a_.sequences; ++n)
      for (std::int64_t t = 0; t < (stride == 0 ? 1 : length(n)); ++t) {
        const std::int64_t i = n * columns + t, slot = a_.write_slots[i];
        if (slot < a_.first_slot) continue;
        expect(slot >= 0 && slot < a_.final_state.slots, {"write_slots", i}, slot,
               [&] { return "under final_state.slots, " + std::to_string(a_.final_state.slots); });
        expect(owner[static_cast<std::size_t>(slot)] < 0, {"write_slots", i}, slot,
               "a slot that no other entry writes");
        owner[static_cast<std::size_t>(slot)] = n;
      }
    if (a_.initial_state.data != a_.final_state.data) return;
    const std::int64_t read_columns = a_.read_slots == nullptr ? 1 : read_slot_columns();
    for (std::int64_t n = 0; n < a_.sequences; ++n)
      for (std::int64_t j = 0; j < read_columns; ++j) {
        const std::int64_t slot =
            a_.read_slots == nullptr ? n : a_.read_slots[n * read_columns + j];
        const bool null = a_.read_slots != nullptr && slot < a_.first_slot;
        if (null || slot < 0 || slot >= a_.final_state.slots) continue;
        const std::int64_t writer = owner[static_cast<std::size_t>(slot)];
        if (writer >= 0 && writer != n)
          refuse("write_slots",
                 "writing slot " + std::to_string(slot) + " for sequence " + std::to_string(writer),
                 "no slot that sequence " + std::to_string(n) + " reads");
      }
  }

  std::int64_t read_slot_columns() const {
    if constexpr (requires { a_.read_slot_stride; })
      return std::max<std::int64_t>(a_.read_slot_stride, 1);
    return 1;
  }

  void checkpoints() {
    const char* given = "checkpoints is given";
    present(a_.checkpoint_offsets, "checkpoint_offsets", given);
    state(a_.checkpoints, "checkpoints", p_.checkpoint_dtype, false, p_.value_dim, true);
    if (!host_) {
      present(a_.checkpoint_positions, "checkpoint_positions", given);
      present(a_.checkpoint_slots, "checkpoint_slots", given);
      return;
    }
    expect(a_.checkpoint_offsets[0] == 0, "checkpoint_offsets[0]", a_.checkpoint_offsets[0], "0");
    std::unordered_set<std::int32_t> used;
    for (std::int64_t n = 0; n < a_.sequences; ++n) {
      const std::int32_t first = a_.checkpoint_offsets[n], last = a_.checkpoint_offsets[n + 1];
      expect(last >= first, {"checkpoint_offsets", n + 1}, last, "at least the offset before it");
      if (last > first) {
        present(a_.checkpoint_positions, "checkpoint_positions", given);
        present(a_.checkpoint_slots, "checkpoint_slots", given);
      }
      for (std::int32_t i = first; i < last; ++i) {
        const std::int32_t position = a_.checkpoint_positions[i], slot = a_.checkpoint_slots[i];
        expect(position >= 0 && position % p_.checkpoint_interval == 0, {"checkpoint_positions", i},
               position, [&] {
                 return "a multiple of the problem's checkpoint_interval, " +
                        std::to_string(p_.checkpoint_interval);
               });
        if (i > first)
          expect(position > a_.checkpoint_positions[i - 1], {"checkpoint_positions", i}, position,
                 "more than the position before it in its sequence");
        if (slot < a_.first_slot) continue;
        expect(slot >= 0 && slot < a_.checkpoints.slots, {"checkpoint_slots", i}, slot,
               [&] { return "under checkpoints.slots, " + std::to_string(a_.checkpoints.slots); });
        expect(used.insert(slot).second, {"checkpoint_slots", i}, slot,
               "a slot that no other checkpoint writes");
      }
    }
  }

  const Problem& p_;
  const Args& a_;
  const bool host_;  // index tensors can be read here
};

}  // namespace

Problem check_problem(Problem p, Device device) {
  if (device.type != Device::Type::kCpu && device.type != Device::Type::kCuda)
    refuse("device.type", std::to_string(static_cast<int>(device.type)), "cpu or cuda");
  expect(device.index >= 0, "device.index", device.index, "0 or more");
  expect_enum("op.gate", p.op.gate, LINATTN_GATE_CHANNEL, "a Gate");
  expect_enum("op.update", p.op.update, LINATTN_UPDATE_ERASE_WRITE, "an Update");
  expect(p.max_tokens >= 1, "problem.max_tokens", p.max_tokens,
         "at least 1, the bound of tokens over all calls");
  expect(p.max_sequences >= 1, "problem.max_sequences", p.max_sequences, "at least 1");
  expect(p.heads >= 1, "problem.heads", p.heads, "at least 1");
  expect(p.value_heads >= 0, "problem.value_heads", p.value_heads, "0 (the same as heads) or more");
  if (p.value_heads == 0) p.value_heads = p.heads;
  expect(p.value_heads % p.heads == 0, "problem.value_heads", p.value_heads,
         [&] { return "a multiple of heads, " + std::to_string(p.heads); });
  expect(p.key_dim >= 1, "problem.key_dim", p.key_dim, "at least 1");
  expect(p.value_dim >= 1, "problem.value_dim", p.value_dim, "at least 1");
  if (p.checkpoint_dtype == DType::kUnset) p.checkpoint_dtype = p.state_dtype;
  expect_float("dtype", p.dtype);
  expect_float("gate_dtype", p.gate_dtype);
  expect_float("beta_dtype", p.beta_dtype);
  expect_float("state_dtype", p.state_dtype);
  expect_float("checkpoint_dtype", p.checkpoint_dtype);
  if (p.op.gate == Gate::kNone) {
    if (p.gate_input != GateInput::kUnset)
      refuse("problem.gate_input", "set", "unset, since op " + to_string(p.op) + " has no gate");
  } else {
    expect_enum(
        "gate_input", p.gate_input, LINATTN_INPUT_BOUNDED,
        "log decay, decay, softplus or bounded: what g holds cannot be told from its shape");
  }
  if (p.op.update == Update::kAdd) {
    if (p.beta_input != BetaInput::kUnset)
      refuse("problem.beta_input", "set", "unset, since op " + to_string(p.op) + " takes no beta");
  } else {
    expect_enum("beta_input", p.beta_input, LINATTN_BETA_TWICE_LOGIT,
                "one, value, logit or twice logit: what beta holds cannot be told from its shape");
    if (p.op.update == Update::kEraseWrite && p.beta_input == BetaInput::kOne)
      refuse("problem.beta_input", "one",
             "value, logit or twice logit, since erase and write are tensors");
  }
  expect_enum("state_layout", p.state_layout, LINATTN_STATE_VALUE_KEY,
              "key_value or value_key: with K = V it cannot be told from shapes");
  expect(p.checkpoint_interval >= 1, "problem.checkpoint_interval", p.checkpoint_interval,
         "at least 1");
  expect(p.sm_limit >= 0, "problem.sm_limit", p.sm_limit, "0 (all) or more");
  check_fused(p);
  return p;
}

void check_arguments(const Problem& problem, Device device, const ForwardArgs& args) {
  CallCheck(problem, device, args).forward();
}

void check_arguments(const Problem& problem, Device device, const BackwardArgs& args) {
  CallCheck(problem, device, args).backward();
}

void check_arguments(const Problem& problem, Device device, const StepArgs& args) {
  CallCheck(problem, device, args).step();
}

}  // namespace linattn
