// SPDX-License-Identifier: Apache-2.0
//
// The C ABI: structs of older and newer versions, handles, and one error text per thread.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "support/valid_call.h"

namespace linattn::test {
namespace {

using C = ValidCall;

constexpr linattn_device kCpu{LINATTN_CPU, 0};

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// A copy of a struct with another size: cut off, or with `tail` bytes of `fill` behind it.
template <class T>
class Resized {
 public:
  Resized(const T& original, std::size_t size, unsigned char fill = 0)
      : memory_((std::max(size, sizeof(T)) + 15) / 8) {
    std::memset(memory_.data(), fill, memory_.size() * 8);
    std::memcpy(memory_.data(), &original, std::min(size, sizeof(T)));
    get()->size = size;
  }
  T* get() { return reinterpret_cast<T*>(memory_.data()); }

 private:
  std::vector<std::uint64_t> memory_;
};

class CAbi : public testing::Test {
 protected:
  ~CAbi() override { linattn_plan_release(plan_); }
  linattn_status create(const linattn_problem* problem, const char* implementation = nullptr) {
    linattn_plan_release(plan_);
    plan_ = nullptr;
    return linattn_plan_create(problem, kCpu, LINATTN_FORWARD, implementation, &plan_);
  }
  linattn_status run(const linattn_forward_args* args) {
    std::size_t bytes = 0;
    EXPECT_EQ(linattn_workspace_bytes(plan_, C::kTokens, C::kSequences, &bytes), LINATTN_OK);
    std::vector<std::byte> memory(bytes + 256);
    return linattn_forward(plan_, args, {C::aligned(memory), bytes}, nullptr);
  }

