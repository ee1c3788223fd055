// SPDX-License-Identifier: Apache-2.0
//
// linattn_device_tests: this folder's tests and those of tests/ops, which then run every CUDA row
// on the GPU against the oracle on the CPU.
#include <gtest/gtest.h>

#include <cstdio>

#include "device/memory.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const std::string missing = linattn::test::missing_gpu();
  if (missing.empty()) {
    linattn::test::memory_under_test() = &linattn::test::gpu();
  } else if (!testing::GTEST_FLAG(list_tests)) {
    std::printf("nothing was tested: %s\n", missing.c_str());
    return 77;  // ctest's and automake's number for a skipped test
  }
  return RUN_ALL_TESTS();
}
