// SPDX-License-Identifier: Apache-2.0
#include "cpu/thread_pool.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace linattn::cpu {
namespace {

using Task = std::function<void(std::int64_t, int)>;

thread_local bool inside_task = false;

// One call of parallel_for.
struct Job {
  const Task& task;
  const std::int64_t count;
  std::atomic<std::int64_t> next{0};
  std::mutex mutex;  // of failure
  std::exception_ptr failure;

  void work(int worker) noexcept {
    const bool outer = std::exchange(inside_task, true);
    for (std::int64_t index; (index = next.fetch_add(1, std::memory_order_relaxed)) < count;) {
      try {
        task(index, worker);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (failure == nullptr) failure = std::current_exception();
        next.store(count, std::memory_order_relaxed);
      }
    }
    inside_task = outer;
  }
};

// Threads that wait for jobs. The caller of run is worker 0.
class Pool {
 public:
  explicit Pool(int workers) {
    // The process's signals are for the threads that its author started.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      for (int worker = 1; worker < workers; ++worker)
        threads_.emplace_back([this, worker] { wait(worker); });
    } catch (const std::system_error&) {  // NOLINT(bugprone-empty-catch)
      // The system gives no more threads: those there are do the work.
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  ~Pool() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    job_posted_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void run(Job& job) {
    {
      const std::lock_guard lock(mutex_);
      job_ = &job;
      ++generation_;
      busy_ = static_cast<int>(threads_.size());
    }
    job_posted_.notify_all();
    job.work(0);
    std::unique_lock lock(mutex_);
    workers_done_.wait(lock, [this] { return busy_ == 0; });
  }

 private:
  void wait(int worker) {
    std::uint64_t seen = 0;
    std::unique_lock lock(mutex_);
    while (true) {
      job_posted_.wait(lock, [&] { return stopping_ || generation_ != seen; });
      if (stopping_) return;
      seen = generation_;
      Job& job = *job_;
      lock.unlock();
      job.work(worker);
      lock.lock();
      if (--busy_ == 0) workers_done_.notify_one();
    }
  }

  std::mutex mutex_;  // of all below
  std::condition_variable job_posted_, workers_done_;
  Job* job_ = nullptr;
  std::uint64_t generation_ = 0;
  int busy_ = 0;  // workers that have not finished the job
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

struct State {
  std::mutex mutex;  // one call at a time; calls of several threads follow each other
  std::unique_ptr<Pool> pool;
  int pool_threads = 0;
};

std::atomic<int> wanted_threads{0};
std::atomic<State*> current{nullptr};

// The parent's threads do not exist in the child, and its mutexes may be held for ever: both are
// left behind.
void forget_pool() { current.store(new State); }

State& state() {
  static const bool registered = [] {
    current.store(new State);
    return pthread_atfork(nullptr, nullptr, forget_pool) == 0;
  }();
  static_cast<void>(registered);
  return *current.load();
}

// Joins the threads before the library's code is unmapped, or the process ends.
struct AtExit {
  ~AtExit() {
    State* last = current.load();
    if (last != nullptr && !inside_task && last->mutex.try_lock()) {
      last->pool.reset();
      last->mutex.unlock();
    }
  }
} at_exit;

}  // namespace

void set_threads(int threads) { wanted_threads.store(std::max(threads, 0)); }

int threads() {
  static const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const int wanted = wanted_threads.load();
  return wanted == 0 ? cores : wanted;
}

void parallel_for(std::int64_t count, const Task& task) {
  const int workers = threads();
  Job job{task, count, {}, {}, {}};
  if (inside_task || workers == 1 || count <= 1) {
    job.work(0);
  } else {
    State& s = state();
    const std::lock_guard lock(s.mutex);
    if (s.pool_threads != workers) {
      s.pool_threads = 0;
      s.pool.reset();
      s.pool = std::make_unique<Pool>(workers);
      s.pool_threads = workers;
    }
    s.pool->run(job);
  }
  if (job.failure != nullptr) std::rethrow_exception(job.failure);
}

}  // namespace linattn::cpu
