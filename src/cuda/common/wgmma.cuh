// SPDX-License-Identifier: Apache-2.0
//
// A warpgroup's matrix products, wgmma (PTX ISA: asynchronous warpgroup level matrix instructions),
// for code of sm_90a. Like ptx.cuh, tests/simt replaces this file.
//
//   d [64, N] += a [64, 16] b [N, 16]^T    bf16 operands, fp32 sums
//
// a: rows 16 w .. 16 w + 15 in the registers of warp w, as mma.sync takes them. b: in shared
// memory, rows contiguous along the depth and swizzled; transposed: [16, N], rows contiguous along
// N. d: rows as a; columns 8 i + 2 (lane % 4)
// and the next one in d[4 i], d[4 i + 1] for row lane / 4, in d[4 i + 2], d[4 i + 3] for 8 below.
#pragma once

#include <cstdint>

#include "cuda/common/ptx.cuh"

namespace linattn::ptx {

// The way back of ldmatrix_x4_trans: four 8 x 8 matrices of 16-bit elements to the rows that lanes
// name.
__device__ __forceinline__ void stmatrix_x4_trans(const std::uint32_t (&r)[4], void* row) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                   shared_address(row)),
               "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

// Units of 16 bytes of a row are shuffled by the row: of 128 bytes by row % 8, of 64 by row / 2
// % 4.
enum class Swizzle : std::uint32_t { k128Bytes = 1, k64Bytes = 2 };

// Where b lies: the same place for all lanes. Its first row's address is a multiple of 8 rows.
struct MatrixDescriptor {
  std::uint32_t low, high;

  __device__ __forceinline__ static MatrixDescriptor of(const void* matrix, Swizzle swizzle) {
    const std::uint32_t rows_bytes = swizzle == Swizzle::k128Bytes ? 1024 : 512;  // of 8 rows
    const std::uint32_t low = (shared_address(matrix) & 0x3ffff) >> 4 | 1u << 16;
    // The exchange tells the compiler that it is uniform.
    return {__shfl_sync(0xffffffffu, low, 0), rows_bytes >> 4 | static_cast<std::uint32_t>(swizzle)
                                                                    << 30};
  }
  // Of a transposed b: a row of 128 bytes for each of the depth, 64 of N; the next 64 lie `box`
  // bytes further on.
  __device__ __forceinline__ static MatrixDescriptor transposed(const void* matrix, unsigned box) {
    MatrixDescriptor of = MatrixDescriptor::of(matrix, Swizzle::k128Bytes);
    of.low = (of.low & 0xffffu) | (box >> 4) << 16;
    return of;
  }
  // Further along the rows, inside 128 or 64 bytes, or by whole groups of 8 rows.
  __device__ __forceinline__ MatrixDescriptor operator+(unsigned bytes) const {
    return {low + (bytes >> 4), high};
  }
  __device__ __forceinline__ std::uint64_t bits() const { return std::uint64_t{high} << 32 | low; }
};

// Makes a thread's writes to shared memory visible to products and bulk copies, before the barrier
// that tells of them.
__device__ __forceinline__ void fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Before the first product, and after registers of a or d were written by other instructions.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit_group() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// For all but the last kPending groups.
template <int kPending>
__device__ __forceinline__ void wgmma_wait_group() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// The compiler takes d for written when a product is issued: what reads it stays behind this.
template <int kCount>
__device__ __forceinline__ void wgmma_arrived(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// kNegate: d -= a b^T. accumulate false: d = a b^T. kTransposed: b is described by `transposed`.
template <bool kNegate = false, bool kTransposed = false>
__device__ __forceinline__ void wgmma_bf16(float (&d)[16], const std::uint32_t (&a)[4],
                                           MatrixDescriptor b, bool accumulate = true) {
  asm volatile(
      "{\n .reg .pred accumulate;\n setp.ne.b32 accumulate, %21, 0;\n"
      " wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
      "{%16, %17, %18, %19}, %20, accumulate, %22, 1, %23;\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits()),
        "r"(static_cast<int>(accumulate)), "n"(kNegate ? -1 : 1), "n"(kTransposed ? 1 : 0));
}
template <bool kNegate = false, bool kTransposed = false>
__device__ __forceinline__ void wgmma_bf16(float (&d)[32], const std::uint32_t (&a)[4],
                                           MatrixDescriptor b, bool accumulate = true) {
  asm volatile(
      "{\n .reg .pred accumulate;\n setp.ne.b32 accumulate, %37, 0;\n"
      " wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "{%32, %33, %34, %35}, %36, accumulate, %38, 1, %39;\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
        "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits()),
        "r"(static_cast<int>(accumulate)), "n"(kNegate ? -1 : 1), "n"(kTransposed ? 1 : 0));
}
template <bool kNegate = false, bool kTransposed = false>
__device__ __forceinline__ void wgmma_bf16(float (&d)[64], const std::uint32_t (&a)[4],
                                           MatrixDescriptor b, bool accumulate = true) {
  asm volatile(
      "{\n .reg .pred accumulate;\n setp.ne.b32 accumulate, %69, 0;\n"
      " wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "{%64, %65, %66, %67}, %68, accumulate, %70, 1, %71;\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
        "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]),
        "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]),
        "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
        "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
        "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]),
        "+f"(d[63])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits()),
        "r"(static_cast<int>(accumulate)), "n"(kNegate ? -1 : 1), "n"(kTransposed ? 1 : 0));
}

}  // namespace linattn::ptx
