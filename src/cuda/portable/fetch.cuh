// SPDX-License-Identifier: Apache-2.0
//
// Sizes and shared memory of the scan kernel, and what keeps its ring of buffers filled.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "cuda/common/ptx.cuh"
#include "cuda/common/sequence.cuh"
#include "cuda/portable/chunks.cuh"
#include "cuda/portable/job.cuh"
#include "cuda/portable/stage.cuh"

namespace linattn::portable {

template <class Traits>
struct Scan;
template <class Traits>
class Pipeline;

template <class OperandPolicy, int kKeyDimPadded, class UpdatePolicy>
struct ScanTraits {
  using Scan = portable::Scan<ScanTraits>;
  using Pipeline = portable::Pipeline<ScanTraits>;
  using Operand = OperandPolicy;
  using Type = typename Operand::Type;
  using Update = UpdatePolicy;
  using Io = std::conditional_t<std::is_same_v<Operand, OperandBf16>, __nv_bfloat16, __half>;
  using Stage = portable::Stage<Operand, kKeyDimPadded, Update>;
  using Rows = typename Stage::Rows;

  static constexpr int kKeyDim = kKeyDimPadded;
  // A warp's part of the state: 64 registers a lane with 128 channels. Warps that share columns
  // meet once or twice a chunk, which costs more than halves of 64 channels gain.
  static constexpr int kWarpColumns = 16;
  static constexpr int kWarpKeys = kKeyDim < 128 ? kKeyDim : 128;
  static constexpr int kTiles = kWarpKeys / 8;
  static constexpr int kGroups = 4;                    // of columns
  static constexpr int kSplits = kKeyDim / kWarpKeys;  // warps that share columns
  static constexpr int kWarps = kGroups * kSplits;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kValueBlock = kWarpColumns * kGroups;
  // Per multiprocessor. sm_120 has no shared memory for a third.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200
  static constexpr int kMostBlocks = 2;
#else
  static constexpr int kMostBlocks = 3;
#endif
  static constexpr int kBlocks = kKeyDim == 256                        ? 1
                                 : kKeyDim == 128 || sizeof(Type) == 4 ? 2
                                                                       : kMostBlocks;
  static constexpr int kTokenTiles = kChunk / 8;
  static constexpr int kOwnTiles = kTokenTiles / kSplits;

  struct Buffer {
    Stage stage;
    alignas(16) std::uint16_t v[kChunk * kValueBlock];
  };

  // Of the warps that share columns.
  struct Exchange {
    struct Half {
      std::uint32_t r[sizeof(typename Operand::A) / 8];
    };
    struct alignas(16) Tiles {
      Half half[2];
    };
    float4 partial[2][kSplits][kTokenTiles][32];  // S^T k^T and S^T q^T of each split's channels
    Tiles writes[2][32];
  };

  // gdn2: each state warp's write strengths, behind the buffers.
  static constexpr int kStrengthPitch = kChunk + 4;
  static constexpr std::size_t kStrengthBytes =
      kWarps * kWarpColumns * kStrengthPitch * sizeof(float);
  static constexpr std::size_t kJobBytes = 256 + 64;  // ScanJob and Arrivals
  static constexpr std::size_t kAlignmentBytes = 0;   // more, for `aligned`
  __device__ static unsigned char* aligned(unsigned char* memory) { return memory; }
  static constexpr std::size_t kExchangeBytes = kSplits == 1 ? 0 : kGroups * sizeof(Exchange);

  // Of a unit of 8 columns of V in a buffer, shuffled so that the rows permuted(t, 0 .. 7) of a
  // unit meet all banks.
  __device__ static constexpr int value_place(int token, int unit) {
    return token * kValueBlock + (unit ^ (token % 2 + 2 * (token / 8))) * 8;
  }
};

// Tells when the stage of each buffer has come. From sm_90 on a stage is one bulk copy, which one
// thread asks for; before, every thread copies its part, in its groups of copies.
class Arrivals {
 public:
  static constexpr int kMost = kMostBuffers;

  // By one thread, before the block's next barrier.
  __device__ __forceinline__ void arm() {
    for (auto& barrier : barriers_) ptx::mbarrier_init(barrier, 1);
  }

  // By all threads.
  template <class Stage, int kThreads>
  __device__ __forceinline__ void fetch_stage(int slot, Stage& to, const Stage* from) {
    const int thread = static_cast<int>(threadIdx.x);
    if constexpr (ptx::kHasBulkCopies) {
      if (thread != 0) return;
      ptx::mbarrier_arrive_expect_tx(barriers_[slot], sizeof(Stage));
      ptx::cp_async_bulk(&to, from, sizeof(Stage), barriers_[slot]);
    } else {
      constexpr int kUnits = sizeof(Stage) / 16;
      auto* target = reinterpret_cast<uint4*>(&to) + thread;
      const auto* source = reinterpret_cast<const uint4*>(from) + thread;
#pragma unroll
      for (int base = 0; base < kUnits; base += kThreads)
        if (base + kThreads <= kUnits || base + thread < kUnits)
          ptx::cp_async<16>(target + base, source + base);
    }
  }

  // round: how often the slot has been used before.
  __device__ __forceinline__ void wait(int slot, int round) {
    ptx::mbarrier_wait(barriers_[slot], round & 1);
  }

