// SPDX-License-Identifier: Apache-2.0
//
// The ring of chunks between a warp that fetches them and the warpgroup that scans them.
#pragma once

#include <cstdint>

#include "cuda/common/ptx.cuh"
#include "cuda/portable/fetch.cuh"

namespace linattn::sm90 {

// kArrivals: that tell of a chunk.
template <class Traits, int kArrivals>
class Ring {
 public:
  using Buffer = typename Traits::Buffer;
  static constexpr bool kHasProducer = true;

  struct Barriers {
    static constexpr int kMost = portable::kMostBuffers;
    ptx::Mbarrier full[kMost], empty[kMost];

    // By one thread, before the block's next barrier.
    __device__ __forceinline__ void arm() {
      for (int i = 0; i < kMost; ++i) {
        ptx::mbarrier_init(full[i], kArrivals);
        ptx::mbarrier_init(empty[i], Traits::kGroups);
      }
    }
  };

  __device__ __forceinline__ Ring(const portable::ForwardParams& params, Barriers& all,
                                  Buffer* buffers)
      : p(params), barriers(all), ring(buffers) {}

  // Whether this warp is the one that fetches.
  __device__ __forceinline__ bool produces() const { return threadIdx.x >= 32 * Traits::kGroups; }

  __device__ __forceinline__ Buffer& acquire() {
    ptx::mbarrier_wait(barriers.full[slot], round & 1);
    return ring[slot];
  }
  __device__ __forceinline__ void meanwhile(const portable::Chunks&) {}
  __device__ __forceinline__ void release() {
    __syncwarp();  // all lanes have read it
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(barriers.empty[slot]);
    advance();
  }

 protected:
  // The next buffer, when it has been read.
  __device__ __forceinline__ Buffer& emptied() {
    ptx::mbarrier_wait(barriers.empty[slot], (round & 1) ^ 1);
    return ring[slot];
  }
  __device__ __forceinline__ ptx::Mbarrier& full() { return barriers.full[slot]; }
  __device__ __forceinline__ void advance() {
    if (++slot == p.buffers) slot = 0, ++round;
  }

  const portable::ForwardParams& p;

 private:
  Barriers& barriers;
  Buffer* ring;
  int slot = 0, round = 0;
};

template <class Traits>
class Pipeline : public Ring<Traits, 32> {
 public:
  using Ring = sm90::Ring<Traits, 32>;
  using Stage = typename Traits::Stage;
  using Buffer = typename Traits::Buffer;

  __device__ __forceinline__ Pipeline(const portable::ForwardParams& params,
                                      const portable::ScanJob& of, typename Ring::Barriers& all,
                                      Buffer* buffers)
      : Ring(params, all, buffers), job(of) {}

  // All chunks. A stage is one copy, V has small ones by every lane.
  __device__ __forceinline__ void produce(const portable::Chunks& chunks) {
    portable::ChunkSource<Traits> source(p, job);
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll 1
    for (; source.chunk < source.end; Ring::advance()) {
      const int count = chunks.tokens(source.chunk);
      Buffer& buffer = Ring::emptied();
      ptx::Mbarrier& full = Ring::full();
      if (lane == 0) {
        ptx::mbarrier_expect_tx(full, sizeof(Stage));
        ptx::cp_async_bulk(&buffer.stage, source.stage, sizeof(Stage), full);
      }
      portable::copy_values<Traits, 32>(p, source, count, lane, buffer.v);
      ptx::cp_async_mbarrier_arrive(full);
      source.advance(p, count);
    }
    ptx::cp_async_wait_all();  // a thread may not end before its copies
  }

 private:
  using Ring::p;

  const portable::ScanJob& job;
};

}  // namespace linattn::sm90
