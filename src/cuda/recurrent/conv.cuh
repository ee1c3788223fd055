// SPDX-License-Identifier: Apache-2.0
//
// The convolution of a fused step, channel by channel.
//
// A channel's inputs are numbered from the oldest: width - 1 that came before the call, from the
// sequence's row of the pool, then its tokens. Only the block that has a channel's head reads or
// writes its entries, and a thread that has read what it leaves writes it.
#pragma once

#include <cstdint>

#include "cuda/common/convert.cuh"
#include "cuda/common/sequence.cuh"
#include "cuda/recurrent/launch.h"
#include "recurrence/activation.h"

namespace linattn::cuda {

inline constexpr int kMostTaps = 4;

// A sequence's row of the conv states.
struct ConvRow {
  std::int64_t read_slot;   // kNullSlot: zeros come before the first token
  std::int64_t write_slot;  // kNullSlot: not stored
  std::int64_t first;       // entry that is read first
  bool pad;

  __device__ __forceinline__ static ConvRow of(const Problem& p, const RecurrentArgs& a,
                                               std::int64_t n) {
    ConvRow row{kNullSlot, kNullSlot, 0, false};
    if (p.conv_width == 0 || a.conv_k.state == nullptr) return row;
    const std::int64_t slots = min(a.conv_q.slots, min(a.conv_k.slots, a.conv_v.slots));
    const auto slot = [&](const std::int32_t* ids) {
      if (ids == nullptr) return n < slots ? n : kNullSlot;
      return slot_or_null(a, ids[n], slots);
    };
    row.read_slot = slot(a.conv_read_slots);
    row.write_slot = slot(a.conv_write_slots);
    row.pad = row.read_slot == kNullSlot && row.write_slot == kNullSlot;
    if (a.conv_accepted != nullptr) {
      row.first = static_cast<std::int64_t>(a.conv_accepted[n]) - 1;
      row.pad = row.pad || row.first < 0 || row.first + p.conv_width - 1 > a.conv_entries;
    }
    if (a.has_initial_state != nullptr && a.has_initial_state[n] == 0) row.read_slot = kNullSlot;
    return row;
  }
};

struct ConvChannel {
  const Problem& p;
  const Conv& conv;
  const Tensor& x;
  const ConvRow& row;
  std::int64_t channel;
  std::int64_t x_at;  // of the sequence's first token

  __device__ __forceinline__ std::int64_t entry(std::int64_t slot, std::int64_t i) const {
    return slot * conv.slot_stride + channel * conv.channel_stride + i * conv.entry_stride;
  }

  // Bits, and what they mean, of input i: loads of several are on their way together.
  __device__ __forceinline__ std::uint32_t raw_input(int i) const {
    const int before = p.conv_width - 1;
    if (i >= before) return load_raw(x.data, p.dtype, x_at + (i - before) * x.token_stride);
    if (row.read_slot == kNullSlot) return 0;
    return load_raw(conv.state, p.conv_state_dtype, entry(row.read_slot, row.first + i));
  }
  __device__ __forceinline__ float input(std::uint32_t raw, int i) const {
    return from_raw(raw, i < p.conv_width - 1 ? p.conv_state_dtype : p.dtype);
  }

  // Of the sequence's token t.
  __device__ __forceinline__ float operator()(int t) const {
    std::uint32_t weight[kMostTaps], raw[kMostTaps];
#pragma unroll
    for (int i = 0; i < kMostTaps; ++i) {
      weight[i] = raw[i] = 0;
      if (i >= p.conv_width) continue;
      weight[i] = load_raw(conv.weight, p.conv_dtype,
                           channel * conv.weight_channel_stride + i * conv.weight_tap_stride);
      raw[i] = raw_input(t + i);
    }
    float sum = conv.bias == nullptr ? 0.0f : load(conv.bias, p.conv_dtype, channel);
#pragma unroll
    for (int i = 0; i < kMostTaps; ++i)
      if (i < p.conv_width)
        sum = fmaf(from_raw(weight[i], p.conv_dtype), input(raw[i], t + i), sum);
    return activate(p.conv_activation, sum);
  }

  // Leaves inputs first .. last - 1 in the row. They are read in order and ahead of the writes, and
  // none goes behind where it came from: reading and writing one row is safe.
  __device__ __forceinline__ void leave(int first, int last) const {
#pragma unroll 1
    for (int from = first; from < last; from += kMostTaps) {
      float kept[kMostTaps];
#pragma unroll
      for (int j = 0; j < kMostTaps; ++j)
        kept[j] = from + j < last ? input(raw_input(from + j), from + j) : 0.0f;
#pragma unroll
      for (int j = 0; j < kMostTaps; ++j)
        if (from + j < last)
          store(conv.state, p.conv_state_dtype, entry(row.write_slot, from + j - first), kept[j]);
    }
  }
};

// channel: of the head.
template <class Block>
__device__ __forceinline__ ConvChannel channel_of(const Block& block, const Conv& conv,
                                                  const Tensor& x, int dim, int head, int channel) {
  return {block.p,
          conv,
          x,
          block.smem.conv,
          std::int64_t{head} * dim + channel,
          row_offset(block.a, x, block.s, 0, head) + channel};
}

// Of a group's value heads, whose first is the block's, after all that reads them.
template <class Tile, template <class> class Block>
__device__ __forceinline__ void store_conv_states(const Block<Tile>& block) {
  const Problem& p = block.p;
  const RecurrentArgs& a = block.a;
  if (!block.convolves() || block.pad() || block.smem.conv.write_slot == kNullSlot) return;
  const int length = static_cast<int>(block.taken());
  const int first = a.conv_accepted == nullptr ? length : min(length, 1);
  // Drafts that only the device sees to be too long leave what there are entries for.
  const int entries = static_cast<int>(
      min(a.conv_entries, static_cast<std::int64_t>(p.conv_width + LINATTN_FUSED_TOKENS)));
  const int group = block.params.group, key_head = block.head / group;
#pragma unroll 1
  for (int x = threadIdx.x; x < 2 * p.key_dim + group * p.value_dim; x += Tile::kThreads) {
    const bool of_q = x < p.key_dim, of_v = x >= 2 * p.key_dim;
    const int channel = of_v ? x - 2 * p.key_dim : x % p.key_dim;
    const int dim = of_v ? p.value_dim : p.key_dim;
    channel_of(block,
               of_v   ? a.conv_v
               : of_q ? a.conv_q
                      : a.conv_k,
               of_v   ? a.v
               : of_q ? a.q
                      : a.k,
               dim, of_v ? block.head + channel / dim : key_head, channel % dim)
        .leave(first, min(length + p.conv_width - 1, first + entries));
  }
}

}  // namespace linattn::cuda
