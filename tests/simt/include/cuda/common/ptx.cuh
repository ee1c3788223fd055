// SPDX-License-Identifier: Apache-2.0
//
// Stands in for src/cuda/common/ptx.cuh where blocks run on the CPU (see simt.h): the same
// functions, by the layouts of fragments that the PTX ISA gives.
#pragma once

#include <cstdint>

#include "simt.h"

namespace linattn::ptx {

// ---- arithmetic

inline float ex2_approx(float x) {
  const float y = std::exp2(x);
  return y < 0x1p-126f ? 0.0f : y;
}
inline float rcp_approx(float x) { return 1.0f / x; }
inline float max_nan(float x, float y) {
  return std::isnan(x) || std::isnan(y) ? std::nanf("") : std::fmax(x, y);
}
inline std::uint32_t cvt_rna_tf32(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  if ((bits & 0x7f800000u) == 0x7f800000u) return bits;
  return (bits + 0x1000u) & ~0x1fffu;
}

// ---- shared memory

template <class T = unsigned char>
T* dynamic_shared() {
  return reinterpret_cast<T*>(simt::dynamic_shared());
}

inline int opaque(int x) { return x; }

// ---- a warp's matrices

namespace detail {

inline float bf16(std::uint32_t pair, int half) {
  return std::bit_cast<float>(half == 0 ? pair << 16 : pair & 0xffff0000u);
}

struct Fragments {
  float d[4];
  std::uint32_t a[4], b[2];
};

// d = a b + c of a warp, a [16, depth], b [depth, 8]; exact products, one rounding.
template <int kDepth, class Load>
void multiply(const void* values, void* out, Load&& load) {
  const auto* all = static_cast<const Fragments*>(values);
  auto* d = static_cast<float (*)[4]>(out);
  float a[16][kDepth], b[8][kDepth];
  for (int lane = 0; lane < 32; ++lane) load(all[lane], lane / 4, lane % 4, a, b);
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + 8 * (i / 2), column = 2 * (lane % 4) + i % 2;
      double sum = all[lane].d[i];
      for (int k = 0; k < kDepth; ++k) sum += static_cast<double>(a[row][k]) * b[column][k];
      d[lane][i] = static_cast<float>(sum);
    }
  }
}

inline void finish_bf16(const void* values, void* out) {
  multiply<16>(values, out, [](const Fragments& f, int row, int pair, auto& a, auto& b) {
    for (int half = 0; half < 2; ++half) {
      const int k = 2 * pair + half;
      a[row][k] = bf16(f.a[0], half), a[row + 8][k] = bf16(f.a[1], half);
      a[row][k + 8] = bf16(f.a[2], half), a[row + 8][k + 8] = bf16(f.a[3], half);
      b[row][k] = bf16(f.b[0], half), b[row][k + 8] = bf16(f.b[1], half);
    }
  });
}
inline void finish_tf32(const void* values, void* out) {
  multiply<8>(values, out, [](const Fragments& f, int row, int k, auto& a, auto& b) {
    const auto tf32 = [](std::uint32_t x) { return std::bit_cast<float>(x & ~0x1fffu); };
    a[row][k] = tf32(f.a[0]), a[row + 8][k] = tf32(f.a[1]);
    a[row][k + 4] = tf32(f.a[2]), a[row + 8][k + 4] = tf32(f.a[3]);
    b[row][k] = tf32(f.b[0]), b[row][k + 4] = tf32(f.b[1]);
  });
}

