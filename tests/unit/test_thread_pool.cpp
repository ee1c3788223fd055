// SPDX-License-Identifier: Apache-2.0
#include "cpu/thread_pool.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

namespace linattn::cpu {
namespace {

class ThreadPool : public testing::Test {
 protected:
  void TearDown() override { set_threads(0); }
};

std::int64_t sum_of(std::int64_t count) {
  std::atomic<std::int64_t> sum{0};
  parallel_for(count, [&](std::int64_t index, int) { sum += index; });
  return sum;
}

TEST_F(ThreadPool, EveryIndexOnceAndEveryWorkerAlone) {
  for (const int workers : {1, 2, 3, 8}) {
    set_threads(workers);
    EXPECT_EQ(threads(), workers);
    for (const std::int64_t count : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> seen(static_cast<std::size_t>(count));
      std::array<std::atomic<int>, 8> busy{};
      parallel_for(count, [&](std::int64_t index, int worker) {
        ASSERT_TRUE(worker >= 0 && worker < workers);
        EXPECT_EQ(busy[static_cast<std::size_t>(worker)]++, 0);
        ++seen[static_cast<std::size_t>(index)];
        --busy[static_cast<std::size_t>(worker)];
      });
      for (const auto& times : seen) EXPECT_EQ(times, 1);
    }
  }
  set_threads(0);
  EXPECT_GE(threads(), 1);
}

TEST_F(ThreadPool, ThreadsRunAtTheSameTime) {
  set_threads(3);
  std::atomic<int> arrived{0};
  parallel_for(3, [&](std::int64_t, int) {
    ++arrived;
    while (arrived < 3) std::this_thread::yield();
  });
  EXPECT_EQ(arrived, 3);
}

TEST_F(ThreadPool, TheFirstExceptionComesBack) {
  for (const int workers : {1, 4}) {
    set_threads(workers);
    std::atomic<int> calls{0};
    EXPECT_THROW(parallel_for(100000,
                              [&](std::int64_t index, int) {
                                ++calls;
                                if (index == 10) throw std::runtime_error("ten");
                              }),
                 std::runtime_error);
    EXPECT_LT(calls, 100000);
    EXPECT_EQ(sum_of(100), 4950);  // the pool is as good as before
  }
}

TEST_F(ThreadPool, ACallInsideATaskIsSerial) {
  set_threads(4);
  std::atomic<int> total{0};
  parallel_for(8, [&](std::int64_t, int) {
    const auto outer = std::this_thread::get_id();
    parallel_for(5, [&](std::int64_t, int worker) {
      EXPECT_EQ(worker, 0);
      EXPECT_EQ(std::this_thread::get_id(), outer);
      ++total;
    });
  });
  EXPECT_EQ(total, 40);
}

// C-08: many callers at once, while another changes the number of threads.
TEST_F(ThreadPool, CallersFromManyThreads) {
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 6; ++caller)
    callers.emplace_back([&, caller] {
      for (int i = 0; i < 50; ++i) {
        if (caller == 0) set_threads(1 + i % 4);
        if (sum_of(200) != 19900) ++wrong;
      }
    });
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong, 0);
}

// The child has none of the parent's threads, and perhaps locks that nobody will open.
TEST_F(ThreadPool, AForkedChildHasItsOwn) {
  set_threads(3);
  EXPECT_EQ(sum_of(1000), 499500);
  std::atomic<bool> begun{false}, done{false};
  std::thread other([&] {
    do {
      sum_of(50);  // so that a fork may find the pool in use
      begun = true;
    } while (!done);
  });
  // A thread that is still starting may hold locks of the address sanitizer's.
  while (!begun) std::this_thread::yield();
  for (int i = 0; i < 20; ++i) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      alarm(20);  // a deadlock fails the test and does not hang it
      _exit(sum_of(1000) == 499500 && threads() == 3 ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
  done = true;
  other.join();
  EXPECT_EQ(sum_of(1000), 499500);
}

}  // namespace
}  // namespace linattn::cpu
