// SPDX-License-Identifier: Apache-2.0
#include <cute/tensor.hpp>

#include "cuda/common/build_probe.h"

namespace linattn::sm90 {
namespace {

using namespace cute;  // NOLINT: the rule of CuTe files; never in a header

using Element = cute::bfloat16_t;
using LayoutAtom = GMMA::Layout_K_SW128_Atom<Element>;
using LayoutA = decltype(tile_to_shape(LayoutAtom{}, Shape<Int<kProbeRows>, Int<kProbeDepth>>{}));
using LayoutB =
    decltype(tile_to_shape(LayoutAtom{}, Shape<Int<kProbeColumns>, Int<kProbeDepth>>{}));
using Mma =
    decltype(make_tiled_mma(SM90_64x32x16_F32BF16BF16_SS<GMMA::Major::K, GMMA::Major::K>{}));

struct SharedStorage {
  alignas(1024) array_aligned<Element, cosize_v<LayoutA>> a;
  alignas(1024) array_aligned<Element, cosize_v<LayoutB>> b;
};

__global__ void __launch_bounds__(128)
    build_probe_kernel(const Element* a, const Element* b, float* out) {
  __shared__ SharedStorage smem;
  Tensor gA = make_tensor(make_gmem_ptr(a), shape(LayoutA{}), GenRowMajor{});  // (rows, depth)
  Tensor gB = make_tensor(make_gmem_ptr(b), shape(LayoutB{}), GenRowMajor{});  // (columns, depth)
  Tensor sA = make_tensor(make_smem_ptr(smem.a.data()), LayoutA{});            // (rows, depth)
  Tensor sB = make_tensor(make_smem_ptr(smem.b.data()), LayoutB{});            // (columns, depth)
  for (int i = static_cast<int>(threadIdx.x); i < size(gA); i += 128) sA(i) = gA(i);
  for (int i = static_cast<int>(threadIdx.x); i < size(gB); i += 128) sB(i) = gB(i);
  // wgmma reads shared memory through the async proxy.
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();

  const auto mma = Mma{}.get_slice(threadIdx.x);
  Tensor tA = mma.partition_fragment_A(sA);  // (MMA, MMA_M, MMA_K)
  Tensor tB = mma.partition_fragment_B(sB);  // (MMA, MMA_N, MMA_K)
  Tensor gD =
      make_tensor(make_gmem_ptr(out), Shape<Int<kProbeRows>, Int<kProbeColumns>>{}, GenRowMajor{});
  Tensor tgD = mma.partition_C(gD);             // (MMA, MMA_M, MMA_N)
  Tensor trD = make_fragment_like<float>(tgD);  // (MMA, MMA_M, MMA_N)
  clear(trD);
  warpgroup_fence_operand(trD);
  warpgroup_arrive();
  cute::gemm(Mma{}, tA, tB, trD);
  warpgroup_commit_batch();
  warpgroup_wait<0>();
  warpgroup_fence_operand(trD);
  copy(trD, tgD);
}

}  // namespace

void launch_build_probe(const std::uint16_t* a, const std::uint16_t* b, float* out,
                        cudaStream_t stream) {
  build_probe_kernel<<<1, 128, 0, stream>>>(reinterpret_cast<const Element*>(a),
                                            reinterpret_cast<const Element*>(b), out);
}

}  // namespace linattn::sm90
