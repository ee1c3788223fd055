// SPDX-License-Identifier: Apache-2.0
//
// The one way to launch: the status of the launch itself is checked, so an error that the caller
// left behind is not taken for ours.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <source_location>

#include "cuda/common/check.h"

namespace linattn::cuda {

struct Grid {
  dim3 blocks, threads;
  std::size_t shared_bytes = 0;
};

template <class Params>
void launch(void (*kernel)(const Params), const Grid& grid, Stream stream, const Params& params,
            std::source_location where = std::source_location::current()) {
  void* arguments[] = {const_cast<Params*>(&params)};
  check(cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid.blocks, grid.threads,
                         arguments, grid.shared_bytes, stream),
        where);
}

}  // namespace linattn::cuda
