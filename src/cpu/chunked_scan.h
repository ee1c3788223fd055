// SPDX-License-Identifier: Apache-2.0
//
// Stages `scan` and `output` of one chunk, for one panel of columns of the state.
#pragma once

#include "cpu/chunked_prepare.h"

namespace linattn::cpu::LINATTN_ISA {

// Columns [column, column + count) of the state. The transition's panels have no values and no
// output.
struct Panel {
  float* state;  // [K, kPanel]
  int column, count;
  bool transition;
};

LINATTN_INLINE void load_panel(const Rows& rows, std::int64_t token, const Panel& panel,
                               Vec (&out)[2]) {
  const char* at = rows.at(token) + panel.column * bytes_of(rows.dtype);
  if (panel.count == kPanel) {
    out[0] = load_as(at, rows.dtype);
    out[1] = load_as(at + kWidth * bytes_of(rows.dtype), rows.dtype);
  } else {
    out[0] = load_first(at, rows.dtype, panel.count);
    out[1] = panel.count > kWidth
                 ? load_first(at + kWidth * bytes_of(rows.dtype), rows.dtype, panel.count - kWidth)
                 : Vec{};
  }
}

// What the chunk would write if the state it starts from were all there is: r = V - k_state S.
template <class Gate, class Update, class Round>
void scan_residual(const Head& h, const Panel& panel, const float* state) {
  const float* k_state = Gate::kPerChannel ? h.k_state : h.call->erase_write ? h.k_erase : h.k_rows;
  const auto finish = [&](int i, Vec erased0, Vec erased1) {
    Vec v[2] = {};
    if (!panel.transition) {
      load_panel(h.v, h.begin + i, panel, v);
      if (h.call->erase_write) {
        Vec w[2];
        load_panel(h.write, h.begin + i, panel, w);
        v[0] *= strength(w[0], h.beta_input);
        v[1] *= strength(w[1], h.beta_input);
      }
    }
    if constexpr (Update::kReadsState) {
      if constexpr (!Gate::kPerChannel) {
        erased0 *= h.row_decay[i];
        erased1 *= h.row_decay[i];
      }
      v[0] -= erased0;
      v[1] -= erased1;
    }
    store(h.r + i * kPanel, Round::operand(v[0]));
    store(h.r + i * kPanel + kWidth, Round::operand(v[1]));
  };
  if constexpr (Update::kReadsState) {
    for_tiles(0, h.length, [&]<int kRows>(Rank<kRows>, int row) {
      Tile<kRows> tile;
      tile.clear();
      tile.multiply(k_state + row * h.stride, h.stride, state, kPanel, h.key_dim);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) finish(row + r, tile.sums[r][0], tile.sums[r][1]);
    });
  } else {
    for (int i = 0; i < h.length; ++i) finish(i, Vec{}, Vec{});
  }
}

// o = scale (q_state S + p r).
template <class Gate, class Update, class Round>
void output(const Head& h, const Panel& panel, const float* state) {
  const float* q_state = Gate::kPerChannel ? h.q_state : h.q_rows;
  const float* p = Update::kReadsState ? h.p : h.a_qk;
  const Vec scale = splat(h.call->scale);
  for_tiles(0, h.length, [&]<int kRows>(Rank<kRows>, int row) {
    h.ahead->step();
    Tile<kRows> tile;
    tile.clear();
    tile.multiply(q_state + row * h.stride, h.stride, state, kPanel, h.key_dim);
    if constexpr (!Gate::kPerChannel) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        tile.sums[r][0] *= h.row_decay[row + r];
        tile.sums[r][1] *= h.row_decay[row + r];
      }
    }
    tile.multiply_lower(p + row * kChunk, kChunk, h.r, kPanel, 0, row);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      char* out = h.out.at(h.begin + row + r) + panel.column * bytes_of(h.out.dtype);
      const std::int64_t half = kWidth * bytes_of(h.out.dtype);
      if (panel.count == kPanel) {
        store_as(out, h.out.dtype, tile.sums[r][0] * scale);
        store_as(out + half, h.out.dtype, tile.sums[r][1] * scale);
      } else {
        store_first(out, h.out.dtype, panel.count, tile.sums[r][0] * scale);
        if (panel.count > kWidth)
          store_first(out + half, h.out.dtype, panel.count - kWidth, tile.sums[r][1] * scale);
      }
    }
  });
}

// S = 2^Gtot S + x^T r. The sum is added to the state once: where keys repeat its terms nearly
// cancel, and what a partial sum as large as the state would round off is never erased again.
inline void scan_update(const Head& h, const Panel& panel) {
  for_tiles(0, h.key_dim, [&]<int kRows>(Rank<kRows>, int key) {
    h.ahead->step();
    Tile<kRows> tile;
    tile.clear();
    tile.multiply(h.x + key * kChunk, kChunk, h.r, kPanel, h.length);
    float* state = panel.state + key * kPanel;
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Vec decay = splat(h.total_decay[key + r]);
      for (int v = 0; v < 2; ++v) {
        float* at = state + r * kPanel + v * kWidth;
        store(at, fma(load(at), decay, tile.sums[r][v]));
      }
    }
  });
}

// r, then the output, which still needs the state before the chunk, then that state.
template <class Gate, class Update, class Round>
void scan_and_output(const Head& h, const Panel& panel) {
  const float* state = panel.state;
  if constexpr (Round::kRounds) {
    for (int at = 0; at < h.key_dim * kPanel; at += kWidth)
      store(h.state_operand + at, Round::operand(load(panel.state + at)));
    state = h.state_operand;
  }
  scan_residual<Gate, Update, Round>(h, panel, state);
  if (!panel.transition) output<Gate, Update, Round>(h, panel, state);
  scan_update(h, panel);
}

}  // namespace linattn::cpu::LINATTN_ISA
