// SPDX-License-Identifier: Apache-2.0
//
// The prepare kernel: q, k, g and beta of a chunk and value head become the operands of its scan.
// One block a chunk and head, all of them independent. A thread owns 8 channels x 4 tokens.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "cuda/common/convert.cuh"
#include "cuda/common/gate.cuh"
#include "cuda/common/ptx.cuh"
#include "cuda/common/sequence.cuh"
#include "cuda/portable/chunks.cuh"
#include "cuda/portable/head_decay.cuh"
#include "cuda/portable/intra.cuh"
#include "cuda/portable/rows.cuh"

namespace linattn::portable {

// The largest operand of a score, inside the ranges of fp32 and bf16, and the largest anchor. With
// normalised keys the bounded gate of -5 makes 2^115.4.
inline constexpr float kLargestOperand = 0x1p124f, kLargestAnchor = 120.0f;
// Factors up to this one keep normalised rows below it.
inline constexpr float kLargestFactor = 16.0f;

// A block's chunk and head. Rows are those of the chunk's first token.
struct PrepareJob {
  cuda::Sequence sequence;
  int first, count;  // tokens; count < 0: no chunk has the block's number
  const char *q, *k, *g, *beta;

  __device__ static PrepareJob of(const ForwardParams& p, std::int64_t number, int value_head) {
    const std::int64_t n = sequence_at(p, number), c = number - first_number(p, n);
    PrepareJob job{cuda::sequence_of(p.args, n, p.sequence_length), 0, -1};
    const Chunks chunks(job.sequence);
    if (job.sequence.pad || c < 0 || c >= chunks.count()) return job;
    job.first = chunks.first(static_cast<int>(c));
    job.count = chunks.tokens(static_cast<int>(c));
    const int key_head = value_head / (p.problem.value_heads / p.problem.heads);
    job.q = job.row(p, p.args.q, key_head, p.problem.dtype);
    job.k = job.row(p, p.args.k, key_head, p.problem.dtype);
    job.g = job.row(p, p.args.g, value_head, p.problem.gate_dtype);
    job.beta = job.row(p, p.args.beta, value_head, p.problem.beta_dtype);
    return job;
  }

  const __device__ char* row(const ForwardParams& p, const Tensor& tensor, int head,
                             DType dtype) const {
    if (tensor.data == nullptr) return nullptr;
    return static_cast<const char*>(tensor.data) +
           cuda::row_offset(p.args, tensor, sequence, first, head) * cuda::bytes_of(dtype);
  }
};

template <class Traits>
struct Prepare {
  using Operand = typename Traits::Operand;
  using Type = typename Traits::Type;
  using Piece = typename Operand::Piece;
  using Gate = typename Traits::Gate;
  using Update = typename Traits::Update;
  using Rows = typename Traits::Rows;
  using StageRows = typename Traits::Stage::Rows;
  static constexpr int kTokens = Traits::kTokens;
  static constexpr bool kFp16 = std::is_same_v<Operand, OperandTf32>;

  const ForwardParams& p;
  typename Traits::Shared& shared;
  typename Traits::Stage& stage;
  float* erase;  // gdn2: [C, K] in shared memory; null: every channel by beta
  const PrepareJob& job;
  int value_head, count;               // the chunk's tokens
  int thread, group, octet, channels;  // this thread's tokens and channels; channels that exist

  __device__ __forceinline__ int token(int t) const { return kTokens * group + t; }
  __device__ __forceinline__ int channel() const { return 8 * octet; }

  // Of a tensor whose row of the chunk's first token is given.
  __device__ __forceinline__ Part part_of(const Tensor& tensor, const char* row, DType dtype,
                                          bool wide) const {
    const int bytes = cuda::bytes_of(dtype);
    const std::int64_t stride = tensor.token_stride * bytes;
    return {row + token(0) * stride + channel() * bytes, stride, count - token(0), channels, wide};
  }
  // The piece that this thread owns of its token t.
  template <class Matrix>
  __device__ __forceinline__ Type* own(Type* matrix, int t) const {
    return matrix + Matrix::place(token(t), octet % 4, octet / 4);
  }

  __device__ __forceinline__ void load_rows(const Tensor& tensor, const char* row,
                                            Octet (&rows)[kTokens]) const {
    portable::load_rows(part_of(tensor, row, p.problem.dtype, p.wide_qk), rows);
  }

