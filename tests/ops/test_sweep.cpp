// SPDX-License-Identifier: Apache-2.0
//
// Random problems over all options. A test's number is its seed: --gtest_filter=*RandomProblem*/17
// repeats one.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "ops/compare.h"
#include "ops/run.h"
#include "support/random.h"

namespace linattn::test {
namespace {

DType any_float(Random& random) {
  return random.pick(
      std::initializer_list<DType>{DType::kFloat32, DType::kBFloat16, DType::kFloat16});
}

std::uint32_t any_options(Random& random, Pass pass) {
  std::uint32_t options = 0;
  const auto maybe = [&](std::uint32_t option, double probability) {
    if (random.coin(probability)) options |= option;
  };
  maybe(kNoInitial, .15), maybe(kNoFinal, .1), maybe(kSlots, .4), maybe(kInPlace, .3);
  maybe(kFirstSlot, .2), maybe(kHasInitial, .2), maybe(kInt64, .3), maybe(kScale, .3);
  maybe(kNoBias, .4), maybe(kNoALog, .3), maybe(kPadded, .3), maybe(kUnaligned, .2);
  maybe(kSlice, .2), maybe(kHeadMajor, .2), maybe(kPackedQkv, .2), maybe(kInvariant, .1);
  if (pass == Pass::kForward) {
    maybe(kCheckpoints, .3), maybe(kStarts, .3), maybe(kTransition, .2);
  } else if (pass == Pass::kStep) {
    maybe(kAccepted, .3), maybe(kColumns, .3), maybe(kTree, .3);
  } else {
    maybe(kNoDout, .15), maybe(kNoDFinal, .2), maybe(kSomeGradients, .15);
    options &= ~static_cast<std::uint32_t>(kInPlace);
  }
  if (options & (kNoInitial | kNoFinal)) options &= ~static_cast<std::uint32_t>(kInPlace);
  if (options & (kAccepted | kColumns)) options |= kSlots;
  // Without a state to read or to store there is nothing to choose.
  if (options & kNoInitial) options &= ~static_cast<std::uint32_t>(kAccepted | kHasInitial);
  if (options & kNoFinal) options &= ~static_cast<std::uint32_t>(kColumns);
  if (!(options & kSlots)) options &= ~static_cast<std::uint32_t>(kFirstSlot);
  if (options & kPackedQkv) options &= ~static_cast<std::uint32_t>(kHeadMajor);
  return options;
}

Scenario random_problem(std::uint64_t seed) {
  Random random(seed);
  const Op op = random.pick(kAllOps).op;
  const Pass pass = random.pick(std::initializer_list<Pass>{
      Pass::kForward, Pass::kForward, Pass::kForward, Pass::kBackward, Pass::kStep});
  const bool step = pass == Pass::kStep, equal = random.coin(.4);
  const std::int64_t longest = step ? 8 : pass == Pass::kBackward ? 90 : 260;
  const std::int64_t n = 1 + random.below(6);
  std::vector<std::int64_t> lengths;
  for (std::int64_t i = 0; i < n; ++i)
    lengths.push_back(equal && i > 0     ? lengths.front()
                      : random.coin(.15) ? 0
                      : random.coin(.25)
                          ? std::min<std::int64_t>(longest, 16 * (1 + random.below(8)))
                          : 1 + random.below(longest));
  const std::int32_t heads = static_cast<std::int32_t>(1 + random.below(3));
  const auto dim = [&] {
    return random.pick(
        std::initializer_list<std::int32_t>{1, 3, 8, 16, 17, 24, 32, 48, 60, 64, 64, 80, 100, 128});
  };
  const std::int32_t key_dim = dim(), value_dim = dim();
  Scenario s =
      make(op, pass, lengths, heads, heads * static_cast<std::int32_t>(1 + random.below(3)),
           key_dim, value_dim, any_float(random));
  s.seed = seed;
  s.options = any_options(random, pass);
  if (s.variable_length || random.coin(.3)) {
    s.variable_length = true;
    s.surplus = random.coin(.3) ? random.below(20) : 0;
  }
  s.scale = s.has(kScale) ? static_cast<float>(random.uniform(.05, 2)) : 0;
  s.decay = static_cast<Decay>(random.below(static_cast<std::int64_t>(Decay::kConstant) + 1));
  s.keys = static_cast<Keys>(random.below(static_cast<std::int64_t>(Keys::kOneHot) + 1));
  Problem& p = s.problem;
  p.max_tokens = std::max<std::int64_t>(s.tokens(), 1) + random.below(100);
  p.max_sequences = s.sequences() + random.below(3);
  p.gate_dtype = any_float(random);
  p.beta_dtype = any_float(random);
  p.state_dtype = random.coin() ? DType::kFloat32 : any_float(random);
  if (random.coin(.3)) p.checkpoint_dtype = any_float(random);
  p.checkpoint_interval = random.pick(std::initializer_list<std::int32_t>{64, 64, 128, 16, 7});
  p.state_layout = random.coin() ? StateLayout::kKeyValue : StateLayout::kValueKey;
  p.batch_invariant = s.has(kInvariant);
  if (op.gate != Gate::kNone)
    p.gate_input = static_cast<GateInput>(1 + random.below(LINATTN_INPUT_BOUNDED));
  if (p.gate_input == GateInput::kBounded) s.lower_bound = random.coin() ? -5 : -1.5f;
  if (op.update == Update::kDelta)
    p.beta_input = static_cast<BetaInput>(1 + random.below(LINATTN_BETA_TWICE_LOGIT));
  if (op.update == Update::kEraseWrite)
    p.beta_input = static_cast<BetaInput>(2 + random.below(LINATTN_BETA_TWICE_LOGIT - 1));
  p.qk_l2norm = random.coin(.3);
  if (p.qk_l2norm && random.coin()) s.keys = Keys::kRaw;
  // fp16 cannot hold what these two make together: beta up to 2 without forgetting, on keys that
  // repeat.
  if (p.beta_input == BetaInput::kTwiceLogit && s.keys != Keys::kRandom) s.decay = Decay::kMild;
  return s;
}

class RandomProblem : public testing::TestWithParam<int> {};

TEST_P(RandomProblem, AgreesWithOracle) {
  const Scenario s = random_problem(static_cast<std::uint64_t>(GetParam()));
  expect_agreement(s);
}

INSTANTIATE_TEST_SUITE_P(Sweep, RandomProblem, testing::Range(0, 300),
                         [](const auto& info) { return std::to_string(info.param); });

}  // namespace
}  // namespace linattn::test
