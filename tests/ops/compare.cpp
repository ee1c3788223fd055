// SPDX-License-Identifier: Apache-2.0
#include "ops/compare.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>

#include "ops/run.h"

namespace linattn::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::int64_t kChunk = 64;

struct Sums {
  double difference = 0, reference = 0;
  std::int64_t count = 0;
  void add(double x, double ref) {
    const double d = x - ref;
    difference += std::isfinite(x) ? d * d : kInfinity;
    reference += ref * ref;
    ++count;
  }
  double ratio(double least_mean_square = 0) const {
    const double base = std::max(reference, least_mean_square * static_cast<double>(count));
    return difference == 0 ? 0 : base == 0 ? kInfinity : std::sqrt(difference / base);
  }
};

// A kernel that keeps fp32 sums K products in another order than the model: 8 units in the last
// place.
constexpr double kLeastFp32 = 1e-6;
// Half a unit in the last place of the stored value: no 16-bit output can promise less.
double least(DType stored) {
  return stored == DType::kBFloat16 ? 0x1p-9 : stored == DType::kFloat16 ? 0x1p-12 : kLeastFp32;
}

double cap(const Scenario& s, const Output& out, const std::string& row) {
  // The emulation of a 16-bit kernel rounds to bf16 also what comes in fp32.
  const DType fp32 = row == kEmulated ? DType::kBFloat16 : DType::kFloat32;
  const auto of = [&](DType dtype) {
    const Caps c = caps(dtype == DType::kFloat32 ? fp32 : dtype);
    const double repeated = c.out > 1e-4 && repeats(s.keys, s.problem.key_dim) ? kRepeatedKeys : 1;
    const double reflected =
        c.out > 1e-4 && s.problem.beta_input == BetaInput::kTwiceLogit ? kReflected : 1;
    return repeated * reflected *
           (out.kind == Kind::kOut     ? c.out
            : out.kind == Kind::kState ? c.state
                                       : c.gradient);
  };
  return std::max(of(s.problem.dtype), of(out.dtype));
}

bool finite(const Results& results, std::string& name) {
  for (const Output& out : results)
    for (const float x : out.values)
      if (!std::isfinite(x)) {
        name = out.name;
        return false;
      }
  return true;
}

using Errors = std::map<std::string, OutputError>;

Errors errors_of(const Scenario& s, const Results& x, const Results& ref) {
  Errors errors;
  for (const Output& out : x) errors[out.name] = error_of(s, out, output(ref, out.name));
  return errors;
}

// What a precision costs, from which the tolerance is computed. Empty: only the cap holds.
Errors expected_errors(const Scenario& s, const Inputs& in, const std::string& row,
                       const Results& ref) {
  if (row == kOracle) return errors_of(s, rounded_to_storage(s, ref), ref);
  if (row == kEmulated) return {};
  if (tolerance_source(s.problem.dtype, s.pass) == ToleranceSource::kEmulated) {
    const Outcome emulated = run(s, in, kEmulated, {.rounds = 1});
    return emulated.refusal.empty() ? errors_of(s, emulated.results, ref) : Errors{};
  }
  if (s.pass == Pass::kBackward) return {};
  return errors_of(s, model<float>(s, in, true), ref);
}

void expect_output(const Scenario& s, const Output& x, const Output& ref, const Errors& expected,
                   const std::string& row) {
  const std::string line = reproduce(s, row);
  const OutputError error = error_of(s, x, ref);
  // No implementation can be better than the stored dtype: fp16 loses a gradient of 1e-9
  // altogether.
  Results stored = rounded_to_storage(s, {ref});
  const double most = std::max(cap(s, x, row), 2 * error_of(s, stored.front(), ref).whole);
  double floor = least(x.dtype);
  // A product of T equal decays in fp32: each rounds by up to 2^-25, all of them the same way where
  // the decay is near 1.
  if (x.name == "transition" && !s.lengths.empty())
    floor = std::max(floor, 0x1p-25 * static_cast<double>(*std::ranges::max_element(s.lengths)));
  double whole = most, position = 3 * most;
  if (const auto it = expected.find(x.name); it != expected.end()) {
    whole = std::min(most, std::max(floor, 2 * it->second.whole));
    // An rms of n values is itself known to 1 / sqrt(2 n): three of them.
    const double sampling =
        1 + 3 / std::sqrt(2.0 * static_cast<double>(std::max<std::int64_t>(error.count, 1)));
    position = std::min(3 * most, 2 * sampling * std::max(floor, it->second.position));
  }
  EXPECT_LE(error.whole, whole) << x.name << ": error above its tolerance\n" << line;
  EXPECT_LE(error.position, position)
      << x.name << ": error above its tolerance at position " << error.worst << " of a chunk\n"
      << line;
}

