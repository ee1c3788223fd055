// SPDX-License-Identifier: Apache-2.0
//
// The one way to launch: the status of the launch itself is checked, so an error that the caller
// left behind is not taken for ours.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <cstddef>
#include <mutex>
#include <source_location>

#include "cuda/common/check.h"

namespace linattn::cuda {

struct Grid {
  dim3 blocks, threads;
  std::size_t shared_bytes = 0;
};

// Whether the device runs code of the kernel that has the instructions griddepcontrol: not code
// that the driver made from compute_80.
template <auto kKernel>
bool can_overlap(int device) {
  static std::array<std::once_flag, kMaxDevices> done;
  static std::array<bool, kMaxDevices> can;
  const auto index = static_cast<std::size_t>(device);
  std::call_once(done.at(index), [&] {
    cudaFuncAttributes attributes{};
    check(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kKernel)));
    can.at(index) = attributes.ptxVersion >= 90;
  });
  return can.at(index);
}

template <class Params>
void launch(void (*kernel)(const Params), const Grid& grid, Stream stream, const Params& params,
            Order order = Order::kBehind,
            std::source_location where = std::source_location::current()) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid.blocks;
  config.blockDim = grid.threads;
  config.dynamicSmemBytes = grid.shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = order == Order::kBeside ? 1 : 0;
  check(cudaLaunchKernelEx(&config, kernel, params), where);
}

}  // namespace linattn::cuda