  // 1 / norm of each token, that of q times scale; without norms 1 and scale.
  __device__ __forceinline__ void norms(const Octet (&q)[kTokens], const Octet (&k)[kTokens],
                                        float scale, float (&q_norm)[kTokens],
                                        float (&k_norm)[kTokens]) const {
#pragma unroll
    for (int t = 0; t < kTokens; ++t) q_norm[t] = scale, k_norm[t] = 1;
    if (!p.problem.qk_l2norm) return;
    // The lanes of a token's row share out its sums: each has one in the end.
    constexpr int kShare = Traits::kOctets / (2 * kTokens);  // lanes that have the same
    float sum = squares(q, k, 1.0f);
    float norm = rsqrtf(sum + static_cast<float>(kNormEpsilon));
    // Squares from 1e19 on overflow: scaled by a power of two, beside which epsilon is nothing.
    constexpr float kLargest = 3e38f, kScale = 0x1p-70f;
    if (__any_sync(0xffffffffu, sum > kLargest)) {
      const float scaled = squares(q, k, kScale);
      if (sum > kLargest) norm = kScale * rsqrtf(scaled);
    }
    const int index = octet / kShare, t = index % kTokens;
    if (octet % kShare == 0)
      shared.norms[index / kTokens][token(t)] = index < kTokens ? norm * scale : norm;
    __syncwarp();
    load_tokens(shared.norms[0], q_norm);
    load_tokens(shared.norms[1], k_norm);
  }
  // A lane's share: the sum of squares, times scale, of token index % kTokens of q or, from
  // kTokens on, of k; index = octet / kShare. Halves are exchanged, so that sums get fewer as their
  // lanes get more.
  __device__ __forceinline__ float squares(const Octet (&q)[kTokens], const Octet (&k)[kTokens],
                                           float scale) const {
    float sum[2 * kTokens];
#pragma unroll
    for (int i = 0; i < 2 * kTokens; ++i) {
      float x[8];
      widen<kFp16>(i < kTokens ? q[i] : k[i - kTokens], x);
      sum[i] = 0;
#pragma unroll
      for (int e = 0; e < 8; ++e) sum[i] = fmaf(x[e] * scale, x[e] * scale, sum[i]);
    }
    int distance = Traits::kOctets / 2;
#pragma unroll
    for (int half = kTokens; half > 0; half /= 2, distance /= 2) {
      const bool upper = (octet & distance) != 0;
#pragma unroll
      for (int i = 0; i < half; ++i) {
        const float given = upper ? sum[i] : sum[i + half];
        sum[i] = (upper ? sum[i + half] : sum[i]) + __shfl_xor_sync(0xffffffffu, given, distance);
      }
    }
#pragma unroll
    for (; distance > 0; distance /= 2) sum[0] += __shfl_xor_sync(0xffffffffu, sum[0], distance);
    return sum[0];
  }

  // This thread's of a row of all tokens.
  __device__ __forceinline__ void load_tokens(const float* all, float (&own)[kTokens]) const {
    static_assert(kTokens == 4);
    const float4 four = *reinterpret_cast<const float4*>(&all[token(0)]);
    own[0] = four.x, own[1] = four.y, own[2] = four.z, own[3] = four.w;
  }

  // A token's beta and gate per head as they came, of the first warp's lanes; asked for before
  // anything waits.
  struct TokenInputs {
    std::uint32_t beta = 0, g = 0;
  };
  __device__ __forceinline__ TokenInputs load_token_inputs() const {
    TokenInputs raw;
    if (thread >= count || thread >= kChunk) return raw;
    if (p.args.beta.data != nullptr)
      raw.beta = cuda::load_raw(job.beta, p.problem.beta_dtype, thread * p.args.beta.token_stride);
    if (!Gate::kPerChannel && p.args.g.data != nullptr)
      raw.g = cuda::load_raw(job.g, p.problem.gate_dtype, thread * p.args.g.token_stride);
    return raw;
  }

