// SPDX-License-Identifier: Apache-2.0
//
// Index tensors that break every rule: values are undefined then, but nothing outside the tensors
// is read (what compute-sanitizer shows) or written, and every launch ends (faults V-04, T-11).
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "device/memory.h"
#include "device/packed_call.h"

namespace linattn::test {
namespace {

constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
constexpr std::int32_t kLeast = std::numeric_limits<std::int32_t>::min();
constexpr std::int64_t kSequences = 6, kSlots = 9;

// Trials 0 .. kDirected - 1 are of one kind each, the others mix all kinds.
constexpr int kDirected = 10, kTrials = 30;

std::vector<std::int32_t> garbage(Random& random, int trial, std::size_t count, std::int64_t size) {
  const auto last = static_cast<std::int32_t>(size);
  const std::int32_t constants[] = {kLeast, -1, 0, 1, last - 1, last, last + 1, kMost};
  std::vector<std::int32_t> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto at = static_cast<std::int32_t>(i);
    std::int32_t& x = values[i];
    if (trial < 8) {
      x = constants[trial];  // duplicates, all of them
    } else if (trial == 8) {
      x = last - 3 * at;  // falling
    } else if (trial == 9) {
      x = i % 2 == 0 ? kMost - at : kLeast + at;
    } else {
      const std::int64_t kind = random.below(10);
      x = kind < 8    ? constants[kind]
          : kind == 8 ? static_cast<std::int32_t>(random.bits())
                      : static_cast<std::int32_t>(random.below(size + 2));
    }
  }
  return values;
}

void set_garbage(PackedCall& call, Random& random, int trial) {
  const std::int64_t tokens = call.shape().tokens;
  const std::size_t n = kSequences;
  const std::vector<std::int32_t> offsets = garbage(random, trial, n + 1, tokens);
  call.set("cu_seqlens", offsets);
  if (trial % 3 == 2) {  // what int32 cannot hold
    std::vector<std::int64_t> wide(offsets.begin(), offsets.end());
    for (std::int64_t& x : wide) x *= random.coin() ? 1 : (std::int64_t{1} << 31) + 1;
    call.set_offsets(wide);
  } else {
    call.forward.cu_seqlens_dtype = LINATTN_INT32;
  }
  for (const char* name : {"read_slots", "write_slots", "accepted", "conv_read_slots",
                           "conv_write_slots", "conv_accepted"})
    call.set(name, garbage(random, trial, n, kSlots));
  call.set("start_positions", garbage(random, trial, n, 200));
  std::vector<std::int32_t> entries = garbage(random, trial, n + 1, PackedCall::kEntries);
  entries.back() = PackedCall::kEntries;  // its size, which a kernel cannot know otherwise
  call.set("checkpoint_offsets", entries);
  call.set("checkpoint_positions", garbage(random, trial, PackedCall::kEntries, 200));
  call.set("checkpoint_slots", garbage(random, trial, PackedCall::kEntries, kSlots));
  for (const char* name : {"read_columns", "write_columns", "picks"})
    call.set(name, garbage(random, trial, n * PackedCall::kColumns, kSlots));
  call.set("counts", garbage(random, trial, n, 8));
  call.set("parents", garbage(random, trial, static_cast<std::size_t>(tokens), 8));
}

template <class Args>
void run_garbage(std::int64_t tokens, Problem (*change)(Problem) = nullptr) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16})
    for (const Op op : {kda, gdn, gla, simple_gla}) {
      const Problem plain = small_problem(op, dtype, StateLayout::kKeyValue);
      const PackedCall::Shape shape{change == nullptr ? plain : change(plain), tokens, kSequences,
                                    kSlots};
      PackedCall call(shape, gpu());
      for_each_plan<Args>(call.problem(), [&](const auto& plan, const std::string&) {
        Random random(11);
        for (int trial = 0; trial < kTrials; ++trial) {
          call.picked = trial % 2 == 1;
          call.upload();
          set_garbage(call, random, trial);
          call.run(plan);
          ASSERT_EQ(call.fetch(), "") << "trial " << trial;
        }
      });
    }
}

TEST(Garbage, ForwardStaysInside) { run_garbage<ForwardArgs>(150); }
TEST(Garbage, StepStaysInside) { run_garbage<StepArgs>(20); }
TEST(Garbage, FusedStepStaysInside) { run_garbage<StepArgs>(20, fused); }

}  // namespace
}  // namespace linattn::test
