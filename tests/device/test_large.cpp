// SPDX-License-Identifier: Apache-2.0
//
// Offsets beyond 2^31 elements. Needs LINATTN_TEST_LARGE=1 and a GPU with 40 GiB free.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "device/memory.h"
#include "linattn/linattn.h"
#include "support/random.h"

namespace linattn::test {
namespace {

constexpr std::int64_t kTokens = 70, kKeyDim = 64, kValueDim = 64, kHeads = 2;
constexpr std::int64_t kMatrix = kKeyDim * kValueDim;

// Why large buffers cannot be tested here.
std::string too_small() {
  const char* asked = std::getenv("LINATTN_TEST_LARGE");
  if (asked == nullptr || std::string(asked) != "1") return "LINATTN_TEST_LARGE is not 1";
  std::size_t free = 0, total = 0;
  require(cudaMemGetInfo(&free, &total));
  return free < (std::size_t{40} << 30) ? "less than 40 GiB are free" : "";
}

// A device buffer, of which only some rows are ever touched by the host.
class Sparse {
 public:
  explicit Sparse(std::int64_t elements) {
    void* data = nullptr;
    require(cudaMalloc(&data, static_cast<std::size_t>(elements) * sizeof(BFloat16)));
    data_ = static_cast<BFloat16*>(data);
  }
  ~Sparse() { cudaFree(data_); }
  Sparse(const Sparse&) = delete;
  Sparse& operator=(const Sparse&) = delete;

  BFloat16* data() const { return data_; }
  void put(std::int64_t at, const std::vector<BFloat16>& row) {
    require(
        cudaMemcpy(data_ + at, row.data(), row.size() * sizeof(BFloat16), cudaMemcpyHostToDevice));
  }
  std::vector<BFloat16> get(std::int64_t at, std::int64_t count) const {
    std::vector<BFloat16> row(static_cast<std::size_t>(count));
    require(
        cudaMemcpy(row.data(), data_ + at, row.size() * sizeof(BFloat16), cudaMemcpyDeviceToHost));
    return row;
  }

 private:
  BFloat16* data_ = nullptr;
};

std::vector<BFloat16> drawn(Random& random, std::int64_t count) {
  std::vector<BFloat16> row;
  for (std::int64_t i = 0; i < count; ++i)
    row.push_back(from_float<BFloat16>(static_cast<float>(random.uniform(-.3, .3))));
  return row;
}

// One call with rows `token_stride` apart and slot `slot`; the outputs and the state that it
// leaves.
std::vector<BFloat16> outputs(const std::string& row, std::int64_t token_stride,
                              std::int64_t slot) {
  Random random(3);
  const std::int64_t width = kHeads * kKeyDim, extent = (kTokens - 1) * token_stride + width;
  Sparse q(extent), k(extent), v(extent), out(extent), pool((slot + 1) * kHeads * kMatrix);
  Sparse g(kTokens * kHeads), beta(kTokens * kHeads);
  for (std::int64_t t = 0; t < kTokens; ++t)
    for (Sparse* to : {&q, &k, &v}) to->put(t * token_stride, drawn(random, width));
  std::vector<BFloat16> gates = drawn(random, kTokens * kHeads);
  for (BFloat16& x : gates) x.bits |= 0x8000;  // log decays
  g.put(0, gates);
  for (BFloat16& x : gates) x.bits &= 0x7fff;
  beta.put(0, gates);
  pool.put(slot * kHeads * kMatrix, drawn(random, kHeads * kMatrix));
  void* slots = nullptr;
  const std::int32_t id = static_cast<std::int32_t>(slot);
  require(cudaMalloc(&slots, sizeof id));
  require(cudaMemcpy(slots, &id, sizeof id, cudaMemcpyHostToDevice));

  const Problem problem{.op = gdn,
                        .max_tokens = kTokens,
                        .heads = kHeads,
                        .key_dim = kKeyDim,
                        .value_dim = kValueDim,
                        .gate_input = GateInput::kLogDecay,
                        .gate_dtype = DType::kBFloat16,
                        .beta_input = BetaInput::kValue,
                        .beta_dtype = DType::kBFloat16,
                        .state_layout = StateLayout::kKeyValue,
                        .state_dtype = DType::kBFloat16};
  ForwardArgs args;
  args.tokens = kTokens;
  args.sequences = 1;
  args.q = {q.data(), 0, token_stride, kKeyDim};
  args.k = {k.data(), 0, token_stride, kKeyDim};
  args.v = {v.data(), 0, token_stride, kKeyDim};
  args.out = {out.data(), 0, token_stride, kKeyDim};
  args.g = {g.data(), 0, kHeads, 1};
  args.beta = {beta.data(), 0, kHeads, 1};
  args.initial_state = args.final_state = {pool.data(), slot + 1, kHeads * kMatrix, kMatrix};
  args.read_slots = args.write_slots = static_cast<std::int32_t*>(slots);
  const ForwardPlan plan(problem, Device::cuda(0), row.c_str());
  const std::size_t bytes = plan.workspace_bytes(kTokens, 1);
  void* scratch = nullptr;
  require(cudaMalloc(&scratch, bytes + 1));
  plan.run(args, {scratch, bytes}, gpu().stream());
  require(cudaStreamSynchronize(gpu().stream()));
  require(cudaFree(scratch));
  require(cudaFree(slots));
  std::vector<BFloat16> all = pool.get(slot * kHeads * kMatrix, kHeads * kMatrix);
  for (std::int64_t t = 0; t < kTokens; ++t)
    for (const BFloat16 x : out.get(t * token_stride, width)) all.push_back(x);
  return all;
}

TEST(Large, OffsetsBeyond32Bits) {
  if (const std::string reason = too_small(); !reason.empty()) GTEST_SKIP() << reason;
  // 70 rows 2^25 apart: 2.3e9 elements in each of four tensors; slot 270000: 2.2e9.
  const std::int64_t stride = std::int64_t{1} << 25, slot = 270000;
  for (const char* row : {"portable.forward", "cuda.recurrent"}) {
    SCOPED_TRACE(row);
    std::vector<BFloat16> near, far;
    try {
      near = outputs(row, kHeads * kKeyDim, 0);
      far = outputs(row, stride, slot);
    } catch (const Error& error) {
      if (std::string(row) == "cuda.recurrent") FAIL() << error.what();
      continue;
    }
    ASSERT_EQ(near.size(), far.size());
    std::size_t different = 0;
    for (std::size_t i = 0; i < near.size(); ++i) different += near[i].bits != far[i].bits;
    EXPECT_EQ(different, 0u);
  }
}

}  // namespace
}  // namespace linattn::test
