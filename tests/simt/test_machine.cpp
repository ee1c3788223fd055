// SPDX-License-Identifier: Apache-2.0
//
// The simulated blocks do what a GPU's do, and show what a GPU hides.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "cuda/common/ptx.cuh"
#include "simt.h"

namespace linattn::ptx {
namespace {

constexpr unsigned kThreads = 64;

void run(const std::function<void()>& body, unsigned threads = kThreads, unsigned blocks = 1) {
  simt::run_grid(blocks, threads, 1024, body);
}

TEST(Simt, AMissingBarrierShowsInOneOfTwoOrders) {
  for (const bool with_barrier : {true, false}) {
    std::vector<float> out(2 * kThreads);
    run(
        [&] {
          auto* shared = dynamic_shared<float>();
          shared[threadIdx.x] = static_cast<float>(threadIdx.x);
          if (with_barrier) __syncthreads();
          out[kThreads * blockIdx.x + threadIdx.x] = shared[(threadIdx.x + 1) % kThreads];
        },
        kThreads, 2);
    bool right = true;
    for (unsigned i = 0; i < out.size(); ++i)
      right = right && out[i] == static_cast<float>((i + 1) % kThreads);
    EXPECT_EQ(right, with_barrier);
  }
}

TEST(Simt, ACopyIsSeenAfterTheWaitOnly) {
  std::vector<float> from(4 * kThreads), early(kThreads), late(kThreads);
  std::iota(from.begin(), from.end(), 0.0f);
  run([&] {
    auto* shared = dynamic_shared<float>();
    const unsigned i = threadIdx.x;
    cp_async<16>(shared + 4 * i, from.data() + 4 * i, i != 5);
    cp_async_commit_group();
    early[i] = shared[4 * i + 1];
    cp_async_wait_group<0>();
    late[i] = shared[4 * i + 1];
  });
  for (unsigned i = 0; i < kThreads; ++i) {
    EXPECT_TRUE(std::isnan(early[i]));
    EXPECT_EQ(late[i], i == 5 ? 0.0f : from[4 * i + 1]);
  }
}

TEST(Simt, ABulkCopyEndsItsPhase) {
  alignas(16) float from[8];
  std::iota(from, from + 8, 1.0f);
  std::vector<float> out(kThreads);
  run([&] {
    auto* shared = dynamic_shared<float>();
    auto& barrier = *reinterpret_cast<Mbarrier*>(shared + 16);
    if (threadIdx.x == 0) mbarrier_init(barrier, 1);
    __syncthreads();
    for (int round = 0; round < 3; ++round) {
      if (threadIdx.x == 0) {
        mbarrier_arrive_expect_tx(barrier, 32);
        cp_async_bulk(shared + 8 * (round % 2), from, 32, barrier);
      }
      mbarrier_wait(barrier, round % 2);
      out[threadIdx.x] += shared[8 * (round % 2) + threadIdx.x % 8];
      __syncthreads();
    }
  });
  for (unsigned i = 0; i < kThreads; ++i) EXPECT_EQ(out[i], 3 * from[i % 8]);
}

TEST(Simt, MatricesAreTransposedOrNot) {
  // Element (row, column) of matrix m is 64 m + 8 row + column.
  std::vector<int> wrong(1);
  run(
      [&] {
        auto* shared = dynamic_shared<std::uint16_t>();
        for (unsigned i = threadIdx.x; i < 256; i += 32) shared[i] = static_cast<std::uint16_t>(i);
        __syncthreads();
        const int g = simt::lane() / 4, t = simt::lane() % 4;
        std::uint32_t r[4], transposed[4], two[2];
        ldmatrix_x4(r, shared + 8 * simt::lane());
        ldmatrix_x4_trans(transposed, shared + 8 * simt::lane());
        ldmatrix_x2_trans(two, shared + 8 * (simt::lane() % 16));
        for (unsigned m = 0; m < 4; ++m) {
          const auto element = [&](int row, int column) {
            return 64 * m + 8 * static_cast<unsigned>(row) + static_cast<unsigned>(column);
          };
          const std::uint32_t plain = element(g, 2 * t) | element(g, 2 * t + 1) << 16;
          const std::uint32_t across = element(2 * t, g) | element(2 * t + 1, g) << 16;
          wrong[0] += r[m] != plain || transposed[m] != across;
          if (m < 2) wrong[0] += two[m] != across;
          wrong[0] += movmatrix_trans(r[m]) != across;
        }
      },
      32);
  EXPECT_EQ(wrong[0], 0);
}

TEST(Simt, Tf32Product) {
  std::vector<float> d(128);
  const auto a = [](int row, int k) { return static_cast<float>(row - 2 * k); };
  const auto b = [](int k, int column) { return static_cast<float>(3 * k + column); };
  run(
      [&] {
        const int g = simt::lane() / 4, t = simt::lane() % 4;
        float c[4] = {};
        mma_m16n8k8_tf32(c, cvt_rna_tf32(a(g, t)), cvt_rna_tf32(a(g + 8, t)),
                         cvt_rna_tf32(a(g, t + 4)), cvt_rna_tf32(a(g + 8, t + 4)),
                         cvt_rna_tf32(b(t, g)), cvt_rna_tf32(b(t + 4, g)));
        for (int i = 0; i < 4; ++i)
          d[static_cast<std::size_t>((g + 8 * (i / 2)) * 8 + 2 * t + i % 2)] = c[i];
      },
      32);
  for (int row = 0; row < 16; ++row)
    for (int column = 0; column < 8; ++column) {
      float expected = 0;
      for (int k = 0; k < 8; ++k) expected += a(row, k) * b(k, column);
      EXPECT_EQ(d[static_cast<std::size_t>(8 * row + column)], expected);
    }
}

TEST(Simt, WhatWouldHangIsReported) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(run([] {
                 if (threadIdx.x < 32) bar_sync<64>(1);
               }),
               "32 threads at bar.sync");
  EXPECT_DEATH(run([] {
                 if (threadIdx.x % 2 == 0)
                   __shfl_xor_sync(0xffffffffu, 1, 1);
                 else
                   __syncwarp();
               }),
               "meet at");
  EXPECT_DEATH(run([] {
                 auto& barrier = *dynamic_shared<Mbarrier>();
                 if (threadIdx.x == 0) mbarrier_init(barrier, 1);
                 __syncthreads();
                 mbarrier_wait(barrier, 0);
               }),
               "no thread of block");
}

TEST(Simt, MisalignedRowsAreReported) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(run([] {
                 std::uint32_t r[4];
                 ldmatrix_x4(r, dynamic_shared() + 8);
               }),
               "not aligned");
}

}  // namespace
}  // namespace linattn::ptx
