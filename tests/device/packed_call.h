// SPDX-License-Identifier: Apache-2.0
//
// A packed call with a pool and slots, on any Memory, whose index tensors a test may rewrite
// between runs. Where the conformance driver draws valid calls, this one may hold anything.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "device/memory.h"
#include "linattn/linattn.h"
#include "ops/run.h"
#include "ops/run_log.h"
#include "support/memory.h"
#include "support/random.h"

namespace linattn::test {

// What a PackedCall's shape asks for: two value heads on one key head, K = V = 64.
inline Problem small_problem(Op op, DType dtype, StateLayout layout) {
  Problem problem{.op = op,
                  .dtype = dtype,
                  .heads = 1,
                  .value_heads = 2,
                  .key_dim = 64,
                  .value_dim = 64,
                  .gate_input = GateInput::kLogDecay,
                  .state_layout = layout};
  if (op.update == Update::kDelta) problem.beta_input = BetaInput::kValue;
  return problem;
}

// The same with a convolution of 4 taps and a gated norm.
inline Problem fused(Problem problem) {
  problem.conv_width = 4;
  problem.conv_activation = problem.norm_gate = Activation::kSilu;
  return problem;
}

class PackedCall {
 public:
  struct Shape {
    Problem problem;  // without max_tokens and max_sequences
    std::int64_t tokens, sequences, slots;
  };

  PackedCall(Shape shape, Memory& memory) : shape_(complete(shape)), memory_(memory) {
    const Problem& p = shape_.problem;
    const std::int64_t t = shape_.tokens, n = shape_.sequences;
    const std::int64_t heads = p.heads, value_heads = p.value_heads;
    const std::int64_t gate_dim = p.op.gate == Gate::kChannel ? p.key_dim : 1;
    forward.tokens = t;
    forward.sequences = n;
    forward.q = tensor("q", p.dtype, t, heads, p.key_dim, -.2, .2);
    forward.k = tensor("k", p.dtype, t, heads, p.key_dim, -.2, .2);
    forward.v = tensor("v", p.dtype, t, value_heads, p.value_dim, -1, 1);
    forward.g = tensor("g", p.gate_dtype, t, value_heads, gate_dim, -.5, -.01);
    if (p.op.update == Update::kDelta)
      forward.beta = tensor("beta", p.beta_dtype, t, value_heads, 1, 0, 1);
    forward.out = tensor("out", p.dtype, t, value_heads, p.value_dim, 0, 0);
    buffer("out").own(p.dtype, 0, t * value_heads * p.value_dim);
    forward.initial_state = forward.final_state = state("pool");
    forward.checkpoints = state("checkpoints");
    forward.cu_seqlens = indices("cu_seqlens", 2 * (n + 1));  // int32 fill half of it
    forward.read_slots = indices("read_slots", n);
    forward.write_slots = indices("write_slots", n);
    forward.start_positions = indices("start_positions", n);
    forward.checkpoint_offsets = indices("checkpoint_offsets", n + 1);
    forward.checkpoint_positions = indices("checkpoint_positions", kEntries);
    forward.checkpoint_slots = indices("checkpoint_slots", kEntries);
    indices("accepted", n);
    indices("read_columns", n * kColumns);
    indices("write_columns", n * kColumns);
    indices("parents", t);
    indices("counts", n);
    indices("picks", n * kColumns);
    add("replay", static_cast<std::size_t>(replay_elements(p, t)) * sizeof(float), true);
    for (const char* name : {"conv_read_slots", "conv_write_slots", "conv_accepted"})
      indices(name, n);
    if (!is_fused(p)) return;
    const std::int64_t channels = 2 * heads * p.key_dim + value_heads * p.value_dim;
    tensor("conv_weight", p.dtype, channels, 1, p.conv_width, -.5, .5);
    tensor("conv_state", p.dtype, shape_.slots, channels, kConvEntries, -1, 1);
    buffer("conv_state").own(p.dtype, 0, shape_.slots * channels * kConvEntries);
    tensor("z", p.dtype, t, value_heads, p.value_dim, -1, 1);
  }

