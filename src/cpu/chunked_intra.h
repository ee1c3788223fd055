// SPDX-License-Identifier: Apache-2.0
//
// Stage `intra`: everything of one chunk that needs no state: scores, inverse, x and p.
#pragma once

#include "cpu/chunked_double.h"
#include "cpu/chunked_prepare.h"

namespace linattn::cpu::LINATTN_ISA {

// out[row][columns of a panel] for the rows [first, length) of an operand and k_hat.
inline void score_panel(const Head& h, const float* rows, const float* k_hat, int begin, int end,
                        int panel, float* out) {
  for_tiles(begin, end, [&]<int kRows>(Rank<kRows>, int row) {
    Tile<kRows> tile;
    tile.clear();
    tile.multiply(rows + row * h.stride, h.stride, k_hat + panel, kChunk, h.key_dim);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      store(out + (row + r) * kChunk + panel, tile.sums[r][0]);
      store(out + (row + r) * kChunk + panel + kWidth, tile.sums[r][1]);
    }
  });
}

template <class Update>
void scores(Head& h, const float* k_tilde, const float* q_tilde) {
  for (int panel = 0; panel < h.length; panel += kPanel) {
    if constexpr (Update::kReadsState)
      score_panel(h, k_tilde, h.k_hat, panel, h.length, panel, h.a_kk);
    score_panel(h, q_tilde, h.k_hat, panel, h.length, panel, h.a_qk);
  }
}

// Scores of the pairs begin <= j <= i < end by differences of G, a pair at a time.
template <class Update>
void scores_direct(Head& h, const float* k_erase, int begin, int end) {
  for (int i = begin; i < end; ++i)
    for (int j = begin; j <= i; ++j) {
      const int row = i * h.stride, column = j * h.stride;
      Vec kk{}, qk{};
      for (int c = 0; c < h.keys; c += kWidth) {
        const Vec n = load(h.integer_decay + row + c) - load(h.integer_decay + column + c);
        const Vec f = load(h.fraction_decay + row + c) - load(h.fraction_decay + column + c);
        const Vec k = load(h.k_rows + column + c) * exp2(n + f);
        if constexpr (Update::kReadsState) kk = fma(load(k_erase + row + c), k, kk);
        qk = fma(load(h.q_rows + row + c), k, qk);
      }
      if constexpr (Update::kReadsState) h.a_kk[i * kChunk + j] = sum(kk);
      h.a_qk[i * kChunk + j] = sum(qk);
    }
}

inline bool gate_grows(const Head& h) {
  VecInt rises{};
  for (int i = 0; i < h.length; ++i)
    for (int c = 0; c < h.keys; c += kWidth) {
      const int at = i * h.stride + c;
      Vec n = load(h.integer_decay + at), f = load(h.fraction_decay + at);
      if (i > 0) {
        n -= load(h.integer_decay + at - h.stride);
        f -= load(h.fraction_decay + at - h.stride);
      }
      rises |= n + f > 0.0f;
    }
  return any(rises);
}

// Squares [middle, middle + half) x [middle - half, middle), with the anchor on their corner. x is
// free until later: it holds the transposed keys.
template <class Update, class Round>
void scores_squares(Head& h, const float* k_erase, int half) {
  for (int i = 0; i < kChunk; ++i) {
    const bool row = (i / half) % 2 == 1;
    const int corner = (i / half + (row ? 0 : 1)) * half - 1;
    for (int c = 0; c < h.keys; c += kWidth) {
      const int at = i * h.stride + c, anchor = corner * h.stride + c;
      if (i >= h.length || corner + 1 >= h.length || row) store(h.k_hat_rows + at, Vec{});
      if (i >= h.length || corner + 1 >= h.length) continue;
      const Vec n = load(h.integer_decay + at) - load(h.integer_decay + anchor);
      const Vec f = load(h.fraction_decay + at) - load(h.fraction_decay + anchor);
      const Vec decay = exp2(row ? n + f : -(n + f));
      if (!row) {
        store(h.k_hat_rows + at, Round::operand(load(h.k_rows + at) * decay));
        continue;
      }
      if constexpr (Update::kReadsState)
        store(h.k_tilde + at, Round::operand(load(k_erase + at) * decay));
      store(h.q_tilde + at, Round::operand(load(h.q_rows + at) * decay));
    }
  }
  transpose_matrix(h.k_hat_rows, h.stride, kChunk, h.keys, h.x, kChunk);
  for (int middle = half; middle < h.length; middle += 2 * half) {
    const int end = middle + half < h.length ? middle + half : h.length;
    const int first = middle - half, panel = first / kPanel * kPanel;
    float square[kChunk * kChunk];
    const auto keep = [&](const float* rows, float* out) {
      for (int column = panel; column < middle; column += kPanel)
        score_panel(h, rows, h.x, middle, end, column, square);
      for (int i = middle; i < end; ++i)
        for (int j = first; j < middle; ++j) out[i * kChunk + j] = square[i * kChunk + j];
    };
    if constexpr (Update::kReadsState) keep(h.k_tilde, h.a_kk);
    keep(h.q_tilde, h.a_qk);
  }
}

