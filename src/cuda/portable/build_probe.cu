// SPDX-License-Identifier: Apache-2.0
#include "cuda/common/build_probe.h"

#include "cuda/common/launch.cuh"
#include "cuda/common/ptx.cuh"

namespace linattn::portable {
namespace {

struct ProbeParams {
  const std::uint32_t *a, *b;  // [16, 8] and [8, 8] pairs
  float* out;                  // [16, 8]
};

__global__ void build_probe_kernel(const __grid_constant__ ProbeParams p) {
  const int row = static_cast<int>(threadIdx.x) / 4, pair = static_cast<int>(threadIdx.x) % 4;
  float d[4] = {};
  ptx::mma_m16n8k16_bf16(d, p.a[row * 8 + pair], p.a[(row + 8) * 8 + pair], p.a[row * 8 + pair + 4],
                         p.a[(row + 8) * 8 + pair + 4], p.b[row * 8 + pair],
                         p.b[row * 8 + pair + 4]);
  for (int i = 0; i < 4; ++i) p.out[(row + 8 * (i / 2)) * 8 + pair * 2 + i % 2] = d[i];
}

}  // namespace

void launch_build_probe(const std::uint16_t* a, const std::uint16_t* b, float* out,
                        cudaStream_t stream) {
  static_assert(kProbeRows == 16 && kProbeColumns == 8 && kProbeDepth == 16);
  const ProbeParams params{reinterpret_cast<const std::uint32_t*>(a),
                           reinterpret_cast<const std::uint32_t*>(b), out};
  cuda::launch(build_probe_kernel, {1, 32}, stream, params);
}

}  // namespace linattn::portable