  static constexpr std::int64_t kEntries = 8;  // of checkpoints, over all sequences
  static constexpr std::int64_t kColumns = 4;
  static constexpr std::int64_t kConvEntries = 6;  // enough for drafts of four tokens, not of eight

  ForwardArgs forward;
  // The step has counts and picks, and makes a record; a fused one has no picks.
  bool picked = false;

  // The step over the same memory: slots by columns, and a tree or picks.
  StepArgs step() {
    StepArgs s;
    std::memcpy(static_cast<void*>(&s), &forward, offsetof(ForwardArgs, start_positions));
    s.size = sizeof s;
    s.read_slots = pointer("read_columns");
    s.read_slot_stride = kColumns;
    s.accepted = pointer("accepted");
    s.write_slots = pointer("write_columns");
    s.write_slot_stride = kColumns;
    if (is_fused(problem())) {
      fuse(s);
      if (!picked) return s;
      s.counts = pointer("counts");
      s.replay = static_cast<float*>(buffer("replay").data());
      return s;
    }
    if (!picked) {
      s.parents = pointer("parents");
      return s;
    }
    s.counts = pointer("counts");
    s.picks = pointer("picks");
    s.picks_stride = kColumns;
    s.replay = static_cast<float*>(buffer("replay").data());
    return s;
  }

  const Problem& problem() const { return shape_.problem; }
  const Shape& shape() const { return shape_; }

  Guarded& buffer(const std::string& name) {
    for (auto& one : buffers_)
      if (one->name() == name) return *one;
    throw std::logic_error("no buffer " + name);
  }
  void set(const std::string& name, const std::vector<std::int32_t>& values) {
    buffer(name).put_bytes(0, values.data(), values.size() * sizeof(std::int32_t));
    buffer(name).upload();
  }
  void set_offsets(const std::vector<std::int64_t>& values) {
    forward.cu_seqlens_dtype = LINATTN_INT64;
    buffer("cu_seqlens").put_bytes(0, values.data(), values.size() * sizeof(std::int64_t));
    buffer("cu_seqlens").upload();
  }
  // All buffers as they were before the run.
  void upload() {
    for (auto& one : buffers_) one->upload();
  }
  // "" or which byte changed that the call does not own.
  std::string fetch() {
    for (auto& one : buffers_)
      if (std::string fault = one->fetch(); !fault.empty()) return fault;
    return "";
  }
  std::vector<float> values(const std::string& name, DType dtype) {
    Guarded& from = buffer(name);
    std::vector<float> all(from.bytes() / size_of(dtype));
    for (std::size_t i = 0; i < all.size(); ++i)
      all[i] = from.get(dtype, static_cast<std::int64_t>(i));
    return all;
  }

  // Before the first enqueue, which allocates nothing.
  template <class Args>
  void prepare(const Plan<Args>& plan) {
    const std::size_t bytes = plan.workspace_bytes(shape_.tokens, shape_.sequences);
    scratch_ = std::make_unique<Guarded>(memory_, "workspace", bytes, Poison::kNaN, true);
    if (memory_.guard() > 0) scratch_->upload();
  }
  template <class Args>
  void enqueue(const Plan<Args>& plan, Stream stream) {
    const Workspace workspace{scratch_->data(), scratch_->bytes()};
    if constexpr (std::is_same_v<Args, StepArgs>)
      plan.run(step(), workspace, stream);
    else
      plan.run(forward, workspace, stream);
    log_run(detail::pass_of<Args>(), plan.implementation(), 0);
  }
  template <class Args>
  void run(const Plan<Args>& plan) {
    prepare(plan);
    memory_.run([&](Stream stream) { enqueue(plan, stream); });
  }

