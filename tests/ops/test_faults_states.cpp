// SPDX-License-Identifier: Apache-2.0
//
// Kinds of fault that other libraries had, sections 5-8: states, backward, concurrency,
// integration. Entries of tests/faults.txt.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <initializer_list>
#include <limits>
#include <thread>

#include "ops/compare.h"
#include "ops/slice.h"

namespace linattn::test {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr Op kClasses[] = {kda, gdn, gla, simple_gla};
constexpr Pass kPasses[] = {Pass::kForward, Pass::kBackward, Pass::kStep};
constexpr DType kDTypes[] = {DType::kFloat32, DType::kBFloat16};  // rows take one of them or both

Scenario scenario(Op op, Pass pass, std::vector<std::int64_t> lengths, std::uint32_t options = 0,
                  std::int32_t key_dim = 16, std::int32_t value_dim = 24, std::int32_t heads = 1,
                  std::int32_t value_heads = 2, DType dtype = DType::kFloat32) {
  Scenario s = make(op, pass, std::move(lengths), heads, value_heads, key_dim, value_dim, dtype);
  s.options = options;
  return s;
}

Drawn drawn(const Scenario& s) { return {s, draw(s)}; }

// ---- 5. states
// --------------------------------------------------------------------------------------

// A recycled slot is full of 1e4 (or NaN): has_initial_state = 0 starts from zero all the same.
TEST(Faults, T02_RecycledSlot) {
  for (const Op op : kClasses)
    for (const Pass pass : {Pass::kForward, Pass::kStep})
      for (const DType dtype : kDTypes)
        for (const std::int64_t second : {1, 70})
          for (const float rubbish : {1e4f, kNaN}) {
            if (pass == Pass::kStep && second > kStepTokens) continue;
            Drawn d = drawn(scenario(op, pass, {1, second}, 0, 16, 24, 1, 2, dtype));
            std::fill_n(d.inputs.initial.begin(), 2 * 16 * 24, rubbish);
            d.inputs.has_initial = {0, 1};
            expect_agreement(d.scenario, d.inputs);
          }
}

// SPLIT into pieces that are not chunks, the state carried through fp32; short pieces by the row
// itself or, as steps, by every row that steps.
void expect_pieces(Op op, const std::vector<std::int64_t>& pieces,
                   Pass tail_pass = Pass::kForward) {
  std::int64_t tokens = 0;
  for (const std::int64_t piece : pieces) tokens += piece;
  for (const DType dtype : kDTypes) {
    const Drawn whole = drawn(scenario(op, Pass::kForward, {tokens}, 0, 16, 24, 1, 2, dtype));
    Scenario steps = whole.scenario;
    steps.pass = tail_pass;
    for (const std::string& row : takers(whole.scenario)) {
      const Results all = must_run(whole, row);
      for (const std::string& tail : tail_pass == Pass::kStep ? takers(steps) : std::vector{row}) {
        SCOPED_TRACE(reproduce(whole.scenario, row) + " steps by " + tail);
        std::vector<float> out, state;
        std::int64_t done = 0;
        for (const std::int64_t piece : pieces) {
          Drawn one = rows_of(whole, 0, done, done + piece, state);
          const bool step = tail_pass == Pass::kStep && piece <= kStepTokens;
          if (step) one.scenario.pass = Pass::kStep;
          const Results x = must_run(one, step ? tail : row);
          state = output(x, "final_state").values;
          const std::vector<float>& o = output(x, "out").values;
          out.insert(out.end(), o.begin(), o.end());
          done += piece;
        }
        const double most = limit(whole.scenario, row, 5e-6);
        EXPECT_LE(relative_rms(out, output(all, "out").values), most);
        EXPECT_LE(relative_rms(state, output(all, "final_state").values), most);
      }
    }
  }
}
TEST(Faults, T03_StateIsCarriedWhateverTheLength) {
  for (const Op op : kClasses) {
    expect_pieces(op, {256, 256, 256, 256});
    expect_pieces(op, {1, 2, 3, 200});
    expect_pieces(op, {63, 65, 127, 1, 30});
  }
}
TEST(Faults, T04_ForwardAndStepAgree) {
  for (const Op op : kClasses)
    for (const std::int64_t tokens : {1, 2, 8, 63, 64, 65, 100}) {
      std::vector<std::int64_t> ones(static_cast<std::size_t>(tokens), 1);
      expect_pieces(op, ones, Pass::kStep);
      expect_pieces(op, {tokens, 1, 1, 8}, Pass::kStep);
    }
}
// Fixed rows of 5 of which 1, 5 and 3 are real: the state after the last real token, and the rest
// of the rows zero.
TEST(Faults, T05_PaddingTokensDoNotAdvance) {
  for (const Op op : kClasses)
    for (const Pass pass : {Pass::kForward, Pass::kStep}) {
      for (const DType dtype : kDTypes) {
        Scenario s = scenario(op, pass, {1, 5, 3}, 0, 16, 24, 1, 2, dtype);
        s.surplus = 6;
        s.problem.max_tokens = s.tokens();
        expect_agreement(s);
      }
    }
}

TEST(Faults, T08_InPlaceState) {
  for (const Op op : kClasses)
    for (const Pass pass : {Pass::kForward, Pass::kStep})
      for (const DType dtype : kDTypes) {
        Scenario apart = scenario(op, pass, {5, 7, 1}, 0, 16, 24, 1, 2, dtype);
        Scenario in_place = apart;
        in_place.options |= kInPlace;
        const Inputs in = draw(apart);
        for (const std::string& row : takers(apart))
          EXPECT_EQ(difference(must_run({apart, in}, row), must_run({in_place, in}, row)), "")
              << row;
      }
}
// Inputs unchanged: the harness compares all of their bytes after every run. o over v, a slot
// twice: refused, unit tests CallRefusal.out_is_v, write_slot_twice, write_slot_read_by_another.

TEST(Faults, T09_StatesInAndOut) {
  for (const Op op : kClasses)
    for (const std::uint32_t options : {0u, std::uint32_t{kNoInitial}, std::uint32_t{kNoFinal},
                                        std::uint32_t{kNoInitial | kNoFinal}})
      for (const DType dtype : kDTypes)
        for (const DType state : {DType::kFloat32, DType::kBFloat16, DType::kFloat16})
          for (const Pass pass : kPasses) {
            if (pass == Pass::kBackward && (options & kNoFinal)) continue;
            Scenario s = scenario(op, pass, {5, 6}, options, 16, 24, 1, 2, dtype);
            s.problem.state_dtype = state;
            expect_agreement(s);
          }
}
TEST(Faults, T09_NoInitialStateIsZero) {
  for (const DType dtype : kDTypes)
    for (const Op op : kClasses) {
      const Drawn absent =
          drawn(scenario(op, Pass::kForward, {70}, kNoInitial, 16, 24, 1, 2, dtype));
      Drawn zero = absent;
      zero.inputs.initial_slots = 1;
      zero.inputs.initial.assign(2 * 16 * 24, 0.f);
      for (const std::string& row : takers(absent.scenario))
        EXPECT_EQ(difference(must_run(absent, row), must_run(zero, row)), "") << row;
    }
}

TEST(Faults, T10_PrefixOf70) {
  for (const Op op : kClasses) expect_pieces(op, {70, 90});
}

// ---- 6. backward
// ------------------------------------------------------------------------------------

TEST(Faults, B02_BackwardWithoutGate) {
  Drawn gated = drawn(scenario(gdn, Pass::kBackward, {100}));
  std::fill(gated.inputs.g.begin(), gated.inputs.g.end(), 0.f);
  Drawn bare = gated;
  bare.scenario.problem.op = delta_rule;
  bare.scenario.problem.gate_input = GateInput::kUnset;
  bare.inputs.g.clear();
  for (const std::string& row : takers(bare.scenario)) {
    const Results x = must_run(gated, row), y = must_run(bare, row);
    for (const Output& out : y)
      EXPECT_LE(relative_rms(out.values, output(x, out.name).values), 1e-6) << row << out.name;
    double sum = 0;
    for (const float d : output(y, "dbeta").values) sum += std::abs(d);
    EXPECT_GT(sum, 1e-3);
  }
}

TEST(Faults, B03_GradientThroughTheFinalStateOnly) {
  for (const Op op : kClasses) {
    Scenario s = scenario(op, Pass::kBackward, {33, 50}, kNoDout, 16, 24, 1, 3);
    s.decay = Decay::kLong;
    const Drawn d = drawn(s);
    expect_agreement(d.scenario, d.inputs);
    for (const std::string& row : takers(d.scenario)) {
      const Results x = must_run(d, row);
      for (const float dq : output(x, "dq").values) ASSERT_EQ(dq, 0.f) << row;
      for (const char* name : {"dk", "dv", "dg", "dinitial_state"}) {
        double sum = 0;
        for (const float value : output(x, name).values) sum += std::abs(value);
        EXPECT_GT(sum, 1e-3) << name;
      }
    }
  }
}

TEST(Faults, B04_GateGradientOverManyKeyBlocks) {
  for (const Op op : kClasses)
    for (const std::int32_t k : {192, 256})
      expect_agreement(scenario(op, Pass::kBackward, {64}, 0, k, 16, 1, 1));
}

TEST(Faults, B05_EveryCombinationOfStateGradients) {
  for (const Op op : kClasses)
    for (const std::uint32_t initial : {0u, std::uint32_t{kNoInitial}})
      for (const std::uint32_t dfinal : {0u, std::uint32_t{kNoDFinal}})
        for (const std::uint32_t dout : {0u, std::uint32_t{kNoDout}})
          expect_agreement(scenario(op, Pass::kBackward, {33}, initial | dfinal | dout));
}

// Each gradient as the only one wanted is the one of the full run.
TEST(Faults, B06_OneGradientAtATime) {
  for (const Op op : {kda, gdn, gla, simple_gla, gdn2}) {
    Scenario s = scenario(op, Pass::kBackward, {20, 30});
    s.problem.gate_input = GateInput::kSoftplus;
    const Inputs in = draw(s);
    for (const std::string& row : takers(s)) {
      const auto wanted = [&](const std::function<void(BackwardArgs&)>& want) {
        const Outcome outcome =
            run(s, in, row, {.rounds = 1, .change = [&](Call& call) { want(call.backward); }});
        EXPECT_EQ(outcome.refusal + outcome.fault, "") << row;
        return outcome.results;
      };
      const Results all = wanted([](BackwardArgs&) {});
      for (const Output& one : all) {
        const std::string name = one.name;
        const Results alone = wanted([&](BackwardArgs& a) {
          const BackwardArgs full = a;
          a.dq = a.dk = a.dv = a.dg = a.dbeta = a.derase = a.dwrite = {};
          a.da_log = a.ddt_bias = nullptr;
          a.dinitial_state = {};
          if (name == "dq") a.dq = full.dq;
          if (name == "dk") a.dk = full.dk;
          if (name == "dv") a.dv = full.dv;
          if (name == "dg") a.dg = full.dg;
          if (name == "dbeta") a.dbeta = full.dbeta;
          if (name == "derase") a.derase = full.derase;
          if (name == "dwrite") a.dwrite = full.dwrite;
          if (name == "da_log") a.da_log = full.da_log;
          if (name == "ddt_bias") a.ddt_bias = full.ddt_bias;
          if (name == "dinitial_state") a.dinitial_state = full.dinitial_state;
        });
        expect_same(output(alone, name).values, one.values, row + " " + name);
        for (const Output& other : alone)  // not wanted: not written
          if (other.name != name && !other.values.empty()) {
            EXPECT_TRUE(std::isnan(other.values.front())) << other.name << " beside " << name;
          }
      }
    }
  }
}

// First call of a process on poisoned memory: no NaN in anything returned. Every harness run starts
// so; this one checks all of the outputs, of all passes and dtypes, for being finite.
TEST(Faults, B11_EverythingReturnedIsWritten) {
  for (const Op op : kClasses)
    for (const Pass pass : kPasses)
      for (const DType dtype : kDTypes) {
        const std::uint32_t options = pass == Pass::kForward ? std::uint32_t{kTransition} : 0;
        const Scenario s = scenario(op, pass, {7, 3, 8}, options, 16, 24, 1, 2, dtype);
        const Drawn d = drawn(s);
        for (const std::string& row : takers(s))
          for (const Output& out : must_run(d, row))
            for (const float x : out.values) ASSERT_TRUE(std::isfinite(x)) << row << out.name;
      }
}

// ---- 7. concurrency, 8. integration
// -----------------------------------------------------------------

// Eight threads make and run their first plans at once, of different dtypes and dims. On a GPU:
// Streams.
TEST(Faults, C08_FirstCallsFromManyThreads) {
  std::vector<Drawn> calls;
  for (int i = 0; i < 8; ++i)
    calls.push_back(drawn(scenario(kClasses[i % 4], i % 3 == 0 ? Pass::kStep : Pass::kForward,
                                   {8, 5}, 0, 16 + 8 * i, 24, 1, 2, kDTypes[i % 2])));
  const auto all_rows = [](const Drawn& d) {
    std::vector<Results> results;
    for (const std::string& row : takers(d.scenario, host()))
      results.push_back(run(d.scenario, d.inputs, row, {.rounds = 1}).results);
    return results;
  };
  std::vector<std::vector<Results>> got(8);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < 8; ++i)
    threads.emplace_back([&, i] {
      for (int repeat = 0; repeat < 5; ++repeat) got[i] = all_rows(calls[i]);
    });
  for (std::thread& thread : threads) thread.join();
  for (std::size_t i = 0; i < 8; ++i) {
    const std::vector<Results> expected = all_rows(calls[i]);
    ASSERT_EQ(got[i].size(), expected.size());
    for (std::size_t row = 0; row < expected.size(); ++row)
      EXPECT_EQ(difference(got[i][row], expected[row]), "");
  }
}

