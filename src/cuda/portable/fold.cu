// SPDX-License-Identifier: Apache-2.0
//
// The affine scan over the pieces of a sequence, in fp32: start of piece p + 1 = M_p (start of
// piece p) + N_p.
#include "cuda/common/launch.cuh"
#include "cuda/common/sequence.cuh"
#include "cuda/portable/launch.h"

namespace linattn::portable {
namespace {

constexpr int kFoldColumns =
    8;  // value columns of one block: enough blocks to read every M at the cache's speed

// Grid: (value columns / kFoldColumns, HV, N); a thread per row of the state.
__global__ void fold_forward_kernel(const __grid_constant__ ForwardParams p) {
  extern __shared__ float state[];  // [K, kFoldColumns]
  const int key_dim = p.problem.key_dim, value_dim = p.problem.value_dim,
            heads = p.problem.value_heads;
  const int row = static_cast<int>(threadIdx.x),
            first = static_cast<int>(blockIdx.x) * kFoldColumns;
  const int head = static_cast<int>(blockIdx.y);
  const std::int64_t n = blockIdx.z;
  const bool exists = row < key_dim;
  const cuda::Sequence sequence = cuda::sequence_of(p.args, n);
  if (sequence.pad) return;
  const MatrixStrides strides = MatrixStrides::of(p.problem.state_layout, key_dim, value_dim);

  const auto piece = [&](int index) { return (n * p.pieces + index) * heads + head; };
  const auto at = [&](int index, int c) {
    return (piece(index) * value_dim + first + c) * key_dim + row;
  };
  const auto inside = [&](int c) { return exists && first + c < value_dim; };

  float own[kFoldColumns], added[kFoldColumns];
#pragma unroll
  for (int c = 0; c < kFoldColumns; ++c) {
    own[c] = 0;
    if (inside(c) && sequence.read_slot != cuda::kNullSlot)
      own[c] = cuda::load(p.args.initial_state.data, p.problem.state_dtype,
                          cuda::matrix_offset(p.args.initial_state, sequence.read_slot, head) +
                              row * strides.key + (first + c) * strides.value);
    added[c] = inside(c) ? p.piece_state[at(0, c)] : 0.0f;
  }
  for (int index = 0; index + 1 < p.pieces; ++index) {
    __syncthreads();
#pragma unroll
    for (int c = 0; c < kFoldColumns; ++c)
      if (exists) state[row * kFoldColumns + c] = own[c];
    __syncthreads();
    if (!exists) continue;
    const float* transition = p.piece_transition + piece(index) * key_dim * key_dim + row;
#pragma unroll
    for (int c = 0; c < kFoldColumns; ++c) own[c] = added[c];
#pragma unroll 8
    for (int j = 0; j < key_dim; ++j) {
      const float m = transition[static_cast<std::int64_t>(j) * key_dim];
#pragma unroll
      for (int c = 0; c < kFoldColumns; ++c) own[c] = fmaf(m, state[j * kFoldColumns + c], own[c]);
    }
#pragma unroll
    for (int c = 0; c < kFoldColumns; ++c) {
      if (!inside(c)) continue;
      added[c] = p.piece_state[at(index + 1, c)];
      p.piece_state[at(index + 1, c)] = own[c];
    }
  }
}

}  // namespace

void launch_fold(const ForwardParams& params, Stream stream) {
  const Problem& p = params.problem;
  const auto blocks = static_cast<unsigned>((p.value_dim + kFoldColumns - 1) / kFoldColumns);
  cuda::launch(fold_forward_kernel,
               {dim3(blocks, static_cast<unsigned>(p.value_heads),
                     static_cast<unsigned>(params.args.sequences)),
                dim3(static_cast<unsigned>((p.key_dim + 31) / 32 * 32)),
                static_cast<std::size_t>(p.key_dim) * kFoldColumns * sizeof(float)},
               stream, params);
}

}  // namespace linattn::portable
