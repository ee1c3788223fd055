// SPDX-License-Identifier: Apache-2.0
//
// The tables, written out: a linker drops self-registering statics, and their order is invisible.
#include "core/registry.h"

#include "cpu/register.h"
#if LINATTN_HAS_CUDA
#include "cuda/portable/register.h"
#include "cuda/recurrent/register.h"
#endif
#if LINATTN_HAS_SM90
#include "cuda/sm90/register.h"
#endif

namespace linattn {

template <>
std::span<const Implementation<ForwardArgs>* const> implementation_table() {
  static constexpr const Implementation<ForwardArgs>* kRows[] = {
#if LINATTN_HAS_SM90
      &sm90::kDirectForward, &sm90::kForward,
#endif
#if LINATTN_HAS_CUDA
      &portable::kForward,   &cuda::kRecurrentForward,
#endif
      &cpu::kChunkedForward, &cpu::kEmulatedForward,   &cpu::kRecurrentForward,
  };
  return kRows;
}

template <>
std::span<const Implementation<BackwardArgs>* const> implementation_table() {
  static constexpr const Implementation<BackwardArgs>* kRows[] = {
      &cpu::kRecurrentBackward,
  };
  return kRows;
}

template <>
std::span<const Implementation<StepArgs>* const> implementation_table() {
  static constexpr const Implementation<StepArgs>* kRows[] = {
#if LINATTN_HAS_CUDA
      &cuda::kRecurrentStep,
#endif
      &cpu::kRecurrentStep,
  };
  return kRows;
}

}  // namespace linattn