  // beta and the gate per head, by the first warp: lane is the token. Whether beta is large.
  __device__ __forceinline__ bool token_scalars(const TokenInputs& raw) const {
    if (thread >= kChunk) return false;
    const bool present = thread < count;
    float strength = present ? 1.0f : 0.0f;
    if (present && p.args.beta.data != nullptr)
      strength =
          cuda::strength(p.problem.beta_input, cuda::from_raw(raw.beta, p.problem.beta_dtype));
    shared.beta[thread] = strength;
    stage.strength[thread] = strength;
    if constexpr (!Gate::kPerChannel) {
      float decay = 0;
      if (present && p.args.g.data != nullptr) {
        const auto gate = cuda::GateReader::of(p.problem, p.args, value_head);
        const float bias = gate.dt_bias == nullptr ? 0.0f : *gate.dt_bias;
        decay = head_log2_decay(gate, bias, raw.g, p.problem.gate_dtype);
      }
      shared.cumulative[thread] = cumulative_decay(decay, thread);
    }
    return !(fabsf(strength) <= kLargestFactor);
  }

  // gdn2's erase strengths.
  __device__ __forceinline__ void stage_erase() const {
    if (erase == nullptr) return;
    const char* rows = job.row(p, p.args.erase, value_head, p.problem.beta_dtype);
#pragma unroll 1
    for (int t = 0; t < kTokens; ++t)
#pragma unroll 1
      for (int c = 0; c < 8; ++c)
        erase[token(t) * Traits::kKeyDim + channel() + c] =
            token(t) < count && c < channels
                ? cuda::strength(p.problem.beta_input,
                                 cuda::load(rows, p.problem.beta_dtype,
                                            token(t) * p.args.erase.token_stride + channel() + c))
                : 0.0f;
  }

  // Times gdn2's erase strengths of a token.
  __device__ __forceinline__ void times_erase(int token, float (&x)[8]) const {
    if (erase == nullptr) return;
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] *= erase[token * Traits::kKeyDim + channel() + i];
  }

  __device__ __forceinline__ void load_gates(Raw (&g)[kTokens], Raw (&bias)[1]) const {
    load_raw(part_of(p.args.g, job.g, p.problem.gate_dtype, p.wide_g), p.problem.gate_dtype, g);
    const float* from = p.args.dt_bias == nullptr
                            ? nullptr
                            : p.args.dt_bias + value_head * p.problem.key_dim + channel();
    load_raw(Part{reinterpret_cast<const char*>(from), 0, from != nullptr, channels, p.wide_g},
             DType::kFloat32, bias);
  }

