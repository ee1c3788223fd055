// SPDX-License-Identifier: Apache-2.0
#include "machine.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "core/dtype.h"
#include "fma.h"

namespace linattn::bench {
namespace {

constexpr double kSecondsPerCase = 2;
constexpr int kLeastRepeats = 3;
constexpr std::int64_t kCpuCacheBytes = 32 << 20;

using Clock = std::chrono::steady_clock;

double since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

class Cpu : public Machine {
 public:
  explicit Cpu(int threads)
      : cores_(static_cast<int>(std::max(1u, std::thread::hardware_concurrency()))),
        threads_(threads == 0 ? cores_ : threads) {
    set_threads(threads);
  }

  Device device() const override { return Device::cpu(); }
  std::string name() const override { return "CPU, " + std::to_string(threads_) + " threads"; }
  void describe(Json& json) const override { json.add("cores", cores_).add("threads", threads_); }
  std::int64_t cache_bytes() const override { return kCpuCacheBytes; }
  std::int64_t graph_bytes() const override { return 0; }
  double copy_bandwidth() override { return 0; }
  double multiply_adds_per_second() override {
    if (rate_ == 0) rate_ = fma_per_second() * std::min(threads_, cores_);
    return rate_;
  }

  std::shared_ptr<void> allocate(std::size_t bytes) override {
    return {std::aligned_alloc(256, (bytes + 255) / 256 * 256), std::free};
  }
  void fill(void* data, DType dtype, std::int64_t count, const Fill& fill) override {
    std::vector<std::thread> threads;
    const std::int64_t share = (count + cores_ - 1) / cores_;
    for (std::int64_t begin = 0; begin < count; begin += share)
      threads.emplace_back([=, end = std::min(begin + share, count)] {
        for (std::int64_t i = begin; i < end; ++i) store(data, dtype, i, value_at(fill, i));
      });
    for (std::thread& thread : threads) thread.join();
  }
  void upload(void* to, const void* from, std::size_t bytes) override {
    std::memcpy(to, from, bytes);
  }
  void download(void* to, const void* from, std::size_t bytes) override {
    std::memcpy(to, from, bytes);
  }

  void run(const Enqueue& enqueue) override { enqueue(0, nullptr); }
  Timing time(const Enqueue& enqueue, int calls, bool, int repeats) override {
    const auto seconds_of = [&](int call) {
      const auto begin = Clock::now();
      enqueue(call % calls, nullptr);
      return since(begin);
    };
    Timing timing;
    const int affordable_repeats = affordable(repeats, seconds_of(0));
    for (int repeat = 0; repeat < affordable_repeats; ++repeat)
      timing.seconds.push_back(seconds_of(repeat));
    return timing;
  }

 private:
  int cores_, threads_;
  double rate_ = 0;
};

}  // namespace

std::unique_ptr<Machine> make_cpu(int threads) { return std::make_unique<Cpu>(threads); }

#if !defined(LINATTN_HAS_CUDA)
std::unique_ptr<Machine> make_cuda(std::string& reason) {
  reason = "this build has no CUDA (LINATTN_CUDA=OFF)";
  return nullptr;
}
#endif

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return n == 0 ? 0 : (values[(n - 1) / 2] + values[n / 2]) / 2;
}

int affordable(int repeats, double seconds_of_one) {
  const double fit = kSecondsPerCase / std::max(seconds_of_one, 1e-9);
  return fit >= repeats ? repeats
                        : std::min(repeats, std::max(kLeastRepeats, static_cast<int>(fit)));
}

}  // namespace linattn::bench
