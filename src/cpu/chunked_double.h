// SPDX-License-Identifier: Apache-2.0
//
// Stage `intra` in double, for chunks whose inverse amplifies what fp32 rounds off: a key that
// comes again, erased with a strength near 1 or above. With strengths near 2 the entries of T do
// not fall off, an error of a score comes back many times as large, and the state keeps it for ever
// (an eigenvalue of the transition is near -1); near 1 the error of x repeats in every chunk. Such
// chunks are known by the size of their scores: beta k_i k_j is near 1 only for such keys.
#pragma once

#include "cpu/chunked_prepare.h"

namespace linattn::cpu::LINATTN_ISA {

inline constexpr float kSteepScore = 0.97f;

inline bool has_steep_scores(const Head& h) {
  Vec largest{};
  for (int at = 0; at < h.length * kChunk; at += kWidth)
    largest = max(largest, abs(load(h.a_kk + at)));
  return maximum(largest) > kSteepScore;
}

// 2^(G_i - G_j), per head.
inline double decay_between(const Head& h, int i, int j) {
  const double n = static_cast<double>(h.integer_rows[i]) - h.integer_rows[j];
  return __builtin_exp2(n + (static_cast<double>(h.fraction_rows[i]) - h.fraction_rows[j]));
}

struct DoubleChunk {
  double inverse[kChunk][kChunk];  // T, then T D
  double decayed[kChunk][kChunk];  // its rows times 2^(Gtot - G), per head
};

// Row i of a_kk. The safe route's scores stay what they are: its operands differ from pair to pair.
template <class Gate>
void score_row(const Head& h, const float* k_tilde, int i, double (&row)[kChunk]) {
  if (!h.anchored) {
    for (int j = 0; j < i; ++j) row[j] = h.a_kk[i * kChunk + j];
    return;
  }
  for (int j = 0; j < kChunk; ++j) row[j] = 0;
  for (int key = 0; key < h.key_dim; ++key) {
    const double k = k_tilde[i * h.stride + key];
    const float* k_hat = h.k_hat + key * kChunk;
    for (int j = 0; j < i; ++j) row[j] += k * k_hat[j];
  }
  for (int j = 0; j < i; ++j) {
    if constexpr (!Gate::kPerChannel) row[j] *= decay_between(h, i, j);
    row[j] *= h.strengths[i];
  }
}

template <class Gate>
void solve_in_double(Head& h, const float* k_tilde) {
  DoubleChunk c;
  const int last = h.length - 1;
  for (int i = 0; i < h.length; ++i) {
    double row[kChunk], *out = c.inverse[i];
    score_row<Gate>(h, k_tilde, i, row);
    for (int j = 0; j < kChunk; ++j) out[j] = 0;
    for (int m = 0; m < i; ++m)
      for (int j = 0; j <= m; ++j) out[j] -= row[m] * c.inverse[m][j];
    out[i] = 1;
  }
  for (int i = 0; i < h.length; ++i) {
    double until = 1;
    if constexpr (!Gate::kPerChannel) until = decay_between(h, last, i);
    for (int j = 0; j < kChunk; ++j) {
      const double scaled = j <= i ? c.inverse[i][j] * h.strengths[j] : 0;
      c.inverse[i][j] = scaled;
      c.decayed[i][j] = scaled * until;
      h.inverse[i * kChunk + j] = static_cast<float>(scaled);
    }
  }
  for (int i = 0; i < h.length; ++i) {
    double row[kChunk] = {};
    for (int m = 0; m <= i; ++m)
      for (int j = 0; j <= m; ++j) row[j] += h.a_qk[i * kChunk + m] * c.inverse[m][j];
    for (int j = 0; j < kChunk; ++j) h.p[i * kChunk + j] = static_cast<float>(row[j]);
  }
  for (int key = 0; key < h.key_dim; ++key) {
    double row[kChunk] = {};
    for (int i = 0; i < h.length; ++i) {
      const double k = h.k_hat[key * kChunk + i];
      for (int j = 0; j <= i; ++j) row[j] += k * c.decayed[i][j];
    }
    const double scale = Gate::kPerChannel ? h.x_scale[key] : 1.0f;
    for (int j = 0; j < kChunk; ++j) h.x[key * kChunk + j] = static_cast<float>(row[j] * scale);
  }
}

}  // namespace linattn::cpu::LINATTN_ISA