// One call advances once: nothing measures or warms up on the caller's buffers.
TEST(Faults, C09_FirstCallAdvancesOnce) {
  for (const Op op : kClasses)
    for (const Pass pass : {Pass::kForward, Pass::kStep})
      for (const DType dtype : kDTypes)
        expect_agreement(scenario(op, pass, {1, 1}, kInPlace, 16, 24, 1, 2, dtype));
}

// A row alone and in batches of 2, 33 and 129, at other places, its neighbours NaN.
TEST(Faults, C10_BatchCompositionDoesNotChangeARow) {
  for (const Op op : {kda, simple_gla})
    for (const Pass pass : {Pass::kForward, Pass::kStep})
      for (const DType dtype : kDTypes) {
        const Drawn alone = drawn(scenario(op, pass, {6}, 0, 8, 8, 1, 1, dtype));
        for (const std::string& row : takers(alone.scenario)) {
          const Results expected = must_run(alone, row);
          for (const std::int64_t n : {2, 33, 129})
            for (const std::int64_t at : {std::int64_t{0}, n / 2, n - 1}) {
              Drawn batch;
              batch.scenario = alone.scenario;
              batch.scenario.lengths.assign(static_cast<std::size_t>(n), 6);
              batch.scenario.problem.max_tokens = 6 * n;
              batch.scenario.problem.max_sequences = n;
              batch.inputs = draw(batch.scenario);
              Inputs& in = batch.inputs;
              const auto place = [&](std::vector<float>& x, const std::vector<float>& mine) {
                std::fill(x.begin(), x.end(), kNaN);
                std::copy(mine.begin(), mine.end(),
                          x.begin() + at * static_cast<std::int64_t>(mine.size()));
              };
              place(in.q, alone.inputs.q), place(in.k, alone.inputs.k);
              place(in.v, alone.inputs.v), place(in.g, alone.inputs.g);
              if (!in.beta.empty()) place(in.beta, alone.inputs.beta);
              place(in.initial, alone.inputs.initial);
              for (const Output& out : must_run(batch, row)) {
                const std::vector<float>& mine = output(expected, out.name).values;
                const auto first = out.values.begin() + at * static_cast<std::int64_t>(mine.size());
                expect_same({first, first + static_cast<std::int64_t>(mine.size())}, mine, row);
              }
            }
        }
      }
}

