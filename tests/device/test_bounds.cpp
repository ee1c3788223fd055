// SPDX-License-Identifier: Apache-2.0
//
// Index tensors that break every rule: values are undefined then, but nothing outside the tensors
// changes and every launch ends (fault T-11).
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "device/memory.h"
#include "device/packed_call.h"

namespace linattn::test {
namespace {

constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
constexpr std::int32_t kLeast = std::numeric_limits<std::int32_t>::min();

std::vector<std::int32_t> garbage(Random& random, std::size_t count, std::int64_t size) {
  std::vector<std::int32_t> values(count);
  for (std::int32_t& x : values) {
    const std::int64_t kind = random.below(6);
    x = kind == 0   ? kMost
        : kind == 1 ? kLeast
        : kind == 2 ? static_cast<std::int32_t>(size)
        : kind == 3 ? -1
        : kind == 4 ? static_cast<std::int32_t>(random.bits())
                    : static_cast<std::int32_t>(random.below(size + 2));
  }
  return values;
}

template <class Args>
void run_garbage(Pass pass, std::int64_t tokens) {
  constexpr std::int64_t kSequences = 6, kSlots = 9;
  int rows = 0;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16})
    for (const Op op : {kda, gdn, gla, simple_gla})
      for (const std::string& row : implementations(pass)) {
        PackedCall call(
            {small_problem(op, dtype, StateLayout::kKeyValue), tokens, kSequences, kSlots}, gpu());
        std::unique_ptr<Plan<Args>> plan;
        try {
          plan = std::make_unique<Plan<Args>>(call.problem(), Device::cuda(0), row.c_str());
        } catch (const Error&) {
          continue;
        }
        SCOPED_TRACE(row + " " + to_string(op) + " " + to_string(dtype));
        ++rows;
        Random random(11);
        for (int trial = 0; trial < 25; ++trial) {
          const std::size_t n = kSequences;
          call.set("cu_seqlens", garbage(random, n + 1, tokens));
          for (const char* name : {"read_slots", "write_slots", "accepted"})
            call.set(name, garbage(random, n, kSlots));
          call.set("start_positions", garbage(random, n, 200));
          std::vector<std::int32_t> offsets = garbage(random, n + 1, PackedCall::kEntries);
          offsets.back() = PackedCall::kEntries;  // its size, which a kernel cannot know otherwise
          call.set("checkpoint_offsets", offsets);
          call.set("checkpoint_positions", garbage(random, PackedCall::kEntries, 200));
          call.set("checkpoint_slots", garbage(random, PackedCall::kEntries, kSlots));
          for (const char* name : {"read_columns", "write_columns"})
            call.set(name, garbage(random, n * PackedCall::kColumns, kSlots));
          call.set("parents", garbage(random, static_cast<std::size_t>(tokens), 8));
          call.upload();
          const Workspace workspace = call.workspace(plan->workspace_bytes(tokens, kSequences));
          gpu().run([&](Stream stream) {
            if constexpr (std::is_same_v<Args, StepArgs>)
              plan->run(call.step(), workspace, stream);
            else
              plan->run(call.forward, workspace, stream);
          });
          ASSERT_EQ(call.fetch(), "") << "trial " << trial;
        }
      }
  EXPECT_GT(rows, 0);
}

TEST(Garbage, ForwardStaysInside) { run_garbage<ForwardArgs>(Pass::kForward, 150); }
TEST(Garbage, StepStaysInside) { run_garbage<StepArgs>(Pass::kStep, 20); }

}  // namespace
}  // namespace linattn::test
