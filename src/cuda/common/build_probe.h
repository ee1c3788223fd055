// SPDX-License-Identifier: Apache-2.0
// Build probes: one small kernel per architecture folder, which shows that its compiler, headers
// and instructions work. They are no implementations: nothing but tests/device launches them, and
// nothing exports them.
#pragma once

#include <cstdint>

using cudaStream_t = struct CUstream_st*;

namespace linattn {

// out = a bᵀ for one warp's tile; bfloat16 bits, rows contiguous.
namespace portable {
constexpr int kProbeRows = 16, kProbeColumns = 8, kProbeDepth = 16;
void launch_build_probe(const std::uint16_t* a,  // [rows, depth]
                        const std::uint16_t* b,  // [columns, depth]
                        float* out,              // [rows, columns]
                        cudaStream_t stream);
}  // namespace portable

// The same for one warpgroup, through shared memory.
namespace sm90 {
constexpr int kProbeRows = 64, kProbeColumns = 32, kProbeDepth = 64;
void launch_build_probe(const std::uint16_t* a,  // [rows, depth]
                        const std::uint16_t* b,  // [columns, depth]
                        float* out,              // [rows, columns]
                        cudaStream_t stream);
}  // namespace sm90

}  // namespace linattn