// Without a name every valid scenario runs: falls back, never fails, and is one of the rows.
TEST(Faults, I05_ChoiceFallsBack) {
  Memory& memory = *memory_under_test();
  for (const Case& c : kCases) {
    if (c.pass == Pass::kBackward || c.shape.tokens > 100) continue;
    const Scenario s = make(c);
    const Inputs in = draw(s);
    Call call(s, in, memory, Poison::kNaN);
    const auto run_any = [&](const auto& plan, const auto& args) {
      Guarded scratch(memory, "workspace", plan.workspace_bytes(s.tokens(), s.sequences()),
                      Poison::kNaN, true);
      scratch.upload();
      EXPECT_NO_THROW(memory.run([&](Stream stream) {
        plan.run(args, {scratch.data(), scratch.bytes()}, stream);
      })) << s.name;
    };
    if (c.pass == Pass::kForward)
      run_any(ForwardPlan(s.problem, memory.device()), call.forward);
    else
      run_any(StepPlan(s.problem, memory.device()), call.step);
    EXPECT_EQ(call.fetch(), "") << s.name;
    const Results results = call.results();
    bool found = false;
    for (const std::string& row : takers(s, memory)) {
      const Outcome outcome = run(s, in, row, {.rounds = 1});
      found = found || (outcome.refusal.empty() && difference(results, outcome.results).empty());
    }
    EXPECT_TRUE(found) << s.name << " is not the result of any row";
  }
}

