// SPDX-License-Identifier: Apache-2.0
#include "cuda/common/build_probe.h"

#include "cuda/common/launch.cuh"
#include "cuda/sm90/operand.cuh"

namespace linattn::sm90 {
namespace {

struct ProbeParams {
  const std::uint16_t *a, *b;  // [64, 64] and [32, 64]
  float* out;                  // [64, 32]
};

using Matrix = SwizzledMatrix<128, kProbeColumns>;
constexpr std::size_t kBytes = kProbeColumns * kProbeDepth * 2;

__global__ void __launch_bounds__(128) build_probe_kernel(const __grid_constant__ ProbeParams p) {
  unsigned char* memory = ptx::dynamic_shared();
  memory += -reinterpret_cast<std::uintptr_t>(memory) & (Matrix::kAlignment - 1);
  auto* b = reinterpret_cast<Matrix::Type*>(memory);
  for (int i = static_cast<int>(threadIdx.x); i < kProbeColumns * kProbeDepth / 8; i += 128) {
    const int row = i / (kProbeDepth / 8), octet = i % (kProbeDepth / 8);
    Matrix::store(b + Matrix::place(row, octet % 4, octet / 4),
                  reinterpret_cast<const Matrix::Piece*>(p.b)[i]);
  }
  ptx::fence_proxy_async();
  __syncthreads();

  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4, pair = 2 * (lane % 4);
  float d[16] = {};
  const auto matrix = ptx::MatrixDescriptor::of(b, Matrix::kSwizzle);
  std::uint32_t a[kProbeDepth / 16][4];
  for (int k = 0; k < kProbeDepth / 16; ++k)
    for (int i = 0; i < 4; ++i)
      a[k][i] = *reinterpret_cast<const std::uint32_t*>(p.a + (row + i % 2 * 8) * kProbeDepth +
                                                        16 * k + i / 2 * 8 + pair);
  ptx::wgmma_fence();
#pragma unroll
  for (int k = 0; k < kProbeDepth / 16; ++k)
    ptx::wgmma_bf16(d, a[k], matrix + Matrix::columns(k), k > 0);
  ptx::wgmma_commit_group();
  ptx::wgmma_wait_group<0>();
  ptx::wgmma_arrived(d);
  for (int i = 0; i < 16; ++i)
    p.out[(row + i % 4 / 2 * 8) * kProbeColumns + i / 4 * 8 + pair + i % 2] = d[i];
}

}  // namespace

void launch_build_probe(const std::uint16_t* a, const std::uint16_t* b, float* out,
                        cudaStream_t stream) {
  static_assert(kProbeRows == 64 && kProbeColumns == 32 && kProbeDepth == 64);
  cuda::launch(build_probe_kernel, {1, 128, kBytes + Matrix::kAlignment}, stream,
               ProbeParams{a, b, out});
}

}  // namespace linattn::sm90
