// SPDX-License-Identifier: Apache-2.0
//
// The choice: which row, why not the others, pinned names, and a plan as a value that threads
// share.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/registry.h"
#include "support/valid_call.h"

namespace linattn::test {
namespace {

using C = ValidCall;

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

template <class Body>
Error caught(Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "nothing thrown";
  return Error(ErrorCode::kInternal, "");
}

TEST(Implementations, AreTheTables) {
  for (const Pass pass : {Pass::kForward, Pass::kBackward, Pass::kStep}) {
    const std::vector<std::string> names = implementations(pass);
    ASSERT_FALSE(names.empty());
    EXPECT_EQ(names.back(), "cpu.recurrent") << "the oracle comes last";
    std::vector<std::string> sorted = names;
    std::sort(sorted.begin(), sorted.end());
    EXPECT_EQ(std::unique(sorted.begin(), sorted.end()), sorted.end()) << "a name twice";
  }
  EXPECT_EQ(implementations(Pass::kForward).size(), implementation_table<ForwardArgs>().size());
  EXPECT_TRUE(implementations(static_cast<Pass>(7)).empty());
}

// Every row states what it is: a name "backend.kind", a refusal, a run.
template <class Args>
void expect_complete_rows() {
  for (const Implementation<Args>* row : implementation_table<Args>()) {
    EXPECT_TRUE(std::strchr(row->name, '.')) << row->name;
    EXPECT_NE(row->refusal, nullptr) << row->name;
    EXPECT_NE(row->run, nullptr) << row->name;
    EXPECT_NE(row->saved_format, nullptr) << row->name;
  }
}
TEST(Implementations, AreComplete) {
  expect_complete_rows<ForwardArgs>();
  expect_complete_rows<BackwardArgs>();
  expect_complete_rows<StepArgs>();
}

TEST(Plan, TakesTheFirstRowThatAccepts) {
  C call;
  std::string first;
  for (const auto* row : implementation_table<ForwardArgs>())
    if (first.empty() && !row->only_by_name && row->refusal(call.problem, call.device).empty())
      first = row->name;
  EXPECT_EQ(ForwardPlan(call.problem, call.device).implementation(), first);
}

TEST(Plan, PinsByName) {
  C call;
  for (const std::string& name : cpu_implementations())
    EXPECT_EQ(ForwardPlan(call.problem, call.device, name.c_str()).implementation(), name);
  for (const std::string& name : cpu_implementations(Pass::kStep))
    EXPECT_EQ(StepPlan(call.problem, call.device, name.c_str()).implementation(), name);
}

TEST(Plan, RefusesUnknownNamesWithTheList) {
  C call;
  const Error error = caught([&] { ForwardPlan(call.problem, call.device, "cpu.recurent"); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(contains(error.what(), "implementation is 'cpu.recurent'")) << error.what();
  for (const std::string& name : implementations())
    EXPECT_TRUE(contains(error.what(), name)) << error.what();
}

TEST(Plan, OnlyByNameIsNeverChosen) {
  C call;
  const std::string text = explain(call.problem, call.device);
  for (const auto* row : implementation_table<ForwardArgs>())
    if (row->only_by_name) {
      EXPECT_TRUE(contains(text, std::string(row->name) + ": runs only when it is named")) << text;
      EXPECT_NE(ForwardPlan(call.problem, call.device).implementation(), row->name);
    }
}

// No row runs there: one report with the problem and every row's reason.
TEST(Plan, UnsupportedListsEveryReason) {
  C call;
  const Device nowhere = Device::cuda(63);
  const Error error = caught([&] { ForwardPlan(call.problem, nowhere); });
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  for (const char* part : {"no implementation takes this problem: forward of linattn::Problem{",
                           ".op = linattn::kda", " on cuda:63\n"})
    EXPECT_TRUE(contains(error.what(), part)) << error.what();
  for (const std::string& name : implementations())
    EXPECT_TRUE(contains(error.what(), "\n  " + name + ": ")) << error.what();
}

TEST(Plan, PinnedRowThatRefusesReportsItsReasonAlone) {
  C call;
  const Error error = caught([&] { ForwardPlan(call.problem, Device::cuda(63), "cpu.recurrent"); });
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_TRUE(contains(error.what(), "cpu.recurrent: ")) << error.what();
  EXPECT_TRUE(contains(error.what(), "cuda:63")) << error.what();
  EXPECT_FALSE(contains(error.what(), "cpu.chunked: ")) << error.what();
}

TEST(Explain, HasALinePerRow) {
  C call;
  for (const Pass pass : {Pass::kForward, Pass::kBackward, Pass::kStep}) {
    const std::string text = explain(call.problem, call.device, pass);
    EXPECT_TRUE(contains(text, to_string(pass) + " of " + to_string(call.problem) + " on cpu"));
    for (const std::string& name : implementations(pass))
      EXPECT_TRUE(contains(text, "\n  " + name + ": ")) << text;
    EXPECT_TRUE(contains(text, "cpu.recurrent: takes it")) << text;
  }
  const Error error = caught([&] { explain(call.problem, call.device, static_cast<Pass>(9)); });
  EXPECT_TRUE(contains(error.what(), "pass is 9")) << error.what();
}

TEST(Explain, OfACallSaysWhichRowRuns) {
  C call;
  const ForwardPlan any(call.problem, call.device);
  EXPECT_TRUE(contains(any.explain(call.forward), any.implementation() + ": takes it"));
  const ForwardPlan pinned(call.problem, call.device, "cpu.recurrent");
  const std::string text = pinned.explain(call.forward);
  EXPECT_TRUE(contains(text, "cpu.recurrent: takes it")) << text;
  EXPECT_TRUE(contains(text, "the plan is pinned to cpu.recurrent")) << text;
  call.forward.q.data = nullptr;
  EXPECT_TRUE(contains(caught([&] { any.explain(call.forward); }).what(), "q is absent"));
}

TEST(Plan, IsAValue) {
  C call;
  const ForwardPlan first(call.problem, call.device);
  ForwardPlan copy = first, moved = std::move(copy);
  copy = moved;
  moved = ForwardPlan(call.problem, call.device, "cpu.recurrent");
  EXPECT_EQ(moved.implementation(), "cpu.recurrent");
  EXPECT_EQ(copy.implementation(), first.implementation());
  C::run(copy, call.forward);
}

TEST(BackwardPlan, NeedsAForwardPlanThatSaves) {
  C call;
  const ForwardPlan plain(call.problem, call.device);
  const Error error = caught([&] { BackwardPlan{plain}; });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(contains(error.what(), "save_for_backward")) << error.what();
  EXPECT_EQ(plain.saved_bytes(6, 2), 0u);
  call.problem.save_for_backward = true;
  const BackwardPlan backward{ForwardPlan(call.problem, call.device)};
  EXPECT_FALSE(backward.implementation().empty());
}

// What forward rows save is what a backward row reads, whichever the two are.
TEST(BackwardPlan, FormatsAgreeOrAreRefusedWithBoth) {
  C call;
  call.problem.save_for_backward = true;
  for (const auto* forward : implementation_table<ForwardArgs>())
    for (const auto* backward : implementation_table<BackwardArgs>()) {
      if (!of_the_cpu(forward->name) || !of_the_cpu(backward->name)) continue;
      const ForwardPlan plan(call.problem, call.device, forward->name);
      if (std::strcmp(forward->saved_format, backward->saved_format) == 0) {
        EXPECT_NO_THROW(BackwardPlan(plan, backward->name));
        continue;
      }
      const Error error = caught([&] { BackwardPlan(plan, backward->name); });
      EXPECT_TRUE(contains(error.what(), "saved format")) << error.what();
    }
}

TEST(Plan, RunsFromManyThreadsWithWorkspacesOfTheirOwn) {
  C call;
  for (const std::string& name : cpu_implementations()) {
    const ForwardPlan plan(call.problem, call.device, name.c_str());
    C::run(plan, call.forward);
    const std::vector<float> expected = call.out, states = call.final;
    std::vector<int> same(4, 0);
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < same.size(); ++i)
      threads.emplace_back([&, i] {
        C mine;
        const ForwardPlan copy = plan;
        for (int repeat = 0; repeat < 50; ++repeat) {
          std::fill(mine.out.begin(), mine.out.end(), -1.f);
          C::run(repeat % 2 ? plan : copy, mine.forward);
          same[i] += mine.out == expected && mine.final == states;
        }
      });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(same, std::vector<int>(4, 50)) << name;
  }
}

TEST(Plan, IsMadeFromManyThreads) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i)
    threads.emplace_back([i] {
      C call;
      call.problem.op = i % 2 ? kda : Op{Gate::kHead, Update::kDelta};
      if (i % 2 == 0) {
        call.forward.g = contiguous(call.g.data(), 2, 1);
        call.forward.dt_bias = call.dt_bias.data();
      }
      for (int repeat = 0; repeat < 20; ++repeat) call.run_forward();
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace linattn::test
