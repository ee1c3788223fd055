// SPDX-License-Identifier: Apache-2.0
#include "cuda/common/check.h"

#include "linattn/error.h"

namespace linattn::cuda {
namespace {

// Below src/, so that a text does not hold the path of the machine that built it.
std::string site(const std::source_location& where) {
  std::string file = where.file_name();
  if (const auto at = file.rfind("cuda/"); at != std::string::npos) file = file.substr(at);
  return file + ":" + std::to_string(where.line());
}

int attribute(cudaDeviceAttr name, int index) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, name, index));
  return value;
}

std::string plural(int count, const std::string& what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

}  // namespace

void check(cudaError_t status, std::source_location where) {
  if (status == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());
  throw Error(ErrorCode::kCuda, "linattn: CUDA says '" + std::string(cudaGetErrorString(status)) +
                                    "' (" + cudaGetErrorName(status) + ") at " + site(where));
}

std::string device_refusal(Device device) {
  if (device.type != Device::Type::kCuda) return "device is " + to_string(device) + ", not cuda";
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return "no CUDA device can be used here: " + std::string(cudaGetErrorString(status));
  }
  if (device.index < 0 || device.index >= count || device.index >= kMaxDevices)
    return "device index is " + std::to_string(device.index) + "; there are " +
           plural(count, "CUDA device");
  const int capability = device_info(device.index).capability;
  if (capability < 80)
    return "compute capability is " + std::to_string(capability / 10) + "." +
           std::to_string(capability % 10) + "; expected at least 8.0";
  return "";
}

const DeviceInfo& device_info(int index) {
  struct Entry {
    std::once_flag filled;
    DeviceInfo info;
  };
  static std::array<Entry, kMaxDevices> entries;
  Entry& entry = entries.at(static_cast<std::size_t>(index));
  std::call_once(entry.filled, [&] {
    DeviceInfo info;
    info.index = index;
    info.multiprocessors = attribute(cudaDevAttrMultiProcessorCount, index);
    info.shared_bytes = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, index);
    info.capability = 10 * attribute(cudaDevAttrComputeCapabilityMajor, index) +
                      attribute(cudaDevAttrComputeCapabilityMinor, index);
    entry.info = info;
  });
  return entry.info;
}

}  // namespace linattn::cuda
