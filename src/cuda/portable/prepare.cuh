// SPDX-License-Identifier: Apache-2.0
//
// The prepare stage: q, k and g of a chunk become the operands of its products. A lane owns 2
// channels x 8 tokens.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "cuda/common/convert.cuh"
#include "cuda/common/gate.cuh"
#include "cuda/common/sequence.cuh"
#include "cuda/portable/params.h"
#include "cuda/portable/traits.h"

namespace linattn::portable {

using cuda::to_float;

inline constexpr float kLog2e = 1.4426950408889634f;
// 2^-160 is zero in fp32. A decay below it forgets as much, and sums of it keep their digits and
// never meet inf - inf.
inline constexpr float kSmallestLog2Decay = -160.0f;
// Of 16 tokens and one channel, in powers of two: what a chunk's half may span to each side of the
// anchor, inside the ranges of fp32 and bf16. The bounded gate of -5 makes 115.4.
inline constexpr float kSafeSpan = 120.0f;

enum NamedBarrier : int { kPrepareBarrier = 1, kFullBarrier = 2, kEmptyBarrier = 6 };  // + stage

// Copies 4, 8 or 16 bytes to shared memory behind the thread's back; zeros if they do not exist.
template <int kBytes>
__device__ __forceinline__ void fetch_unit(void* to, const void* from, bool exists) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared_address(to)), "l"(from),
               "n"(kBytes), "r"(exists ? kBytes : 0)
               : "memory");
}

// A warp copies [kRows, kColumns] of a matrix in units of kBytes. rows: how many exist; columns:
// how many exist, in units that exist as a whole or not at all. from: the first element, inside its
// tensor whatever exists.
template <class Element, int kBytes, int kRows, int kColumns>
__device__ __forceinline__ void fetch_tile(Element* to, int pitch, const Element* from,
                                           std::int64_t stride, int rows, int columns, int lane) {
  constexpr int kUnit = kBytes / static_cast<int>(sizeof(Element)),
                kUnits = kColumns / kUnit;  // of a row
  constexpr int kStep = 32 / kUnits;        // rows at a time
  static_assert(kUnits <= 32 && kRows % kStep == 0);
  const int column = lane % kUnits * kUnit, first = lane / kUnits;
  const bool inside = column < columns;
  const Element* source = from + (inside && first < rows ? first * stride + column : 0);
  Element* target = to + first * pitch + column;
#pragma unroll 2
  for (int row = first; row < kRows + first; row += kStep, target += kStep * pitch) {
    fetch_unit<kBytes>(target, source, inside && row < rows);
    if (inside && row + kStep < rows) source += kStep * stride;
  }
}
__device__ __forceinline__ void fetch_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits for the thread's own copies, all but the last kPending groups.
template <int kPending>
__device__ __forceinline__ void fetch_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

__device__ __forceinline__ void barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ bool barrier_any(int id, int threads, bool predicate) {
  int any;
  asm volatile(
      "{\n .reg .pred p, q;\n setp.ne.s32 p, %3, 0;\n bar.red.or.pred q, %1, %2, p;\n selp.s32 %0, "
      "1, 0, q;\n}"
      : "=r"(any)
      : "r"(id), "r"(threads), "r"(static_cast<int>(predicate))
      : "memory");
  return any != 0;
}

// Two neighbouring elements.
template <class T>
__device__ __forceinline__ float2 load_pair(const T* at) {
  if constexpr (std::is_same_v<T, float>) {
    return *reinterpret_cast<const float2*>(at);
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    const std::uint32_t raw = *reinterpret_cast<const std::uint32_t*>(at);
    return make_float2(__uint_as_float(raw << 16), __uint_as_float(raw & 0xffff0000u));
  } else {
    return __half22float2(*reinterpret_cast<const __half2*>(at));
  }
}

// 2^x; the hardware's own, 2 units in the last place.
__device__ __forceinline__ float exp2_of(float x) {
  float out;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
  return out;
}

// Two neighbouring elements of a type known at run time; index counts elements.
__device__ __forceinline__ float2 load_pair(const void* data, DType dtype, int index) {
  if (dtype == DType::kFloat32) return load_pair(static_cast<const float*>(data) + index);
  const std::uint32_t raw =
      *reinterpret_cast<const std::uint32_t*>(static_cast<const std::uint16_t*>(data) + index);
  const float2 half = __half22float2(reinterpret_cast<const __half2&>(raw));
  return dtype == DType::kFloat16
             ? half
             : make_float2(__uint_as_float(raw << 16), __uint_as_float(raw & 0xffff0000u));
}

