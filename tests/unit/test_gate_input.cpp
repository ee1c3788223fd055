// SPDX-License-Identifier: Apache-2.0
//
// Activations and strengths at the ends of their ranges, their gradients, and the dispatch over
// policies.
#include "recurrence/gate_input.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "recurrence/dispatch.h"

namespace linattn {
namespace {

constexpr GateInput kGateInputs[] = {GateInput::kLogDecay, GateInput::kDecay, GateInput::kSoftplus,
                                     GateInput::kBounded};

// N-10: every combination of rates and inputs that over- or underflow gives a log decay, and
// gradients, never NaN.
template <class Real>
void expect_no_nan() {
  const Real infinity = std::numeric_limits<Real>::infinity();
  for (const Real a_log :
       {-infinity, Real(-88), Real(0), Real(88), Real(89), Real(100), Real(1000)})
    for (const Real x : {Real(-1000), Real(-200), Real(-90), Real(-20), Real(0), Real(20),
                         Real(200), Real(1000)}) {
      const auto p = GateParameters<Real>::of(a_log, 0, -5);
      for (const Real a : {InputSoftplus::log_decay(x, p), InputBounded::log_decay(x, p)})
        EXPECT_LE(a, 0) << a_log << " " << x;  // false for NaN
      EXPECT_GE(InputBounded::log_decay(x, p), -5);
      for (const Real da : {Real(0), Real(1)}) {
        // The gradient of a log decay is 0 where the decay is.
        const Real softplus_da = std::exp(InputSoftplus::log_decay(x, p)) == 0 ? 0 : da;
        for (const auto& gradient :
             {InputSoftplus::gradient(softplus_da, x, p), InputBounded::gradient(da, x, p)}) {
          EXPECT_FALSE(std::isnan(gradient.g)) << a_log << " " << x;
          EXPECT_FALSE(std::isnan(gradient.a_log)) << a_log << " " << x;
        }
      }
    }
}

TEST(GateInput, NeverNaN) {
  expect_no_nan<float>();
  expect_no_nan<double>();
}

// At rate 1 the gate is softplus itself.
template <class Real>
Real softplus(Real x) {
  return -InputSoftplus::log_decay(x, GateParameters<Real>::of(0, 0, 0));
}

// Where rate and softplus meet as infinity times zero, their product is still exp(A_log + x).
TEST(GateInput, RateThatOverflows) {
  const auto p = GateParameters<float>::of(89, 0, 0);
  EXPECT_NEAR(InputSoftplus::log_decay(-90.f, p), -std::exp(-1.), 1e-6);
  EXPECT_EQ(InputSoftplus::log_decay(-200.f, p), 0);
  EXPECT_EQ(softplus(200.f), 200.f);
  EXPECT_EQ(softplus(-200.f), 0.f);
}

// No cancellation: tiny decays keep their digits. A bounded gate at -1e-9 per token is a memory of
// 1e9 tokens.
template <class Real>
void expect_digits(double tolerance) {
  for (double x = -80; x <= 80; x += .37) {
    const auto wide = static_cast<long double>(static_cast<Real>(x));
    const long double exact_sigmoid =
        x < 0 ? std::exp(wide) / (1 + std::exp(wide)) : 1 / (1 + std::exp(-wide));
    const long double exact_softplus =
        x < 0 ? std::log1p(std::exp(wide)) : wide + std::log1p(std::exp(-wide));
    EXPECT_NEAR(sigmoid(static_cast<Real>(x)) / exact_sigmoid, 1, tolerance) << x;
    EXPECT_NEAR(softplus(static_cast<Real>(x)) / exact_softplus, 1, tolerance) << x;
    const auto p = GateParameters<Real>::of(Real(.25), 0, -5);
    const long double rate = std::exp(static_cast<long double>(Real(.25)));
    EXPECT_NEAR(InputSoftplus::log_decay(static_cast<Real>(x), p) / (-rate * exact_softplus), 1,
                80 * tolerance)
        << x;
  }
}

TEST(GateInput, TinyDecaysKeepTheirDigits) {
  expect_digits<float>(4e-7);
  expect_digits<double>(1e-15);
}

TEST(GateInput, LinearAndLogDecays) {
  const GateParameters<double> p;
  EXPECT_EQ(InputDecay::log_decay(0., p), -std::numeric_limits<double>::infinity());
  EXPECT_EQ(InputDecay::log_decay(1., p), 0);
  EXPECT_EQ(InputDecay::gradient(0., 0., p).g, 0);
  EXPECT_EQ(InputLogDecay::log_decay(.5, p), .5);  // positive: passed through
  EXPECT_EQ(std::exp(InputLogDecay::log_decay(-std::numeric_limits<double>::infinity(), p)), 0);
}

TEST(GateInput, GradientsAreDerivatives) {
  constexpr double kStep = 1e-5, kTolerance = 1e-9;
  for (const GateInput input : kGateInputs)
    with_gate_input(input, [&]<class Input>(Input) {
      for (const double g : {.05, .3, .9})
        for (const double a_log : {-2., 0., 1.}) {
          const auto value = [&](double dg, double da_log, double dbias) {
            return Input::log_decay(g + dg,
                                    GateParameters<double>::of(a_log + da_log, .2 + dbias, -3));
          };
          const auto gradient = Input::gradient(1.5, g, GateParameters<double>::of(a_log, .2, -3));
          const auto difference = [&](double dg, double da_log, double dbias) {
            return 1.5 * (value(dg, da_log, dbias) - value(-dg, -da_log, -dbias)) / (2 * kStep);
          };
          const bool raw = input == GateInput::kSoftplus || input == GateInput::kBounded;
          const double scale = std::abs(gradient.g) + 1;
          EXPECT_NEAR(gradient.g, difference(kStep, 0, 0), 20 * kTolerance * scale * scale);
          EXPECT_NEAR(gradient.a_log, difference(0, kStep, 0), kTolerance * scale);
          EXPECT_NEAR(raw ? gradient.g : 0, difference(0, 0, kStep), kTolerance * scale);
        }
    });
}

TEST(BetaInput, StrengthsAndGradients) {
  // N-11: what a 16-bit rounding would turn into 0.62109375.
  EXPECT_FLOAT_EQ(BetaLogit::strength(.5f), 0.62245933f);
  EXPECT_FLOAT_EQ(BetaTwiceLogit::strength(.5f), 1.24491866f);
  EXPECT_EQ(BetaOne::strength(.3f), 1);
  EXPECT_EQ(BetaValue::strength(.3f), .3f);
  EXPECT_EQ(BetaLogit::strength(-1000.f), 0);
  EXPECT_EQ(BetaLogit::strength(1000.f), 1);
  for (const BetaInput input :
       {BetaInput::kOne, BetaInput::kValue, BetaInput::kLogit, BetaInput::kTwiceLogit})
    with_beta_input(input, [&]<class Beta>(Beta) {
      for (const double x : {-3., 0., .7, 5.})
        EXPECT_NEAR(Beta::gradient(2., x),
                    (Beta::strength(x + 1e-5) - Beta::strength(x - 1e-5)) / 1e-5, 1e-9);
      EXPECT_TRUE(std::isfinite(Beta::gradient(1.f, 1000.f)) &&
                  std::isfinite(Beta::gradient(1.f, -1000.f)));
    });
}

template <class F>
std::string refusal(F&& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    return error.what();
  }
  return "";
}

TEST(Dispatch, NineOpsFourClasses) {
  const auto class_of = [](Op op) {
    return with_class(
        op, [](auto gate, auto update) { return 2 * gate.kPerChannel + update.kReadsState; });
  };
  for (const Op op : {lightning, simple_gla, retention, linear_attention})
    EXPECT_EQ(class_of(op), 0);
  for (const Op op : {gdn, delta_rule}) EXPECT_EQ(class_of(op), 1);
  EXPECT_EQ(class_of(gla), 2);
  for (const Op op : {kda, gdn2}) EXPECT_EQ(class_of(op), 3);
}

TEST(Dispatch, UnknownValuesAreRefusedWithTheirNumber) {
  const auto ignore = [](auto&&...) {};
  EXPECT_EQ(refusal([&] { with_class({static_cast<Gate>(9), Update::kAdd}, ignore); }),
            "linattn: op.gate is 9; compiled for none, head constant, head, channel (1 to 4)");
  EXPECT_NE(
      refusal([&] { with_class({Gate::kHead, Update::kUnset}, ignore); }).find("op.update is 0"),
      std::string::npos);
  EXPECT_NE(refusal([&] { with_dtype(DType::kInt32, ignore); }).find("dtype is 4"),
            std::string::npos);
  EXPECT_NE(refusal([&] { with_gate_input(GateInput::kUnset, ignore); }).find("gate_input is 0"),
            std::string::npos);
  EXPECT_NE(refusal([&] { with_beta_input(BetaInput::kUnset, ignore); }).find("beta_input is 0"),
            std::string::npos);
  EXPECT_EQ(refusal([&] { with_dims<64, 128>("key_dim", 97, ignore); }),
            "linattn: key_dim is 97; compiled for 64, 128");
}

TEST(Dispatch, DimsAndDtypesReachTheTemplate) {
  int dim = 0;
  with_dims<64, 128>("key_dim", 128, [&]<int kDim>(Int<kDim>) { dim = kDim; });
  EXPECT_EQ(dim, 128);
  EXPECT_EQ(with_dtype(DType::kBFloat16, [](auto zero) { return sizeof zero; }), 2u);
  EXPECT_EQ(with_dtype(DType::kFloat32, [](auto zero) { return sizeof zero; }), 4u);
}

}  // namespace
}  // namespace linattn