 private:
  ptx::Mbarrier barriers_[kMost];
};

// Where a block's values come from.
struct ValueSource {
  const std::uint16_t* v;  // of the next chunk's first token, the block's first column
  int columns;             // of V from there on; 0: none
  int chunk, end;

  __device__ __forceinline__ ValueSource(const ForwardParams& p, const ScanJob& job,
                                         int value_block)
      : v(static_cast<const std::uint16_t*>(p.args.v.data)),
        columns(0),
        chunk(job.begin),
        end(job.end) {
    if (job.extra) return;
    const int first_column = job.first_column(p, value_block);
    v += job.first_row(p, p.args.v) + first_column;
    columns = job.columns(p) - first_column;
  }
  // Behind a chunk of so many tokens.
  __device__ __forceinline__ void advance(const ForwardParams& p, int count) {
    v += count * p.args.v.token_stride;
    ++chunk;
  }
};

// Where a block's chunks come from.
template <class Traits>
struct ChunkSource : ValueSource {
  const typename Traits::Stage* stage;  // of the next chunk

  __device__ __forceinline__ ChunkSource(const ForwardParams& p, const ScanJob& job)
      : ValueSource(p, job, Traits::kValueBlock),
        stage(static_cast<const typename Traits::Stage*>(p.stages) +
              (job.first + job.begin - p.segment.first) * p.problem.value_heads +
              job.task.value_head) {}
  __device__ __forceinline__ void advance(const ForwardParams& p, int count) {
    stage += p.problem.value_heads;
    ValueSource::advance(p, count);
  }
};

// A chunk's rows of V into a buffer by kThreads threads, thread .. ; zeros where there are none.
template <class Traits, int kThreads, int kBytes>
__device__ __forceinline__ void copy_values(const ForwardParams& p, const ValueSource& source,
                                            int count, int thread, std::uint16_t* to) {
  constexpr int kElements = kBytes / 2, kParts = Traits::kValueBlock / kElements;  // of a row
  constexpr int kStep = kThreads / kParts;                                         // rows at a time
  const int element = thread % kParts * kElements;
  int token = thread / kParts;
  const std::uint16_t* from = source.v + token * p.args.v.token_stride + element;
  constexpr int kUnroll = kBytes == 16 ? 8 : 1;  // unrolled addresses would stay in registers
#pragma unroll kUnroll
  for (int i = 0; i < kChunk; i += kStep) {
    if (kStep > kChunk && token >= kChunk) break;
    const bool exists = element < source.columns && token < count;
    ptx::cp_async<kBytes>(to + Traits::value_place(token, element / 8) + element % 8,
                          exists ? from : source.v, exists);
    token += kStep;
    from += kStep * p.args.v.token_stride;
  }
}
template <class Traits, int kThreads>
__device__ __forceinline__ void copy_values(const ForwardParams& p, const ValueSource& source,
                                            int count, int thread, std::uint16_t* to) {
  if (p.wide_v) {
    copy_values<Traits, kThreads, 16>(p, source, count, thread, to);
  } else {
    copy_values<Traits, kThreads, 4>(p, source, count, thread, to);
  }
}

// The ring of buffers, which all threads fill while the tensor cores are busy: one to three chunks
// are in flight.
template <class Traits>
class Pipeline {
 public:
  using Stage = typename Traits::Stage;
  using Buffer = typename Traits::Buffer;
  using Barriers = Arrivals;
  static constexpr bool kHasProducer = false;

  __device__ __forceinline__ Pipeline(const ForwardParams& params, const ScanJob& job,
                                      Barriers& barriers, Buffer* buffers)
      : p(params),
        arrivals(barriers),
        ring(buffers),
        source(params, job),
        ahead(params.buffers - 1) {
    for (int i = 0; i < ahead; ++i) fetch_into(i, job.chunks);
  }
  __device__ __forceinline__ Buffer& acquire() {
    if (ahead == 1) {
      ptx::cp_async_wait_group<0>();
    } else if (ahead == 2) {
      ptx::cp_async_wait_group<1>();
    } else {
      ptx::cp_async_wait_group<2>();
    }
    arrivals.wait(slot, round);
    __syncthreads();  // the chunk is there, and all have left its predecessor's buffer
    return ring[slot];
  }
  __device__ __forceinline__ void meanwhile(const Chunks& chunks) {
    fetch_into(slot == 0 ? ahead : slot - 1, chunks);
  }
  __device__ __forceinline__ void release() {
    if (++slot > ahead) slot = 0, ++round;
  }

 private:
  const ForwardParams& p;
  Arrivals& arrivals;
  Buffer* ring;
  ChunkSource<Traits> source;
  int ahead, slot = 0, round = 0;

  __device__ __forceinline__ void fetch_into(int at, const Chunks& chunks) {
    if (source.chunk < source.end) {
      const int count = chunks.tokens(source.chunk);
      arrivals.fetch_stage<Stage, Traits::kThreads>(at, ring[at].stage, source.stage);
      copy_values<Traits, Traits::kThreads>(p, source, count, static_cast<int>(threadIdx.x),
                                            ring[at].v);
      source.advance(p, count);
    }
    ptx::cp_async_commit_group();
  }
};

}  // namespace linattn::portable
