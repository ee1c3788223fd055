// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <regex>
#include <source_location>
#include <stdexcept>
#include <string>

#include "cuda/common/convert.cuh"
#include "machine.h"

namespace linattn::bench {
namespace {

constexpr int kWarmUps = 3;
constexpr std::int64_t kGraphBytes = 64'000'000;
constexpr std::size_t kCopyBytes = std::size_t{1} << 30;
constexpr int kHostCalls = 16;

void check(cudaError_t status, std::source_location where = std::source_location::current()) {
  if (status != cudaSuccess)
    throw std::runtime_error(std::string(cudaGetErrorString(status)) + " at line " +
                             std::to_string(where.line()) + " of " + where.function_name());
}

__global__ void fill_kernel(void* data, DType dtype, std::int64_t count, Fill fill) {
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step)
    cuda::with_dtype(dtype, [&]<class T>(T) { cuda::store<T>(data, i, value_at(fill, i)); });
}

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

// The driver's own number where the system tells it, else the CUDA version that it serves.
std::string driver_version() {
  std::ifstream file("/proc/driver/nvidia/version");
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  std::smatch found;
  if (std::regex_search(text, found, std::regex(R"(\s(\d+\.\d+(\.\d+)?)\s)"))) return found[1];
  int version = 0;
  check(cudaDriverGetVersion(&version));
  return "CUDA " + version_text(version);
}

class Event {
 public:
  Event() { check(cudaEventCreate(&event_)); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record(cudaStream_t stream) const { check(cudaEventRecord(event_, stream)); }
  double seconds_since(const Event& earlier) const {
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, earlier.event_, event_));
    return milliseconds * 1e-3;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

class Cuda : public Machine {
 public:
  Cuda() {
    check(cudaGetDevice(&index_));
    check(cudaGetDeviceProperties(&properties_, index_));
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }
  ~Cuda() override { cudaStreamDestroy(stream_); }

  Device device() const override { return Device::cuda(index_); }
  std::string name() const override { return properties_.name; }
  void describe(Json& json) const override {
    int runtime = 0;
    check(cudaRuntimeGetVersion(&runtime));
    json.add("driver", driver_version())
        .add("cuda", version_text(runtime))
        .add("capability", properties_.major * 10 + properties_.minor)
        .add("multiprocessors", properties_.multiProcessorCount)
        .add("l2_bytes", properties_.l2CacheSize);
  }
  std::int64_t cache_bytes() const override { return properties_.l2CacheSize; }
  std::int64_t graph_bytes() const override { return kGraphBytes; }
  double copy_bandwidth() override {
    if (bandwidth_ == 0) {
      const auto from = allocate(kCopyBytes), to = allocate(kCopyBytes);
      fill(from.get(), DType::kFloat32, kCopyBytes / sizeof(float), {});
      const Timing timing = time(
          [&](int, Stream stream) {
            check(cudaMemcpyAsync(to.get(), from.get(), kCopyBytes, cudaMemcpyDeviceToDevice,
                                  stream));
          },
          1, false, 20);
      bandwidth_ = 2.0 * kCopyBytes / median(timing.seconds);
    }
    return bandwidth_;
  }
  double multiply_adds_per_second() override { return 0; }

  std::shared_ptr<void> allocate(std::size_t bytes) override {
    void* data = nullptr;
    check(cudaMalloc(&data, std::max<std::size_t>(bytes, 1)));
    return {data, [](void* p) { cudaFree(p); }};
  }
  void fill(void* data, DType dtype, std::int64_t count, const Fill& fill) override {
    constexpr int kThreads = 256;
    const std::int64_t blocks = std::min<std::int64_t>((count + kThreads - 1) / kThreads,
                                                       16 * properties_.multiProcessorCount);
    if (count > 0) {
      fill_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream_>>>(data, dtype, count,
                                                                           fill);
      check(cudaGetLastError());
    }
    wait();
  }
  void upload(void* to, const void* from, std::size_t bytes) override {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_));
    wait();
  }
  void download(void* to, const void* from, std::size_t bytes) override {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_));
    wait();
  }

  void run(const Enqueue& enqueue) override {
    enqueue(0, stream_);
    wait();
  }

  Timing time(const Enqueue& enqueue, int calls, bool graph, int repeats) override {
    for (int i = 0; i < kWarmUps * calls; ++i) enqueue(i % calls, stream_);
    wait();
    Timing timing;
    timing.host_seconds = host_seconds(enqueue, calls);
    if (!graph) {
      timing.seconds =
          between_events([&](int repeat) { enqueue(repeat % calls, stream_); }, repeats);
      return timing;
    }
    cudaGraph_t captured = nullptr;
    cudaGraphExec_t executable = nullptr;
    check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < calls; ++i) enqueue(i, stream_);
    check(cudaStreamEndCapture(stream_, &captured));
    check(cudaGraphInstantiate(&executable, captured, 0));
    timing.seconds =
        between_events([&](int) { check(cudaGraphLaunch(executable, stream_)); }, repeats);
    for (double& seconds : timing.seconds) seconds /= calls;
    check(cudaGraphExecDestroy(executable));
    check(cudaGraphDestroy(captured));
    return timing;
  }

 private:
  void wait() const { check(cudaStreamSynchronize(stream_)); }

  // No wait between the repeats: the queue stays full, so that the host's time is hidden.
  std::vector<double> between_events(const std::function<void(int)>& enqueue, int repeats) {
    Event begin, end;
    begin.record(stream_);
    enqueue(0);
    end.record(stream_);
    wait();
    repeats = affordable(repeats, end.seconds_since(begin));
    std::vector<Event> begins(static_cast<std::size_t>(repeats)), ends(begins.size());
    for (std::size_t i = 0; i < begins.size(); ++i) {
      begins[i].record(stream_);
      enqueue(static_cast<int>(i));
      ends[i].record(stream_);
    }
    wait();
    std::vector<double> seconds;
    for (std::size_t i = 0; i < begins.size(); ++i)
      seconds.push_back(ends[i].seconds_since(begins[i]));
    return seconds;
  }

  double host_seconds(const Enqueue& enqueue, int calls) {
    std::vector<double> seconds;
    for (int i = 0; i < kHostCalls; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      enqueue(i % calls, stream_);
      seconds.push_back(
          std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
    wait();
    return median(seconds);
  }

  int index_ = 0;
  cudaDeviceProp properties_{};
  cudaStream_t stream_ = nullptr;
  double bandwidth_ = 0;
};

}  // namespace

std::unique_ptr<Machine> make_cuda(std::string& reason) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0) {
    reason = status != cudaSuccess ? cudaGetErrorString(status) : "no CUDA device";
    return nullptr;
  }
  return std::make_unique<Cuda>();
}

}  // namespace linattn::bench
