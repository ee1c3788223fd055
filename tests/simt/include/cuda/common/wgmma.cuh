// SPDX-License-Identifier: Apache-2.0
//
// Stands in for src/cuda/common/wgmma.cuh where blocks run on the CPU (see simt.h). A product reads
// its operand in shared memory as late as it may: when its group is awaited. Until then its result
// is not a number.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <vector>

#include "cuda/common/ptx.cuh"

namespace linattn::ptx {

inline void stmatrix_x4_trans(const std::uint32_t (&r)[4], void* row) {
  struct Lane {
    std::uint32_t r[4];
    void* row;
  };
  const Lane mine{{r[0], r[1], r[2], r[3]}, row};
  const Lane* all = simt::exchange("stmatrix.x4.trans", mine);
  // This lane's row: row `lane % 8` of matrix `lane / 8`, whose columns are others' elements.
  if (reinterpret_cast<std::uintptr_t>(row) % 16 != 0)
    simt::fail("stmatrix: a row is not aligned to 16 bytes");
  const int matrix = simt::lane() / 8, i = simt::lane() % 8;
  for (int g = 0; g < 8; ++g)
    static_cast<std::uint16_t*>(row)[g] =
        static_cast<std::uint16_t>(all[4 * g + i / 2].r[matrix] >> 16 * (i % 2));
}

enum class Swizzle : std::uint32_t { k128Bytes = 1, k64Bytes = 2 };

struct MatrixDescriptor {
  std::uintptr_t start;
  unsigned row_bytes;
  unsigned box = 0;  // of a transposed one, the leading dimension's offset

  static MatrixDescriptor of(const void* matrix, Swizzle swizzle) {
    const unsigned row_bytes = swizzle == Swizzle::k128Bytes ? 128 : 64;
    const auto start = reinterpret_cast<std::uintptr_t>(matrix);
    if (start % (8 * row_bytes) != 0) simt::fail("wgmma: a matrix is not aligned to 8 rows");
    return {start, row_bytes};
  }
  static MatrixDescriptor transposed(const void* matrix, unsigned box) {
    MatrixDescriptor of = MatrixDescriptor::of(matrix, Swizzle::k128Bytes);
    if (box == 0 || box % 16 != 0 || box >= 1u << 18)
      simt::fail("wgmma: boxes of a transposed matrix cannot be %u bytes apart", box);
    of.box = box;
    return of;
  }
  MatrixDescriptor operator+(unsigned bytes) const { return {start + bytes, row_bytes, box}; }

  float at(int row, int column) const {
    return load(start + static_cast<unsigned>(row) * row_bytes + 2u * column);
  }
  // The layout "MN-major, 128-byte swizzle": 64 rows side by side, 8 of the depth make a core
  // matrix of 1024 bytes, the stride; rows from 64 on lie in the next box.
  float transposed_at(int row, int depth) const {
    return load(start + static_cast<unsigned>(row / 64) * box +
                static_cast<unsigned>(depth / 8) * 1024 + static_cast<unsigned>(depth % 8) * 128 +
                2u * static_cast<unsigned>(row % 64));
  }

 private:
  float load(std::uintptr_t at) const {
    const std::uintptr_t mask = row_bytes == 128 ? 7 : 3;
    const auto* bits = reinterpret_cast<const std::uint16_t*>(at ^ (at >> 7 & mask) << 4);
    return std::bit_cast<float>(static_cast<std::uint32_t>(*bits) << 16);
  }
};

namespace detail {

struct Product {
  float* d;
  int columns;
  bool negate, accumulate;
  std::uint32_t a[2][4];  // the registers of this lane's group of 4 hold its two rows: by depth / 2
  std::uint32_t a_high[2][4];
  MatrixDescriptor b;
  bool transposed;
};

// Of one thread.
struct Products {
  std::vector<std::vector<Product>> groups{1};        // the last one is open
  std::map<float*, std::vector<float>> accumulators;  // whose products are not awaited
};
inline Products& products() {
  static std::vector<Products> of(1024);
  return of.at(threadIdx.x);
}

inline void run(const Product& p, std::vector<float>& d) {
  const int t = simt::lane() % 4;
  for (int i = 0; i < p.columns / 8; ++i)
    for (int e = 0; e < 4; ++e) {
      const auto& row = e < 2 ? p.a : p.a_high;
      double sum = p.accumulate ? d[static_cast<std::size_t>(4 * i + e)] : 0.0;
      for (int k = 0; k < 16; ++k) {
        const double x = bf16(row[k / 8][k % 8 / 2], k % 2);
        const int column = 8 * i + 2 * t + e % 2;
        sum +=
            (p.negate ? -x : x) * (p.transposed ? p.b.transposed_at(column, k) : p.b.at(column, k));
      }
      d[static_cast<std::size_t>(4 * i + e)] = static_cast<float>(sum);
    }
}

}  // namespace detail

inline void fence_proxy_async() {}
inline void wgmma_fence() { simt::exchange("wgmma.fence", 0); }
inline void wgmma_commit_group() { detail::products().groups.emplace_back(); }
template <int kPending>
void wgmma_wait_group() {
  simt::exchange("wgmma.wait_group", 0);
  detail::Products& all = detail::products();
  while (all.groups.size() > kPending + 1) {
    for (const detail::Product& p : all.groups.front()) detail::run(p, all.accumulators.at(p.d));
    all.groups.erase(all.groups.begin());
  }
  for (auto it = all.accumulators.begin(); it != all.accumulators.end();) {
    bool awaited = false;
    for (const auto& group : all.groups)
      for (const detail::Product& p : group) awaited = awaited || p.d == it->first;
    if (!awaited) std::copy(it->second.begin(), it->second.end(), it->first);
    it = awaited ? std::next(it) : all.accumulators.erase(it);
  }
}
template <int kCount>
void wgmma_arrived(float (&)[kCount]) {}

template <bool kNegate = false, bool kTransposed = false, int kCount>
void wgmma_bf16(float (&d)[kCount], const std::uint32_t (&a)[4], MatrixDescriptor b,
                bool accumulate = true) {
  struct Registers {
    std::uint32_t a[4];
  };
  if (kTransposed != (b.box != 0)) simt::fail("wgmma: the descriptor is of the other layout");
  const Registers mine{{a[0], a[1], a[2], a[3]}};
  const Registers* all = simt::exchange("wgmma", mine);
  detail::Product product{d, 2 * kCount, kNegate, accumulate, {}, {}, b, kTransposed};
  for (int t = 0; t < 4; ++t) {
    const Registers& of = all[simt::lane() / 4 * 4 + t];
    product.a[0][t] = of.a[0], product.a_high[0][t] = of.a[1];
    product.a[1][t] = of.a[2], product.a_high[1][t] = of.a[3];
  }
  detail::Products& mine_all = detail::products();
  if (auto [at, fresh] = mine_all.accumulators.try_emplace(d, d, d + kCount); fresh)
    std::fill(d, d + kCount, std::numeric_limits<float>::quiet_NaN());
  mine_all.groups.back().push_back(product);
}

}  // namespace linattn::ptx
