// SPDX-License-Identifier: Apache-2.0
//
// One task: a sequence's value head, or some of its columns, from the initial to the final state.
#pragma once

#include "cpu/chunked_intra.h"
#include "cpu/chunked_scan.h"
#include "cpu/chunked_state.h"
#include "recurrence/gate.h"
#include "recurrence/update.h"

namespace linattn::cpu::LINATTN_ISA {

struct Sequence {
  std::int64_t index;
  std::int64_t first, length;  // rows
  std::int64_t start;          // position of its first token in the whole sequence
  Matrix initial, final;       // data null: zero, not stored
  bool pad;
};

inline std::int64_t offset_at(const ForwardArgs& a, std::int64_t n) {
  return a.cu_seqlens_dtype == LINATTN_INT64 ? static_cast<const std::int64_t*>(a.cu_seqlens)[n]
                                             : static_cast<const std::int32_t*>(a.cu_seqlens)[n];
}

inline Sequence sequence_of(const ChunkedCall& call, std::int64_t n, std::int64_t value_head) {
  const ForwardArgs& a = *call.args;
  const Problem& p = *call.problem;
  Sequence s{};
  s.index = n;
  s.length = call.dense_length;
  if (a.cu_seqlens != nullptr) {
    s.first = offset_at(a, n);
    s.length = offset_at(a, n + 1) - s.first;
  }
  s.start = a.start_positions == nullptr ? 0 : a.start_positions[n];
  const bool value_key = p.state_layout == StateLayout::kValueKey;
  const std::int64_t read = a.read_slots == nullptr ? n : a.read_slots[n];
  const std::int64_t write = a.write_slots == nullptr ? n : a.write_slots[n];
  const std::int64_t first_slot = a.first_slot < 0 ? 0 : a.first_slot;
  const bool reads = a.read_slots == nullptr || read >= first_slot;
  const bool writes = a.write_slots == nullptr || write >= first_slot;
  s.pad = !reads && !writes;
  if (a.initial_state.data != nullptr && reads &&
      (a.has_initial_state == nullptr || a.has_initial_state[n] != 0))
    s.initial = matrix_of(a.initial_state, p.state_dtype, value_key, read, value_head);
  if (a.final_state.data != nullptr && writes)
    s.final = matrix_of(a.final_state, p.state_dtype, value_key, write, value_head);
  return s;
}

inline Rows rows_of(const Tensor& t, DType dtype, const ChunkedCall& call, const Sequence& s,
                    std::int64_t head) {
  Rows rows;
  if (t.data == nullptr) return rows;
  const std::int64_t first =
      call.args->cu_seqlens == nullptr ? s.index * t.sequence_stride : s.first * t.token_stride;
  rows.data = static_cast<char*>(t.data) + (first + head * t.head_stride) * bytes_of(dtype);
  rows.dtype = dtype;
  rows.token_stride = t.token_stride * bytes_of(dtype);
  return rows;
}

inline void place_scratch(Head& h, float* base) {
  const ChunkScratch& s = h.call->scratch;
  h.stride = s.key_stride;
  h.state = base + s.state;
  h.state_operand = base + s.state_operand;
  h.integer_decay = base + s.integer_decay;
  h.fraction_decay = base + s.fraction_decay;
  h.q_rows = base + s.q;
  h.k_rows = base + s.k;
  h.k_erase = base + s.k_erase;
  h.k_tilde = base + s.k_tilde;
  h.q_tilde = base + s.q_tilde;
  h.k_state = base + s.k_state;
  h.q_state = base + s.q_state;
  h.k_hat_rows = base + s.k_hat_rows;
  h.k_hat = base + s.k_hat;
  h.x = base + s.x;
  h.a_qk = base + s.a_qk;
  h.a_kk = base + s.a_kk;
  h.inverse = base + s.inverse;
  h.inverse_decayed = base + s.inverse_decayed;
  h.p = base + s.p;
  h.r = base + s.r;
  h.strengths = base + s.beta;
  h.row_decay = base + s.row_decay;
  h.integer_rows = base + s.integer_rows;
  h.fraction_rows = base + s.fraction_rows;
  h.anchor = base + s.anchor;
  h.anchor_scale = base + s.anchor_scale;
  h.total_decay = base + s.total_decay;
  h.x_scale = base + s.x_scale;
}

inline Head head_of(const ChunkedCall& call, const Sequence& s, std::int64_t value_head,
                    float* scratch) {
  const ForwardArgs& a = *call.args;
  const Problem& p = *call.problem;
  Head h{};
  h.call = &call;
  h.key_dim = p.key_dim;
  h.value_dim = p.value_dim;
  h.keys = padded(p.key_dim);
  h.normalise = p.qk_l2norm;
  h.beta_input = p.beta_input;
  const std::int64_t head = value_head / (p.value_heads / p.heads);
  h.q = rows_of(a.q, p.dtype, call, s, head);
  h.k = rows_of(a.k, p.dtype, call, s, head);
  h.v = rows_of(a.v, p.dtype, call, s, value_head);
  h.out = rows_of(a.out, p.dtype, call, s, value_head);
  h.g = rows_of(a.g, p.gate_dtype, call, s, value_head);
  h.beta = rows_of(a.beta, p.beta_dtype, call, s, value_head);
  h.erase = rows_of(a.erase, p.beta_dtype, call, s, value_head);
  h.write = rows_of(a.write, p.beta_dtype, call, s, value_head);
  h.gate.input = p.gate_input;
  h.gate.lower_bound = a.lower_bound * kLog2e;
  if (a.a_log != nullptr) {
    h.gate.a_log = a.a_log[value_head];
    const double rate = __builtin_exp(static_cast<double>(h.gate.a_log));
    h.gate.rate = rate > 3e38 ? 3e38f : static_cast<float>(rate);
  }
  if (a.dt_bias != nullptr)
    h.gate.dt_bias = a.dt_bias + value_head * (call.per_channel ? p.key_dim : 1);
  place_scratch(h, scratch);
  return h;
}

inline Prefetcher prefetcher_of(const Head& h) {
  Prefetcher ahead;
  ahead.add(h.q, h.key_dim, false);
  ahead.add(h.k, h.key_dim, false);
  ahead.add(h.v, h.value_dim, false);
  ahead.add(h.g, h.call->per_channel ? h.key_dim : 1, false);
  ahead.add(h.beta, 1, false);
  ahead.add(h.erase, h.key_dim, false);
  ahead.add(h.write, h.value_dim, false);
  ahead.add(h.out, h.value_dim, true);
  return ahead;
}

// Columns [first, last) of all panels: those of V, then those of the transition.
struct Panels {
  const Head* head;
  int values;  // panels of V
  int first, last;

