// SPDX-License-Identifier: Apache-2.0
//
// Drafts that leave a replay record instead of states, and the steps that commit what was accepted.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "ops/compare.h"
#include "ops/run_log.h"
#include "ops/slice.h"

namespace linattn::test {
namespace {

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

Memory& memory_of(const std::string& row) {
  return of_the_cpu(row) ? host() : *memory_under_test();
}

struct Kind {
  Op op;
  DType dtype, state_dtype;
  StateLayout layout;
  std::int32_t key_dim, value_dim;
};

const Kind kKinds[] = {
    {kda, DType::kFloat32, DType::kFloat32, StateLayout::kKeyValue, 32, 24},
    {kda, DType::kBFloat16, DType::kBFloat16, StateLayout::kValueKey, 64, 48},
    {gdn, DType::kBFloat16, DType::kFloat32, StateLayout::kValueKey, 96, 20},
    {gla, DType::kFloat32, DType::kFloat16, StateLayout::kKeyValue, 32, 24},
    {simple_gla, DType::kFloat32, DType::kFloat32, StateLayout::kValueKey, 33, 17},
    {lightning, DType::kBFloat16, DType::kFloat32, StateLayout::kKeyValue, 64, 24},
    {delta_rule, DType::kFloat32, DType::kFloat32, StateLayout::kValueKey, 32, 24},
    {linear_attention, DType::kFloat32, DType::kFloat32, StateLayout::kKeyValue, 32, 24},
    {gdn2, DType::kFloat32, DType::kFloat32, StateLayout::kValueKey, 32, 24},
};

Drawn draft(const Kind& kind, std::vector<std::int64_t> lengths, std::uint32_t options = 0) {
  Scenario s = make(kind.op, Pass::kStep, std::move(lengths), 2, 4, kind.key_dim, kind.value_dim,
                    kind.dtype);
  s.options = options | kL2Norm | kNoFinal;
  s.problem.qk_l2norm = true;
  s.problem.state_dtype = kind.state_dtype;
  s.problem.state_layout = kind.layout;
  if (kind.op.update != Update::kAdd) s.problem.beta_input = BetaInput::kLogit;
  return {s, draw(s)};
}

// The state after those tokens of sequence n, by the oracle, as it is stored.
std::vector<float> state_after(const Drawn& d, std::int64_t n,
                               const std::vector<std::int32_t>& tokens) {
  const std::int64_t size = d.scenario.value_heads() * d.scenario.matrix();
  std::vector<float> state(d.inputs.initial.begin() + n * size,
                           d.inputs.initial.begin() + (n + 1) * size);
  for (const std::int32_t t : tokens) {
    Drawn one = rows_of(d, n, t, t + 1, state);
    one.scenario.options &= ~(kNoFinal | kTree);
    one.inputs.parents.clear();
    one.inputs.final_slots = 1;
    one.scenario.problem.state_dtype = DType::kFloat32;  // between tokens nothing is rounded
    state = output(reference(one.scenario, one.inputs), "final_state").values;
  }
  round_to(d.scenario.problem.state_dtype, state);
  return state;
}

std::vector<std::int32_t> first_tokens(std::int64_t count) {
  std::vector<std::int32_t> tokens(index(count));
  for (std::int64_t i = 0; i < count; ++i) tokens[index(i)] = static_cast<std::int32_t>(i);
  return tokens;
}

// Memory of a commit by one row.
class Commit {
 public:
  Commit(const Drawn& d, const std::string& row, std::int64_t layers = 1)
      : d_(d),
        problem_(commit_problem(d.scenario.problem)),
        row_(row),
        layers_(layers),
        elements_(replay_elements(problem_, d.scenario.tokens())),
        record_(memory_of(row), "record", index(layers * elements_) * sizeof(float), Poison::kNaN,
                true) {
    record_.upload();
  }

  // What the draft's call leaves for layer `layer`.
  void record(std::int64_t layer) {
    const Outcome outcome = run(d_.scenario, d_.inputs, row_, {.change = [&](Call& call) {
                                  call.step.replay =
                                      static_cast<float*>(record_.data()) + layer * elements_;
                                }});
    ASSERT_EQ(outcome.refusal + outcome.fault, "");
    const Results ref = reference(d_.scenario, d_.inputs);
    EXPECT_LE(relative_rms(output(outcome.results, "out").values, output(ref, "out").values),
              limit(d_.scenario, row_, 5e-6));
    EXPECT_EQ(record_.fetch(), "");
  }