// f(Input{}) of recurrence/gate_input.h: the branch stands around a loop over tokens.
template <class F>
__device__ __forceinline__ void with_activation(GateInput input, F&& f) {
  switch (input) {
    case GateInput::kDecay:
      return f(InputDecay{});
    case GateInput::kSoftplus:
      return f(InputSoftplus{});
    case GateInput::kBounded:
      return f(InputBounded{});
    default:
      return f(InputLogDecay{});
  }
}

// One step of transposed_sum: half of the values go to the lane kDistance away, the other half come
// from it.
template <int kDistance>
__device__ __forceinline__ void exchange_halves(float (&value)[16], int lane) {
  constexpr int kHalf = kDistance / 2;
  const bool upper = (lane & kDistance) != 0;
#pragma unroll
  for (int i = 0; i < kHalf; ++i) {
    const float sent = upper ? value[i] : value[i + kHalf];
    const float kept = upper ? value[i + kHalf] : value[i];
    value[i] = kept + __shfl_xor_sync(0xffffffffu, sent, kDistance);
  }
}

// Sums 16 values over a warp; lane l gets the sum of value l / 2.
__device__ __forceinline__ float transposed_sum(float (&value)[16], int lane) {
  exchange_halves<16>(value, lane);
  exchange_halves<8>(value, lane);
  exchange_halves<4>(value, lane);
  exchange_halves<2>(value, lane);
  return value[0] + __shfl_xor_sync(0xffffffffu, value[0], 1);
}

// A tensor's rows for one head of one sequence: token 0's address; strides stay in the constant
// bank.
template <class Element, class Args>
__device__ __forceinline__ Element* rows_of(const Args& args, const Tensor& tensor,
                                            const cuda::Sequence& sequence, int head) {
  return static_cast<Element*>(tensor.data) + cuda::row_offset(args, tensor, sequence, 0, head);
}

// Chunks end at multiples of kChunk of the whole sequence, so the first one may be short.
struct Chunks {
  int length, skipped;  // tokens here; tokens of the first chunk that came before this call

  __device__ explicit Chunks(const cuda::Sequence& s)
      : length(static_cast<int>(s.length)),
        skipped(static_cast<int>(max(s.start_position, std::int64_t{0}) % kChunk)) {}
  __device__ __forceinline__ int count() const {
    return length == 0 ? 0 : (length + skipped + kChunk - 1) / kChunk;
  }
  __device__ __forceinline__ int first(int c) const {
    return c == 0 ? 0 : min(length, c * kChunk - skipped);
  }
  __device__ __forceinline__ int tokens(int c) const { return first(c + 1) - first(c); }
};

template <class Traits>
struct Prepare {
  using Operand = typename Traits::Operand;
  using Type = typename Traits::Type;
  using Gate = typename Traits::Gate;
  using Update = typename Traits::Update;
  using Io = typename Traits::Io;
  static constexpr int kPitch = Traits::kPitch;

  const ForwardParams& p;
  typename Traits::Scratch& scratch;
  int value_head, warp, lane;
  float scale;
  // Rows of this sequence and head: token 0.
  const std::uint16_t *q, *k;
  const void *g, *beta;
  // Strength of the erased key: beta, [token], or gdn2's own, staged as [C, K].
  const float* erase;
  int erase_token_pitch, erase_channel_pitch;
  const void* erase_rows;  // gdn2
  GateParameters<float> gate;
  float2 dt_bias[Gate::kPerChannel ? Traits::kItems : 1];

