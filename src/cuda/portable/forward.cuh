// SPDX-License-Identifier: Apache-2.0
//
// The portable forward kernel, for mma.sync. One block: one value head, one block of value columns,
// one piece of a sequence. Prepare warps turn chunk after chunk into operands (prepare.cuh,
// intra.cuh); state warps carry the state through them (state.cuh). They meet in `stages` buffers
// through two named barriers each.
#pragma once

#include "cuda/portable/intra.cuh"
#include "cuda/portable/state.cuh"

namespace linattn::portable {

// What one block does, from its number. Blocks of a value head are neighbours: they share q, k and
// g in the cache.
struct Task {
  std::int64_t sequence;  // N: the rows behind the last sequence
  int piece, value_head, block;

  __device__ static Task of(const ForwardParams& p, std::int64_t number) {
    const int blocks = p.value_blocks + p.extra_blocks;
    Task task;
    task.block = static_cast<int>(number % blocks);
    number /= blocks;
    task.value_head = static_cast<int>(number % p.problem.value_heads);
    number /= p.problem.value_heads;
    task.piece = static_cast<int>(number % p.pieces);
    task.sequence = number / p.pieces;
    return task;
  }
};

// Zeroes a block's columns in rows of out that no sequence computes.
template <class Traits>
__device__ void zero_rows(const ForwardParams& p, std::int64_t begin, std::int64_t end,
                          const cuda::Sequence& s, int value_head, int block) {
  using Io = typename Traits::Io;
  const int first = block * Traits::kTuning.value_block;
  const int width = min(Traits::kTuning.value_block, p.problem.value_dim - first);
  for (std::int64_t e = threadIdx.x; e < (end - begin) * width; e += Traits::kThreads)
    static_cast<Io*>(
        p.args.out.data)[cuda::row_offset(p.args, p.args.out, s, begin + e / width, value_head) +
                         first + e % width] = cuda::from_float<Io>(0.0f);
}

// The prepare warps' whole life.
template <class Traits>
__device__ __forceinline__ void prepare_chunks(const ForwardParams& p,
                                               const cuda::Sequence& sequence, const Task& task,
                                               const Chunks& chunks, int begin, int end,
                                               typename Traits::Scratch& scratch,
                                               typename Traits::Stage* stages, float* strengths) {
  using Gate = typename Traits::Gate;
  using Update = typename Traits::Update;
  const int thread = static_cast<int>(threadIdx.x) - Traits::kStateThreads;
  const Prepare<Traits> prepare(p, sequence, scratch, strengths, task.value_head, thread);
  const auto barrier = [] { barrier_sync(kPrepareBarrier, Traits::kPrepareThreads); };
  const auto chunk_at = [&](int c) {
    return typename Prepare<Traits>::Chunk{chunks.first(c), c < end ? chunks.tokens(c) : 0};
  };

  prepare.fetch(chunk_at(begin));
  int slot = 0, wrapped = 0;
  for (int c = begin; c < end; ++c) {
    typename Traits::Stage& stage = stages[slot];
    const Intra<Traits> intra{scratch, stage, thread / 32, thread % 32};
    const auto chunk = chunk_at(c);
    fetch_wait<0>();
    __syncwarp();  // a lane reads what others fetched
    const bool wide = prepare.sums(chunk);
    if (wrapped) barrier_sync(kEmptyBarrier + slot, Traits::kThreads);

    if constexpr (Gate::kPerChannel) {
      bool safe_route = barrier_any(kPrepareBarrier, Traits::kPrepareThreads, wide);
      if (safe_route)
        safe_route = barrier_any(kPrepareBarrier, Traits::kPrepareThreads, prepare.unsafe());
      if (safe_route) {
        prepare.template operands<true>(stage);
      } else {
        prepare.template operands<false>(stage);
      }
      prepare.fetch(chunk_at(c + 1));
      if (thread < kChunk) stage.v_factor[thread] = scratch.beta[thread];
      barrier();
      if (safe_route) {
        const Intra<Traits> copy = intra;  // as in Prepare::sums
        copy.elementwise_scores();
        barrier();
        prepare.finish_safe(stage);
      } else {
        intra.scores();
      }
      barrier();
    } else {
      prepare.copy_operands(stage);
      prepare.fetch(chunk_at(c + 1));
      barrier();
      if (thread < kChunk) {
        prepare.token_factors(stage);
        stage.v_factor[thread] = scratch.beta[thread];
      }
      barrier();
      intra.scores();
      if constexpr (!Update::kReadsState) prepare.scale_writes(stage);
      barrier();
    }
    if constexpr (Update::kReadsState) {
      intra.invert();
      intra.products();
    }
    barrier_arrive(kFullBarrier + slot, Traits::kThreads);
    if (++slot == p.stages) slot = 0, wrapped = 1;
  }
}

// Checkpoints of a sequence, in rising order. They lie at starts of chunks, and at the end of the
// last one.
struct CheckpointCursor {
  const ForwardArgs& args;
  const Chunks& chunks;
  std::int64_t start, entry, last;

