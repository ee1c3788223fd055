// SPDX-License-Identifier: Apache-2.0
//
// What an instance file includes: it names its templates, and this defines them.
#pragma once

#include "cuda/common/launch.cuh"
#include "cuda/portable/forward.cuh"
#include "cuda/portable/launch.h"

namespace linattn::portable {

template <class Operand, int kKeyDim, class Gate, class Update>
InstanceFacts ForwardInstance<Operand, kKeyDim, Gate, Update>::facts() {
  using Traits = ForwardTraits<Operand, kKeyDim, Gate, Update>;
  return {Traits::kTuning.value_block, Traits::kTuning.blocks, sizeof(typename Traits::Scratch),
          sizeof(typename Traits::Stage), Traits::kStrengthBytes};
}

template <class Operand, int kKeyDim, class Gate, class Update>
void ForwardInstance<Operand, kKeyDim, Gate, Update>::launch(const ForwardParams& params,
                                                             std::int64_t blocks, int device,
                                                             Stream stream) {
  using Traits = ForwardTraits<Operand, kKeyDim, Gate, Update>;
  cuda::allow_shared_memory<forward_kernel<Traits>>(device, cuda::device_info(device).shared_bytes);
  const std::size_t strengths = params.args.write.data == nullptr ? 0 : Traits::kStrengthBytes;
  cuda::launch(forward_kernel<Traits>,
               {dim3(static_cast<unsigned>(blocks)), dim3(Traits::kThreads),
                Traits::shared_bytes(params.stages) + strengths},
               stream, params);
}

}  // namespace linattn::portable
