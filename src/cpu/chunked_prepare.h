// SPDX-License-Identifier: Apache-2.0
//
// Stage `prepare`: activation, l2norm, cumulative decay, anchored operands of one chunk.
#pragma once

#include "cpu/chunked_rows.h"
#include "cpu/chunked_tile.h"

namespace linattn::cpu::LINATTN_ISA {

struct RoundNone {
  static constexpr bool kRounds = false;
  static constexpr float kReach = 118;  // largest |G - ref| of anchored operands, log2
  LINATTN_INLINE static Vec operand(Vec x) { return x; }
  LINATTN_INLINE static Vec inverse(Vec x) { return x; }
};
struct RoundBf16 {
  static constexpr bool kRounds = true;
  static constexpr float kReach = 118;
  LINATTN_INLINE static Vec operand(Vec x) { return rounded_to_bf16(x); }
  LINATTN_INLINE static Vec inverse(Vec x) { return rounded_to_fp16(x); }
};
struct RoundFp16 {
  static constexpr bool kRounds = true;
  static constexpr float kReach = 8;  // fp16 keeps its 11 bits from 2^-14 to 2^16 only
  LINATTN_INLINE static Vec operand(Vec x) { return rounded_to_fp16(x); }
  LINATTN_INLINE static Vec inverse(Vec x) { return rounded_to_fp16(x); }
};

// Fetches the coming chunk's rows into the second-level cache: rows of different tokens are far
// apart, so that no hardware prefetcher sees them coming. A row at a time, one for each tile of the
// current chunk: the core tracks only a few dozen misses and waits when there are more.
class Prefetcher {
 public:
  void add(const Rows& rows, int dim, bool write) {
    if (rows.data != nullptr) tensors_[count_++] = {rows, dim * bytes_of(rows.dtype), write};
  }
  void start(std::int64_t begin, std::int64_t end) {
    token_ = begin;
    end_ = end;
    next_ = 0;
  }
  LINATTN_INLINE void step() {
    if (token_ >= end_) return;
    const Prefetched& tensor = tensors_[next_];
    const char* row = tensor.rows.at(token_);
    if (tensor.write)
      for (std::int64_t at = 0; at < tensor.bytes; at += 64) __builtin_prefetch(row + at, 1, 2);
    else
      for (std::int64_t at = 0; at < tensor.bytes; at += 64) __builtin_prefetch(row + at, 0, 2);
    if (++next_ == count_) {
      next_ = 0;
      ++token_;
    }
  }

 private:
  struct Prefetched {
    Rows rows;
    std::int64_t bytes;
    bool write;
  };
  Prefetched tensors_[8];
  int count_ = 0, next_ = 0;
  std::int64_t token_ = 0, end_ = 0;
};

// The task's view of one sequence and value head.
struct Head {
  const ChunkedCall* call;
  int key_dim, value_dim;  // K, V
  int keys;                // K padded to the vector width
  int stride;              // of rows of K in scratch
  Rows q, k, v, g, beta, erase, write, out;
  GateActivation gate;
  BetaInput beta_input;
  bool normalise;

  // scratch
  float *integer_decay, *fraction_decay, *q_rows, *k_rows, *k_erase, *k_tilde, *q_tilde, *k_state,
      *q_state, *k_hat_rows, *k_hat, *x, *a_qk, *a_kk, *inverse, *inverse_decayed, *p, *r;
  float *strengths, *row_decay, *integer_rows, *fraction_rows;
  float *anchor, *anchor_scale, *total_decay, *x_scale, *row;
  float *state, *state_operand;

  Prefetcher* ahead;

