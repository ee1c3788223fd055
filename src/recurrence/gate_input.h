// SPDX-License-Identifier: Apache-2.0
//
// Activations: what g becomes before it decays the state, what beta becomes before it scales a
// write, and the pull-back of both. Real is float or double; nothing here is ever rounded to 16
// bits.
//
// A log decay lies in [-inf, 0] and is never NaN as long as the inputs are not (A_log = -inf and
// rates that overflow included). -inf forgets everything, exactly. A positive log decay is passed
// through: the state grows.
#pragma once

#include <cmath>
#include <concepts>
#include <limits>
#include <type_traits>

#include "linattn/op.h"
#include "recurrence/host_device.h"
#if defined(__CUDACC__)
#include "cuda/common/ptx.cuh"
#endif

namespace linattn {

// Not `detail`: the public headers have one in their inline namespace, and the two would be
// ambiguous.
namespace gate_math {

// On a device fp32 takes the hardware's own exp2 and reciprocal, whose relative error stays below
// 2e-6 for every x that matters here; tanh would be one instruction, and wrong by several per cent
// where a decay is slow. Both flush below 1e-38.
template <class Real>
LINATTN_HOST_DEVICE Real exp_of(Real x) {
#if defined(__CUDA_ARCH__)
  if constexpr (std::is_same_v<Real, float>) return ptx::ex2_approx(1.4426950408889634f * x);
#endif
  return std::exp(x);
}

template <class Real>
LINATTN_HOST_DEVICE Real inverse_of(Real x) {
#if defined(__CUDA_ARCH__)
  if constexpr (std::is_same_v<Real, float>) return ptx::rcp_approx(x);
#endif
  return Real(1) / x;
}

// log(1 + y) / y for y in [0, 1]. On a device as 2 artanh(z) / y with z = y / (2 + y): its series
// keeps the digits that 1 + y would lose, and stops 2e-7 short at y = 1.
template <class Real>
LINATTN_HOST_DEVICE Real log1p_ratio(Real y) {
#if defined(__CUDA_ARCH__)
  if constexpr (std::is_same_v<Real, float>) {
    const float inverse = inverse_of(2.0f + y), z = y * inverse, s = z * z;
    const float tail = fmaf(s, fmaf(s, fmaf(s, 1.0f / 11, 1.0f / 9), 1.0f / 7), 1.0f / 5);
    return 2.0f * inverse * fmaf(s, fmaf(s, tail, 1.0f / 3), 1.0f);
  }
#endif
  return y == Real(0) ? Real(1) : std::log1p(y) / y;
}

}  // namespace gate_math

// By exp and division: no cancellation at either end, so that a decay of 1e-6 per token keeps all
// its digits.
template <class Real>
LINATTN_HOST_DEVICE Real sigmoid(Real x) {
  return gate_math::inverse_of(Real(1) + gate_math::exp_of(-x));
}

// Norms of q and k: x / sqrt(sum x^2 + epsilon); the epsilon is on the sum, inside the root.
inline constexpr double kNormEpsilon = 1e-6;

// What the activation of one value head (and key channel, for dt_bias) needs.
template <class Real>
struct GateParameters {
  Real a_log = 0;
  Real rate = 1;  // exp(a_log), at most the largest number: it leaves 0 at 0
  Real dt_bias = 0;
  Real lower_bound = 0;

