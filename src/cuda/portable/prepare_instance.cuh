// SPDX-License-Identifier: Apache-2.0
//
// What an instance file of the prepare kernel includes: it names its template, and this defines it.
#pragma once

#include "cuda/common/launch.cuh"
#include "cuda/portable/launch.h"
#include "cuda/portable/prepare.cuh"
#include "recurrence/gate.h"
#include "recurrence/update.h"

namespace linattn::portable {

template <class Operand, int kKeyDim, class Gate, class Update>
PrepareFacts PrepareInstance<Operand, kKeyDim, Gate, Update>::facts() {
  using Traits = PrepareTraits<Operand, kKeyDim, Gate, Update>;
  return {sizeof(typename Traits::Shared), sizeof(float) * kChunk * kKeyDim,
          sizeof(typename Traits::Stage)};
}

template <class Operand, int kKeyDim, class Gate, class Update>
bool PrepareInstance<Operand, kKeyDim, Gate, Update>::can_overlap(int device) {
  return cuda::can_overlap<prepare_kernel<PrepareTraits<Operand, kKeyDim, Gate, Update>>>(device);
}

template <class Operand, int kKeyDim, class Gate, class Update>
void PrepareInstance<Operand, kKeyDim, Gate, Update>::launch(const ForwardParams& params,
                                                             int device, Stream stream,
                                                             cuda::Order order) {
  using Traits = PrepareTraits<Operand, kKeyDim, Gate, Update>;
  const PrepareFacts bytes = facts();
  cuda::allow_shared_memory<prepare_kernel<Traits>>(device, cuda::device_info(device).shared_bytes);
  cuda::launch(prepare_kernel<Traits>,
               {dim3(static_cast<unsigned>(params.problem.value_heads),
                     static_cast<unsigned>(params.segment.count)),
                dim3(Traits::kThreads),
                bytes.shared_bytes + (params.args.erase.data == nullptr ? 0 : bytes.erase_bytes)},
               stream, params, order);
}

}  // namespace linattn::portable
