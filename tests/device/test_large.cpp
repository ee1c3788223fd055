// SPDX-License-Identifier: Apache-2.0
//
// Dense activations, and with them whatever a row keeps per token, beyond 2^31 elements (faults
// S-07, S-08). Needs LINATTN_TEST_LARGE=1 and a GPU with 80 GiB free.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "device/memory.h"
#include "device/packed_call.h"
#include "linattn/linattn.h"
#include "support/random.h"

namespace linattn::test {
namespace {

constexpr std::int64_t kHeads = 32, kDim = 128, kPiece = 128;
constexpr std::int64_t kTokens = (std::int64_t{1} << 31) / (kHeads * kDim) + 64;

template <class T>
class Block {
 public:
  explicit Block(std::int64_t elements) : elements_(elements), data_(gpu().allocate(bytes())) {}
  ~Block() { gpu().release(data_); }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  T* data() const { return static_cast<T*>(data_); }
  std::size_t bytes() const { return static_cast<std::size_t>(elements_) * sizeof(T); }
  // Repeats what it begins with.
  void repeat(std::vector<T> period) {
    auto done = static_cast<std::int64_t>(period.size());
    gpu().upload(data_, period.data(), period.size() * sizeof(T));
    for (std::int64_t count = 0; done < elements_; done += count) {
      count = std::min(done, elements_ - done);
      require(cudaMemcpyAsync(data() + done, data(), static_cast<std::size_t>(count) * sizeof(T),
                              cudaMemcpyDeviceToDevice, gpu().stream()));
    }
    wait(gpu().stream());
  }

 private:
  std::int64_t elements_;
  void* data_;
};

template <class T>
std::vector<T> drawn(Random& random, std::int64_t count, double low, double high) {
  std::vector<T> values;
  for (std::int64_t i = 0; i < count; ++i)
    values.push_back(from_float<T>(static_cast<float>(random.uniform(low, high))));
  return values;
}

Problem problem() {
  return {.op = gdn,
          .max_tokens = kTokens,
          .heads = kHeads,
          .key_dim = kDim,
          .value_dim = kDim,
          .gate_input = GateInput::kLogDecay,
          .beta_input = BetaInput::kValue,
          .qk_l2norm = true,
          .state_layout = StateLayout::kValueKey};
}

// The last 128 tokens follow one that forgets everything before: they are a call of their own, and
// so are the first.
TEST(Large, ASequenceBeyond32Bits) {
  if (const std::string reason = gpu().lacks(0, std::size_t{80} << 30); !reason.empty())
    GTEST_SKIP() << reason;
  Random random(5);
  const std::int64_t row = kHeads * kDim, period = 64 * row;
  Block<BFloat16> q(kTokens * row), k(kTokens * row), v(kTokens * row), out(kTokens * row);
  Block<float> g(kTokens * kHeads), beta(kTokens * kHeads), state(row * kDim);
  for (Block<BFloat16>* one : {&q, &k, &v}) one->repeat(drawn<BFloat16>(random, period, -1, 1));
  g.repeat(drawn<float>(random, 64 * kHeads, -.1, -.01));
  beta.repeat(drawn<float>(random, 64 * kHeads, 0, 1));
  const std::vector<float> forget(kHeads, -300);
  const std::int64_t tail = kTokens - kPiece;
  gpu().upload(g.data() + tail * kHeads, forget.data(), forget.size() * sizeof(float));

  for_each_plan<ForwardArgs>(problem(), [&](const ForwardPlan& plan, const std::string&) {
    struct Outcome {
      std::vector<float> first, last, state;
    };
    const auto run = [&](std::int64_t begin, std::int64_t tokens) {
      ForwardArgs args;
      args.tokens = tokens;
      args.sequences = 1;
      const auto from = [&](const auto& block, std::int64_t heads, std::int64_t dim) {
        return contiguous(block.data() + begin * heads * dim, heads, dim);
      };
      args.q = from(q, kHeads, kDim);
      args.k = from(k, kHeads, kDim);
      args.v = from(v, kHeads, kDim);
      args.g = from(g, kHeads, 1);
      args.beta = from(beta, kHeads, 1);
      args.out = from(out, kHeads, kDim);
      args.final_state = contiguous_state(state.data(), 1, kHeads, kDim, kDim);
      const std::size_t bytes = plan.workspace_bytes(tokens, 1);
      const Block<char> scratch(static_cast<std::int64_t>(bytes));
      require(cudaMemsetAsync(out.data() + begin * row, 0xff,
                              static_cast<std::size_t>(tokens * row) * sizeof(BFloat16),
                              gpu().stream()));
      plan.run(args, {scratch.data(), bytes}, gpu().stream());
      wait(gpu().stream());
      const auto rows = [&](std::int64_t at) {
        std::vector<BFloat16> stored(static_cast<std::size_t>(kPiece * row));
        gpu().download(stored.data(), out.data() + at * row, stored.size() * sizeof(BFloat16));
        std::vector<float> values;
        for (const BFloat16 x : stored) values.push_back(to_float(x));
        return values;
      };
      Outcome outcome{rows(begin), rows(begin + tokens - kPiece),
                      std::vector<float>(static_cast<std::size_t>(row * kDim))};
      gpu().download(outcome.state.data(), state.data(), state.bytes());
      return outcome;
    };
    const Outcome whole = run(0, kTokens), head = run(0, kPiece), end = run(tail, kPiece);
    EXPECT_LE(distance(whole.first, head.first), 1e-3);
    EXPECT_LE(distance(whole.last, end.first), 1e-3);
    EXPECT_LE(distance(whole.state, end.state), 1e-3);
  });
}

}  // namespace
}  // namespace linattn::test