  LINATTN_HOST_DEVICE static GateParameters of(Real a_log, Real dt_bias, Real lower_bound) {
    const Real rate = std::exp(a_log), largest = std::numeric_limits<Real>::max();
    return {a_log, rate < largest ? rate : largest, dt_bias, lower_bound};
  }
};

// Gradients from that of the log decay. dt_bias is added to g, so its gradient is g's.
template <class Real>
struct GateGradient {
  Real g = 0;
  Real a_log = 0;
};

struct InputLogDecay {
  template <class Real>
  LINATTN_HOST_DEVICE static Real log_decay(Real g, const GateParameters<Real>&) {
    return g;
  }
  template <class Real>
  LINATTN_HOST_DEVICE static GateGradient<Real> gradient(Real dlog_decay, Real,
                                                         const GateParameters<Real>&) {
    return {dlog_decay, Real(0)};
  }
};

// g in [0, 1]; 0 becomes -inf.
struct InputDecay {
  template <class Real>
  LINATTN_HOST_DEVICE static Real log_decay(Real g, const GateParameters<Real>&) {
    return std::log(g);
  }
  template <class Real>
  LINATTN_HOST_DEVICE static GateGradient<Real> gradient(Real dlog_decay, Real g,
                                                         const GateParameters<Real>&) {
    return {g == Real(0) ? Real(0) : dlog_decay / g, Real(0)};
  }
};

// -exp(A_log) softplus(x).
struct InputSoftplus {
  // By softplus(x) = max(x, 0) + log(1 + y), y = exp(-|x|). The second term takes exp(A_log) into
  // its exponent, where a huge rate and a tiny y cannot meet as infinity times zero.
  template <class Real>
  LINATTN_HOST_DEVICE static Real log_decay(Real g, const GateParameters<Real>& p) {
    const Real x = g + p.dt_bias, size = x > Real(0) ? x : -x;
    const Real small =
        gate_math::exp_of(p.a_log - size) * gate_math::log1p_ratio(gate_math::exp_of(-size));
    return -(p.rate * (x > Real(0) ? x : Real(0)) + small);
  }
  template <class Real>
  LINATTN_HOST_DEVICE static GateGradient<Real> gradient(Real dlog_decay, Real g,
                                                         const GateParameters<Real>& p) {
    if (dlog_decay == Real(0)) return {};  // also where the decay is 0 and its logarithm infinite
    const Real x = g + p.dt_bias;
    const Real y = gate_math::exp_of(x > Real(0) ? -x : x);
    const Real slope =
        -(x > Real(0) ? p.rate : gate_math::exp_of(p.a_log + x)) * gate_math::inverse_of(1 + y);
    return {dlog_decay * slope, dlog_decay * log_decay(g, p)};
  }
};

// lower_bound sigmoid(exp(A_log) x).
struct InputBounded {
  template <class Real>
  LINATTN_HOST_DEVICE static Real log_decay(Real g, const GateParameters<Real>& p) {
    return p.lower_bound * sigmoid(scaled(g, p));
  }
  template <class Real>
  LINATTN_HOST_DEVICE static GateGradient<Real> gradient(Real dlog_decay, Real g,
                                                         const GateParameters<Real>& p) {
    const Real y = scaled(g, p);
    const Real slope = sigmoid(y) * sigmoid(-y);
    if (dlog_decay == Real(0) || slope == Real(0))
      return {};  // saturated; y or the rate may be infinite
    const Real dy = dlog_decay * p.lower_bound * slope;
    return {dy * p.rate, dy * y};
  }

 private:
  template <class Real>
  LINATTN_HOST_DEVICE static Real scaled(Real g, const GateParameters<Real>& p) {
    return p.rate * (g + p.dt_bias);
  }
};

template <class I>
concept GateInputPolicy = requires(float x, const GateParameters<float>& p) {
  { I::log_decay(x, p) } -> std::same_as<float>;
  { I::gradient(x, x, p) } -> std::same_as<GateGradient<float>>;
};

static_assert(GateInputPolicy<InputLogDecay> && GateInputPolicy<InputDecay> &&
              GateInputPolicy<InputSoftplus> && GateInputPolicy<InputBounded>);

// ---- strengths: beta, erase, write
// ---------------------------------------------------------------------------

struct BetaOne {
  template <class Real>
  LINATTN_HOST_DEVICE static Real strength(Real) {
    return Real(1);
  }
  template <class Real>
  LINATTN_HOST_DEVICE static Real gradient(Real, Real) {
    return Real(0);
  }
};

struct BetaValue {
  template <class Real>
  LINATTN_HOST_DEVICE static Real strength(Real x) {
    return x;
  }
  template <class Real>
  LINATTN_HOST_DEVICE static Real gradient(Real dstrength, Real) {
    return dstrength;
  }
};

struct BetaLogit {
  template <class Real>
  LINATTN_HOST_DEVICE static Real strength(Real x) {
    return sigmoid(x);
  }
  template <class Real>
  LINATTN_HOST_DEVICE static Real gradient(Real dstrength, Real x) {
    return dstrength * sigmoid(x) * sigmoid(-x);
  }
};

struct BetaTwiceLogit {
  template <class Real>
  LINATTN_HOST_DEVICE static Real strength(Real x) {
    return Real(2) * sigmoid(x);
  }
  template <class Real>
  LINATTN_HOST_DEVICE static Real gradient(Real dstrength, Real x) {
    return Real(2) * dstrength * sigmoid(x) * sigmoid(-x);
  }
};

template <class B>
concept BetaPolicy = requires(float x) {
  { B::strength(x) } -> std::same_as<float>;
  { B::gradient(x, x) } -> std::same_as<float>;
};

static_assert(BetaPolicy<BetaOne> && BetaPolicy<BetaValue> && BetaPolicy<BetaLogit> &&
              BetaPolicy<BetaTwiceLogit>);

}  // namespace linattn
