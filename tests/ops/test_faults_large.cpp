// SPDX-License-Identifier: Apache-2.0
//
// Offsets beyond 2^31 elements, by strides: rows lie far apart, and only they are touched. 4.6 GB
// of address space a tensor; on a GPU that is memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/dtype.h"
#include "linattn/linattn.h"
#include "ops/run.h"
#include "ops/run_log.h"
#include "support/memory.h"
#include "support/random.h"

namespace linattn::test {
namespace {

constexpr std::int64_t kDim = 64, kHeads = 2, kWidth = kHeads * kDim, kMatrix = kDim * kDim;
constexpr std::int64_t kFar = (std::int64_t{1} << 31) + (1 << 26);

// Tensors of one call, and the rows of those that it writes.
class Apart {
 public:
  Apart(Memory& memory, std::int64_t tokens, std::int64_t stride)
      : memory_(memory), tokens_(tokens), stride_(stride) {}
  ~Apart() {
    for (void* data : data_) memory_.release(data);
  }
  Apart(const Apart&) = delete;
  Apart& operator=(const Apart&) = delete;

  Tensor rows(bool written = false) {
    const auto at = [this](std::int64_t t) { return t * stride_; };
    return {fill((tokens_ - 1) * stride_ + kWidth, tokens_, kWidth, at, written, -.3, .3), 0,
            stride_, kDim};
  }
  Tensor scalars(double low, double high, bool written = false) {
    const auto at = [](std::int64_t t) { return t * kHeads; };
    return {fill(tokens_ * kHeads, tokens_, kHeads, at, written, low, high), 0, kHeads, 1};
  }
  State pool(std::int64_t slot, bool written = false) {
    const auto at = [slot](std::int64_t) { return slot * kHeads * kMatrix; };
    return {fill((slot + 1) * kHeads * kMatrix, 1, kHeads * kMatrix, at, written, -.3, .3),
            slot + 1, kHeads * kMatrix, kMatrix};
  }
  const std::int32_t* id(std::int64_t slot) {
    const auto value = static_cast<std::int32_t>(slot);
    void* to = allocate(sizeof value);
    memory_.upload(to, &value, sizeof value);
    return static_cast<std::int32_t*>(to);
  }
  void* allocate(std::size_t bytes) {
    data_.push_back(memory_.allocate(std::max<std::size_t>(bytes, 256)));
    return data_.back();
  }
  // Everything that was written, row by row.
  std::vector<BFloat16> results() {
    std::vector<BFloat16> all, row;
    for (const auto& [data, count] : written_) {
      row.resize(count);
      memory_.download(row.data(), data, count * sizeof(BFloat16));
      all.insert(all.end(), row.begin(), row.end());
    }
    return all;
  }

 private:
  void* fill(std::int64_t extent, std::int64_t count, std::int64_t width,
             const std::function<std::int64_t(std::int64_t)>& at, bool written, double low,
             double high) {
    auto* data =
        static_cast<BFloat16*>(allocate(static_cast<std::size_t>(extent) * sizeof(BFloat16)));
    std::vector<BFloat16> row(static_cast<std::size_t>(width));
    for (std::int64_t t = 0; t < count; ++t) {
      for (BFloat16& x : row)
        x = from_float<BFloat16>(static_cast<float>(random_.uniform(low, high)));
      memory_.upload(data + at(t), row.data(), row.size() * sizeof(BFloat16));
      if (written) written_.emplace_back(data + at(t), row.size());
    }
    return data;
  }

