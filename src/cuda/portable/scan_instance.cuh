// SPDX-License-Identifier: Apache-2.0
//
// What an instance file of the scan kernel includes: it names its template, and this defines it.
#pragma once

#include "cuda/common/launch.cuh"
#include "cuda/portable/launch.h"
#include "cuda/portable/scan_kernel.cuh"
#include "recurrence/update.h"

namespace linattn::portable {

template <class Operand, int kKeyDim, class Update>
ScanFacts ScanInstance<Operand, kKeyDim, Update>::facts() {
  using Traits = ScanTraits<Operand, kKeyDim, Update>;
  return {Traits::kValueBlock, Traits::kBlocks, sizeof(typename Traits::Buffer),
          Traits::kAlignmentBytes + Traits::kJobBytes + Traits::kExchangeBytes,
          Traits::kStrengthBytes};
}

template <class Operand, int kKeyDim, class Update>
void ScanInstance<Operand, kKeyDim, Update>::launch(const ForwardParams& params, int device,
                                                    Stream stream, cuda::Order order) {
  using Traits = ScanTraits<Operand, kKeyDim, Update>;
  cuda::allow_shared_memory<scan_kernel<Traits>>(device, cuda::device_info(device).shared_bytes);
  const bool tail = params.phase == Phase::kOutput && params.args.cu_seqlens != nullptr &&
                    params.segment.first == 0;
  const std::int64_t blocks =
      (std::int64_t{params.sequences} * params.pieces + (tail ? params.pieces : 0)) *
      params.problem.value_heads * (params.value_blocks + params.extra_blocks);
  const std::size_t strengths = params.args.write.data == nullptr ? 0 : Traits::kStrengthBytes;
  cuda::launch(
      scan_kernel<Traits>,
      {dim3(static_cast<unsigned>(blocks)), dim3(Traits::kThreads),
       facts().exchange_bytes +
           static_cast<std::size_t>(params.buffers) * sizeof(typename Traits::Buffer) + strengths},
      stream, params, order);
}

}  // namespace linattn::portable
