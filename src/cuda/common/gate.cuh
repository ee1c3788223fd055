// SPDX-License-Identifier: Apache-2.0
//
// Gates, strengths and norms as kernels read them: the policies of recurrence/gate_input.h chosen
// at run time. The branches are uniform over the grid; a kernel that minds them asks the policies.
#pragma once

#include <cstdint>

#include "cuda/common/convert.cuh"
#include "cuda/common/ptx.cuh"
#include "linattn/plan.h"
#include "linattn/problem.h"
#include "recurrence/gate_input.h"

namespace linattn::cuda {

// f(Input{}) for the activation of g: with_gate_input of recurrence/dispatch.h, which cannot throw
// here. The branch stands around whatever f does.
template <class F>
__device__ __forceinline__ decltype(auto) with_gate_input(GateInput input, F&& f) {
  switch (input) {
    case GateInput::kDecay:
      return f(InputDecay{});
    case GateInput::kSoftplus:
      return f(InputSoftplus{});
    case GateInput::kBounded:
      return f(InputBounded{});
    case GateInput::kLogDecay:
    case GateInput::kUnset:
      break;
  }
  return f(InputLogDecay{});
}

// Log decays of one value head.
struct GateReader {
  GateInput input;       // kUnset: no gate
  const float* dt_bias;  // [K] or [1] of this head; null: 0
  GateParameters<float> parameters;

  template <class Args>
  __device__ __forceinline__ static GateReader of(const Problem& problem, const Args& args,
                                                  std::int64_t value_head) {
    const bool channel = problem.op.gate == Gate::kChannel;
    GateReader reader;
    reader.input = problem.op.gate == Gate::kNone ? GateInput::kUnset : problem.gate_input;
    reader.dt_bias = args.dt_bias == nullptr
                         ? nullptr
                         : args.dt_bias + value_head * (channel ? problem.key_dim : 1);
    reader.parameters = GateParameters<float>::of(
        args.a_log == nullptr ? 0.0f : args.a_log[value_head], 0.0f, args.lower_bound);
    return reader;
  }

  // g: as in memory; key: its channel, 0 with a gate per head.
  __device__ __forceinline__ float log_decay(float g, std::int64_t key) const {
    return biased_log_decay(g, dt_bias == nullptr ? 0.0f : dt_bias[key]);
  }
  __device__ __forceinline__ float biased_log_decay(float g, float bias) const {
    GateParameters<float> p = parameters;
    p.dt_bias = bias;
    if (input == GateInput::kUnset) return 0.0f;
    return with_gate_input(input, [&]<class Input>(Input) { return Input::log_decay(g, p); });
  }
};

// log2 of a decay, as chunked kernels take it: kLog2e log_decay, with constants of a head put
// together once.
template <class Input>
struct Log2Gate {
  static constexpr float kLog2e = 1.4426950408889634f;
  GateParameters<float> parameters;

  __device__ __forceinline__ float operator()(float g, float dt_bias) const {
    GateParameters<float> p = parameters;
    p.dt_bias = dt_bias;
    return kLog2e * Input::log_decay(g, p);
  }
};
template <>
struct Log2Gate<InputBounded> {
  static constexpr float kLog2e = Log2Gate<InputLogDecay>::kLog2e;
  float rate, bound;

  __device__ __forceinline__ explicit Log2Gate(const GateParameters<float>& p)
      : rate(fmaxf(-kLog2e * p.rate, -3.4e38f)), bound(kLog2e * p.lower_bound) {}
  __device__ __forceinline__ float operator()(float g, float dt_bias) const {
    return bound * ptx::rcp_approx(1.0f + ptx::ex2_approx(rate * (g + dt_bias)));
  }
};

// beta, erase and write as strengths.
__device__ __forceinline__ float strength(BetaInput input, float x) {
  switch (input) {
    case BetaInput::kValue:
      return BetaValue::strength(x);
    case BetaInput::kLogit:
      return BetaLogit::strength(x);
    case BetaInput::kTwiceLogit:
      return BetaTwiceLogit::strength(x);
    case BetaInput::kOne:
    case BetaInput::kUnset:
      break;
  }
  return 1.0f;
}

// exp(log_decay) as high + low. Below 1, fp32 counts in steps of 6e-8: one rounded factor per token
// would make a decay of 1e-6 wrong by 3 %, in the same direction at every token. A decay of 0
// forgets infinities too, which its product does not: a kernel that meets one clears the state.
struct Decay {
  float high, low;