  // counts and picks as in StepArgs; slot n is read, slot N - 1 - n + spare written.
  void run_commit(const std::vector<std::int32_t>& counts,
                  const std::vector<std::int32_t>& picks = {}) {
    const Scenario& s = d_.scenario;
    Memory& memory = memory_of(row_);
    const std::int64_t n = s.sequences(), size = s.value_heads() * s.matrix();
    std::vector<std::int32_t> reads, writes, offsets{0};
    for (std::int64_t i = 0; i < n; ++i) {
      reads.push_back(static_cast<std::int32_t>(i));
      writes.push_back(write_slot(i));
      offsets.push_back(offsets.back() + static_cast<std::int32_t>(s.lengths[index(i)]));
    }
    std::vector<std::unique_ptr<Guarded>> kept;
    const auto given = [&]<class T>(const char* name, const std::vector<T>& values) {
      const std::size_t bytes = values.size() * sizeof(T);
      kept.push_back(std::make_unique<Guarded>(memory, name, bytes, Poison::kNaN));
      kept.back()->put_bytes(0, values.data(), bytes);
      kept.back()->upload();
      return static_cast<const T*>(kept.back()->data());
    };
    // The states of the draft, and the slots that the commit writes.
    pools_.clear();
    std::vector<void*> addresses;
    for (std::int64_t layer = 0; layer < layers_; ++layer) {
      pools_.push_back(std::make_unique<Guarded>(
          memory, "pool", index((n + kSpare) * size) * size_of(problem_.state_dtype),
          Poison::kNaN));
      Guarded& pool = *pools_.back();
      for (std::int64_t i = 0; i < n * size; ++i) place(pool, i, d_.inputs.initial[index(i)]);
      for (const std::int32_t slot : writes) pool.own(problem_.state_dtype, slot * size, size);
      pool.upload();
      addresses.push_back(pool.data());
    }
    StepArgs args = commit_args(problem_, static_cast<const float*>(record_.data()), s.tokens(), n);
    args.cu_seqlens = given("cu_seqlens", offsets);
    args.initial_state = args.final_state = contiguous_state(
        addresses[0], n + kSpare, s.value_heads(), problem_.key_dim, problem_.value_dim);
    args.read_slots = given("read_slots", reads);
    args.write_slots = given("write_slots", writes);
    args.counts = given("counts", counts);
    if (!picks.empty()) {
      args.picks = given("picks", picks);
      args.picks_stride = static_cast<std::int64_t>(picks.size()) / n;
    }
    if (layers_ > 1) {
      args.layers = layers_;
      args.layer_stride = elements_;
      args.pools = given("pools", addresses);
    }
    Problem problem = problem_;
    problem.max_tokens = std::max<std::int64_t>(s.tokens(), 1);
    problem.max_sequences = n;
    const StepPlan plan(problem, memory.device(), row_.c_str());
    const std::size_t bytes = plan.workspace_bytes(s.tokens(), n);
    Guarded scratch(memory, "workspace", bytes, Poison::kNaN, true);
    memory.run([&](Stream stream) { plan.run(args, {scratch.data(), bytes}, stream); });
    log_run(Pass::kStep, row_, 0);
    for (const auto& one : kept) EXPECT_EQ(one->fetch(), "");
    for (const auto& pool : pools_) EXPECT_EQ(pool->fetch(), "");
  }

  void expect_states(std::int64_t layer, const std::vector<std::vector<std::int32_t>>& tokens) {
    const Scenario& s = d_.scenario;
    const std::int64_t size = s.value_heads() * s.matrix();
    for (std::int64_t n = 0; n < s.sequences(); ++n) {
      std::vector<float> state;
      for (std::int64_t i = 0; i < size; ++i)
        state.push_back(get(*pools_[index(layer)], write_slot(n) * size + i));
      const std::vector<float> expected = state_after(d_, n, tokens[index(n)]);
      // A rounding to 16 bits may fall on the other side.
      const double most = problem_.state_dtype == DType::kFloat32    ? 3e-6
                          : problem_.state_dtype == DType::kBFloat16 ? 4e-3
                                                                     : 5e-4;
      EXPECT_LE(relative_rms(state, expected), most) << "sequence " << n << ", layer " << layer;
    }
  }

 private:
  static constexpr std::int64_t kSpare = 6;