  C call_;
  linattn_problem problem_ = to_c(call_.problem);
  linattn_plan* plan_ = nullptr;
};

// An old caller: its struct ended before save_for_backward. What follows it in memory is not read.
TEST_F(CAbi, OldProblemWorks) {
  Resized<linattn_problem> old(problem_, offsetof(linattn_problem, save_for_backward), 0xff);
  ASSERT_EQ(create(old.get()), LINATTN_OK) << linattn_last_error();
  EXPECT_EQ(run(&call_.forward), LINATTN_OK) << linattn_last_error();
}

// Every field past the old end is absent: here from the checkpoints on, then from the transition
// on.
TEST_F(CAbi, OldArgumentsWork) {
  // Start positions and checkpoints move the borders of chunks, and with them the rounding: not the
  // oracle's.
  ASSERT_EQ(create(&problem_, "cpu.recurrent"), LINATTN_OK);
  ASSERT_EQ(run(&call_.forward), LINATTN_OK);
  const std::vector<float> out = call_.out;
  const std::size_t old_sizes[] = {offsetof(linattn_forward_args, start_positions),
                                   offsetof(linattn_forward_args, transition)};
  for (const std::size_t size : old_sizes) {
    std::fill(call_.out.begin(), call_.out.end(), -1.f);
    Resized<linattn_forward_args> old(call_.forward, size, 0xff);
    ASSERT_EQ(run(old.get()), LINATTN_OK) << linattn_last_error();
    EXPECT_EQ(call_.out, out);
  }
}

TEST_F(CAbi, OldStepArgumentsWork) {
  linattn_plan* step = nullptr;
  ASSERT_EQ(linattn_plan_create(&problem_, kCpu, LINATTN_STEP, nullptr, &step), LINATTN_OK);
  std::size_t bytes = 0;
  ASSERT_EQ(linattn_workspace_bytes(step, C::kTokens, C::kSequences, &bytes), LINATTN_OK);
  std::vector<std::byte> memory(bytes + 256);
  Resized<linattn_step_args> old(call_.step, offsetof(linattn_step_args, read_slot_stride), 0xff);
  EXPECT_EQ(linattn_step(step, old.get(), {C::aligned(memory), bytes}, nullptr), LINATTN_OK)
      << linattn_last_error();
  linattn_plan_release(step);
}

TEST_F(CAbi, NewerStructsWithZeroTailsWork) {
  Resized<linattn_problem> problem(problem_, sizeof(linattn_problem) + 24);
  ASSERT_EQ(create(problem.get()), LINATTN_OK) << linattn_last_error();
  Resized<linattn_forward_args> args(call_.forward, sizeof(linattn_forward_args) + 40);
  EXPECT_EQ(run(args.get()), LINATTN_OK) << linattn_last_error();
}

TEST_F(CAbi, NewerStructsWithSetTailsAreRefused) {
  Resized<linattn_problem> problem(problem_, sizeof(linattn_problem) + 24, 1);
  EXPECT_EQ(create(problem.get()), LINATTN_INVALID_ARGUMENT);
  EXPECT_TRUE(contains(linattn_last_error(), "problem.size is")) << linattn_last_error();
  EXPECT_TRUE(contains(linattn_last_error(), linattn_version())) << linattn_last_error();
  ASSERT_EQ(create(&problem_), LINATTN_OK);
  Resized<linattn_forward_args> args(call_.forward, sizeof(linattn_forward_args) + 8, 1);
  EXPECT_EQ(run(args.get()), LINATTN_INVALID_ARGUMENT);
  EXPECT_TRUE(contains(linattn_last_error(), "args.size is")) << linattn_last_error();
}

TEST_F(CAbi, SizeZeroIsRefused) {
  problem_.size = 0;
  EXPECT_EQ(create(&problem_), LINATTN_INVALID_ARGUMENT);
  EXPECT_TRUE(contains(linattn_last_error(), "problem.size is 0")) << linattn_last_error();
}

// A C caller zeroes the struct: every zero is the default that the header names.
TEST_F(CAbi, ZeroFieldsAreDefaults) {
  linattn_problem zero;
  std::memset(static_cast<void*>(&zero), 0, sizeof zero);
  zero.size = sizeof zero;
  zero.max_tokens = 8, zero.max_sequences = 1, zero.heads = 1, zero.key_dim = 4, zero.value_dim = 4;
  zero.gate = LINATTN_GATE_NONE, zero.update = LINATTN_UPDATE_ADD;
  zero.state_layout = LINATTN_STATE_KEY_VALUE;
  const char* text = nullptr;
  ASSERT_EQ(linattn_explain(&zero, kCpu, LINATTN_FORWARD, &text), LINATTN_OK);
  const Problem expected{.op = linear_attention,
                         .max_tokens = 8,
                         .heads = 1,
                         .key_dim = 4,
                         .value_dim = 4,
                         .state_layout = StateLayout::kKeyValue};
  EXPECT_TRUE(contains(text, to_string(expected))) << text;
  EXPECT_EQ(create(&zero), LINATTN_OK) << linattn_last_error();
}

TEST_F(CAbi, NullsAreRefused) {
  EXPECT_EQ(create(nullptr), LINATTN_INVALID_ARGUMENT);
  EXPECT_TRUE(contains(linattn_last_error(), "problem is null"));
  EXPECT_EQ(linattn_plan_create(&problem_, kCpu, LINATTN_FORWARD, nullptr, nullptr),
            LINATTN_INVALID_ARGUMENT);
  EXPECT_TRUE(contains(linattn_last_error(), "plan is null"));
  EXPECT_EQ(linattn_forward(nullptr, &call_.forward, {}, nullptr), LINATTN_INVALID_ARGUMENT);
  EXPECT_TRUE(contains(linattn_last_error(), "plan is null"));
  ASSERT_EQ(create(&problem_), LINATTN_OK);
  EXPECT_EQ(linattn_forward(plan_, nullptr, {}, nullptr), LINATTN_INVALID_ARGUMENT);
  EXPECT_TRUE(contains(linattn_last_error(), "args is null"));
  linattn_plan_retain(nullptr);
  linattn_plan_release(nullptr);
  EXPECT_STREQ(linattn_plan_implementation(nullptr), "");
}

TEST_F(CAbi, OtherPassesAreRefused) {
  for (const int pass : {0, int{LINATTN_BACKWARD}, 4}) {
    linattn_plan* plan = nullptr;
    EXPECT_EQ(linattn_plan_create(&problem_, kCpu, pass, nullptr, &plan), LINATTN_INVALID_ARGUMENT);
    EXPECT_EQ(plan, nullptr);
    EXPECT_TRUE(contains(linattn_last_error(), "pass is")) << linattn_last_error();
  }
  ASSERT_EQ(create(&problem_), LINATTN_OK);
  EXPECT_EQ(linattn_step(plan_, &call_.step, {}, nullptr), LINATTN_INVALID_ARGUMENT);
  EXPECT_TRUE(contains(linattn_last_error(), "another pass")) << linattn_last_error();
  EXPECT_EQ(linattn_backward(plan_, &call_.backward, {}, nullptr), LINATTN_INVALID_ARGUMENT);
}

TEST_F(CAbi, RetainedPlanOutlivesItsFirstOwner) {
  ASSERT_EQ(create(&problem_), LINATTN_OK);
  linattn_plan_retain(plan_);
  linattn_plan_release(plan_);
  EXPECT_EQ(run(&call_.forward), LINATTN_OK) << linattn_last_error();
}

TEST_F(CAbi, PlanIsReferencedFromManyThreads) {
  ASSERT_EQ(create(&problem_), LINATTN_OK);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    linattn_plan_retain(plan_);
    threads.emplace_back([this] {
      for (int repeat = 0; repeat < 1000; ++repeat) {
        linattn_plan_retain(plan_);
        linattn_plan_release(plan_);
      }
      linattn_plan_release(plan_);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_NE(linattn_plan_implementation(plan_)[0], '\0');
}

TEST_F(CAbi, LastErrorBelongsToItsThread) {
  EXPECT_EQ(create(nullptr), LINATTN_INVALID_ARGUMENT);
  const std::string mine = linattn_last_error();
  std::thread([] {
    EXPECT_STREQ(linattn_last_error(), "");
    EXPECT_EQ(linattn_set_threads(-3), LINATTN_INVALID_ARGUMENT);
    EXPECT_TRUE(contains(linattn_last_error(), "threads is -3"));
  }).join();
  EXPECT_EQ(linattn_last_error(), mine);
  ASSERT_EQ(create(&problem_), LINATTN_OK);
  EXPECT_STREQ(linattn_last_error(), "") << "a success clears it";
}

TEST_F(CAbi, ImplementationNamesEndWithNull) {
  for (const std::int32_t pass : {LINATTN_FORWARD, LINATTN_BACKWARD, LINATTN_STEP}) {
    std::int32_t count = 0;
    while (linattn_implementation_name(pass, count) != nullptr) ++count;
    EXPECT_GT(count, 0);
    EXPECT_EQ(linattn_implementation_name(pass, -1), nullptr);
    EXPECT_EQ(linattn_implementation_name(pass, count + 1), nullptr);
  }
  EXPECT_EQ(linattn_implementation_name(0, 0), nullptr);
}

TEST_F(CAbi, UnsupportedHasItsOwnStatus) {
  linattn_plan* plan = nullptr;
  EXPECT_EQ(linattn_plan_create(&problem_, {LINATTN_CUDA, 63}, LINATTN_FORWARD, nullptr, &plan),
            LINATTN_UNSUPPORTED);
  EXPECT_EQ(plan, nullptr);
}

TEST_F(CAbi, SavedBytesOfAPlanThatSavesNothing) {
  ASSERT_EQ(create(&problem_), LINATTN_OK);
  std::int64_t coefficients[3] = {-1, -1, -1};
  ASSERT_EQ(linattn_saved_bytes(plan_, coefficients), LINATTN_OK);
  for (const std::int64_t c : coefficients) EXPECT_EQ(c, 0);
}

TEST_F(CAbi, VersionIsTheHeaders) {
  EXPECT_EQ(std::string(linattn_version()), std::to_string(LINATTN_VERSION_MAJOR) + "." +
                                                std::to_string(LINATTN_VERSION_MINOR) + "." +
                                                std::to_string(LINATTN_VERSION_PATCH));
}

}  // namespace
}  // namespace linattn::test
