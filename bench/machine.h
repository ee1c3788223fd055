// SPDX-License-Identifier: Apache-2.0
//
// Where a case runs: memory, time, and what the hardware can do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fill.h"
#include "json.h"
#include "linattn/linattn.h"

namespace linattn::bench {

struct Timing {
  std::vector<double> seconds;  // of one call, one entry per repeat
  double host_seconds = 0;      // of enqueueing one call; 0: the call itself is on the host
};

class Machine {
 public:
  virtual ~Machine() = default;
  virtual Device device() const = 0;
  virtual std::string name() const = 0;
  virtual void describe(Json& json) const = 0;  // further facts, for the record
  // What inputs must exceed, together, to be read from memory.
  virtual std::int64_t cache_bytes() const = 0;
  // Traffic below which calls are timed many at a time; 0: never.
  virtual std::int64_t graph_bytes() const = 0;
  // Bytes read plus bytes written per second by a copy; 0: not measured here.
  virtual double copy_bandwidth() = 0;
  // fp32 multiply-adds per second that a floor is computed from; 0: the floor is in bytes.
  virtual double multiply_adds_per_second() = 0;

  virtual std::shared_ptr<void> allocate(std::size_t bytes) = 0;  // 256-byte aligned
  virtual void fill(void* data, DType dtype, std::int64_t count, const Fill& fill) = 0;
  virtual void upload(void* to, const void* from, std::size_t bytes) = 0;
  virtual void download(void* to, const void* from, std::size_t bytes) = 0;

  // enqueue(i, stream) is the i-th call. Runs one and waits.
  using Enqueue = std::function<void(int, Stream)>;
  virtual void run(const Enqueue& enqueue) = 0;
  // `calls` different calls in turn, one at a time, or as one graph of them all.
  virtual Timing time(const Enqueue& enqueue, int calls, bool graph, int repeats) = 0;
};

std::unique_ptr<Machine> make_cpu(int threads);
// Null, with the reason, where there is no GPU or the build has no CUDA.
std::unique_ptr<Machine> make_cuda(std::string& reason);

double median(std::vector<double> values);

// Repeats that fit the time one case may take, given what one call took.
int affordable(int repeats, double seconds_of_one);

}  // namespace linattn::bench