  // Cumulative log2 decay inside the thread's tokens; 0 of channels that do not exist.
  __device__ __forceinline__ void local_decays(const Raw (&g)[kTokens], const Raw (&dt_bias)[1],
                                               float (&decay)[kTokens][8]) const {
    const auto parameters = GateParameters<float>::of(
        p.args.a_log == nullptr ? 0.0f : p.args.a_log[value_head], 0.0f, p.args.lower_bound);
    float bias[1][8];
    widen(dt_bias, DType::kFloat32, bias);
    widen(g, p.problem.gate_dtype, decay);
    cuda::with_gate_input(p.problem.gate_input, [&]<class Input>(Input) {
      const cuda::Log2Gate<Input> gate{parameters};
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        if (token(t) < count) {
#pragma unroll
          for (int i = 0; i < 8; ++i)
            decay[t][i] = ptx::max_nan(gate(decay[t][i], bias[0][i]), kSmallestLog2Decay);
        }
        if (t > 0) {
#pragma unroll
          for (int i = 0; i < 8; ++i) decay[t][i] += decay[t - 1][i];
        }
      }
    });
    if (channels >= 8) return;
#pragma unroll
    for (int t = 0; t < kTokens; ++t)
#pragma unroll
      for (int i = 0; i < 8; ++i)
        if (i >= channels) decay[t][i] = 0;
  }

  // A thread per channel: from the groups' totals to what came before each group, from the anchor.
  // An integer anchor makes 2^anchor exact in every format. Returns whether the anchor is out of
  // reach of the chunk's first or last token.
  __device__ __forceinline__ bool scan_groups() const {
    float before[Traits::kGroups], sum = 0, anchor = 0;
#pragma unroll
    for (int j = 0; j < Traits::kGroups; ++j) {
      if (j == Traits::kGroups / 2) anchor = rintf(sum);
      before[j] = sum;
      sum += shared.before[j][thread];
    }
#pragma unroll
    for (int j = 0; j < Traits::kGroups; ++j) shared.before[j][thread] = before[j] - anchor;
    shared.anchor[thread] = anchor;
    shared.x_scale[thread] = ptx::ex2_approx(sum - anchor);
    stage.total[thread] = ptx::ex2_approx(sum);
    return !(fabsf(anchor) <= kLargestAnchor && fabsf(sum - anchor) <= kLargestAnchor);
  }

  __device__ __forceinline__ static void load_eight(const float* at, float (&x)[8]) {
#pragma unroll
    for (int i = 0; i < 8; i += 4) {
      const float4 four = *reinterpret_cast<const float4*>(at + i);
      x[i] = four.x, x[i + 1] = four.y, x[i + 2] = four.z, x[i + 3] = four.w;
    }
  }

  // Norms as powers of two, which round nothing and keep products from overflowing, times rests,
  // which go on scores and decays.
  struct Norms {
    float q_power[kTokens], k_power[kTokens], q_rest[kTokens], k_rest[kTokens];

    __device__ __forceinline__ void apply(const Octet& q, const Octet& k, int t, float (&a)[8],
                                          float (&b)[8]) const {
      widen<kFp16>(q, a);
      widen<kFp16>(k, b);
#pragma unroll
      for (int i = 0; i < 8; ++i) a[i] *= q_power[t], b[i] *= k_power[t];
    }
  };
  __device__ __forceinline__ Norms split_norms(const float (&q_norm)[kTokens],
                                               const float (&k_norm)[kTokens]) const {
    const auto split = [](float x, float& power, float& rest) {
      const std::uint32_t exponent = max(__float_as_uint(x) & 0x7f800000u, 0x00800000u);
      power = __uint_as_float(exponent);
      rest = x * __uint_as_float(0x7f000000u - exponent);
    };
    Norms norms;
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      split(q_norm[t], norms.q_power[t], norms.q_rest[t]);
      split(k_norm[t], norms.k_power[t], norms.k_rest[t]);
      if (octet != 0) continue;
      const int i = token(t);
      shared.row_factor[0][i] = shared.beta[i] * norms.k_rest[t];
      shared.row_factor[1][i] = norms.q_rest[t];
      shared.column_factor[i] = norms.k_rest[t];
    }
    return norms;
  }

  // A gate per channel. Operands of the scores are anchored in the middle; those of the state are
  // the same times 2^anchor.
  __device__ __forceinline__ void channel_operands(const Octet (&q)[kTokens],
                                                   const Octet (&k)[kTokens],
                                                   const float (&q_norm)[kTokens],
                                                   const float (&k_norm)[kTokens],
                                                   float (&decay)[kTokens][8], bool large,
                                                   bool normalised) const {
#pragma unroll
    for (int i = 0; i < 8; i += 4)
      *reinterpret_cast<float4*>(&shared.before[group][channel() + i]) =
          make_float4(decay[kTokens - 1][i], decay[kTokens - 1][i + 1], decay[kTokens - 1][i + 2],
                      decay[kTokens - 1][i + 3]);
    __syncthreads();
    bool unsafe = scan_groups() || large;
    __syncthreads();
    float before[8], anchor[8], power[8];
    load_eight(&shared.before[group][channel()], before);
    load_eight(&shared.anchor[channel()], anchor);
#pragma unroll
    for (int i = 0; i < 8; ++i) power[i] = ptx::ex2_approx(anchor[i]);
    const Piece powers = Operand::round(power);
    float beta[kTokens];
    load_tokens(shared.beta, beta);
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      float a[8], b[8], out[8];
      widen<kFp16>(q[t], a);
      widen<kFp16>(k[t], b);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        decay[t][i] += before[i];
        const float down = ptx::ex2_approx(decay[t][i]), up = ptx::ex2_approx(-decay[t][i]);
        a[i] = a[i] * q_norm[t] * down;  // norms first: raw inputs may be large where decays are
        b[i] *= k_norm[t];
        out[i] = b[i] * up;
        b[i] = b[i] * down * beta[t];
      }
      const Piece right = Operand::round(out), left_q = Operand::round(a);
      Piece left_k{};
      Rows::store(own<Rows>(shared.right, t), right);
      Rows::store(own<Rows>(shared.q, t), left_q);
      StageRows::store(own<StageRows>(stage.q, t), Operand::product(left_q, powers));
      if constexpr (Update::kReadsState) {
        times_erase(token(t), b);
        left_k = Operand::round(b);
        Rows::store(own<Rows>(shared.k, t), left_k);
        StageRows::store(own<StageRows>(stage.k, t), Operand::product(left_k, powers));
      }
      if (!normalised)
        unsafe = unsafe || Operand::exceeds(Operand::larger(Operand::larger(right, left_q), left_k),
                                            kLargestOperand);
    }
    const Intra<Traits> intra{shared, stage, thread};
    if (!__syncthreads_or(unsafe)) {
      intra.scores();
    } else {
      // The anchor is out of reach of some token: scores by differences of G, see Intra.
      float* cumulative = shared.all_decays();
#pragma unroll
      for (int t = 0; t < kTokens; ++t)
#pragma unroll
        for (int i = 0; i < 8; ++i)
          cumulative[token(t) * Traits::kKeyDim + channel() + i] = decay[t][i] + anchor[i];
      undecayed_operands(q_norm, k_norm);
      __syncthreads();
      Intra<Traits>::safe_scores(shared, stage, thread);
      __syncthreads();
      decay_operands();
    }
  }

  // For the safe route: operands without their decays, from inputs read once more.
  __device__ __forceinline__ void undecayed_operands(const float (&q_norm)[kTokens],
                                                     const float (&k_norm)[kTokens]) const {
    Octet q[kTokens], k[kTokens];
    load_rows(p.args.q, job.q, q);
    load_rows(p.args.k, job.k, k);
    const Norms norms = split_norms(q_norm, k_norm);
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      float a[8], b[8];
      norms.apply(q[t], k[t], t, a, b);
      StageRows::store(own<StageRows>(stage.q, t), Operand::round(a));
      Rows::store(own<Rows>(shared.right, t), Operand::round(b));
      if constexpr (Update::kReadsState) {
        times_erase(token(t), b);
        StageRows::store(own<StageRows>(stage.k, t), Operand::round(b));
      }
    }
  }

  // After the safe scores: the same threads give decays and factors to what they wrote.
  __device__ __forceinline__ void decay_operands() const {
    const float* cumulative = shared.all_decays();
    float whole[8];
    load_eight(&cumulative[(kChunk - 1) * Traits::kKeyDim + channel()], whole);
    shared.x_scale[thread] = 1;
#pragma unroll 1
    for (int t = 0; t < kTokens; ++t) {
      float down[8], up[8];
      load_eight(&cumulative[token(t) * Traits::kKeyDim + channel()], down);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        up[i] = ptx::ex2_approx(whole[i] - down[i]);
        down[i] = ptx::ex2_approx(down[i]);
      }
      const auto decay = [&]<class Matrix>(Matrix, Type* matrix, const float (&by)[8],
                                           float factor) {
        float x[8];
        Type* at = own<Matrix>(matrix, t);
        Operand::widen(Matrix::load(at), x);
#pragma unroll
        for (int i = 0; i < 8; ++i) x[i] *= by[i] * factor;
        Matrix::store(at, Operand::round(x));
      };
      decay(StageRows{}, stage.q, down, shared.row_factor[1][token(t)]);
      decay(Rows{}, shared.right, up, shared.column_factor[token(t)]);
      if constexpr (Update::kReadsState)
        decay(StageRows{}, stage.k, down, shared.row_factor[0][token(t)]);
    }
  }

  // A gate per head: scores from q and k, decays and norms on the scores.
  __device__ __forceinline__ void head_operands(const Octet (&q)[kTokens],
                                                const Octet (&k)[kTokens],
                                                const float (&q_norm)[kTokens],
                                                const float (&k_norm)[kTokens]) const {
    __syncthreads();
    const float whole = shared.cumulative[kChunk - 1];
    const Norms norms = split_norms(q_norm, k_norm);
    if (octet == 0)
#pragma unroll
      for (int t = 0; t < kTokens; ++t)
        shared.right_factor[token(t)] =
            norms.k_rest[t] * ptx::ex2_approx(whole - shared.cumulative[token(t)]);
    stage.total[thread] = ptx::ex2_approx(whole);
    shared.x_scale[thread] = 1;
    float beta[kTokens];
    load_tokens(shared.beta, beta);
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      float a[8], b[8];
      norms.apply(q[t], k[t], t, a, b);
      const float down = ptx::ex2_approx(shared.cumulative[token(t)]);
      Rows::store(own<Rows>(shared.q, t), Operand::round(a));
      Rows::store(own<Rows>(shared.right, t), Operand::round(b));
#pragma unroll
      for (int i = 0; i < 8; ++i) a[i] *= norms.q_rest[t] * down;
      StageRows::store(own<StageRows>(stage.q, t), Operand::round(a));
      if constexpr (Update::kReadsState) {
        times_erase(token(t), b);
        Rows::store(own<Rows>(shared.k, t), Operand::round(b));
#pragma unroll
        for (int i = 0; i < 8; ++i) b[i] *= beta[t] * norms.k_rest[t] * down;
        StageRows::store(own<StageRows>(stage.k, t), Operand::round(b));
      }
    }
    __syncthreads();
    Intra<Traits>{shared, stage, thread}.scores();
  }

  __device__ __forceinline__ void run() const {
    const TokenInputs raw = load_token_inputs();
    Octet q[kTokens], k[kTokens];
    load_rows(p.args.q, job.q, q);
    load_rows(p.args.k, job.k, k);
    Raw g[kTokens], bias[1];
    if constexpr (Gate::kPerChannel) load_gates(g, bias);  // all loads are in flight
    [[maybe_unused]] const bool large = token_scalars(raw);
    stage_erase();
    const float scale =
        p.args.scale == 0.0f ? rsqrtf(static_cast<float>(p.problem.key_dim)) : p.args.scale;
    float q_norm[kTokens], k_norm[kTokens];
    norms(q, k, scale, q_norm, k_norm);
    const Intra<Traits> intra{shared, stage, thread};
    if constexpr (!Update::kReadsState) intra.invert();  // the identity
    if constexpr (Gate::kPerChannel) {
      float decay[kTokens][8];
      local_decays(g, bias, decay);
      channel_operands(q, k, q_norm, k_norm, decay, large,
                       p.problem.qk_l2norm && fabsf(scale) <= kLargestFactor && erase == nullptr);
    } else {
      head_operands(q, k, q_norm, k_norm);
    }
    __syncthreads();
    if constexpr (Update::kReadsState) {
      intra.invert();
      __syncthreads();
    }
    intra.products();
  }
};