  Panel at(int index) const {
    const bool transition = index >= values;
    const int column = (transition ? index - values : index) * kPanel;
    const int columns = (transition ? head->key_dim : head->value_dim) - column;
    return {head->state + static_cast<std::int64_t>(index - first) * head->key_dim * kPanel, column,
            columns < kPanel ? columns : kPanel, transition};
  }
};

inline void store_values(const Panels& panels, const Matrix& m) {
  if (m.data == nullptr) return;
  for (int i = panels.first; i < panels.last && i < panels.values; ++i)
    store_state(m, panels.at(i), panels.head->key_dim, panels.head->value_dim);
}

inline void start_panels(const Panels& panels, const Matrix& initial) {
  const int key_dim = panels.head->key_dim;
  for (int i = panels.first; i < panels.last; ++i) {
    const Panel panel = panels.at(i);
    if (panel.transition || initial.data == nullptr) {
      clear(panel, key_dim);
      for (int c = 0; panel.transition && c < panel.count; ++c)
        panel.state[(panel.column + c) * kPanel + c] = 1;
    } else {
      load_state(initial, panel, key_dim, panels.head->value_dim);
    }
  }
}

// Checkpoints of one sequence, in rising order of position.
struct Checkpoints {
  const ForwardArgs* args;
  DType dtype;
  bool value_key;
  std::int64_t value_head;
  std::int64_t next, end;