  __device__ __forceinline__ Prepare(const ForwardParams& params, const cuda::Sequence& sequence,
                                     typename Traits::Scratch& memory, float* strengths,
                                     int of_value_head, int thread)
      : p(params),
        scratch(memory),
        value_head(of_value_head),
        warp(thread / 32),
        lane(thread % 32),
        scale(p.args.scale == 0.0f ? rsqrtf(static_cast<float>(p.problem.key_dim)) : p.args.scale) {
    const int head = value_head / (p.problem.value_heads / p.problem.heads);
    q = rows_of<const std::uint16_t>(p.args, p.args.q, sequence, head);
    k = rows_of<const std::uint16_t>(p.args, p.args.k, sequence, head);
    const auto bytes_of = [&](const Tensor& tensor, DType dtype) -> const void* {
      if (tensor.data == nullptr) return nullptr;
      return static_cast<const char*>(tensor.data) +
             cuda::row_offset(p.args, tensor, sequence, 0, value_head) *
                 (dtype == DType::kFloat32 ? 4 : 2);
    };
    g = bytes_of(p.args.g, p.problem.gate_dtype);
    beta = bytes_of(p.args.beta, p.problem.beta_dtype);
    erase_rows = bytes_of(p.args.erase, p.problem.beta_dtype);
    erase = erase_rows == nullptr ? scratch.beta : strengths;
    erase_token_pitch = erase_rows == nullptr ? 1 : Traits::kKeyDim;
    erase_channel_pitch = erase_rows == nullptr ? 0 : 1;
    gate = GateParameters<float>::of(p.args.a_log == nullptr ? 0.0f : p.args.a_log[value_head],
                                     0.0f, p.args.lower_bound);
    if constexpr (Gate::kPerChannel)
      for (int i = 0; i < Traits::kItems; ++i) {
        dt_bias[i] = make_float2(0, 0);
        if (p.args.dt_bias == nullptr || !exists(channel_of(i))) continue;
        const float* bias = p.args.dt_bias + value_head * p.problem.key_dim + channel_of(i);
        dt_bias[i] = make_float2(bias[0], bias[1]);
      }
  }

  // A chunk's tokens are first .. first + count - 1 of the sequence.
  struct Chunk {
    int first, count;
  };

  __device__ __forceinline__ int group_of(int item) const {
    return (warp + item * Traits::kPrepareWarps) / Traits::kPairBlocks;
  }
  __device__ __forceinline__ int pair_block_of(int item) const {
    return (warp + item * Traits::kPrepareWarps) % Traits::kPairBlocks;
  }
  __device__ __forceinline__ int channel_of(int item) const {
    return pair_block_of(item) * 64 + 2 * lane;
  }
  // Whether the lane's 2 channels exist: the padded width has more.
  __device__ __forceinline__ bool exists(int channel) const { return channel < p.problem.key_dim; }

  // Place of the lane's pair of channels of a token in a fetched [C, K].
  __device__ __forceinline__ static int fetched(int token, int channel) {
    return token * Traits::kKeyDim + channel;
  }

  // Starts a warp's copies of one tensor's rows; only its own lanes will read them.
  template <class Element>
  __device__ __forceinline__ void fetch_rows(void* to, const void* rows, std::int64_t stride,
                                             int item, Chunk chunk, bool wide) const {
    const int channel = pair_block_of(item) * 64, first = group_of(item) * kGroup;
    const int channels = p.problem.key_dim - channel,
              tokens = channels > 0 ? chunk.count - first : 0;
    const Element* from = static_cast<const Element*>(rows);
    if (tokens > 0) from += (chunk.first + first) * stride + channel;
    Element* at = static_cast<Element*>(to) + fetched(first, channel);
    if (wide) {
      fetch_tile<Element, 16, kGroup, 64>(at, Traits::kKeyDim, from, stride, tokens, channels,
                                          lane);
    } else {
      fetch_tile<Element, 2 * sizeof(Element), kGroup, 64>(at, Traits::kKeyDim, from, stride,
                                                           tokens, channels, lane);
    }
  }

  __device__ __forceinline__ void fetch(Chunk chunk) const {
    auto& to = scratch.fetch;
#pragma unroll
    for (int i = 0; i < Traits::kItems; ++i) {
      fetch_rows<std::uint16_t>(to.q, q, p.args.q.token_stride, i, chunk, p.wide_qk);
      fetch_rows<std::uint16_t>(to.k, k, p.args.k.token_stride, i, chunk, p.wide_qk);
      if constexpr (Gate::kPerChannel) {
        if (p.problem.gate_dtype == DType::kFloat32) {
          fetch_rows<std::uint32_t>(to.g, g, p.args.g.token_stride, i, chunk, p.wide_g);
        } else {
          fetch_rows<std::uint16_t>(to.g, g, p.args.g.token_stride, i, chunk, p.wide_g);
        }
      }
    }
    fetch_commit();
  }

