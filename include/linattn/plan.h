// SPDX-License-Identifier: Apache-2.0
//
// Plan<Args>: making one thinks, run only enqueues. Inline over c.h; no C++ type crosses the shared
// object's border.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "linattn/c.h"
#include "linattn/error.h"
#include "linattn/problem.h"

struct CUstream_st;  // the CUDA runtime's stream, without its headers

namespace linattn {
inline namespace v0 {

using Stream = CUstream_st*;  // cudaStream_t; null on the CPU

using Tensor = linattn_tensor;
using State = linattn_state;
using Conv = linattn_conv;
using Workspace = linattn_workspace;
using ForwardArgs = linattn_forward_args;
using BackwardArgs = linattn_backward_args;
using StepArgs = linattn_step_args;

// A contiguous [T, heads, dim] tensor; without cu_seqlens, of sequences of `length` tokens.
template <class T>
Tensor contiguous(T* data, std::int64_t heads, std::int64_t dim, std::int64_t length = 0) {
  void* pointer = const_cast<void*>(static_cast<const void*>(data));
  return {pointer, length * heads * dim, heads * dim, dim};
}

// A contiguous pool [slots, value_heads, K, V] (or [.., V, K]).
template <class T>
State contiguous_state(T* data, std::int64_t slots, std::int64_t value_heads, std::int64_t key_dim,
                       std::int64_t value_dim) {
  void* pointer = const_cast<void*>(static_cast<const void*>(data));
  return {pointer, slots, value_heads * key_dim * value_dim, key_dim * value_dim};
}

// The part of a block of bytes that is aligned as a workspace must be.
inline Workspace aligned_workspace(void* data, std::size_t bytes) {
  constexpr std::uintptr_t kAlignment = 256;
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  const std::uintptr_t skip = (kAlignment - address % kAlignment) % kAlignment;
  if (bytes < skip) return {nullptr, 0};
  return {static_cast<char*>(data) + skip, bytes - skip};
}

// Whether its steps are fused: with a convolution before the recurrence, a norm behind it, or both.
inline bool is_fused(const Problem& p) {
  return p.conv_width != 0 || p.norm_gate != Activation::kUnset;
}

namespace detail {

inline void check(linattn_status status) {
  if (status != LINATTN_OK) throw Error(static_cast<ErrorCode>(status), linattn_last_error());
}

struct Nothing {
  const linattn_plan* handle() const;
};

template <class Args>
constexpr Pass pass_of() {
  static_assert(std::is_same<Args, ForwardArgs>::value || std::is_same<Args, BackwardArgs>::value ||
                    std::is_same<Args, StepArgs>::value,
                "a plan is made for ForwardArgs, BackwardArgs or StepArgs");
  if (std::is_same<Args, ForwardArgs>::value) return Pass::kForward;
  if (std::is_same<Args, BackwardArgs>::value) return Pass::kBackward;
  return Pass::kStep;
}

}  // namespace detail

// ---- replay records: docs/layouts.md

// The problem of the steps that commit what the records of a problem's steps hold.
inline Problem commit_problem(Problem problem) {
  if (problem.op.gate == Gate::kHeadConstant) problem.op.gate = Gate::kHead;
  problem.op.update = Update::kAdd;
  problem.dtype = DType::kFloat32;
  if (problem.op.gate != Gate::kNone) problem.gate_input = GateInput::kLogDecay;
  problem.gate_dtype = DType::kFloat32;
  problem.beta_input = BetaInput::kUnset;
  problem.qk_l2norm = false;
  problem.conv_width = 0;
  problem.conv_activation = problem.norm_gate = Activation::kUnset;
  problem.conv_dtype = problem.conv_state_dtype = problem.norm_dtype = DType::kUnset;
  return problem;
}

namespace detail {

inline std::int64_t value_heads(const Problem& p) {
  return p.value_heads == 0 ? p.heads : p.value_heads;
}
// Log decays of a token and value head.
inline std::int64_t gate_width(const Problem& p) {
  return p.op.gate == Gate::kNone ? 0 : p.op.gate == Gate::kChannel ? p.key_dim : 1;
}

}  // namespace detail

// Elements of a record of so many tokens.
inline std::int64_t replay_elements(const Problem& p, std::int64_t tokens) {
  return tokens * (std::int64_t{p.heads} * p.key_dim +
                   detail::value_heads(p) * (p.value_dim + detail::gate_width(p)));
}

// A record as the inputs of a commit's step, of sequences of one length unless cu_seqlens is set
// later, as slots and states are.
inline StepArgs commit_args(const Problem& problem, const float* replay, std::int64_t tokens,
                            std::int64_t sequences) {
  const std::int64_t value_heads = detail::value_heads(problem);
  const std::int64_t length = sequences == 0 ? 0 : tokens / sequences;
  const float* v = replay + tokens * problem.heads * problem.key_dim;
  StepArgs args;
  args.tokens = tokens;
  args.sequences = sequences;
  args.k = contiguous(replay, problem.heads, problem.key_dim, length);
  args.v = contiguous(v, value_heads, problem.value_dim, length);
  if (problem.op.gate != Gate::kNone)
    args.g = contiguous(v + tokens * value_heads * problem.value_dim, value_heads,
                        detail::gate_width(problem), length);
  return args;
}

namespace detail {

inline linattn_status run(const linattn_plan* plan, const ForwardArgs& args, Workspace workspace,
                          Stream stream) {
  return linattn_forward(plan, &args, workspace, stream);
}
inline linattn_status run(const linattn_plan* plan, const BackwardArgs& args, Workspace workspace,
                          Stream stream) {
  return linattn_backward(plan, &args, workspace, stream);
}
inline linattn_status run(const linattn_plan* plan, const StepArgs& args, Workspace workspace,
                          Stream stream) {
  return linattn_step(plan, &args, workspace, stream);
}

}  // namespace detail

// A value: copy it, keep it for the life of the model, run it from many threads with separate
// workspaces. Every member throws Error; nothing has been launched when run throws kInvalidArgument
// or kUnsupported.
template <class Args>
class Plan {
 public:
  // implementation pins a row by its name ("cpu.chunked"); null takes the best one that accepts.
  explicit Plan(const Problem& problem, Device device, const char* implementation = nullptr) {
    static_assert(!std::is_same<Args, BackwardArgs>::value,
                  "make a BackwardPlan from its ForwardPlan: the two agree on what is saved");
    const linattn_problem c = to_c(problem);
    detail::check(linattn_plan_create(&c, to_c(device),
                                      static_cast<std::int32_t>(detail::pass_of<Args>()),
                                      implementation, &handle_));
  }
  // Only a BackwardPlan is made from a ForwardPlan; for the others this is no constructor.
  explicit Plan(const std::conditional_t<std::is_same<Args, BackwardArgs>::value, Plan<ForwardArgs>,
                                         detail::Nothing>& forward,
                const char* implementation = nullptr) {
    detail::check(linattn_plan_create_backward(forward.handle(), implementation, &handle_));
  }
  Plan(const Plan& other) noexcept : handle_(other.handle_) { linattn_plan_retain(handle_); }
  Plan(Plan&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Plan& operator=(Plan other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Plan() { linattn_plan_release(handle_); }

  std::string implementation() const { return linattn_plan_implementation(handle_); }

  // For one call of at most so many tokens (over all sequences) and sequences.
  std::size_t workspace_bytes(std::int64_t tokens, std::int64_t sequences) const {
    std::size_t bytes = 0;
    detail::check(linattn_workspace_bytes(handle_, tokens, sequences, &bytes));
    return bytes;
  }

  // Size of `saved` is coefficients[0] tokens + coefficients[1] sequences + coefficients[2] bytes.
  std::array<std::int64_t, 3> saved_coefficients() const {
    std::array<std::int64_t, 3> coefficients{};
    detail::check(linattn_saved_bytes(handle_, coefficients.data()));
    return coefficients;
  }
  std::size_t saved_bytes(std::int64_t tokens, std::int64_t sequences) const {
    const auto c = saved_coefficients();
    return static_cast<std::size_t>(c[0] * tokens + c[1] * sequences + c[2]);
  }

  void run(const Args& args, Workspace workspace = {}, Stream stream = nullptr) const {
    detail::check(detail::run(handle_, args, workspace, stream));
  }

  // Which row serves this call, and why not the others.
  std::string explain(const Args& args) const {
    const char* text = "";
    detail::check(linattn_plan_explain(handle_, &args, &text));
    return text;
  }

  const linattn_plan* handle() const noexcept { return handle_; }

 private:
  linattn_plan* handle_ = nullptr;
};

using ForwardPlan = Plan<ForwardArgs>;
using BackwardPlan = Plan<BackwardArgs>;
using StepPlan = Plan<StepArgs>;

// A line per implementation of the pass: that it takes the problem, or why not.
inline std::string explain(const Problem& problem, Device device, Pass pass = Pass::kForward) {
  const linattn_problem c = to_c(problem);
  const char* text = "";
  detail::check(linattn_explain(&c, to_c(device), static_cast<std::int32_t>(pass), &text));
  return text;
}

// Names of a pass's implementations, best first.
inline std::vector<std::string> implementations(Pass pass = Pass::kForward) {
  std::vector<std::string> names;
  while (const char* name = linattn_implementation_name(static_cast<std::int32_t>(pass),
                                                        static_cast<std::int32_t>(names.size())))
    names.emplace_back(name);
  return names;
}

// Threads of the CPU rows, for the process; 0: one per core.
inline void set_threads(int threads) { detail::check(linattn_set_threads(threads)); }

}  // namespace v0
}  // namespace linattn
