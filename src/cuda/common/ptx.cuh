// SPDX-License-Identifier: Apache-2.0
//
// The PTX instructions that kernels use beside the language, one function each, named after the
// instruction (PTX ISA: the sections of the same names), and the memory of a block. No kernel uses
// either by another way, so tests/simt stands in for the hardware by replacing this file.
#pragma once

#include <cstdint>

namespace linattn::ptx {

// ---- arithmetic

// 2^x, 2 units in the last place.
__device__ __forceinline__ float ex2_approx(float x) {
  float out;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
  return out;
}

// 1 / x, 1 unit in the last place.
__device__ __forceinline__ float rcp_approx(float x) {
  float out;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
  return out;
}

// The larger; not a number if either is none.
__device__ __forceinline__ float max_nan(float x, float y) {
  float out;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(out) : "f"(x), "f"(y));
  return out;
}

// The bits of x rounded to tf32, ties away from zero.
__device__ __forceinline__ std::uint32_t cvt_rna_tf32(float x) {
  std::uint32_t out;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(out) : "f"(x));
  return out;
}

// x, of which the compiler knows nothing: what depends on it is made anew in every round of a loop
// rather than kept in registers.
__device__ __forceinline__ int opaque(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

// ---- a warp's matrices

// d += a b, [16, 8] += [16, 16] [16, 8].
__device__ __forceinline__ void mma_m16n8k16_bf16(float (&d)[4], std::uint32_t a0, std::uint32_t a1,
                                                  std::uint32_t a2, std::uint32_t a3,
                                                  std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// d += a b, [16, 8] += [16, 8] [8, 8].
__device__ __forceinline__ void mma_m16n8k8_tf32(float (&d)[4], std::uint32_t a0, std::uint32_t a1,
                                                 std::uint32_t a2, std::uint32_t a3,
                                                 std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// ---- shared memory

// What the launch gave to the block, aligned to 16 bytes.
template <class T = unsigned char>
__device__ __forceinline__ T* dynamic_shared() {
  extern __shared__ __align__(16) unsigned char linattn_dynamic_shared[];
  return reinterpret_cast<T*>(linattn_dynamic_shared);
}

__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// Four 8 x 8 matrices of 16-bit elements; lane 8 i + j has the address of row j of matrix i.
__device__ __forceinline__ void ldmatrix_x4(std::uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row)));
}
__device__ __forceinline__ void ldmatrix_x4_trans(std::uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row)));
}
// Two; lanes from 16 on are not asked.
__device__ __forceinline__ void ldmatrix_x2_trans(std::uint32_t (&r)[2], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(shared_address(row)));
}

// Transposes an 8 x 8 matrix of 16-bit elements among the lanes.
__device__ __forceinline__ std::uint32_t movmatrix_trans(std::uint32_t x) {
  std::uint32_t out;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(x));
  return out;
}

// ---- barriers of a part of the block

// kThreads: whole warps, all of which come. id: 1 .. 15; 0 is __syncthreads.
template <int kThreads>
__device__ __forceinline__ void bar_sync(int id) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(kThreads) : "memory");
}

// ---- copies behind the thread's back

// 4 or 16 bytes to shared memory; zeros if they do not exist. 16 bytes pass the first-level cache.
template <int kBytes>
__device__ __forceinline__ void cp_async(void* to, const void* from, bool exists = true) {
  static_assert(kBytes == 4 || kBytes == 16);
  const std::uint32_t address = shared_address(to);
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from),
                 "r"(exists ? 16 : 0));
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(address), "l"(from),
                 "r"(exists ? 4 : 0));
  }
}
__device__ __forceinline__ void cp_async_commit_group() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// For all but the thread's last kPending groups.
template <int kPending>
__device__ __forceinline__ void cp_async_wait_group() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

__device__ __forceinline__ void cp_async_wait_all() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

__device__ __forceinline__ void prefetch_l2(const void* from) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}

// ---- from sm_90 on; does nothing in code for less

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define LINATTN_PTX_SM90(...) asm volatile(__VA_ARGS__)
inline constexpr bool kHasBulkCopies = true;
#else
#define LINATTN_PTX_SM90(...)
inline constexpr bool kHasBulkCopies = false;
#endif

using Mbarrier = std::uint64_t;

// Visible to the block after its next barrier, and to bulk copies.
__device__ __forceinline__ void mbarrier_init(Mbarrier& barrier, unsigned arrivals) {
  LINATTN_PTX_SM90("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(&barrier)),
                   "r"(arrivals));
  LINATTN_PTX_SM90("fence.mbarrier_init.release.cluster;" :: : "memory");
  LINATTN_PTX_SM90("fence.proxy.async.shared::cta;" :: : "memory");
}
// The running phase awaits so many bytes more.
__device__ __forceinline__ void mbarrier_expect_tx(Mbarrier& barrier, unsigned bytes) {
  LINATTN_PTX_SM90(
      "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&barrier)),
      "r"(bytes) : "memory");
}
// One arrival, of which so many bytes are part.
__device__ __forceinline__ void mbarrier_arrive_expect_tx(Mbarrier& barrier, unsigned bytes) {
  LINATTN_PTX_SM90(
      "mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)),
      "r"(bytes) : "memory");
}
__device__ __forceinline__ void mbarrier_arrive(Mbarrier& barrier) {
  LINATTN_PTX_SM90(
      "mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(&barrier)) : "memory");
}
// Until the phase of this parity has ended.
__device__ __forceinline__ void mbarrier_wait(Mbarrier& barrier, int parity) {
  LINATTN_PTX_SM90(
      "{\n .reg .pred there;\n"
      "again:\n mbarrier.try_wait.parity.shared.b64 there, [%0], %1;\n"
      " @!there bra again;\n}" ::"r"(shared_address(&barrier)),
      "r"(parity) : "memory");
}
// One arrival, when the thread's copies by cp_async are there.
__device__ __forceinline__ void cp_async_mbarrier_arrive(Mbarrier& barrier) {
  LINATTN_PTX_SM90("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(
      shared_address(&barrier)) : "memory");
}
// bytes and both addresses are multiples of 16; the barrier is told.
__device__ __forceinline__ void cp_async_bulk(void* to, const void* from, unsigned bytes,
                                              Mbarrier& barrier) {
  LINATTN_PTX_SM90(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(&barrier)) : "memory");
}

// bytes and the address are multiples of 16.
__device__ __forceinline__ void cp_async_bulk_prefetch_l2(const void* from, unsigned bytes) {
  LINATTN_PTX_SM90("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes));
}

// The next kernel of the stream, launched as cuda::Order::kBeside, may begin when all blocks have
// said so or have ended.
__device__ __forceinline__ void griddepcontrol_launch_dependents() {
  LINATTN_PTX_SM90("griddepcontrol.launch_dependents;" :: : "memory");
}
// For the end of the kernel before, and its memory.
__device__ __forceinline__ void griddepcontrol_wait() {
  LINATTN_PTX_SM90("griddepcontrol.wait;" :: : "memory");
}

#undef LINATTN_PTX_SM90

}  // namespace linattn::ptx