  // The pool is in its layout, test values are [K, V].
  std::int64_t element(std::int64_t i) const {
    if (problem_.state_layout == StateLayout::kKeyValue) return i;
    const std::int64_t matrix = d_.scenario.matrix(), in = i % matrix;
    return i - in + in % problem_.value_dim * problem_.key_dim + in / problem_.value_dim;
  }
  void place(Guarded& pool, std::int64_t i, float x) {
    pool.put(problem_.state_dtype, element(i), x);
  }
  float get(Guarded& pool, std::int64_t i) { return pool.get(problem_.state_dtype, element(i)); }
  std::int32_t write_slot(std::int64_t n) const {
    return static_cast<std::int32_t>(n == 0 ? 0 : d_.scenario.sequences() + kSpare - n);
  }

  const Drawn& d_;
  const Problem problem_;
  const std::string row_;
  const std::int64_t layers_, elements_;
  Guarded record_;
  std::vector<std::unique_ptr<Guarded>> pools_;
};

class Replay : public testing::TestWithParam<Kind> {};

// Counts of nothing, of some, of all, and of more and less than there are.
TEST_P(Replay, CommitsAPrefix) {
  const Drawn d = draft(GetParam(), {4, 1, 0, 5, 3, 2});
  for (const std::string& row : takers(d.scenario)) {
    SCOPED_TRACE(reproduce(d.scenario, row));
    Commit commit(d, row);
    commit.record(0);
    commit.run_commit({2, 9, 1, 0, 3, -5});
    commit.expect_states(0, {first_tokens(2), first_tokens(1), {}, {}, first_tokens(3), {}});
  }
}

TEST_P(Replay, CommitsAPathOfATree) {
  Drawn d = draft(GetParam(), {6, 4});
  d.scenario.options |= kTree;
  d.inputs.parents = {-1, 0, 0, 1, 2, 4, -1, -1, 1, 2};
  for (const std::string& row : takers(d.scenario)) {
    SCOPED_TRACE(reproduce(d.scenario, row));
    Commit commit(d, row);
    commit.record(0);
    commit.run_commit({4, 2}, {0, 2, 4, 5, 1, 2, 0, 0});
    commit.expect_states(0, {{0, 2, 4, 5}, {1, 2}});
  }
}

TEST_P(Replay, CommitsManyLayersInOneCall) {
  const Drawn d = draft(GetParam(), {3, 2});
  for (const std::string& row : takers(d.scenario)) {
    SCOPED_TRACE(reproduce(d.scenario, row));
    Commit commit(d, row, 3);
    for (const std::int64_t layer : {2, 0, 1}) commit.record(layer);
    commit.run_commit({1, 2});
    for (const std::int64_t layer : {0, 1, 2})
      commit.expect_states(layer, {first_tokens(1), first_tokens(2)});
  }
}

INSTANTIATE_TEST_SUITE_P(Ops, Replay, testing::ValuesIn(kKinds), [](const auto& info) {
  return to_string(info.param.op) + "_" + to_string(info.param.dtype);
});

// What is not taken has output rows of zeros, and the others do not see it.
TEST(Replay, CountsLimitADraft) {
  for (const Op op : {kda, gdn, gla, simple_gla}) {
    Drawn d =
        draft({op, DType::kFloat32, DType::kFloat32, StateLayout::kKeyValue, 32, 24}, {4, 3, 2});
    const std::vector<std::int32_t> counts{2, 3, 0};
    for (const std::string& row : takers(d.scenario)) {
      SCOPED_TRACE(reproduce(d.scenario, row));
      Guarded given(memory_of(row), "counts", counts.size() * 4, Poison::kNaN);
      given.put_bytes(0, counts.data(), counts.size() * 4);
      given.upload();
      const Results plain = must_run(d, row);
      const Outcome limited = run(d.scenario, d.inputs, row, {.change = [&](Call& call) {
                                    call.step.counts =
                                        static_cast<const std::int32_t*>(given.data());
                                  }});
      EXPECT_EQ(limited.refusal + limited.fault, "");
      const Output& all = output(plain, "out");
      std::vector<float> expected = all.values;
      for (std::int64_t n = 0; n < 3; ++n)
        for (std::int64_t t = counts[index(n)]; t < d.scenario.lengths[index(n)]; ++t)
          std::fill_n(expected.begin() + (d.scenario.begin(n) + t) * all.row_width, all.row_width,
                      0.f);
      expect_same(output(limited.results, "out").values, expected, "out");
    }
  }
}

}  // namespace
}  // namespace linattn::test