  __device__ __forceinline__ float2 q_pair(int token, int channel) const {
    return load_pair(scratch.fetch.q + fetched(token, channel));
  }
  __device__ __forceinline__ float2 k_pair(int token, int channel) const {
    return load_pair(scratch.fetch.k + fetched(token, channel));
  }

  // Before the first barrier: norms, the cumulative log2 decay inside each group and its total,
  // beta, the scan of a gate per head. Returns whether a group's span is so wide that the chunk's
  // halves must be looked at.
  __device__ __forceinline__ bool sums(Chunk chunk) const {
    bool wide = false;
#pragma unroll
    for (int i = 0; i < Traits::kItems; ++i) {
      const int channel = channel_of(i), group = group_of(i);
      if (p.problem.qk_l2norm) {
        float squares[16];
#pragma unroll
        for (int t = 0; t < kGroup; ++t) {
          const float2 a = q_pair(group * kGroup + t, channel),
                       b = k_pair(group * kGroup + t, channel);
          squares[t] = a.x * a.x + a.y * a.y;
          squares[kGroup + t] = b.x * b.x + b.y * b.y;
        }
        const float sum = transposed_sum(squares, lane);
        if (lane % 2 == 0)
          scratch.norm[lane / 16][pair_block_of(i)][group * kGroup + lane / 2 % 8] = sum;
      }
      if constexpr (Gate::kPerChannel) {
        const int first = group * kGroup, tokens = exists(channel) ? chunk.count - first : 0;
        float2 sum = make_float2(0, 0), span = make_float2(0, 0);
        GateParameters<float> low = gate, high = gate;
        low.dt_bias = dt_bias[i].x;
        high.dt_bias = dt_bias[i].y;
        with_activation(p.problem.gate_input, [&]<class Input>(Input) {
#pragma unroll 4
          for (int t = 0; t < kGroup; ++t) {
            const float2 raw =
                load_pair(scratch.fetch.g, p.problem.gate_dtype, fetched(first + t, channel));
            const float x = fmaxf(kLog2e * Input::log_decay(raw.x, low), kSmallestLog2Decay);
            const float y = fmaxf(kLog2e * Input::log_decay(raw.y, high), kSmallestLog2Decay);
            if (t < tokens) {
              sum = make_float2(sum.x + x, sum.y + y);
              span = make_float2(span.x + fabsf(x), span.y + fabsf(y));
            }
            *reinterpret_cast<float2*>(
                &scratch.cumulative[(first + t) * Traits::kGatePitch + channel]) = sum;
          }
        });
        *reinterpret_cast<float2*>(&scratch.group_total[group][channel]) = sum;
        *reinterpret_cast<float2*>(&scratch.group_span[group][channel]) = span;
        wide = wide || span.x > kSafeSpan / 2 || span.y > kSafeSpan / 2;
      }
    }
    if (warp == 0) token_sums(chunk);
    if (erase_rows != nullptr) {
      const Prepare copy =
          *this;  // its address leaves this function; ours would take our members to memory
      copy.stage_erase(chunk);
    }
    return wide;
  }

  // Whether a half of the chunk spans more than the operands' range in one of the lane's channels.
  __device__ __forceinline__ bool unsafe() const {
    bool out = false;
    for (int i = 0; i < Traits::kItems; ++i)
      for (int c = channel_of(i); c < channel_of(i) + 2; ++c) {
        const auto half = [&](int j) {
          return scratch.group_span[2 * j][c] + scratch.group_span[2 * j + 1][c];
        };
        out = out || half(0) > kSafeSpan || half(1) > kSafeSpan;
      }
    return out;
  }

  // beta and the gate per head: lane is the token.
  __device__ __forceinline__ void token_sums(Chunk chunk) const {
    const bool present = lane < chunk.count;
    const std::int64_t token = chunk.first + (present ? lane : 0);
    float strength = 1.0f;
    if (beta != nullptr && present)
      strength = cuda::strength(p.problem.beta_input, cuda::load(beta, p.problem.beta_dtype,
                                                                 token * p.args.beta.token_stride));
    scratch.beta[lane] = present ? strength : 0.0f;
    if constexpr (!Gate::kPerChannel) {
      float decay = 0;
      if (present && g != nullptr) {
        const cuda::GateReader gate = cuda::GateReader::of(p.problem, p.args, value_head);
        const float raw = cuda::load(g, p.problem.gate_dtype, token * p.args.g.token_stride);
        decay = fmaxf(kLog2e * gate.log_decay(raw, 0), kSmallestLog2Decay);
      }
#pragma unroll
      for (int distance = 1; distance < kChunk; distance *= 2) {
        const float before = __shfl_up_sync(0xffffffffu, decay, distance);
        if (lane >= distance) decay += before;
      }
      scratch.cumulative[lane] = decay;
    }
  }