  __device__ CheckpointCursor(const ForwardArgs& a, const Chunks& of, const cuda::Sequence& s,
                              bool any)
      : args(a), chunks(of), start(s.start_position), entry(0), last(0) {
    if (!any) return;
    // The offset behind the last sequence is the number of entries; nothing beside it is trusted.
    entry = max(a.checkpoint_offsets[s.index], 0);
    last = min(a.checkpoint_offsets[s.index + 1], a.checkpoint_offsets[a.sequences]);
  }

  __device__ std::int64_t tokens() const { return args.checkpoint_positions[entry] - start; }
  __device__ bool is_at(int c) const { return entry < last && tokens() == chunks.first(c); }
  // The chunk at whose start the next checkpoint lies, from c on; at most end.
  __device__ int next(int c, int end) {
    for (; entry < last; ++entry) {
      const std::int64_t at = tokens();
      if (at < chunks.first(c) || at > chunks.length) continue;
      const int chunk = (static_cast<int>(at) + chunks.skipped + kChunk - 1) /
                        kChunk;  // its end, rounded up, may be short
      if (at == chunks.first(chunk)) return min(chunk, end);
    }
    return end;
  }
  __device__ std::int64_t slot() const {
    return cuda::slot_or_null(args, args.checkpoint_slots[entry], args.checkpoints.slots);
  }
};

template <class Traits>
__device__ __forceinline__ void carry_state(const ForwardParams& p, const cuda::Sequence& sequence,
                                            const Task& task, const Chunks& chunks, int begin,
                                            int end, typename Traits::Fetch& fetch,
                                            const typename Traits::Stage* stages,
                                            float* strengths) {
  const bool extra = task.block >= p.value_blocks;
  const int first_block = extra ? task.block - p.value_blocks : task.block;
  const std::int64_t columns = extra ? p.problem.key_dim : p.problem.value_dim;
  StateWarp<Traits> warp{
      p,
      rows_of<const std::uint16_t>(p.args, p.args.v, sequence, task.value_head),
      rows_of<std::uint16_t>(p.args, p.args.out, sequence, task.value_head),
      p.args.write.data == nullptr
          ? nullptr
          : static_cast<const char*>(p.args.write.data) +
                cuda::row_offset(p.args, p.args.write, sequence, 0, task.value_head) *
                    (p.problem.beta_dtype == DType::kFloat32 ? 4 : 2),
      strengths + threadIdx.x / 32 * (16 * kStrengthPitch),
      first_block * Traits::kTuning.value_block + static_cast<int>(threadIdx.x) / 32 * 16,
      static_cast<int>(columns),
      extra,
      static_cast<int>(threadIdx.x) % 32,
      {},
      fetch};
  const std::int64_t head = task.value_head;
  const MatrixStrides strides =
      MatrixStrides::of(p.problem.state_layout, p.problem.key_dim, columns);
  const MatrixStrides piece_strides{1, p.problem.key_dim};  // [columns, K]
  const std::int64_t piece =
      ((task.sequence * p.pieces + task.piece) * p.problem.value_heads + head) * p.problem.key_dim *
      columns;

  if (!extra && p.phase == Phase::kOutput && task.piece > 0) {
    warp.load(p.piece_state, DType::kFloat32, piece, piece_strides);
  } else if (!extra && p.phase == Phase::kOutput && sequence.read_slot != cuda::kNullSlot) {
    warp.load(p.args.initial_state.data, p.problem.state_dtype,
              cuda::matrix_offset(p.args.initial_state, sequence.read_slot, head), strides);
  } else {
    warp.clear();
  }

  const bool with_output = p.phase == Phase::kOutput && !extra;
  CheckpointCursor cursor(p.args, chunks, sequence,
                          with_output && p.args.checkpoints.data != nullptr);
  const bool last_piece = task.piece == p.pieces - 1;
  const auto count_of = [&](int c) { return c < end ? chunks.tokens(c) : 0; };
  warp.fetch_values(0, chunks.first(begin), count_of(begin));
  int slot = 0, buffer = 0;
  for (int c = begin;; ++cursor.entry) {
    const int stop = cursor.next(c, end);
#pragma unroll 1
    for (; c < stop; ++c, buffer ^= 1) {
      warp.fetch_values(buffer ^ 1, chunks.first(c + 1), count_of(c + 1));
      barrier_sync(kFullBarrier + slot, Traits::kThreads);
      fetch_wait<1>();
      __syncwarp();  // a lane reads what others fetched
      warp.chunk(stages[slot], buffer, chunks.first(c), count_of(c), with_output);
      if (c + p.stages < end) barrier_arrive(kEmptyBarrier + slot, Traits::kThreads);
      if (++slot == p.stages) slot = 0;
    }
    if (!cursor.is_at(c) || (c == end && !last_piece)) break;
    if (cursor.slot() != cuda::kNullSlot)
      warp.store(p.args.checkpoints.data, p.problem.checkpoint_dtype,
                 cuda::matrix_offset(p.args.checkpoints, cursor.slot(), head), strides);
  }

  if (p.phase == Phase::kSummarise) {
    warp.store(extra ? p.piece_transition : p.piece_state, DType::kFloat32, piece, piece_strides);
  } else if (extra) {
    warp.store(p.args.transition.data, DType::kFloat32,
               cuda::matrix_offset(p.args.transition, task.sequence, head), {columns, 1});
  } else if (last_piece && sequence.write_slot != cuda::kNullSlot) {
    warp.store(p.args.final_state.data, p.problem.state_dtype,
               cuda::matrix_offset(p.args.final_state, sequence.write_slot, head), strides);
  }
}

template <class Traits>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kTuning.blocks)
    forward_kernel(const __grid_constant__ ForwardParams p) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& scratch = *reinterpret_cast<typename Traits::Scratch*>(memory);
  auto* stages =
      reinterpret_cast<typename Traits::Stage*>(memory + sizeof(typename Traits::Scratch));

  const Task task = Task::of(p, blockIdx.x);
  if (task.sequence == p.args.sequences) {  // behind the last sequence; cu_seqlens is given
    const cuda::Sequence all{0, 0, p.args.tokens, 0, cuda::kNullSlot, cuda::kNullSlot, true};
    if (task.piece == 0 && task.block < p.value_blocks)
      zero_rows<Traits>(p, cuda::used_rows(p.args), p.args.tokens, all, task.value_head,
                        task.block);
    return;
  }
  const cuda::Sequence sequence = cuda::sequence_of(p.args, task.sequence);
  if (sequence.pad && task.block < p.value_blocks) {
    if (task.piece == 0 && p.phase == Phase::kOutput)
      zero_rows<Traits>(p, 0, sequence.length, sequence, task.value_head, task.block);
    return;
  }
  if (p.phase == Phase::kSummarise && task.piece == p.pieces - 1)
    return;  // nothing starts from its end
  // The upper triangles are written here and never again.
  for (std::size_t i = threadIdx.x; i < Traits::shared_bytes(p.stages) / 16; i += Traits::kThreads)
    reinterpret_cast<uint4*>(memory)[i] = uint4{0, 0, 0, 0};
  __syncthreads();

  const Chunks chunks(sequence);
  const auto boundary = [&](int piece) {
    return static_cast<int>(std::int64_t{chunks.count()} * piece / p.pieces);
  };
  // A pad's transition is the identity: it meets no chunk.
  const int begin = sequence.pad ? 0 : boundary(task.piece),
            end = sequence.pad ? 0 : boundary(task.piece + 1);
  if (static_cast<int>(threadIdx.x) < Traits::kStateThreads) {
    carry_state<Traits>(p, sequence, task, chunks, begin, end, scratch.fetch, stages,
                        reinterpret_cast<float*>(stages + p.stages));
  } else if (begin < end) {
    prepare_chunks<Traits>(p, sequence, task, chunks, begin, end, scratch, stages,
                           reinterpret_cast<float*>(stages + p.stages) + Traits::kWriteStrengths);
  }
}

}  // namespace linattn::portable