  Memory& memory_;
  std::int64_t tokens_, stride_;
  Random random_{3};
  std::vector<void*> data_;
  std::vector<std::pair<BFloat16*, std::size_t>> written_;
};

// What all passes read; `apart` draws in this order.
template <class Args>
Args inputs(Apart& apart, std::int64_t tokens) {
  Args args;
  args.tokens = tokens;
  args.sequences = 1;
  args.q = apart.rows();
  args.k = apart.rows();
  args.v = apart.rows();
  args.g = apart.scalars(-1, -.01);
  args.beta = apart.scalars(0, 1);
  return args;
}

// Of one call with rows `stride` apart and states in slot `slot`.
std::vector<BFloat16> results_of(Pass pass, const std::string& row, Memory& memory,
                                 std::int64_t tokens, std::int64_t stride, std::int64_t slot) {
  Problem problem{.op = gdn,
                  .max_tokens = tokens,
                  .heads = kHeads,
                  .key_dim = kDim,
                  .value_dim = kDim,
                  .gate_input = GateInput::kLogDecay,
                  .gate_dtype = DType::kBFloat16,
                  .beta_input = BetaInput::kValue,
                  .beta_dtype = DType::kBFloat16,
                  .state_layout = StateLayout::kKeyValue,
                  .state_dtype = DType::kBFloat16};
  Apart apart(memory, tokens, stride);
  const auto run = [&](const auto& plan, const auto& args) {
    const std::size_t bytes = plan.workspace_bytes(tokens, 1);
    const Workspace workspace{apart.allocate(bytes), bytes};
    memory.run([&](Stream stream) { plan.run(args, workspace, stream); });
    log_run(pass, row, 0);
  };
  const auto with_states = [&](auto args) {
    args.out = apart.rows(true);
    args.initial_state = args.final_state = apart.pool(slot, true);
    args.read_slots = args.write_slots = apart.id(slot);
    return args;
  };
  if (pass == Pass::kForward) {
    const ForwardPlan plan(problem, memory.device(), row.c_str());
    run(plan, with_states(inputs<ForwardArgs>(apart, tokens)));
  } else if (pass == Pass::kStep) {
    const StepPlan plan(problem, memory.device(), row.c_str());
    run(plan, with_states(inputs<StepArgs>(apart, tokens)));
  } else {
    problem.save_for_backward = true;
    const ForwardPlan forward(problem, memory.device());
    auto args = inputs<BackwardArgs>(apart, tokens);
    args.initial_state = apart.pool(slot);
    args.read_slots = apart.id(slot);
    args.dout = apart.rows();
    args.dfinal_state = apart.pool(0);
    args.dq = apart.rows(true);
    args.dk = apart.rows(true);
    args.dv = apart.rows(true);
    args.dg = apart.scalars(0, 0, true);
    args.dbeta = apart.scalars(0, 0, true);
    args.dinitial_state = apart.pool(0, true);
    args.saved = apart.allocate(forward.saved_bytes(tokens, 1));
    ForwardArgs before;
    std::memcpy(static_cast<void*>(&before), &args, offsetof(ForwardArgs, out));
    before.size = sizeof before;
    before.out = apart.rows();
    before.saved = const_cast<void*>(args.saved);
    run(forward, before);
    run(BackwardPlan(forward, row.c_str()), args);
  }
  return apart.results();
}

TEST(Faults, S08_StridesBeyond32Bits) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "the sanitizer would touch all of the address space";
#endif
  Memory& memory = *memory_under_test();
  const std::size_t largest = std::size_t{kFar} * sizeof(BFloat16);
  if (const std::string reason = memory.lacks(largest, 8 * largest); !reason.empty())
    GTEST_SKIP() << reason;
  for (const Pass pass : {Pass::kForward, Pass::kBackward, Pass::kStep}) {
    const std::int64_t tokens = pass == Pass::kStep ? kStepTokens : 40;
    const std::int64_t stride = kFar / (tokens - 1) / 64 * 64, slot = kFar / (kHeads * kMatrix);
    const Scenario s = make(gdn, pass, {tokens}, kHeads, kHeads, kDim, kDim, DType::kBFloat16);
    for (const std::string& row : takers(s, memory)) {
      SCOPED_TRACE(row + " " + to_string(pass));
      const auto near = results_of(pass, row, memory, tokens, kWidth, 0);
      const auto far = results_of(pass, row, memory, tokens, stride, slot);
      ASSERT_EQ(near.size(), far.size());
      EXPECT_EQ(std::memcmp(near.data(), far.data(), near.size() * sizeof(BFloat16)), 0);
    }
  }
}

}  // namespace
}  // namespace linattn::test