  __device__ __forceinline__ static Decay of(float log_decay) {
    const float high = expf(log_decay);
    // high - 1 is exact near 1. Elsewhere the rounding of high is small beside the log decay.
    const float low = fabsf(log_decay) < 0.5f ? expm1f(log_decay) - (high - 1.0f) : 0.0f;
    return {high, low};
  }
  __device__ __forceinline__ static Decay of(double log_decay) {
    const double exact = exp(log_decay);
    const float high = static_cast<float>(exact);
    return {high, static_cast<float>(exact - high)};
  }
  __device__ __forceinline__ float operator()(float x) const { return fmaf(x, high, x * low); }
};

// A constant per head meets every token with the same error, so it is worth double: once a block.
template <class Args>
__device__ __forceinline__ double constant_log_decay(const Problem& problem, const Args& args,
                                                     std::int64_t value_head) {
  const double g = load(args.g.data, problem.gate_dtype, value_head * args.g.head_stride);
  const double bias = args.dt_bias == nullptr ? 0.0 : args.dt_bias[value_head];
  const auto p = GateParameters<double>::of(args.a_log == nullptr ? 0.0 : args.a_log[value_head],
                                            bias, args.lower_bound);
  return with_gate_input(problem.gate_input,
                         [&]<class Input>(Input) { return Input::log_decay(g, p); });
}

template <class Args>
__device__ __forceinline__ Decay constant_decay(const Problem& problem, const Args& args,
                                                std::int64_t value_head) {
  return Decay::of(constant_log_decay(problem, args, value_head));
}

__device__ __forceinline__ float warp_sum(float x) {
  for (int lane = 16; lane > 0; lane /= 2) x += __shfl_xor_sync(0xffffffffu, x, lane);
  return x;
}

__device__ __forceinline__ float warp_max(float x) {
  for (int lane = 16; lane > 0; lane /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, lane));
  return x;
}

// 1 / sqrt(sum x^2 + epsilon) over a whole warp's values, of which each lane has x(0 .. count - 1).
template <class Value>
__device__ __forceinline__ float warp_inverse_norm(
    int count, Value&& x, float epsilon = static_cast<float>(kNormEpsilon)) {
  float sum = 0;
  for (int i = 0; i < count; ++i) sum = fmaf(x(i), x(i), sum);
  sum = warp_sum(sum);
  if (sum <= 3e38f) return 1.0f / sqrtf(sum + epsilon);
  // Squares from 1e19 on overflow: scaled by a power of two, beside which epsilon is nothing.
  constexpr float kScale = 0x1p-70f;
  sum = 0;
#pragma unroll 1
  for (int i = 0; i < count; ++i) sum = fmaf(x(i) * kScale, x(i) * kScale, sum);
  return kScale / sqrtf(warp_sum(sum));
}

template <int kCount>
__device__ __forceinline__ float warp_inverse_norm(const float (&x)[kCount]) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kCount; ++i) sum = fmaf(x[i], x[i], sum);
  sum = warp_sum(sum);
  if (sum <= 3e38f) return 1.0f / sqrtf(sum + static_cast<float>(kNormEpsilon));
  constexpr float kScale = 0x1p-70f;
  sum = 0;
#pragma unroll
  for (int i = 0; i < kCount; ++i) sum = fmaf(x[i] * kScale, x[i] * kScale, sum);
  return kScale / sqrtf(warp_sum(sum));
}

}  // namespace linattn::cuda
