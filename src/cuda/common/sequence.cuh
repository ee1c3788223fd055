// SPDX-License-Identifier: Apache-2.0
//
// What a kernel must know of one sequence, read on the device from the call's own arguments, which
// kernels take by value. Index tensors are not trusted: whatever they hold, rows stay inside the
// tensors and slots inside the pools, and nothing loops for longer than the counts allow.
// Overlapping offsets or repeated slots give undefined values, never a bad address.
#pragma once

#include <cstdint>

#include "cuda/common/convert.cuh"
#include "linattn/plan.h"
#include "linattn/problem.h"

namespace linattn::cuda {

inline constexpr std::int64_t kNullSlot = -1;

struct Sequence {
  std::int64_t index;           // n
  std::int64_t begin;           // its first row; row begin + t holds its token t
  std::int64_t length;          // its tokens, 0 or more; begin + length <= T
  std::int64_t start_position;  // tokens of the whole sequence before this call's
  std::int64_t read_slot;       // kNullSlot: it starts from zero
  std::int64_t write_slot;      // kNullSlot: nothing is stored; see token_write_slot for columns
  bool pad;                     // nothing is computed, its output rows are zero
};

template <class Args>
__device__ __forceinline__ std::int64_t load_offset(const Args& args, std::int64_t n) {
  const std::int64_t offset = args.cu_seqlens_dtype == LINATTN_INT64
                                  ? static_cast<const std::int64_t*>(args.cu_seqlens)[n]
                                  : static_cast<const std::int32_t*>(args.cu_seqlens)[n];
  return offset < 0 ? 0 : (offset > args.tokens ? args.tokens : offset);
}

// Rows that belong to sequences; those from here to T are zero in every output.
template <class Args>
__device__ __forceinline__ std::int64_t used_rows(const Args& args) {
  return args.cu_seqlens == nullptr ? args.tokens : load_offset(args, args.sequences);
}

template <class Args>
__device__ __forceinline__ std::int64_t slot_or_null(const Args& args, std::int64_t id,
                                                     std::int64_t slots) {
  return id < args.first_slot || id < 0 || id >= slots ? kNullSlot : id;
}

// Where the state after the sequence's token t goes, with one column per token (steps only).
template <class Args>
__device__ __forceinline__ std::int64_t token_write_slot(const Args& args, std::int64_t n,
                                                         std::int64_t t) {
  if (args.final_state.data == nullptr || t >= args.write_slot_stride) return kNullSlot;
  return slot_or_null(args, args.write_slots[n * args.write_slot_stride + t],
                      args.final_state.slots);
}

// 0 <= n < args.sequences. length: of every sequence if there is no cu_seqlens; the division takes
// a hundred instructions. All loads but the ones that need others' results come first, so that they
// wait for memory together.
template <class Args>
__device__ __forceinline__ Sequence sequence_of(const Args& args, std::int64_t n,
                                                std::int64_t length) {
  Sequence s{n, n * length, length, 0, kNullSlot, kNullSlot, false};
  const bool reads = args.initial_state.data != nullptr;
  std::int64_t end = 0, column = 0, columns = 1, read_id = n, write_id = n;
  bool flag = true, writes_columns = false, writes = false;
  if (args.cu_seqlens != nullptr) {
    s.begin = load_offset(args, n);
    end = load_offset(args, n + 1);
  }
  if constexpr (requires { args.start_positions; })
    if (args.start_positions != nullptr) s.start_position = args.start_positions[n];
  if (reads && args.has_initial_state != nullptr) flag = args.has_initial_state[n] != 0;
  if constexpr (requires { args.final_state; }) {
    if constexpr (requires { args.write_slot_stride; }) writes_columns = args.write_slot_stride > 0;
    writes = args.final_state.data != nullptr;
    if (writes && !writes_columns && args.write_slots != nullptr) write_id = args.write_slots[n];
  }
  if constexpr (requires { args.accepted; }) {
    if (reads && args.read_slot_stride > 0) {
      columns = args.read_slot_stride;
      column = static_cast<std::int64_t>(args.accepted[n]) - 1;
      s.pad = column < 0 || column >= columns;
      if (s.pad) column = 0;
    }
  }
  if (reads && args.read_slots != nullptr) read_id = args.read_slots[n * columns + column];

  if (args.cu_seqlens != nullptr) s.length = end > s.begin ? end - s.begin : 0;
  bool null_read = false;  // by its id: an absent initial state makes no pad
  if (reads) {
    if (args.read_slots == nullptr) {
      if (read_id < args.initial_state.slots) s.read_slot = read_id;
    } else {
      s.read_slot = slot_or_null(args, read_id, args.initial_state.slots);
      null_read = s.read_slot == kNullSlot;
    }
    if (!flag) s.read_slot = kNullSlot;
  }
  bool null_write = false;
  if constexpr (requires { args.final_state; }) {
    if (writes && writes_columns) {
      if constexpr (requires { args.write_slot_stride; }) {
        null_write = true;
        for (std::int64_t t = 0; null_write && t < s.length && t < args.write_slot_stride; ++t)
          null_write = token_write_slot(args, n, t) == kNullSlot;
      }
    } else if (writes && args.write_slots == nullptr) {
      if (write_id < args.final_state.slots) s.write_slot = write_id;
    } else if (writes) {
      s.write_slot = slot_or_null(args, write_id, args.final_state.slots);
      null_write = s.write_slot == kNullSlot;
    }
  }
  s.pad = s.pad || (null_read && null_write);
  if (s.pad) s.read_slot = s.write_slot = kNullSlot;
  return s;
}

template <class Args>
__device__ __forceinline__ Sequence sequence_of(const Args& args, std::int64_t n) {
  return sequence_of(args, n, args.cu_seqlens == nullptr ? args.tokens / args.sequences : 0);
}

// Element offset of the sequence's token t in [T, heads, dim], or in [N, T / N, heads, dim].
template <class Args>
__device__ __forceinline__ std::int64_t row_offset(const Args& args, const Tensor& tensor,
                                                   const Sequence& s, std::int64_t t,
                                                   std::int64_t head) {
  const std::int64_t rows = args.cu_seqlens == nullptr
                                ? s.index * tensor.sequence_stride + t * tensor.token_stride
                                : (s.begin + t) * tensor.token_stride;
  return rows + head * tensor.head_stride;
}

// Element offset of a head's matrix in a pool.
__device__ __forceinline__ std::int64_t matrix_offset(const State& state, std::int64_t slot,
                                                      std::int64_t head) {
  return slot * state.slot_stride + head * state.head_stride;
}

// Element strides of the matrix: one of the two is 1. columns: V, or K for a transition.
struct MatrixStrides {
  std::int64_t key, value;

  __device__ __forceinline__ static MatrixStrides of(StateLayout layout, std::int64_t key_dim,
                                                     std::int64_t columns) {
    return layout == StateLayout::kKeyValue ? MatrixStrides{columns, 1} : MatrixStrides{1, key_dim};
  }
};

}  // namespace linattn::cuda
