// SPDX-License-Identifier: Apache-2.0
//
// States between the caller's pools (any dtype, [K, V] or [V, K]) and panels.
#pragma once

#include "cpu/chunked_scan.h"

namespace linattn::cpu::LINATTN_ISA {

// One head's matrix in a pool; data null: absent.
struct Matrix {
  char* data = nullptr;
  DType dtype = DType::kFloat32;
  bool value_key = false;  // [V, K]
};

inline Matrix matrix_of(const State& pool, DType dtype, bool value_key, std::int64_t slot,
                        std::int64_t head) {
  const std::int64_t at = slot * pool.slot_stride + head * pool.head_stride;
  return {static_cast<char*>(pool.data) + at * bytes_of(dtype), dtype, value_key};
}

inline void clear(const Panel& panel, int key_dim) {
  for (int at = 0; at < key_dim * kPanel; at += kWidth) store(panel.state + at, Vec{});
}

// f(vectors of the panel at key, columns from `value` on, pointer, count) for blocks of kWidth keys
// and columns of a [V, K] matrix; one vector per column there, one per key in the panel.
inline void load_state(const Matrix& m, const Panel& panel, int key_dim, int value_dim) {
  const std::int64_t size = bytes_of(m.dtype);
  if (!m.value_key) {
    for (int key = 0; key < key_dim; ++key) {
      const char* row = m.data + (static_cast<std::int64_t>(key) * value_dim + panel.column) * size;
      for (int v = 0; v < 2; ++v)
        store(panel.state + key * kPanel + v * kWidth,
              load_first(row + v * kWidth * size, m.dtype, panel.count - v * kWidth));
    }
    return;
  }
  for (int v = 0; v < 2; ++v)
    for (int key = 0; key < key_dim; key += kWidth) {
      Vec block[kWidth] = {};
      for (int i = 0; i < kWidth && v * kWidth + i < panel.count; ++i) {
        const std::int64_t column = panel.column + v * kWidth + i;
        block[i] = load_first(m.data + (column * key_dim + key) * size, m.dtype, key_dim - key);
      }
      transpose(block);
      for (int i = 0; i < kWidth && key + i < key_dim; ++i)
        store(panel.state + (key + i) * kPanel + v * kWidth, block[i]);
    }
}

inline void store_state(const Matrix& m, const Panel& panel, int key_dim, int value_dim) {
  const std::int64_t size = bytes_of(m.dtype);
  if (!m.value_key) {
    for (int key = 0; key < key_dim; ++key) {
      char* row = m.data + (static_cast<std::int64_t>(key) * value_dim + panel.column) * size;
      for (int v = 0; v < 2; ++v)
        store_first(row + v * kWidth * size, m.dtype, panel.count - v * kWidth,
                    load(panel.state + key * kPanel + v * kWidth));
    }
    return;
  }
  for (int v = 0; v < 2; ++v)
    for (int key = 0; key < key_dim; key += kWidth) {
      Vec block[kWidth] = {};
      for (int i = 0; i < kWidth && key + i < key_dim; ++i)
        block[i] = load(panel.state + (key + i) * kPanel + v * kWidth);
      transpose(block);
      for (int i = 0; i < kWidth && v * kWidth + i < panel.count; ++i) {
        const std::int64_t column = panel.column + v * kWidth + i;
        store_first(m.data + (column * key_dim + key) * size, m.dtype, key_dim - key, block[i]);
      }
    }
}

}  // namespace linattn::cpu::LINATTN_ISA