// Where the model may check the oracle: it is not fast.
bool small(const Scenario& s) { return s.tokens() * s.value_heads() * s.matrix() < (1 << 24); }

void expect_right_oracle(const Scenario& s, const Inputs& in, const Results& ref) {
  if (s.pass == Pass::kBackward || !small(s)) return;
  for (const Output& out : model<double>(s, in, false)) {
    if (out.name == "final_state" && in.final_slots == 0) continue;
    const OutputError error = error_of(s, output(ref, out.name), out);
    EXPECT_LE(error.whole, 1e-6) << "the oracle's " << out.name << " is wrong\n"
                                 << reproduce(s, kOracle);
    EXPECT_LE(error.position, 1e-5)
        << "the oracle's " << out.name << " is wrong at position " << error.worst << "\n"
        << reproduce(s, kOracle);
  }
}

}  // namespace

OutputError error_of(const Scenario& s, const Output& x, const Output& ref) {
  OutputError error;
  if (x.values.size() != ref.values.size()) return {kInfinity, kInfinity, -1};
  Sums whole;
  for (std::size_t i = 0; i < x.values.size(); ++i) whole.add(x.values[i], ref.values[i]);
  // A transition that has forgotten nearly all is measured against a hundredth of the identity's
  // rms, 1 / sqrt(K).
  error.whole = whole.ratio(x.name == "transition" ? 1e-4 / s.problem.key_dim : 0);
  if (x.row_width == 0 || whole.count == 0) return error;
  std::array<Sums, kChunk> positions;
  const auto width = static_cast<std::size_t>(x.row_width);
  for (std::int64_t n = 0; n < s.sequences(); ++n)
    for (std::int64_t t = 0; t < s.lengths[static_cast<std::size_t>(n)]; ++t) {
      const std::size_t first = static_cast<std::size_t>(s.begin(n) + t) * width;
      for (std::size_t i = first; i < first + width; ++i)
        positions[static_cast<std::size_t>(t % kChunk)].add(x.values[i], ref.values[i]);
    }
  // A position counts with half of the whole's rms at least: alone it may be nearly zero.
  const double mean = whole.reference / static_cast<double>(whole.count);
  for (std::size_t i = 0; i < positions.size(); ++i) {
    const double ratio = positions[i].ratio(.25 * mean);
    if (ratio <= error.position) continue;
    error.position = ratio;
    error.worst = static_cast<int>(i);
    error.count = positions[i].count;
  }
  return error;
}

double relative_rms(const std::vector<float>& x, const std::vector<float>& ref) {
  Sums sums;
  for (std::size_t i = 0; i < ref.size(); ++i) sums.add(x.at(i), ref[i]);
  return sums.ratio();
}

double limit(const Scenario& s, const std::string& row, double fp32) {
  if (s.problem.dtype == DType::kFloat32 && full_precision(row)) return fp32;
  return 3 * caps(DType::kBFloat16).out;
}

Agreement expect_agreement(const Scenario& s) { return expect_agreement(s, draw(s)); }

Agreement expect_agreement(const Scenario& s, const Inputs& in) {
  Agreement agreement;
  std::string name;
  const std::vector<std::string> rows = takers(s);
  if (rows.empty()) return agreement;
  const Results ref = reference(s, in);
  EXPECT_TRUE(finite(ref, name)) << "the oracle's " << name << " is not finite\n"
                                 << reproduce(s, kOracle);
  if (testing::Test::HasFailure()) return agreement;
  expect_right_oracle(s, in, ref);
  for (const std::string& row : rows) {
    const std::string line = reproduce(s, row);
    SCOPED_TRACE(row);
    const Outcome outcome = run(s, in, row);
    if (!outcome.refusal.empty()) continue;  // of these arguments
    agreement.rows.push_back(row);
    EXPECT_EQ(outcome.fault, "") << line;
    const Errors expected = expected_errors(s, in, row, ref);
    for (const Output& out : outcome.results)
      expect_output(s, out, output(ref, out.name), expected, row);
    // Rows of no sequence are zero, whatever lay there.
    if (s.surplus > 0)
      for (const Output& out : outcome.results)
        for (std::size_t i =
                 out.values.size() - static_cast<std::size_t>(s.surplus * out.row_width);
             i < out.values.size(); ++i)
          if (out.values[i] != 0) {
            ADD_FAILURE() << out.name << ": a row past the last offset is not zero\n" << line;
            break;
          }
  }
  return agreement;
}

}  // namespace linattn::test