  static Checkpoints of(const ChunkedCall& call, const Sequence& s, std::int64_t value_head) {
    const ForwardArgs& a = *call.args;
    Checkpoints c{&a,
                  call.problem->checkpoint_dtype,
                  call.problem->state_layout == StateLayout::kValueKey,
                  value_head,
                  0,
                  0};
    if (a.checkpoints.data != nullptr) {
      c.next = a.checkpoint_offsets[s.index];
      c.end = a.checkpoint_offsets[s.index + 1];
      while (c.next < c.end && a.checkpoint_positions[c.next] < s.start) ++c.next;
    }
    return c;
  }
  // The next position, or one that never comes.
  std::int64_t position() const {
    return next < end ? args->checkpoint_positions[next] : INT64_MAX;
  }
  void store_at(std::int64_t at, const Panels& panels) {
    for (; position() == at; ++next) {
      const std::int32_t slot = args->checkpoint_slots[next];
      if (slot >= 0 && slot >= args->first_slot)
        store_values(panels, matrix_of(args->checkpoints, dtype, value_key, slot, value_head));
    }
  }
};

// A sequence without tokens: its final state is its initial state, bit for bit.
inline void copy_state(const Head& h, const Sequence& s) {
  if (s.final.data == nullptr || s.final.data == s.initial.data) return;
  const std::size_t bytes = static_cast<std::size_t>(h.key_dim) *
                            static_cast<std::size_t>(h.value_dim) *
                            static_cast<std::size_t>(bytes_of(s.final.dtype));
  if (s.initial.data == nullptr)
    __builtin_memset(s.final.data, 0, bytes);
  else
    __builtin_memmove(s.final.data, s.initial.data, bytes);
}

inline void clear_output(const Head& h, const Sequence& s) {
  for (std::int64_t i = 0; i < s.length; ++i)
    __builtin_memset(h.out.at(i), 0, static_cast<std::size_t>(h.value_dim * bytes_of(h.out.dtype)));
}

template <class Gate, class Update, class Round>
void run_chunks(Head& h, const Sequence& s, const Panels& panels, Checkpoints& checkpoints) {
  std::int64_t token = 0;
  checkpoints.store_at(s.start, panels);
  while (token < s.length) {
    const std::int64_t position = s.start + token;
    std::int64_t end = s.length;
    const std::int64_t boundary = (position / kChunk + 1) * kChunk - s.start;
    if (boundary < end) end = boundary;
    if (checkpoints.position() - s.start < end) end = checkpoints.position() - s.start;
    h.begin = token;
    h.length = static_cast<int>(end - token);
    h.last = end == s.length;
    prepare<Gate, Update, Round>(h);
    intra<Gate, Update, Round>(h);
    if (h.call->hook != nullptr && panels.first == 0) {
      const ChunkStages stages{s.index,    checkpoints.value_head,
                               h.begin,    h.length,
                               h.anchored, h.stride,
                               h.k_tilde,  h.q_tilde,
                               h.k_state,  h.q_state,
                               h.k_hat,    h.x,
                               h.a_qk,     h.a_kk,
                               h.inverse,  h.p};
      h.call->hook(h.call->hook_context, stages);
    }
    h.ahead->start(end, end + kChunk < s.length ? end + kChunk : s.length);
    for (int i = panels.first; i < panels.last; ++i)
      scan_and_output<Gate, Update, Round>(h, panels.at(i));
    token = end;
    checkpoints.store_at(s.start + token, panels);
  }
}

template <class Gate, class Update, class Round>
void run_head(const ChunkedCall& call, std::int64_t task, float* scratch) {
  const std::int64_t pair = task / call.parts, part = task % call.parts;
  const std::int64_t value_head = pair % call.problem->value_heads;
  const Sequence s = sequence_of(call, pair / call.problem->value_heads, value_head);
  Head h = head_of(call, s, value_head, scratch);
  Prefetcher ahead = prefetcher_of(h);
  h.ahead = &ahead;
  if (s.pad && part == 0) clear_output(h, s);
  if (s.length == 0 && part == 0) copy_state(h, s);
  const bool transition = call.args->transition.data != nullptr;
  const int values = (h.value_dim + kPanel - 1) / kPanel;
  const int all = values + (transition ? (h.key_dim + kPanel - 1) / kPanel : 0);
  const Panels panels{&h, values, static_cast<int>(all * part / call.parts),
                      static_cast<int>(all * (part + 1) / call.parts)};
  start_panels(panels, s.initial);
  if (!s.pad) {
    Checkpoints checkpoints = Checkpoints::of(call, s, value_head);
    run_chunks<Gate, Update, Round>(h, s, panels, checkpoints);
    if (s.length > 0) store_values(panels, s.final);
  }
  if (!transition) return;
  const Matrix out = matrix_of(call.args->transition, DType::kFloat32, false, s.index, value_head);
  for (int i = panels.first > values ? panels.first : values; i < panels.last; ++i)
    store_state(out, panels.at(i), h.key_dim, h.key_dim);
}

template <class Gate, class Update>
void run_rounded(const ChunkedCall& call, std::int64_t task, float* scratch) {
#if defined(LINATTN_EMULATION)
  if (call.rounding == Rounding::kBf16)
    return run_head<Gate, Update, RoundBf16>(call, task, scratch);
  if (call.rounding == Rounding::kFp16)
    return run_head<Gate, Update, RoundFp16>(call, task, scratch);
#endif
  run_head<Gate, Update, RoundNone>(call, task, scratch);
}

inline void run_any(const ChunkedCall& call, std::int64_t task, float* scratch) {
  if (call.per_channel)
    call.reads_state ? run_rounded<GateChannel, UpdateDelta>(call, task, scratch)
                     : run_rounded<GateChannel, UpdateAdd>(call, task, scratch);
  else
    call.reads_state ? run_rounded<GateHead, UpdateDelta>(call, task, scratch)
                     : run_rounded<GateHead, UpdateAdd>(call, task, scratch);
}

}  // namespace linattn::cpu::LINATTN_ISA
