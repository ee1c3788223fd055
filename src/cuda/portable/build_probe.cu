// SPDX-License-Identifier: Apache-2.0
#include "cuda/common/build_probe.h"

namespace linattn::portable {
namespace {

// One mma.sync.m16n8k16: each lane holds two neighbouring elements per register.
__global__ void build_probe_kernel(const std::uint32_t* a,  // [16, 8] pairs
                                   const std::uint32_t* b,  // [8, 8] pairs
                                   float* out) {            // [16, 8]
  const int group = static_cast<int>(threadIdx.x) / 4;
  const int pair = static_cast<int>(threadIdx.x) % 4;
  const std::uint32_t a0 = a[group * 8 + pair];
  const std::uint32_t a1 = a[(group + 8) * 8 + pair];
  const std::uint32_t a2 = a[group * 8 + pair + 4];
  const std::uint32_t a3 = a[(group + 8) * 8 + pair + 4];
  const std::uint32_t b0 = b[group * 8 + pair];
  const std::uint32_t b1 = b[group * 8 + pair + 4];
  float d[4] = {};
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  out[group * 8 + pair * 2] = d[0];
  out[group * 8 + pair * 2 + 1] = d[1];
  out[(group + 8) * 8 + pair * 2] = d[2];
  out[(group + 8) * 8 + pair * 2 + 1] = d[3];
}

}  // namespace

void launch_build_probe(const std::uint16_t* a, const std::uint16_t* b, float* out,
                        cudaStream_t stream) {
  static_assert(kProbeRows == 16 && kProbeColumns == 8 && kProbeDepth == 16);
  build_probe_kernel<<<1, 32, 0, stream>>>(reinterpret_cast<const std::uint32_t*>(a),
                                           reinterpret_cast<const std::uint32_t*>(b), out);
}

}  // namespace linattn::portable
