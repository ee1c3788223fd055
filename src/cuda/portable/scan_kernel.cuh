// SPDX-License-Identifier: Apache-2.0
//
// A block of the scan kernel, from its task to its last store.
#pragma once

#include <cstdint>
#include <new>

#include "cuda/common/convert.cuh"
#include "cuda/common/ptx.cuh"
#include "cuda/common/sequence.cuh"
#include "cuda/portable/chunks.cuh"
#include "cuda/portable/fetch.cuh"
#include "cuda/portable/job.cuh"
#include "cuda/portable/scan.cuh"

namespace linattn::portable {

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

// Zeroes a block's columns in rows of out that no sequence computes.
template <class Traits>
__device__ void zero_rows(const ForwardParams& p, std::int64_t begin, std::int64_t end,
                          const cuda::Sequence& s, int value_head, int block) {
  using Io = typename Traits::Io;
  const int first = block * Traits::kValueBlock;
  const int width = min(Traits::kValueBlock, p.problem.value_dim - first);
  for (std::int64_t e = threadIdx.x; e < (end - begin) * width; e += Traits::kThreads)
    static_cast<Io*>(
        p.args.out.data)[cuda::row_offset(p.args, p.args.out, s, begin + e / width, value_head) +
                         first + e % width] = cuda::from_float<Io>(0.0f);
}

template <class Traits>
__device__ __forceinline__ void scan_chunks(const ForwardParams& p, const ScanJob& job,
                                            typename Traits::Pipeline::Barriers& barriers,
                                            unsigned char* memory) {
  using Buffer = typename Traits::Buffer;
  using Pipeline = typename Traits::Pipeline;
  auto* buffers = reinterpret_cast<Buffer*>(memory + Traits::kExchangeBytes);
  const Chunks chunks = job.chunks;
  Pipeline pipeline(p, job, barriers, buffers);
  if constexpr (Pipeline::kHasProducer) {
    if (pipeline.produces()) {
      pipeline.produce(chunks);
      return;
    }
  }
  typename Traits::Scan scan(
      p, job, reinterpret_cast<typename Traits::Exchange*>(memory),
      p.args.write.data == nullptr ? nullptr : reinterpret_cast<float*>(buffers + p.buffers));
  if (job.source.data == nullptr) {
    scan.clear();
  } else {
    scan.load(job.source);
  }
  CheckpointCursor cursor(p.args, job.chunks, job.sequence, job.checkpoint.data != nullptr);
  const int end = job.end;
  for (int c = job.begin;; ++cursor.entry) {
    const int stop = cursor.next(c, end);
#pragma unroll 1
    for (; c < stop; ++c) {
      Buffer& buffer = pipeline.acquire();
      scan.step(buffer, chunks, c, [&] { pipeline.meanwhile(chunks); });
      pipeline.release();
    }
    if (!cursor.is_at(c) || (c == end && !job.complete)) break;
    if (const std::int64_t to = cursor.slot(); to != cuda::kNullSlot) {
      StateMatrix matrix = job.checkpoint;
      matrix.offset += to * p.args.checkpoints.slot_stride;
      scan.store(matrix);
    }
  }
  if (job.target.data != nullptr) scan.store(job.target);
}

template <class Traits>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kBlocks)
    scan_kernel(const __grid_constant__ ForwardParams p) {
  unsigned char* memory = Traits::aligned(ptx::dynamic_shared());
  ptx::griddepcontrol_wait();               // stages
  ptx::griddepcontrol_launch_dependents();  // to prepare the next segment
  const ScanTask task = ScanTask::of(p);
  if (task.index == p.sequences) {  // of the first segment, behind its sequences
    const cuda::Sequence all{0, 0, p.args.tokens, 0, cuda::kNullSlot, cuda::kNullSlot, true};
    if (task.piece == 0 && task.block < p.value_blocks)
      zero_rows<Traits>(p, cuda::used_rows(p.args), p.args.tokens, all, task.value_head,
                        task.block);
    return;
  }
  if (task.sequence >= p.args.sequences) return;
  const cuda::Sequence sequence = cuda::sequence_of(p.args, task.sequence, p.sequence_length);
  if (sequence.pad && task.block < p.value_blocks) {
    if (task.piece == 0 && p.phase == Phase::kOutput &&
        first_number(p, task.sequence) >= p.segment.first)
      zero_rows<Traits>(p, 0, sequence.length, sequence, task.value_head, task.block);
    return;
  }
  if (p.phase == Phase::kSummarise && task.piece == p.pieces - 1)
    return;  // nothing starts from its end
  using Barriers = typename Traits::Pipeline::Barriers;
  static_assert(sizeof(ScanJob) <= 256 && 256 + sizeof(Barriers) <= Traits::kJobBytes);
  auto& job = *reinterpret_cast<ScanJob*>(memory);
  auto& barriers = *reinterpret_cast<Barriers*>(memory + 256);
  if (threadIdx.x == 0) {
    new (&job) ScanJob(p, task, sequence);
    barriers.arm();
  }
  __syncthreads();
  if (job.begin < job.end || job.target.data != nullptr)
    scan_chunks<Traits>(p, job, barriers, memory + Traits::kJobBytes);
}

}  // namespace linattn::portable
