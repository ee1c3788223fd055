// SPDX-License-Identifier: Apache-2.0
//
// The ring of a direct scan: a warp copies rows of q, k and v, and its lanes, one a token, read
// the gate.
#pragma once

#include <cstdint>

#include "cuda/common/convert.cuh"
#include "cuda/common/gate.cuh"
#include "cuda/common/ptx.cuh"
#include "cuda/portable/fetch.cuh"
#include "cuda/portable/head_decay.cuh"
#include "cuda/sm90/pipeline.cuh"

namespace linattn::sm90 {

// Rows of one chunk after the other, of a head of q or k.
struct KeySource {
  const std::uint16_t* rows;
  std::int64_t stride;
  int channels;

  __device__ __forceinline__ KeySource(const portable::ForwardParams& p,
                                       const portable::ScanJob& job, const Tensor& tensor)
      : rows(static_cast<const std::uint16_t*>(tensor.data) +
             job.first_row(p, tensor,
                           job.task.value_head / (p.problem.value_heads / p.problem.heads))),
        stride(tensor.token_stride),
        channels(p.problem.key_dim) {}

  // A warp's copy into a matrix of Rows, kKeyDim wide; zeros where there is nothing.
  template <class Rows, int kKeyDim, int kBytes>
  __device__ __forceinline__ void copy(int count, int lane, std::uint16_t* to) const {
    constexpr int kElements = kBytes / 2, kParts = kKeyDim / kElements;  // of a row
    constexpr int kAcross = kParts < 32 ? kParts : 32;                   // lanes of a row
    constexpr int kStep = 32 / kAcross;                                  // rows at a time
    constexpr int kUnroll = kBytes == 16 ? portable::kChunk / kStep : 1;
    const int first = lane / kAcross;
#pragma unroll
    for (int part = 0; part < kParts; part += kAcross) {
      const int element = (part + lane % kAcross) * kElements;
      const int unit = element / 8;
      const std::uint16_t* from = rows + first * stride + element;
#pragma unroll kUnroll
      for (int i = 0; i < portable::kChunk; i += kStep) {
        const bool exists = element < channels && first + i < count;
        ptx::cp_async<kBytes>(to + Rows::place(first + i, unit % 4, unit / 4) + element % 8,
                              exists ? from : rows, exists);
        from += kStep * stride;
      }
    }
  }
};

// The copies of 32 lanes, and lane 0 for their factors.
template <class Traits>
class DirectPipeline : public Ring<Traits, 33> {
 public:
  using Ring = sm90::Ring<Traits, 33>;
  using Buffer = typename Traits::Buffer;
  using Rows = typename Traits::Rows;

  __device__ __forceinline__ DirectPipeline(const portable::ForwardParams& params,
                                            const portable::ScanJob& of,
                                            typename Ring::Barriers& all, Buffer* buffers)
      : Ring(params, all, buffers), job(of) {}

  // All chunks.
  __device__ __forceinline__ void produce(const portable::Chunks& chunks) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    portable::ValueSource v(p, job, Traits::kValueBlock);
    KeySource q(p, job, p.args.q), k(p, job, p.args.k);
    const auto gate = cuda::GateReader::of(p.problem, p.args, job.task.value_head);
    const float bias = gate.dt_bias == nullptr ? 0.0f : *gate.dt_bias;
    const float scale =
        p.args.scale == 0.0f ? rsqrtf(static_cast<float>(p.problem.key_dim)) : p.args.scale;
    std::int64_t g = p.args.g.data == nullptr ? 0 : job.first_row(p, p.args.g);
    const auto load_gate = [&](int count) {
      return lane < count && p.args.g.data != nullptr
                 ? cuda::load_raw(p.args.g.data, p.problem.gate_dtype,
                                  g + lane * p.args.g.token_stride)
                 : 0u;
    };
    int count = chunks.tokens(v.chunk);
    std::uint32_t raw = load_gate(count);
#pragma unroll 1
    while (v.chunk < v.end) {
      Buffer& buffer = Ring::emptied();
      if (p.wide_qk) {
        q.copy<Rows, Traits::kKeyDim, 16>(count, lane, buffer.q);
        k.copy<Rows, Traits::kKeyDim, 16>(count, lane, buffer.k);
      } else {
        q.copy<Rows, Traits::kKeyDim, 4>(count, lane, buffer.q);
        k.copy<Rows, Traits::kKeyDim, 4>(count, lane, buffer.k);
      }
      portable::copy_values<Traits, 32>(p, v, count, lane, buffer.v);
      ptx::cp_async_mbarrier_arrive(Ring::full());

      const float decay = lane < count && p.args.g.data != nullptr
                              ? portable::head_log2_decay(gate, bias, raw, p.problem.gate_dtype)
                              : 0.0f;
      v.advance(p, count);
      q.rows += count * q.stride;
      k.rows += count * k.stride;
      g += count * p.args.g.token_stride;
      count = v.chunk < v.end ? chunks.tokens(v.chunk) : 0;
      raw = load_gate(count);  // asked for a chunk ahead
      const float cumulative = portable::cumulative_decay(decay, lane);
      const float whole = __shfl_sync(0xffffffffu, cumulative, 31);
      buffer.cumulative[lane] = cumulative;
      buffer.down[lane] = scale * ptx::ex2_approx(cumulative);
      buffer.up[lane] = ptx::ex2_approx(whole - cumulative);
      if (lane == 0) buffer.total = ptx::ex2_approx(whole), buffer.scale = scale;
      __syncwarp();
      if (lane == 0) ptx::mbarrier_arrive(Ring::full());
      Ring::advance();
    }
    ptx::cp_async_wait_all();  // a thread may not end before its copies
  }

 private:
  using Ring::p;

  const portable::ScanJob& job;
};

}  // namespace linattn::sm90
