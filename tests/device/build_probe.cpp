// SPDX-License-Identifier: Apache-2.0
// Launches the build probes: the binary's code for this GPU loads, runs and multiplies.
#include "cuda/common/build_probe.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <vector>

namespace linattn {
namespace {

// Small integers, exact in bfloat16 and in the sums.
int element(int row, int depth, int seed) { return (row * 7 + depth * 3 + seed) % 9 - 4; }

std::vector<std::uint16_t> matrix(int rows, int depth, int seed) {
  std::vector<std::uint16_t> bits;
  for (int row = 0; row < rows; ++row)
    for (int d = 0; d < depth; ++d)
      bits.push_back(static_cast<std::uint16_t>(
          std::bit_cast<std::uint32_t>(static_cast<float>(element(row, d, seed))) >> 16));
  return bits;
}

template <class T>
T* to_device(const std::vector<T>& host) {
  T* device = nullptr;
  EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&device), host.size() * sizeof(T)), cudaSuccess);
  EXPECT_EQ(cudaMemcpy(device, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice),
            cudaSuccess);
  return device;
}

template <class Launch>
void check_probe(Launch launch, int rows, int columns, int depth) {
  std::uint16_t* a = to_device(matrix(rows, depth, 1));
  std::uint16_t* b = to_device(matrix(columns, depth, 5));
  std::vector<float> out(static_cast<std::size_t>(rows) * columns, -1e9f);
  float* device_out = to_device(out);
  launch(a, b, device_out, nullptr);
  ASSERT_EQ(cudaGetLastError(), cudaSuccess);
  ASSERT_EQ(cudaMemcpy(out.data(), device_out, out.size() * sizeof(float), cudaMemcpyDeviceToHost),
            cudaSuccess);
  for (int row = 0; row < rows; ++row) {
    for (int column = 0; column < columns; ++column) {
      int expected = 0;
      for (int d = 0; d < depth; ++d) expected += element(row, d, 1) * element(column, d, 5);
      ASSERT_EQ(out[static_cast<std::size_t>(row) * columns + column], static_cast<float>(expected))
          << "row " << row << " column " << column;
    }
  }
  for (void* pointer :
       {static_cast<void*>(a), static_cast<void*>(b), static_cast<void*>(device_out)})
    cudaFree(pointer);
}

// The compute capability's first number; 0: no device, for which the text says why.
int major_capability() {
  int count = 0, major = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) return 0;
  return cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) == cudaSuccess ? major
                                                                                             : 0;
}

TEST(CudaBuildProbe, Portable) {
  if (major_capability() < 8) GTEST_SKIP() << "no GPU of compute capability 8.0 or newer";
  check_probe(portable::launch_build_probe, portable::kProbeRows, portable::kProbeColumns,
              portable::kProbeDepth);
}

#if LINATTN_HAS_SM90
TEST(CudaBuildProbe, Sm90) {
  if (major_capability() != 9) GTEST_SKIP() << "no GPU of compute capability 9.0";
  check_probe(sm90::launch_build_probe, sm90::kProbeRows, sm90::kProbeColumns, sm90::kProbeDepth);
}
#endif

}  // namespace
}  // namespace linattn