  // 1 / norm of a token, from the parts that its warps left.
  __device__ __forceinline__ float inverse_norm(int which, int token) const {
    if (!p.problem.qk_l2norm) return 1.0f;
    float sum = static_cast<float>(kNormEpsilon);
#pragma unroll
    for (int block = 0; block < Traits::kPairBlocks; ++block)
      sum += scratch.norm[which][block][token];
    return rsqrtf(sum);
  }

  // gdn2: a chunk's erase strengths, for the lanes that will read them. Not inlined: the other ops
  // pay nothing for it.
  __device__ __noinline__ void stage_erase(Chunk chunk) const {
    for (int i = 0; i < Traits::kItems; ++i)
      for (int t = 0; t < kGroup; ++t)
        for (int c = channel_of(i); c < channel_of(i) + 2; ++c) {
          const int token = group_of(i) * kGroup + t;
          const std::int64_t offset = (chunk.first + token) * p.args.erase.token_stride + c;
          const_cast<float*>(erase)[token * Traits::kKeyDim + c] =
              token < chunk.count && exists(c)
                  ? cuda::strength(p.problem.beta_input,
                                   cuda::load(erase_rows, p.problem.beta_dtype, offset))
                  : 0.0f;
        }
  }

  // After the first barrier, per channel: the operands, anchored in the middle. On the safe route
  // they are left undecayed for the element-wise scores, which read G; finish_safe decays them.
  template <bool kSafe>
  __device__ __forceinline__ void operands(typename Traits::Stage& stage) const {
#pragma unroll
    for (int i = 0; i < Traits::kItems; ++i) {
      const int channel = channel_of(i), group = group_of(i);
      // Lane kGroup * which + t has the norm of q or k of token t.
      const float norms = inverse_norm(lane / kGroup % 2, group * kGroup + lane % kGroup) *
                          (lane < kGroup ? scale : 1.0f);
      float2 before = make_float2(0, 0), half = before, whole = before;
#pragma unroll
      for (int j = 0; j < kGroups; ++j) {
        const float2 total = *reinterpret_cast<const float2*>(&scratch.group_total[j][channel]);
        if (j == group) before = whole;
        whole = make_float2(whole.x + total.x, whole.y + total.y);
        if (j == kGroups / 2 - 1) half = whole;
      }
      // An integer anchor makes 2^anchor exact in every format.
      const float2 anchor = kSafe ? make_float2(0, 0) : make_float2(rintf(half.x), rintf(half.y));
      const float2 x_scale =
          kSafe ? make_float2(1, 1)
                : make_float2(exp2_of(whole.x - anchor.x), exp2_of(whole.y - anchor.y));
      if (group == 0) {
        Operand::store_pair(&stage.anchor[channel], exp2_of(anchor.x), exp2_of(anchor.y));
        *reinterpret_cast<float2*>(&stage.total[channel]) =
            make_float2(exp2_of(whole.x), exp2_of(whole.y));
        *reinterpret_cast<float2*>(&scratch.x_scale[channel]) = x_scale;
      }
      before = make_float2(before.x - anchor.x, before.y - anchor.y);
#pragma unroll 4
      for (int t = 0; t < kGroup; ++t) {
        const int token = group * kGroup + t, row = token * kPitch + channel;
        float2 a = q_pair(token, channel), b = k_pair(token, channel);
        const float q_norm = __shfl_sync(0xffffffffu, norms, t),
                    k_norm = __shfl_sync(0xffffffffu, norms, kGroup + t);
        a = make_float2(a.x * q_norm, a.y * q_norm);
        b = make_float2(b.x * k_norm, b.y * k_norm);
        auto& inside =
            *reinterpret_cast<float2*>(&scratch.cumulative[token * Traits::kGatePitch + channel]);
        const float2 g = make_float2(before.x + inside.x, before.y + inside.y);
        float2 down = make_float2(1, 1), right = b;
        if constexpr (kSafe) {
          inside = g;
        } else {
          down = make_float2(exp2_of(g.x), exp2_of(g.y));
          right = make_float2(b.x * exp2_of(-g.x), b.y * exp2_of(-g.y));
        }
        Operand::store_pair(&stage.q[row], a.x * down.x, a.y * down.y);
        Operand::store_pair(&scratch.right[row], right.x, right.y);
        if constexpr (Update::kReadsState) {
          const float* strength = erase + token * erase_token_pitch + channel * erase_channel_pitch;
          Operand::store_pair(&stage.k[row], b.x * strength[0] * down.x,
                              b.y * strength[erase_channel_pitch] * down.y);
        } else if constexpr (!kSafe) {
          Operand::store_pair(&stage.x[row], right.x * x_scale.x, right.y * x_scale.y);
        }
      }
    }
  }

