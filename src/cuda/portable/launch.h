// SPDX-License-Identifier: Apache-2.0
//
// What register.cpp sees of the kernels: no device code.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/common/check.h"
#include "cuda/portable/params.h"

namespace linattn::portable {

// Facts of one instance, for planning.
struct PrepareFacts {
  std::size_t shared_bytes;
  std::size_t erase_bytes;  // more, for gdn2
  std::size_t stage_bytes;  // of one chunk and value head, in the workspace
};

struct ScanFacts {
  int value_block, blocks_per_multiprocessor;
  std::size_t buffer_bytes;    // shared memory of one chunk
  std::size_t exchange_bytes;  // and of the block
  std::size_t strength_bytes;  // more, for gdn2
};

// Operand: OperandBf16 or OperandTf32; kKeyDim: padded key dim; Gate, Update: the policies of
// recurrence/.
template <class Operand, int kKeyDim, class Gate, class Update>
struct PrepareInstance {
  static PrepareFacts facts();
  static bool can_overlap(int device);
  static void launch(const ForwardParams& params, int device, Stream stream, cuda::Order order);
};

// Of a scan that reads q, k and v as they came.
struct NoPrepare {
  static PrepareFacts facts() { return {}; }
  static bool can_overlap(int /*device*/) { return false; }
  static void launch(const ForwardParams&, int /*device*/, Stream, cuda::Order) {}
};

template <class Operand, int kKeyDim, class Update>
struct ScanInstance {
  static ScanFacts facts();
  static void launch(const ForwardParams& params, int device, Stream stream, cuda::Order order);
};

// State at the start of every piece, from the pieces' summaries.
void launch_fold(const ForwardParams& params, int device, Stream stream);

}  // namespace linattn::portable
