// SPDX-License-Identifier: Apache-2.0
//
// What register.cpp sees of the kernels: no device code.
#pragma once

#include "cuda/common/check.h"
#include "cuda/portable/params.h"
#include "linattn/plan.h"

namespace linattn::portable {

// Facts of one instance, for planning.
struct InstanceFacts {
  int value_block, blocks_per_multiprocessor;
  std::size_t scratch_bytes, stage_bytes;
  std::size_t strength_bytes;  // gdn2 only
};

// Operand: OperandBf16 or OperandTf32; kKeyDim: padded key dim; Gate, Update: the policies of
// recurrence/.
template <class Operand, int kKeyDim, class Gate, class Update>
struct ForwardInstance {
  static InstanceFacts facts();
  static void launch(const ForwardParams& params, std::int64_t blocks, int device, Stream stream);
};

// State at the start of every piece, from the pieces' summaries.
void launch_fold(const ForwardParams& params, Stream stream);

}  // namespace linattn::portable
