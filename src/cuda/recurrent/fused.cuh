// SPDX-License-Identifier: Apache-2.0
//
// A fused step: the recurrence of recurrent.cuh between a convolution of q, k and v and a norm of
// the output.
//
// The value heads of a group share the channels of their keys, whose states are read and written in
// place: so one block has the group, one value head after the other, and without a convolution a
// value head. The norm wants all columns of a head: a block has those too, a tile after the other,
// and their states come ahead into the second-level cache.
#pragma once

#include <cstdint>

#include "cuda/recurrent/recurrent.cuh"

namespace linattn::cuda {

// A head's state on its way to the second-level cache, for tiles that are asked for later.
template <class Tile>
__device__ __forceinline__ void prefetch_state(const RecurrentBlock<Tile>& block, int head) {
  const State& state = block.a.initial_state;
  if (block.pad() || block.s.read_slot == kNullSlot) return;
  const int size = bytes_of(block.p.state_dtype);
  const char* first =
      static_cast<const char*>(state.data) + matrix_offset(state, block.s.read_slot, head) * size;
  const int bytes = block.p.key_dim * block.p.value_dim * size;
  if constexpr (ptx::kHasBulkCopies) {
    // At worst the ends are left out.
    const int skip = static_cast<int>(-reinterpret_cast<std::uintptr_t>(first) % 16);
    if (threadIdx.x == 0 && bytes - skip >= 16)
      ptx::cp_async_bulk_prefetch_l2(first + skip, (bytes - skip) / 16 * 16);
  } else {
    for (int byte = static_cast<int>(threadIdx.x) * 128; byte < bytes; byte += Tile::kThreads * 128)
      ptx::prefetch_l2(first + byte);
  }
}

// The head's rows that are read only behind others.
template <class Tile>
__device__ __forceinline__ void prefetch_head(const RecurrentBlock<Tile>& block) {
  const Problem& p = block.p;
  const RecurrentArgs& a = block.a;
  if (block.pad()) return;
  const int gate = p.op.gate == Gate::kChannel ? p.key_dim : 1;
  for (std::int64_t t = Tile::warp(), length = block.taken(); t < length; t += Tile::kWarps) {
    block.prefetch_row(a.g, p.gate_dtype, t, block.head, 0, gate);
    block.prefetch_row(a.beta, p.beta_dtype, t, block.head, 0, 1);
    block.prefetch_row(a.z, p.dtype, t, block.head, 0, p.value_dim);
  }
}

// The head's rows, a warp each.
template <class Tile>
__device__ __forceinline__ void normalize(const RecurrentBlock<Tile>& block) {
  const Problem& p = block.p;
  const RecurrentArgs& a = block.a;
  if (!block.normalizes() || block.pad()) return;
  __syncthreads();
  const int lane = Tile::lane(), per_lane = (p.value_dim + 31) / 32;
  const float dim = static_cast<float>(p.value_dim);
  for (std::int64_t t = Tile::warp(), length = block.taken(); t < length; t += Tile::kWarps) {
    const float* o = block.unnormalized(t);
    const auto at = [&](int i) { return lane + 32 * i < p.value_dim ? o[lane + 32 * i] : 0.0f; };
    const float factor = sqrtf(dim) * warp_inverse_norm(per_lane, at, a.norm_epsilon * dim);
    const std::int64_t z_at = row_offset(a, a.z, block.s, t, block.head);
    const std::int64_t out_at = row_offset(a, a.out, block.s, t, block.head);
#pragma unroll 4
    for (int column = lane; column < p.value_dim; column += 32) {
      float y = o[column] * factor;
      if (a.norm_weight != nullptr) y *= load(a.norm_weight, p.norm_dtype, column);
      if (a.z.data != nullptr) y *= activate(p.norm_gate, load(a.z.data, p.dtype, z_at + column));
      store(a.out.data, p.dtype, out_at + column, y);
    }
  }
}

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    fused_kernel(const __grid_constant__ RecurrentParams params) {
  __shared__ FusedStorage<RecurrentStorage<Tile>> smem;
  const Problem& p = params.problem;
  const RecurrentArgs& a = params.args;
  for (std::int64_t unit = blockIdx.x;; unit += gridDim.x) {
    const std::int64_t n = unit * params.group / p.value_heads;
    if (n >= params.sequences) return;
    RecurrentBlock<Tile> block{params, p, a, smem, smem.sequence};
    block.transition = false;
    block.head = static_cast<int>(unit * params.group % p.value_heads);
    if (threadIdx.x == 0)
      smem.sequence =
          n < a.sequences ? sequence_of(a, n) : Sequence{n, 0, 0, 0, kNullSlot, kNullSlot, true};
    if (threadIdx.x == 96) {
      smem.pool = nullptr;
      smem.layer_offset = 0;
      smem.conv = n < a.sequences ? ConvRow::of(p, a, n) : ConvRow{kNullSlot, kNullSlot, 0, true};
    }
    do {
      block.read_gate();
      __syncthreads();
      const int place = block.head % params.group;
      if (place == 0 && p.value_dim > Tile::kColumns) prefetch_state(block, block.head);
      if (place + 1 < params.group) prefetch_state(block, block.head + 1);
      prefetch_head(block);
      for (block.first_column = 0; block.first_column < p.value_dim;
           block.first_column += Tile::kColumns) {
        block.columns = min(Tile::kColumns, p.value_dim - block.first_column);
        block.staged = block.taken() > Tile::kTokens ? Staged::kNothing
                       : block.first_column > 0      ? Staged::kHead
                       : place > 0                   ? Staged::kKeys
                                                     : Staged::kNothing;
        block.run();
      }
      normalize(block);
    } while (++block.head % params.group != 0);
    block.head -= params.group;
    store_conv_states(block);
    block.first_column = 0;
    block.columns = p.value_dim;
    for (int i = 0; i < params.group; ++i, ++block.head) block.zero_surplus();
    __syncthreads();  // the next unit writes to shared memory that a warp may still be reading
  }
}

}  // namespace linattn::cuda
