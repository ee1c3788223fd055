// SPDX-License-Identifier: Apache-2.0
//
// The affine scan over the pieces of a sequence, in fp32: start of piece p + 1 = M_p (start of
// piece p) + N_p.
#include "cuda/common/launch.cuh"
#include "cuda/common/ptx.cuh"
#include "cuda/common/sequence.cuh"
#include "cuda/portable/chunks.cuh"
#include "cuda/portable/launch.h"

namespace linattn::portable {
namespace {

constexpr int kFoldColumns = 4;  // value columns of one block: enough blocks to fill the machine
constexpr int kFoldTile = 32;    // columns of a transition that are fetched at a time
constexpr int kFoldAhead = 2;    // tiles in flight

// Grid: (value columns / kFoldColumns, HV, sequences of the segment); a thread per row of the
// state. Transitions arrive tile by tile, behind the threads' backs.
__global__ void fold_forward_kernel(const __grid_constant__ ForwardParams p) {
  auto* memory = ptx::dynamic_shared<float>();
  const int key_dim = p.problem.key_dim, value_dim = p.problem.value_dim,
            heads = p.problem.value_heads;
  const int tile_elements = kFoldTile * key_dim, tiles = (key_dim + kFoldTile - 1) / kFoldTile;
  float* state = memory + (kFoldAhead + 1) * tile_elements;  // [K, kFoldColumns]
  const int row = static_cast<int>(threadIdx.x),
            first = static_cast<int>(blockIdx.x) * kFoldColumns;
  const int head = static_cast<int>(blockIdx.y);
  const std::int64_t n = sequence_at(p, p.segment.first) + blockIdx.z;
  const bool exists = row < key_dim;
  if (n >= p.args.sequences) return;
  const cuda::Sequence sequence = cuda::sequence_of(p.args, n, p.sequence_length);
  if (sequence.pad) return;
  const bool carried = first_number(p, n) < p.segment.first;
  const cuda::MatrixStrides strides =
      cuda::MatrixStrides::of(p.problem.state_layout, key_dim, value_dim);

  const auto piece = [&](int index) {
    return (std::int64_t{blockIdx.z} * p.pieces + index) * heads + head;
  };
  const auto at = [&](std::int64_t matrix, int c) {
    return (matrix * value_dim + first + c) * key_dim + row;
  };
  const auto inside = [&](int c) { return exists && first + c < value_dim; };
  // Tile `number`, counted over all pieces.
  const auto fetch_tile = [&](int number) {
    const int index = number / tiles, columns = number % tiles * kFoldTile;
    if (index + 1 < p.pieces) {
      const float* from = p.piece_transition + (piece(index) * key_dim + columns) * key_dim;
      float* to = memory + number % (kFoldAhead + 1) * tile_elements;
      const int elements = min(kFoldTile, key_dim - columns) * key_dim;
      for (int i = 4 * row; i < elements; i += 4 * static_cast<int>(blockDim.x))
        ptx::cp_async<16>(to + i, from + i);
    }
    ptx::cp_async_commit_group();
  };

  for (int i = 0; i < kFoldAhead; ++i) fetch_tile(i);
  float own[kFoldColumns], added[kFoldColumns];
#pragma unroll
  for (int c = 0; c < kFoldColumns; ++c) {
    own[c] = 0;
    if (inside(c) && carried) {
      own[c] = p.carried_in[at(head, c)];
    } else if (inside(c) && sequence.read_slot != cuda::kNullSlot) {
      own[c] = cuda::load(p.args.initial_state.data, p.problem.state_dtype,
                          cuda::matrix_offset(p.args.initial_state, sequence.read_slot, head) +
                              row * strides.key + (first + c) * strides.value);
    }
    added[c] = 0;
    if (!inside(c)) continue;
    // No piece starts from the state that was given: another may store its end there meanwhile.
    added[c] = p.piece_state[at(piece(0), c)];
    p.piece_state[at(piece(0), c)] = own[c];
  }
  for (int index = 0, number = 0; index + 1 < p.pieces; ++index) {
    if (exists) {
#pragma unroll
      for (int c = 0; c < kFoldColumns; ++c) {
        state[row * kFoldColumns + c] = own[c];
        own[c] = added[c];
      }
    }
    for (int columns = 0; columns < key_dim; columns += kFoldTile, ++number) {
      ptx::cp_async_wait_group<kFoldAhead - 1>();
      __syncthreads();  // the tile is there, and all have left the one that is replaced
      fetch_tile(number + kFoldAhead);
      if (!exists) continue;
      const float* transition = memory + number % (kFoldAhead + 1) * tile_elements + row;
      const int count = min(kFoldTile, key_dim - columns);
#pragma unroll 8
      for (int j = 0; j < count; ++j) {
        const float m = transition[j * key_dim];
#pragma unroll
        for (int c = 0; c < kFoldColumns; ++c)
          own[c] = fmaf(m, state[(columns + j) * kFoldColumns + c], own[c]);
      }
    }
#pragma unroll
    for (int c = 0; c < kFoldColumns; ++c) {
      if (!inside(c)) continue;
      added[c] = p.piece_state[at(piece(index + 1), c)];
      p.piece_state[at(piece(index + 1), c)] = own[c];
    }
    __syncthreads();
  }
}

std::size_t fold_bytes(const Problem& p) {
  constexpr int kColumns = (kFoldAhead + 1) * kFoldTile + kFoldColumns;
  return static_cast<std::size_t>(p.key_dim) * kColumns * sizeof(float);
}

}  // namespace

void launch_fold(const ForwardParams& params, int device, Stream stream) {
  const Problem& p = params.problem;
  const auto blocks = static_cast<unsigned>((p.value_dim + kFoldColumns - 1) / kFoldColumns);
  cuda::allow_shared_memory<fold_forward_kernel>(device, cuda::device_info(device).shared_bytes);
  cuda::launch(
      fold_forward_kernel,
      {dim3(blocks, static_cast<unsigned>(p.value_heads), static_cast<unsigned>(params.sequences)),
       dim3(static_cast<unsigned>((p.key_dim + 31) / 32 * 32)), fold_bytes(p)},
      stream, params);
}

}  // namespace linattn::portable