// Pairs of calls that differ in one property, in both orders: the order never matters.
TEST(Faults, I06_OneChangedProperty) {
  for (const Pass pass : kPasses)
    for (const DType dtype : kDTypes) {
      const std::int64_t tokens = pass == Pass::kStep ? kStepTokens : 70;
      const Scenario base = scenario(kda, pass, {6, tokens}, 0, 32, 32, 1, 2, dtype);
      std::vector<Scenario> others(8, base);
      others[0].problem.gate_dtype = DType::kBFloat16;
      others[1].problem.beta_dtype = DType::kFloat16;
      others[2].problem.state_dtype = DType::kBFloat16;
      others[3].options |= kHeadMajor;
      others[4].options |= kInt64;
      others[5].problem.value_heads = 4;
      others[6].problem.qk_l2norm = true;
      others[7].problem.state_layout = StateLayout::kValueKey;
      const Drawn first = drawn(base);
      for (const std::string& row : takers(base)) {
        const Results expected = must_run(first, row);
        for (const Scenario& other : others) {
          const Drawn second = drawn(other);
          const Results fresh = must_run(second, row);
          EXPECT_EQ(difference(expected, must_run(first, row)), "") << reproduce(other, row);
          EXPECT_EQ(difference(fresh, must_run(second, row)), "") << reproduce(other, row);
        }
      }
    }
}

// The same raw g under both formulas: what is documented.
TEST(Faults, I08_TwoGateFormulas) {
  for (const Pass pass : kPasses)
    for (const DType dtype : kDTypes)
      for (const float bound : {0.f, -5.f, -5.0001f}) {
        Scenario s = scenario(kda, pass, {pass == Pass::kStep ? 8 : 40}, 0, 16, 24, 1, 2, dtype);
        s.problem.gate_input = bound == 0 ? GateInput::kSoftplus : GateInput::kBounded;
        s.lower_bound = bound;
        Drawn d = drawn(s);
        for (std::size_t i = 0; i < d.inputs.g.size(); ++i)
          d.inputs.g[i] = static_cast<float>(i % 41) / 10 - 2;
        expect_agreement(d.scenario, d.inputs);
      }
}
// A bound of 0 or +1 is refused: unit tests, CallRefusal.lower_bound_*.

}  // namespace
}  // namespace linattn::test