  // the chunk
  std::int64_t begin;  // first token, in the sequence
  int length;
  bool last;  // chunk of its sequence
  bool anchored;
};

inline std::int64_t gate_row(const Head& h, int i) {
  if constexpr (kMutantGateRow)
    if (h.last && h.length < kChunk && i > 0) --i;
  return h.begin + i;
}

// Adds a step to n + f.
LINATTN_INLINE void accumulate(Vec step, Vec& n, Vec& f) {
  f += step;
  const Vec whole = round(f);
  n += whole;
  f -= whole;
  if constexpr (kMutantDecayBf16) {
    const Vec coarse = rounded_to_bf16(n + f);
    n = round(coarse);
    f = coarse - n;
  }
}

// Rows of q and k, and what scales them.
template <class Round>
void prepare_rows(Head& h, bool reads_state) {
  for (int i = 0; i < h.length; ++i) {
    float* q = h.q_rows + i * h.stride;
    float* k = h.k_rows + i * h.stride;
    load_row(h.q.at(h.begin + i), h.q.dtype, h.key_dim, q);
    load_row(h.k.at(h.begin + i), h.k.dtype, h.key_dim, k);
    if (h.normalise) {
      normalise(q, h.keys);
      normalise(k, h.keys);
    }
    if (h.call->erase_write) {
      float* erased = h.k_erase + i * h.stride;
      load_row(h.erase.at(h.begin + i), h.erase.dtype, h.key_dim, erased);
      for (int c = 0; c < h.keys; c += kWidth)
        store(erased + c, load(k + c) * strength(load(erased + c), h.beta_input));
    }
  }
  if (!reads_state) return;
  for (int i = 0; i < kChunk; ++i)
    h.strengths[i] = i < h.length && h.beta.data != nullptr
                         ? load_first(h.beta.at(h.begin + i), h.beta.dtype, 1)[0]
                         : 1.0f;
  if (h.beta.data != nullptr)
    for (int i = 0; i < kChunk; i += kWidth)
      store(h.strengths + i, strength(load(h.strengths + i), h.beta_input));
}

// Per head: the decay of a token is a number, the operands are the rows themselves.
template <class Round>
void prepare_head(Head& h) {
  float* steps = h.row_decay;
  for (int i = 0; i < kChunk; ++i)
    steps[i] = i < h.length && h.call->has_gate
                   ? load_first(h.g.at(gate_row(h, i)), h.g.dtype, 1)[0]
                   : 0.0f;
  if (h.call->has_gate) {
    float bias[kWidth];
    if (h.gate.dt_bias != nullptr) store(bias, splat(h.gate.dt_bias[0]));
    GateActivation gate = h.gate;
    gate.dt_bias = nullptr;
    if (h.gate.dt_bias != nullptr)
      for (int i = 0; i < kChunk; i += kWidth) store(steps + i, load(steps + i) + load(bias));
    gate.apply_to(steps, kChunk);
  }
  Vec n{}, f{};
  for (int i = 0; i < h.length; ++i) {
    accumulate(splat(steps[i]), n, f);
    h.integer_rows[i] = n[0];
    h.fraction_rows[i] = f[0];
  }
  for (int i = h.length; i < kChunk; ++i) h.integer_rows[i] = h.fraction_rows[i] = 0;
  for (int i = 0; i < kChunk; i += kWidth)
    store(h.row_decay + i, exp2(load(h.integer_rows + i), load(h.fraction_rows + i)));
  const Vec total = exp2(n, f);
  for (int c = 0; c < h.keys; c += kWidth) store(h.total_decay + c, total);
  if constexpr (Round::kRounds)
    for (int i = 0; i < h.length; ++i)
      for (int c = 0; c < h.keys; c += kWidth)
        for (float* rows : {h.q_rows, h.k_rows}) {
          float* at = rows + i * h.stride + c;
          store(at, Round::operand(load(at)));
        }
  if (h.call->erase_write && Round::kRounds)
    for (int i = 0; i < h.length; ++i)
      for (int c = 0; c < h.keys; c += kWidth) {
        float* at = h.k_erase + i * h.stride + c;
        store(at, Round::operand(load(at)));
      }
}

// Cumulative decay of kVectors vectors of channels from c on. Several at a time: each is one chain
// of additions.
template <int kVectors>
void accumulate_channels(Head& h, int c) {
  const int middle = (h.length - 1) / 2;
  Vec n[kVectors] = {}, f[kVectors] = {}, anchor[kVectors] = {};
  for (int i = 0; i < h.length; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const int at = i * h.stride + c + v * kWidth;
      accumulate(load(h.fraction_decay + at), n[v], f[v]);
      store(h.integer_decay + at, n[v]);
      store(h.fraction_decay + at, f[v]);
      if (i == middle) anchor[v] = n[v];
    }
  for (int v = 0; v < kVectors; ++v) {
    const int at = c + v * kWidth;
    // A NaN in a later token must not reach the earlier ones.
    anchor[v] = select(anchor[v] == anchor[v], anchor[v], Vec{});
    store(h.anchor + at, anchor[v]);
    store(h.anchor_scale + at, power_of_two(anchor[v]));
    store(h.total_decay + at, exp2(n[v], f[v]));
    store(h.x_scale + at, exp2(n[v] - anchor[v], f[v]));
  }
}

// Log decays of all channels, their sums, and the decay of the whole chunk.
inline void prepare_gate(Head& h) {
  for (int i = 0; i < h.length; ++i) {
    float* row = h.fraction_decay + i * h.stride;
    load_row(h.g.at(gate_row(h, i)), h.g.dtype, h.key_dim, row);
    h.gate.apply_to(row, h.key_dim);
    for (int c = h.key_dim; c < h.keys; ++c) row[c] = 0;
  }
  int c = 0;
  for (; c + 4 * kWidth <= h.keys; c += 4 * kWidth) accumulate_channels<4>(h, c);
  for (; c < h.keys; c += kWidth) accumulate_channels<1>(h, c);
}

// k 2^(G - ref), q 2^(G - ref), k 2^(ref - G) and, for the state, k 2^G, q 2^G. False: out of
// range, what it wrote is of no use.
template <class Round>
bool prepare_anchored(Head& h, const float* k_erase) {
  Vec reach{}, largest{};
  for (int c = 0; c < h.keys; c += kWidth) {
    const Vec anchor = load(h.anchor + c), scale = load(h.anchor_scale + c);
    reach = max(reach, abs(anchor));
    for (int i = 0; i < h.length; ++i) {
      const int at = i * h.stride + c;
      const Vec n = load(h.integer_decay + at) - anchor;
      reach = max(reach, abs(n));
      const ExpPair decay = exp2_pair_in_range(n, load(h.fraction_decay + at));
      const Vec q = load(h.q_rows + at), k = load(h.k_rows + at);
      largest = max(largest, max(abs(q), abs(k)));
      const Vec k_tilde = Round::operand(load(k_erase + at) * decay.plus);
      const Vec q_tilde = Round::operand(q * decay.plus);
      store(h.k_tilde + at, k_tilde);
      store(h.q_tilde + at, q_tilde);
      store(h.k_state + at, k_tilde * scale);
      store(h.q_state + at, q_tilde * scale);
      store(h.k_hat_rows + at, Round::operand(k * decay.minus));
    }
  }
  // Operands stay under 2^126.
  return maximum(reach) <= 60 ? maximum(largest) < 0x1p60f && maximum(reach) <= Round::kReach
                              : maximum(reach) <= Round::kReach && maximum(largest) <= 0x1p7f;
}

// The operands of the state without an anchor: all exponents are <= 0 unless the gate grows.
template <class Round>
void prepare_unanchored(Head& h, const float* k_erase) {
  const int end = (h.length - 1) * h.stride;
  for (int i = 0; i < h.length; ++i)
    for (int c = 0; c < h.keys; c += kWidth) {
      const int at = i * h.stride + c;
      const Vec n = load(h.integer_decay + at), f = load(h.fraction_decay + at);
      const Vec since = exp2(n, f);
      const Vec until =
          exp2((load(h.integer_decay + end + c) - n) + (load(h.fraction_decay + end + c) - f));
      store(h.k_state + at, Round::operand(load(k_erase + at) * since));
      store(h.q_state + at, Round::operand(load(h.q_rows + at) * since));
      store(h.k_hat_rows + at, Round::operand(load(h.k_rows + at) * until));
    }
  for (int c = 0; c < h.keys; c += kWidth) store(h.x_scale + c, splat(1.0f));
}

template <class Gate, class Update, class Round>
void prepare(Head& h) {
  prepare_rows<Round>(h, Update::kReadsState);
  const float* k_erase = h.call->erase_write ? h.k_erase : h.k_rows;
  float* k_hat_rows = h.k_rows;
  h.anchored = true;
  if constexpr (Gate::kPerChannel) {
    prepare_gate(h);
    h.anchored = prepare_anchored<Round>(h, k_erase);
    if (!h.anchored) prepare_unanchored<Round>(h, k_erase);
    k_hat_rows = h.k_hat_rows;
  } else {
    prepare_head<Round>(h);
  }
  for (int i = h.length; i < kChunk; ++i)
    for (int c = 0; c < h.keys; c += kWidth) store(k_hat_rows + i * h.stride + c, Vec{});
  transpose_matrix(k_hat_rows, h.stride, kChunk, h.keys, h.k_hat, kChunk);
}

}  // namespace linattn::cpu::LINATTN_ISA