  // After the element-wise scores: the same lanes decay what they wrote.
  __device__ __forceinline__ void finish_safe(typename Traits::Stage& stage) const {
    for (int i = 0; i < Traits::kItems; ++i) {
      const int channel = channel_of(i);
      const float* g = scratch.cumulative + channel;
      const float2 whole = make_float2(g[(kChunk - 1) * Traits::kGatePitch],
                                       g[(kChunk - 1) * Traits::kGatePitch + 1]);
      for (int t = 0; t < kGroup; ++t) {
        const int token = group_of(i) * kGroup + t, row = token * kPitch + channel;
        const float2 at =
            make_float2(g[token * Traits::kGatePitch], g[token * Traits::kGatePitch + 1]);
        const float2 down = make_float2(exp2_of(at.x), exp2_of(at.y));
        const float2 up = make_float2(exp2_of(whole.x - at.x), exp2_of(whole.y - at.y));
        const auto decay = [](Type* pair, float2 by) {
          Operand::store_pair(pair, static_cast<float>(pair[0]) * by.x,
                              static_cast<float>(pair[1]) * by.y);
        };
        decay(&stage.q[row], down);
        decay(&scratch.right[row], up);
        if constexpr (Update::kReadsState) {
          decay(&stage.k[row], down);
        } else {
          stage.x[row] = scratch.right[row];
          stage.x[row + 1] = scratch.right[row + 1];
        }
      }
    }
  }

  // Before the first barrier, per head: q and k as they came.
  __device__ __forceinline__ void copy_operands(typename Traits::Stage& stage) const {
#pragma unroll
    for (int i = 0; i < Traits::kItems; ++i) {
      const int channel = channel_of(i);
#pragma unroll
      for (int t = 0; t < kGroup; ++t) {
        const int token = group_of(i) * kGroup + t, row = token * kPitch + channel;
        const float2 q = q_pair(token, channel), k = k_pair(token, channel);
        Operand::store_pair(&stage.q[row], q.x, q.y);
        Operand::store_pair(&stage.k[row], k.x, k.y);
      }
    }
  }

  // After the first barrier, per head: factors of each token; lane is the token.
  __device__ __forceinline__ void token_factors(typename Traits::Stage& stage) const {
    const float g = scratch.cumulative[lane], whole = scratch.cumulative[kChunk - 1];
    const float q_norm = inverse_norm(0, lane) * scale, k_norm = inverse_norm(1, lane);
    stage.q_factor[lane] = q_norm * exp2_of(g);
    stage.k_factor[lane] = scratch.beta[lane] * k_norm * exp2_of(g);
    scratch.right_factor[lane] = k_norm * exp2_of(whole - g);
    scratch.row_factor[0][lane] = scratch.beta[lane] * k_norm;
    scratch.row_factor[1][lane] = q_norm;
    scratch.column_factor[lane] = k_norm;
    if (lane == 0) stage.total[0] = exp2_of(whole);
  }

  // Per head, add: x is k times its factor. The same lanes wrote k.
  __device__ __forceinline__ void scale_writes(typename Traits::Stage& stage) const {
#pragma unroll
    for (int i = 0; i < Traits::kItems; ++i) {
      const int channel = channel_of(i);
#pragma unroll
      for (int t = 0; t < kGroup; ++t) {
        const int token = group_of(i) * kGroup + t, row = token * kPitch + channel;
        const float by = scratch.right_factor[token];
        Operand::store_pair(&stage.x[row], static_cast<float>(stage.k[row]) * by,
                            static_cast<float>(stage.k[row + 1]) * by);
      }
    }
  }
};

}  // namespace linattn::portable