// Grid: (HV, chunks of the segment).
template <class Traits>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kBlocks)
    prepare_kernel(const __grid_constant__ ForwardParams p) {
  unsigned char* memory = ptx::dynamic_shared();
  auto& shared = *reinterpret_cast<typename Traits::Shared*>(memory);
  static_assert(sizeof(PrepareJob) <= sizeof(shared.job));
  auto& job = *reinterpret_cast<PrepareJob*>(shared.job);
  const int thread = static_cast<int>(threadIdx.x), value_head = static_cast<int>(blockIdx.x);
  if (thread < 32) {  // one warp asks, all know
    const PrepareJob found = PrepareJob::of(p, p.segment.first + blockIdx.y, value_head);
    if (thread == 0) job = found;
  }
  __syncthreads();
  // This grid may run beside the scan of the segment before it, which reads other stages. It ends
  // behind that scan, for one of its blocks waits: so whoever waits for it waits for both.
  const bool last = blockIdx.x == gridDim.x - 1 && blockIdx.y == gridDim.y - 1;
  if (job.count < 0) {
    if (last) ptx::griddepcontrol_wait();
    return;
  }
  const int octet = thread % Traits::kOctets;
  float* erase = p.args.erase.data == nullptr
                     ? nullptr
                     : reinterpret_cast<float*>(memory + sizeof(typename Traits::Shared));
  const Prepare<Traits> prepare{
      p,
      shared,
      static_cast<typename Traits::Stage*>(
          p.stages)[static_cast<std::int64_t>(blockIdx.y) * p.problem.value_heads + value_head],
      erase,
      job,
      value_head,
      job.count,
      thread,
      thread / Traits::kOctets,
      octet,
      p.problem.key_dim - 8 * octet};
  prepare.run();
  if (last) ptx::griddepcontrol_wait();
}

}  // namespace linattn::portable