inline void mma(const char* what, simt::Finish finish, float (&d)[4], const std::uint32_t (&a)[4],
                const std::uint32_t (&b)[2]) {
  const Fragments mine{{d[0], d[1], d[2], d[3]}, {a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
  const simt::Meeting meeting = simt::meet(what, &mine, sizeof mine, finish);
  std::memcpy(d, static_cast<float (*)[4]>(meeting.out)[simt::lane()], sizeof d);
}

// Row `row` of matrix `matrix`, by the addresses that the lanes brought.
inline const std::uint16_t* matrix_row(const void* const* rows, int matrix, int row) {
  const void* at = rows[8 * matrix + row];
  if (reinterpret_cast<std::uintptr_t>(at) % 16 != 0)
    simt::fail("ldmatrix: a row is not aligned to 16 bytes");
  return static_cast<const std::uint16_t*>(at);
}
template <bool kTransposed, int kCount>
void ldmatrix(const char* what, std::uint32_t (&r)[kCount], const void* row) {
  const void* const* rows = simt::exchange(what, row);
  const int g = simt::lane() / 4, t = simt::lane() % 4;
  for (int i = 0; i < kCount; ++i) {
    const std::uint32_t low =
        kTransposed ? matrix_row(rows, i, 2 * t)[g] : matrix_row(rows, i, g)[2 * t];
    const std::uint32_t high =
        kTransposed ? matrix_row(rows, i, 2 * t + 1)[g] : matrix_row(rows, i, g)[2 * t + 1];
    r[i] = low | high << 16;
  }
}

}  // namespace detail

inline void mma_m16n8k16_bf16(float (&d)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                              std::uint32_t a3, std::uint32_t b0, std::uint32_t b1) {
  detail::mma("mma bf16", detail::finish_bf16, d, {a0, a1, a2, a3}, {b0, b1});
}
inline void mma_m16n8k8_tf32(float (&d)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                             std::uint32_t a3, std::uint32_t b0, std::uint32_t b1) {
  detail::mma("mma tf32", detail::finish_tf32, d, {a0, a1, a2, a3}, {b0, b1});
}

inline void ldmatrix_x4(std::uint32_t (&r)[4], const void* row) {
  detail::ldmatrix<false>("ldmatrix.x4", r, row);
}
inline void ldmatrix_x4_trans(std::uint32_t (&r)[4], const void* row) {
  detail::ldmatrix<true>("ldmatrix.x4.trans", r, row);
}
inline void ldmatrix_x2_trans(std::uint32_t (&r)[2], const void* row) {
  detail::ldmatrix<true>("ldmatrix.x2.trans", r, row);
}

inline std::uint32_t movmatrix_trans(std::uint32_t x) {
  const std::uint32_t* all = simt::exchange("movmatrix.trans", x);
  const int g = simt::lane() / 4, t = simt::lane() % 4;
  const auto element = [&](int row, int column) {
    return all[4 * row + column / 2] >> 16 * (column % 2) & 0xffffu;
  };
  return element(2 * t, g) | element(2 * t + 1, g) << 16;
}

// ---- barriers of a part of the block

template <int kThreads>
void bar_sync(int id) {
  simt::barrier("bar.sync", id, kThreads);
}

// ---- copies behind the thread's back

namespace detail {
inline void check_aligned(const char* what, const void* to, const void* from, std::size_t bytes) {
  if ((reinterpret_cast<std::uintptr_t>(to) | reinterpret_cast<std::uintptr_t>(from)) % bytes != 0)
    simt::fail("%s: an address is not aligned to %zu bytes", what, bytes);
}
}  // namespace detail

template <int kBytes>
void cp_async(void* to, const void* from, bool exists = true) {
  detail::check_aligned("cp.async", to, from, kBytes);
  std::memset(to, 0xff, kBytes);
  simt::defer([=] {
    if (exists)
      std::memcpy(to, from, kBytes);
    else
      std::memset(to, 0, kBytes);
  });
}
inline void cp_async_commit_group() { simt::close_group(); }
template <int kPending>
void cp_async_wait_group() {
  simt::run_groups(kPending);
}

inline void cp_async_wait_all() {
  simt::close_group();
  simt::run_groups(0);
}

inline void prefetch_l2(const void*) {}

// ---- from sm_90 on

inline constexpr bool kHasBulkCopies = true;

inline void cp_async_bulk_prefetch_l2(const void* from, unsigned bytes) {
  if (reinterpret_cast<std::uintptr_t>(from) % 16 != 0 || bytes == 0 || bytes % 16 != 0)
    simt::fail("cp.async.bulk.prefetch: not multiples of 16 bytes");
}
using Mbarrier = std::uint64_t;

namespace detail {
inline void end_phase_if_complete(simt::Barrier& b) {
  if (b.arrived == b.arrivals && b.bytes == 0) ++b.phases, b.arrived = 0;
}
}  // namespace detail

inline void mbarrier_init(Mbarrier& barrier, unsigned arrivals) {
  simt::barrier_at(&barrier) = {};
  simt::barrier_at(&barrier).arrivals = arrivals;
}
inline void mbarrier_expect_tx(Mbarrier& barrier, unsigned bytes) {
  simt::barrier_at(&barrier).bytes += bytes;
}
inline void mbarrier_arrive_expect_tx(Mbarrier& barrier, unsigned bytes) {
  simt::Barrier& b = simt::barrier_at(&barrier);
  if (b.arrivals == 0) simt::fail("mbarrier: arrival before initialisation");
  ++b.arrived;
  b.bytes += bytes;
  detail::end_phase_if_complete(b);
}
inline void mbarrier_arrive(Mbarrier& barrier) { mbarrier_arrive_expect_tx(barrier, 0); }
inline void cp_async_mbarrier_arrive(Mbarrier& barrier) {
  simt::close_group();
  simt::run_groups(0);
  mbarrier_arrive(barrier);
}
inline void mbarrier_wait(Mbarrier& barrier, int parity) {
  const simt::Barrier& b = simt::barrier_at(&barrier);
  if (b.arrivals == 0) simt::fail("mbarrier: wait before initialisation");
  // The phase of this parity has ended if the running one has the other parity.
  if (static_cast<int>(b.phases % 2) == parity) simt::wait_for("mbarrier", b.phases, b.phases + 1);
}
inline void cp_async_bulk(void* to, const void* from, unsigned bytes, Mbarrier& barrier) {
  detail::check_aligned("cp.async.bulk", to, from, 16);
  std::memset(to, 0xff, bytes);
  simt::when_all_wait([=, &b = simt::barrier_at(&barrier)] {
    std::memcpy(to, from, bytes);
    b.bytes -= bytes;
    detail::end_phase_if_complete(b);
  });
}

inline void griddepcontrol_launch_dependents() {}
inline void griddepcontrol_wait() {}

}  // namespace linattn::ptx