template <class Update, class Round>
void scores_safe(Head& h) {
  const float* k_erase = h.call->erase_write ? h.k_erase : h.k_rows;
  // Where the gate grows, a corner's exponents may overflow though their sum does not.
  const int direct = gate_grows(h) ? kChunk : kDirect;
  for (int half = kChunk / 2; half >= direct; half /= 2)
    scores_squares<Update, Round>(h, k_erase, half);
  for (int begin = 0; begin < h.length; begin += direct)
    scores_direct<Update>(h, k_erase, begin, begin + direct < h.length ? begin + direct : h.length);
}

// Selects the triangles; per head, applies the decay between the two tokens; beta.
template <class Gate, class Update, class Round>
void select_triangles(Head& h) {
  Vec lane{};
  for (int l = 0; l < kWidth; ++l) lane[l] = static_cast<float>(l);
  for (int i = 0; i < h.length; ++i) {
    const Vec row = splat(static_cast<float>(i));
    for (int j = 0; j < kChunk; j += kWidth) {
      float* qk = h.a_qk + i * kChunk + j;
      float* kk = h.a_kk + i * kChunk + j;
      if (j > i) {
        store(qk, Vec{});
        store(kk, Vec{});
        continue;
      }
      const Vec column = lane + static_cast<float>(j);
      Vec decay = splat(1.0f);
      if constexpr (!Gate::kPerChannel)
        decay = exp2((splat(h.integer_rows[i]) - load(h.integer_rows + j)) +
                     (splat(h.fraction_rows[i]) - load(h.fraction_rows + j)));
      store(qk, select(column <= row, Round::operand(load(qk) * decay), Vec{}));
      if constexpr (Update::kReadsState)
        store(kk, select(column < row, load(kk) * decay * h.strengths[i], Vec{}));
    }
  }
}

// T = (I + L)^-1 row by row: T_i = e_i - sum_{j < i} L_ij T_j. Rows [begin, end) of the block that
// starts at `begin`.
inline void invert_block(const Head& h, int begin, int end) {
  constexpr int kVectors = kChunk / kWidth;
  for (int i = begin; i < end; ++i) {
    Vec even[kVectors] = {}, odd[kVectors] = {};
    const float* row = h.a_kk + i * kChunk;
    int j = begin;
    for (; j + 1 < i; j += 2) {
      const Vec first = splat(-row[j]), second = splat(-row[j + 1]);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        even[v] = fma(first, load(h.inverse + j * kChunk + v * kWidth), even[v]);
        odd[v] = fma(second, load(h.inverse + (j + 1) * kChunk + v * kWidth), odd[v]);
      }
    }
    if (j < i)
      for (int v = 0; v < kVectors; ++v)
        even[v] = fma(splat(-row[j]), load(h.inverse + j * kChunk + v * kWidth), even[v]);
    float* out = h.inverse + i * kChunk;
    for (int v = 0; v < kVectors; ++v) store(out + v * kWidth, even[v] + odd[v]);
    out[i] = 1;
  }
}

// As tensor cores do it: blocks of 16 by substitution, then T21 = -T22 (L21 T11) with rounded
// operands.
template <class Round>
void invert_by_blocks(const Head& h) {
  constexpr int kBlock = 16;
  for (int begin = 0; begin < h.length; begin += kBlock)
    invert_block(h, begin, begin + kBlock < h.length ? begin + kBlock : h.length);
  const auto rounded = [](float x) { return Round::inverse(splat(x))[0]; };
  for (int half = kBlock; half < kChunk; half *= 2)
    for (int begin = 0; begin + half < h.length; begin += 2 * half) {
      const int middle = begin + half;
      const int end = middle + half < h.length ? middle + half : h.length;
      float product[kChunk][kChunk] = {};
      for (int i = middle; i < end; ++i)
        for (int j = begin; j < middle; ++j) {
          float total = 0;
          for (int m = j; m < middle; ++m)
            total += rounded(h.a_kk[i * kChunk + m]) * rounded(h.inverse[m * kChunk + j]);
          product[i][j] = rounded(total);
        }
      for (int i = middle; i < end; ++i)
        for (int j = begin; j < middle; ++j) {
          float total = 0;
          for (int m = middle; m <= i; ++m)
            total += rounded(h.inverse[i * kChunk + m]) * product[m][j];
          h.inverse[i * kChunk + j] = -total;
        }
    }
}

