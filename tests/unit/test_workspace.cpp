// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "core/workspace.h"

namespace linattn::test {
namespace {

TEST(WorkspaceLayout, StartsEmpty) { EXPECT_EQ(WorkspaceLayout().bytes(), 0u); }

TEST(WorkspaceLayout, AlignsEveryBufferAndOverlapsNone) {
  WorkspaceLayout layout;
  const Slot<char> a = layout.book<char>(1);
  const Slot<double> b = layout.book<double>(33);
  const Slot<float> empty = layout.book<float>(0);
  const Slot<std::int16_t> c = layout.book<std::int16_t>(128);
  EXPECT_EQ(layout.bytes(), 256u + 512u + 0u + 256u);
  std::vector<std::byte> memory(layout.bytes() + 256);
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  const Workspace workspace{memory.data() + (256 - address % 256) % 256, layout.bytes()};
  const auto at = [&](auto slot) {
    return reinterpret_cast<std::uintptr_t>(slot.in(workspace)) -
           reinterpret_cast<std::uintptr_t>(workspace.data);
  };
  EXPECT_EQ(at(a), 0u);
  EXPECT_EQ(at(b), 256u);
  EXPECT_EQ(at(c), 768u);
  EXPECT_EQ(at(c) + c.count() * sizeof(std::int16_t), layout.bytes());
  EXPECT_EQ(b.count(), 33u);
  EXPECT_EQ(empty.count(), 0u);
}

// Offsets past 2^32 (faults.md S-07): bookings of long sequences.
TEST(WorkspaceLayout, CountsPastFourGigabytes) {
  WorkspaceLayout layout;
  layout.book<float>(std::int64_t{1} << 31);
  EXPECT_EQ(layout.bytes(), std::size_t{1} << 33);
  layout.book<float>(std::int64_t{1} << 31);
  EXPECT_EQ(layout.bytes(), std::size_t{1} << 34);
}

}  // namespace
}  // namespace linattn::test
