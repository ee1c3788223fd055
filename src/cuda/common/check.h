// SPDX-License-Identifier: Apache-2.0
//
// The CUDA runtime seen from host code: every status is checked, every fact is kept per device, and
// nothing asks for a driver before a CUDA plan is made.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <mutex>
#include <source_location>
#include <string>

#include "linattn/plan.h"
#include "linattn/problem.h"

namespace linattn::cuda {

// Throws Error(kCuda) that names the call site. The runtime's remembered error is cleared, so that
// the next call's check does not see this one's.
void check(cudaError_t status, std::source_location where = std::source_location::current());

struct DeviceInfo {
  int index = 0;
  int multiprocessors = 0;
  int shared_bytes = 0;  // per block, opted in
  int capability = 0;    // 90 is 9.0
};

inline constexpr int kMaxDevices = 64;

// Why a plan cannot be made on the device: not CUDA, no driver, no such index, too old. Empty: it
// can. The text speaks of the device only; a row adds what else it refuses.
std::string device_refusal(Device device);

// Filled at the first call for the device.
const DeviceInfo& device_info(int index);

// Where a kernel runs that was launched before in the same stream and this one: one behind the
// other, or this one as soon as every block of that one has said griddepcontrol_launch_dependents()
// or ended. Then griddepcontrol_wait() is what waits for its end and its memory.
enum class Order { kBehind, kBeside };

// Makes the device of a queue current for a scope.
class DeviceGuard {
 public:
  explicit DeviceGuard(Device device) {
    check(cudaGetDevice(&previous_));
    changed_ = previous_ != device.index;
    if (changed_) check(cudaSetDevice(device.index));
  }
  ~DeviceGuard() {
    if (changed_) cudaSetDevice(previous_);
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int previous_ = 0;
  bool changed_ = false;
};

// Lets a kernel use more than 48 KiB of dynamic shared memory; done once per kernel and device.
template <auto kKernel>
void allow_shared_memory(int device, int bytes) {
  static std::array<std::once_flag, kMaxDevices> done;
  std::call_once(done.at(static_cast<std::size_t>(device)), [&] {
    check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kKernel),
                               cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  });
}

}  // namespace linattn::cuda
