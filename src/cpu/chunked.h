// SPDX-License-Identifier: Apache-2.0
//
// The chunked forward pass, as every kernel of the library computes it. What follows is one chunk
// of C tokens of one sequence and value head, in base 2: g is log2 of the decay and G_i = g_0 + ..
// + g_i inside the chunk.
//
//   prepare   q, k [C, K]    rows in fp32, l2-normalised if asked
//             G              per head: C numbers; per channel: [C, K]. Kept as an integer n and a
//             fraction f, |f| <= 1/2,
//                            so that differences are exact to fp32 however long the chunk has
//                            decayed
//             Per channel:
//             ref    [K]     the anchor: the integer part of G at the chunk's middle token
//             k_tilde, q_tilde [C, K]   k 2^(G - ref), q 2^(G - ref); gdn2 puts erase * k in place
//             of k in k_tilde k_hat  [C, K]             k 2^(ref - G), stored transposed [K, C]
//             k_state, q_state [C, K]   k_tilde 2^ref, q_tilde 2^ref: exact, ref is an integer (a
//             GPU kernel scales its
//                                       16-bit copy of the state by 2^ref instead; the product is
//                                       the same)
//             Per head the raw rows are the operands, and 2^(G_i - G_j) is applied to the C x C
//             scores.
//   intra     a_qk [C, C]    q_tilde k_hat^T for j <= i, selected and not multiplied by a mask: the
//   rest may be infinite
//             a_kk [C, C]    beta_i k_tilde k_hat^T for j < i (delta only) inverse        T = (I +
//             a_kk)^-1 by substitution, then its columns times beta: T D       (delta only) x [C,
//             K]    2^(Gtot - ref) (T D)^T k_hat, stored transposed [K, C];    add: 2^(Gtot - ref)
//             k_hat p    [C, C]    a_qk (T D);                                                add:
//             a_qk
//   scan      r    [C, V]    V - k_state S    (gdn2: write * V);                        add: V
//             S    [K, V]    2^Gtot S + x^T r
//   output    o    [C, V]    scale (q_state S + p r), S being the state before the chunk
//
// The columns of S are independent in scan and output, so these two run over panels of columns, and
// one panel of the state stays in the first-level cache. The transition M of a sequence is the same
// chain on K more columns, which start as the identity and have V = 0.
//
// Range. 2^(G - ref) reaches as far as the gate decays in half a chunk. A chunk in which |G - ref|
// passes what fp32 (or the rounded type) holds takes the safe route: k_state = k 2^G and k_hat = k
// 2^(Gtot - G) for the state, which only underflow where the decay truly does, and the scores by
// halves: in the square [second half x first half] the anchor sits on the boundary, so both
// exponents are <= 0; blocks of kDirect tokens are done by differences G_i - G_j. Nothing is
// clamped but a single token's g, at -2^14: its decay is 0 in fp32 long before.
//
// Chunks begin at multiples of C counted from the start of the whole sequence (start_positions),
// and a checkpoint cuts a chunk if it must.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/registry.h"
#include "linattn/plan.h"
#include "linattn/problem.h"

namespace linattn::cpu {

inline constexpr int kChunk = 32;  // C
inline constexpr int kDirect =
    8;  // tokens of a block whose scores the safe route takes by differences
inline constexpr int kMaxWidth = 16;  // floats of the widest vector; a panel has two of them

enum class Isa { kBaseline, kAvx2, kAvx512 };

// Where operands of products are rounded; sums and the state stay in fp32.
enum class Rounding { kNone, kBf16, kFp16 };

// What the stages of one chunk left, for a test that compares another implementation stage by
// stage.
struct ChunkStages {
  std::int64_t sequence, value_head;
  std::int64_t begin, length;  // tokens of the sequence in this call
  bool anchored;               // false: the safe route, where k_tilde and q_tilde have no meaning
  int key_stride;              // of rows of K
  const float *k_tilde, *q_tilde, *k_state, *q_state;  // [C, key_stride]
  const float *k_hat, *x;                              // [K, C]
  const float *a_qk, *a_kk, *inverse, *p;              // [C, C]
};
using StageHook = void (*)(void* context, const ChunkStages& stages);

// Offsets in floats of the buffers of one worker.
struct ChunkScratch {
  int key_stride, key_rows;
  std::int64_t state, state_operand, integer_decay, fraction_decay;
  std::int64_t q, k, k_erase, k_tilde, q_tilde, k_state, q_state, k_hat_rows;
  std::int64_t k_hat, x, a_qk, a_kk, inverse, inverse_decayed, p, r;
  std::int64_t beta, row_decay, integer_rows, fraction_rows;
  std::int64_t anchor, anchor_scale, total_decay, x_scale, row;
  std::int64_t floats;  // of all
};

// One call, for the code of one instruction set; plain data.
struct ChunkedCall {
  const Problem* problem;
  const ForwardArgs* args;
  ChunkScratch scratch;
  std::int64_t dense_length;  // tokens of each sequence without cu_seqlens
  float scale;
  bool per_channel, reads_state, erase_write, has_gate;
  Rounding rounding;
  int parts;  // tasks that share the columns of one sequence and value head
  StageHook hook;
  void* hook_context;
};

// Task i of sequences * value_heads * parts.
using ChunkedTask = void (*)(const ChunkedCall& call, std::int64_t task, float* scratch);
namespace baseline {
void run_task(const ChunkedCall& call, std::int64_t task, float* scratch);
}
namespace avx2 {
bool available();
void run_task(const ChunkedCall& call, std::int64_t task, float* scratch);
}  // namespace avx2
namespace avx512 {
bool available();
void run_task(const ChunkedCall& call, std::int64_t task, float* scratch);
}  // namespace avx512

// For tests: the instruction set of the next runs, which must be available, and a hook that sees
// every chunk (from the threads that computed it).
bool isa_available(Isa isa);
Isa best_isa();
void set_isa(Isa isa);
void set_stage_hook(StageHook hook, void* context);

}  // namespace linattn::cpu