// T D and, per head, its rows times 2^(Gtot - G).
template <class Gate, class Round>
void scale_inverse(Head& h) {
  for (int i = 0; i < h.length; ++i) {
    const Vec until = Gate::kPerChannel
                          ? splat(1.0f)
                          : exp2(splat(h.integer_rows[h.length - 1] - h.integer_rows[i]) +
                                 splat(h.fraction_rows[h.length - 1] - h.fraction_rows[i]));
    for (int j = 0; j < kChunk; j += kWidth) {
      const int at = i * kChunk + j;
      const Vec scaled = load(h.inverse + at) * load(h.strengths + j);
      store(h.inverse + at, Round::operand(scaled));
      if constexpr (!Gate::kPerChannel)
        store(h.inverse_decayed + at, Round::operand(scaled * until));
    }
  }
}

// p = a_qk (T D), x = 2^(Gtot - ref) (T D)^T k_hat.
template <class Gate, class Round>
void solve(Head& h) {
  const float* weights = Gate::kPerChannel ? h.inverse : h.inverse_decayed;
  for (int panel = 0; panel < h.length; panel += kPanel) {
    for_tiles(panel, h.length, [&]<int kRows>(Rank<kRows>, int row) {
      Tile<kRows> tile;
      tile.clear();
      tile.multiply_lower(h.a_qk + row * kChunk, kChunk, h.inverse + panel, kChunk, panel, row);
      for (int r = 0; r < kRows; ++r)
        for (int v = 0; v < 2; ++v)
          store(h.p + (row + r) * kChunk + panel + v * kWidth, Round::operand(tile.sums[r][v]));
    });
    for_tiles(0, h.key_dim, [&]<int kRows>(Rank<kRows>, int key) {
      Tile<kRows> tile;
      tile.clear();
      tile.multiply(h.k_hat + key * kChunk + panel, kChunk, weights + panel * kChunk + panel,
                    kChunk, h.length - panel);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const Vec scale = splat(Gate::kPerChannel ? h.x_scale[key + r] : 1.0f);
        for (int v = 0; v < 2; ++v)
          store(h.x + (key + r) * kChunk + panel + v * kWidth,
                Round::operand(tile.sums[r][v] * scale));
      }
    });
  }
}

// Without the delta rule p is a_qk, and x the keys decayed to the chunk's end.
template <class Gate, class Round>
void decay_keys(Head& h) {
  float until[kChunk];
  if constexpr (!Gate::kPerChannel)
    for (int i = 0; i < kChunk; i += kWidth)
      store(until + i, exp2((splat(h.integer_rows[h.length - 1]) - load(h.integer_rows + i)) +
                            (splat(h.fraction_rows[h.length - 1]) - load(h.fraction_rows + i))));
  for (int key = 0; key < h.key_dim; ++key)
    for (int j = 0; j < kChunk; j += kWidth) {
      const Vec scale = Gate::kPerChannel ? splat(h.x_scale[key]) : load(until + j);
      const int at = key * kChunk + j;
      store(h.x + at, Round::operand(load(h.k_hat + at) * scale));
    }
}

template <class Gate, class Update, class Round>
void intra(Head& h) {
  const float* k_rows = h.call->erase_write ? h.k_erase : h.k_rows;
  const float* k_tilde = Gate::kPerChannel ? h.k_tilde : k_rows;
  if (h.anchored)
    scores<Update>(h, k_tilde, Gate::kPerChannel ? h.q_tilde : h.q_rows);
  else
    scores_safe<Update, Round>(h);
  select_triangles<Gate, Update, Round>(h);
  if constexpr (!Update::kReadsState) {
    decay_keys<Gate, Round>(h);
  } else if (!Round::kRounds && has_steep_scores(h)) {
    solve_in_double<Gate>(h, k_tilde);
  } else {
    if constexpr (Round::kRounds)
      invert_by_blocks<Round>(h);
    else
      invert_block(h, 0, h.length);
    scale_inverse<Gate, Round>(h);
    solve<Gate, Round>(h);
  }
}

}  // namespace linattn::cpu::LINATTN_ISA
