// SPDX-License-Identifier: Apache-2.0
//
// What a block of the scan kernel does: which chunks, from which state, to which state.
#pragma once

#include <cstdint>

#include "cuda/common/sequence.cuh"
#include "cuda/portable/chunks.cuh"
#include "cuda/portable/state.cuh"

namespace linattn::portable {

// What one block does.
struct ScanTask {
  std::int64_t index, sequence;  // in the segment; n
  int piece, value_head, block;

  __device__ static ScanTask of(const ForwardParams& p) {
    const int blocks = p.value_blocks + p.extra_blocks;
    auto number = static_cast<std::int64_t>(blockIdx.x);
    ScanTask task;
    task.block = static_cast<int>(number % blocks);
    number /= blocks;
    task.value_head = static_cast<int>(number % p.problem.value_heads);
    number /= p.problem.value_heads;
    task.piece = static_cast<int>(number % p.pieces);
    task.index = number / p.pieces;
    task.sequence = sequence_at(p, p.segment.first) + task.index;
    return task;
  }
};

// A block's work, in shared memory: what is needed before and after the chunks takes no registers
// during them.
struct ScanJob {
  ScanTask task;
  cuda::Sequence sequence;
  Chunks chunks;
  std::int64_t first;  // number of chunk 0
  int begin, end;      // chunks of this segment and piece
  bool extra, with_output;
  bool complete;                           // behind end, the sequence ends too
  StateMatrix source, target, checkpoint;  // data null: none; checkpoint: of slot 0

  __device__ ScanJob(const ForwardParams& p, const ScanTask& of, const cuda::Sequence& s)
      : task(of),
        sequence(s),
        chunks(s),
        first(first_number(p, of.sequence)),
        extra(of.block >= p.value_blocks),
        with_output(p.phase == Phase::kOutput && !extra),
        source{},
        target{},
        checkpoint{} {
    // A pad's transition is the identity: it meets no chunk.
    const int count = sequence.pad ? 0 : chunks.count();
    const int low = static_cast<int>(max(p.segment.first - first, std::int64_t{0}));
    const int high = static_cast<int>(
        min(p.segment.first + p.segment.count - first, static_cast<std::int64_t>(chunks.count())));
    const auto boundary = [&](int piece) {
      return min(count, low + static_cast<int>(std::int64_t{high - low} * piece / p.pieces));
    };
    begin = boundary(task.piece);
    end = boundary(task.piece + 1);
    const bool last_piece = task.piece == p.pieces - 1;
    complete = last_piece && end == count;
    if (low >= high) return;  // the segment holds none of it

    const std::int64_t head = task.value_head,
                       columns = extra ? p.problem.key_dim : p.problem.value_dim;
    const auto strides =
        cuda::MatrixStrides::of(p.problem.state_layout, p.problem.key_dim, columns);
    const cuda::MatrixStrides dense{1, p.problem.key_dim};  // [columns, K]
    const auto pool = [&](const State& state, DType dtype, std::int64_t slot) {
      return StateMatrix{state.data, dtype, cuda::matrix_offset(state, slot, head), strides};
    };
    const auto dense_at = [&](float* data, std::int64_t index) {
      return StateMatrix{data, DType::kFloat32,
                         (index * p.problem.value_heads + head) * p.problem.key_dim * columns,
                         dense};
    };
    const std::int64_t piece = task.index * p.pieces + task.piece;
    if (p.phase == Phase::kSummarise) {
      target = dense_at(extra ? p.piece_transition : p.piece_state, piece);
    } else if (extra) {
      // The transition of a sequence that goes on in the next segment waits in its own place.
      target = {p.args.transition.data,
                DType::kFloat32,
                cuda::matrix_offset(p.args.transition, task.sequence, head),
                {columns, 1}};
      if (low > 0) source = target;
    } else {
      if (p.pieces > 1) {
        source = dense_at(p.piece_state, piece);
      } else if (low > 0) {
        source = dense_at(p.carried_in, 0);
      } else if (sequence.read_slot != cuda::kNullSlot) {
        source = pool(p.args.initial_state, p.problem.state_dtype, sequence.read_slot);
      }
      if (last_piece && !complete) {
        target = dense_at(p.carried_out, 0);
      } else if (complete && sequence.write_slot != cuda::kNullSlot) {
        target = pool(p.args.final_state, p.problem.state_dtype, sequence.write_slot);
      }
      if (p.args.checkpoints.data != nullptr)
        checkpoint = pool(p.args.checkpoints, p.problem.checkpoint_dtype, 0);
    }
  }

  __device__ __forceinline__ int columns(const ForwardParams& p) const {
    return extra ? p.problem.key_dim : p.problem.value_dim;
  }
  // Of the block, among `columns`.
  __device__ __forceinline__ int first_column(const ForwardParams& p, int block_columns) const {
    return (extra ? task.block - p.value_blocks : task.block) * block_columns;
  }
  // Element offset of a head's row of the first chunk's first token.
  __device__ __forceinline__ std::int64_t first_row(const ForwardParams& p, const Tensor& tensor,
                                                    int head) const {
    return cuda::row_offset(p.args, tensor, sequence, chunks.first(begin), head);
  }
  __device__ __forceinline__ std::int64_t first_row(const ForwardParams& p,
                                                    const Tensor& tensor) const {
    return first_row(p, tensor, task.value_head);
  }
  // null: no output.
  __device__ __forceinline__ std::uint16_t* out_rows(const ForwardParams& p) const {
    return with_output ? static_cast<std::uint16_t*>(p.args.out.data) + first_row(p, p.args.out)
                       : nullptr;
  }
};

}  // namespace linattn::portable
