// SPDX-License-Identifier: Apache-2.0
//
// One struct books a pass's buffers and later hands them out, so that plan and run cannot disagree:
//
//   struct Buffers {
//     WorkspaceLayout layout;
//     Slot<float> decay;
//     explicit Buffers(Sizes n) : decay(layout.book<float>(n.tokens)) {}
//   };
//   bytes = Buffers(n).layout.bytes();          // plan
//   float* decay = Buffers(n).decay.in(ws);     // run
#pragma once

#include <cstddef>
#include <cstdint>

#include "linattn/plan.h"

namespace linattn {

template <class T>
class Slot {
 public:
  Slot() = default;
  Slot(std::size_t offset, std::size_t count) : offset_(offset), count_(count) {}
  T* in(Workspace workspace) const {
    return reinterpret_cast<T*>(static_cast<std::byte*>(workspace.data) + offset_);
  }
  std::size_t count() const { return count_; }

 private:
  std::size_t offset_ = 0;
  std::size_t count_ = 0;
};

class WorkspaceLayout {
 public:
  static constexpr std::size_t kAlignment = 256;  // of every buffer and of the workspace itself

  template <class T>
  Slot<T> book(std::int64_t count) {
    const std::size_t offset = bytes_;
    const std::size_t size = static_cast<std::size_t>(count) * sizeof(T);
    bytes_ += (size + kAlignment - 1) / kAlignment * kAlignment;
    return Slot<T>(offset, static_cast<std::size_t>(count));
  }
  std::size_t bytes() const { return bytes_; }

 private:
  std::size_t bytes_ = 0;
};

}  // namespace linattn