 private:
  void fuse(StepArgs& s) {
    const Problem& p = problem();
    std::int64_t first = 0;
    const std::int64_t keys = std::int64_t{p.heads} * p.key_dim;
    const std::int64_t channels = 2 * keys + std::int64_t{p.value_heads} * p.value_dim;
    for (Conv* c : {&s.conv_q, &s.conv_k, &s.conv_v}) {
      *c = {buffer("conv_weight").at(p.dtype, first * p.conv_width),
            p.conv_width,
            1,
            nullptr,
            buffer("conv_state").at(p.dtype, first * kConvEntries),
            shape_.slots,
            channels * kConvEntries,
            kConvEntries,
            1};
      first += keys;
    }
    s.conv_entries = kConvEntries;
    s.conv_read_slots = pointer("conv_read_slots");
    s.conv_write_slots = pointer("conv_write_slots");
    s.conv_accepted = pointer("conv_accepted");
    s.z = contiguous(buffer("z").data(), p.value_heads, p.value_dim);
  }
  static Shape complete(Shape shape) {
    shape.problem.max_tokens = shape.tokens;
    shape.problem.max_sequences = shape.sequences;
    if (shape.problem.value_heads == 0) shape.problem.value_heads = shape.problem.heads;
    return shape;
  }
  Guarded& add(const std::string& name, std::size_t bytes, bool owned) {
    buffers_.push_back(std::make_unique<Guarded>(memory_, name, bytes, Poison::kNaN, owned));
    return *buffers_.back();
  }
  Tensor tensor(const std::string& name, DType dtype, std::int64_t tokens, std::int64_t heads,
                std::int64_t dim, double low, double high) {
    const std::int64_t count = tokens * heads * dim;
    Guarded& to = add(name, static_cast<std::size_t>(count) * size_of(dtype), false);
    if (low < high)
      for (std::int64_t i = 0; i < count; ++i)
        to.put(dtype, i, static_cast<float>(random_.uniform(low, high)));
    return {to.data(), 0, heads * dim, dim};
  }
  State state(const std::string& name) {
    const Problem& p = shape_.problem;
    const std::int64_t matrix = std::int64_t{p.key_dim} * p.value_dim;
    const std::int64_t count = shape_.slots * p.value_heads * matrix;
    Guarded& to = add(name, static_cast<std::size_t>(count) * size_of(p.state_dtype), true);
    for (std::int64_t i = 0; i < count; ++i)
      to.put(p.state_dtype, i, static_cast<float>(random_.uniform(-1, 1)));
    return {to.data(), shape_.slots, p.value_heads * matrix, matrix};
  }
  const std::int32_t* indices(const std::string& name, std::int64_t count) {
    Guarded& to = add(name, static_cast<std::size_t>(count) * sizeof(std::int32_t), false);
    const std::vector<std::int32_t> zeros(static_cast<std::size_t>(count));
    to.put_bytes(0, zeros.data(), to.bytes());
    return static_cast<const std::int32_t*>(to.data());
  }
  const std::int32_t* pointer(const std::string& name) {
    return static_cast<const std::int32_t*>(buffer(name).data());
  }

  Shape shape_;
  Memory& memory_;
  Random random_{7};
  std::vector<std::unique_ptr<Guarded>> buffers_;
  std::unique_ptr<Guarded> scratch_;
};

// f(plan, row) for every row of a GPU that takes the problem, which at least one must.
template <class Args, class F>
void for_each_plan(const Problem& problem, F&& f) {
  int taken = 0;
  for (const std::string& row : implementations(detail::pass_of<Args>())) {
    std::string refusal;
    const auto plan = pinned<Args>(problem, row, gpu().device(), refusal);
    if (!plan) continue;
    ++taken;
    SCOPED_TRACE(row + " " + to_string(problem.op) + " " + to_string(problem.dtype));
    f(*plan, row);
  }
  EXPECT_GT(taken, 0) << to_string(problem);
}

// rms(x - ref) / rms(ref).
inline double distance(const std::vector<float>& x, const std::vector<float>& ref) {
  double difference = 0, reference = 0;
  for (std::size_t i = 0; i < ref.size(); ++i) {
    const double d = static_cast<double>(x.at(i)) - ref[i];
    difference += std::isfinite(d) ? d * d : 1e300;
    reference += static_cast<double>(ref[i]) * ref[i];
  }
  return std::sqrt(difference / (reference == 0 ? 1 : reference));
}

}  // namespace linattn::test
