// SPDX-License-Identifier: Apache-2.0
//
// What forward, backward and step share: shapes that agree, the Problem, the common part of the
// argument structs.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <type_traits>

#include "arguments.h"
#include "linattn/linattn.h"

namespace linattn_ffi {

// What tensors do not show of a problem, in one integer of four bits each;
// python/linattn/_problem.py packs it.
inline linattn::Problem read_problem(Reader& reader) {
  std::int64_t code = reader.integer();
  const auto take = [&code] {
    const auto digit = static_cast<std::int32_t>(code & 15);
    code >>= 4;
    return digit;
  };
  linattn::Problem p;
  p.op.gate = static_cast<linattn::Gate>(take());
  p.op.update = static_cast<linattn::Update>(take());
  p.gate_input = static_cast<linattn::GateInput>(take());
  p.beta_input = static_cast<linattn::BetaInput>(take());
  p.state_layout = static_cast<linattn::StateLayout>(take());
  p.state_dtype = static_cast<DType>(take());
  p.qk_l2norm = take() != 0;
  p.save_for_backward = take() != 0;
  p.batch_invariant = take() != 0;
  p.conv_activation = static_cast<linattn::Activation>(take());
  p.norm_gate = static_cast<linattn::Activation>(take());
  return p;
}

inline linattn::Tensor tensor(const Array& a) {  // [B, T, heads, dim], [B, T, heads] or [heads]
  if (!a) return {};
  if (a.dims == 1) return {a.data, 0, 0, a.stride[0]};
  return {a.data, a.stride[0], a.stride[1], a.stride[2]};
}

inline std::int64_t bucket(std::int64_t n) {
  return static_cast<std::int64_t>(
      std::bit_ceil(static_cast<std::uint64_t>(std::max<std::int64_t>(n, 1))));
}

// int32 of that shape, or null.
inline const std::int32_t* int32s(const Array& a, std::initializer_list<std::int64_t> shape,
                                  const char* axes) {
  a.expect_shape(shape, axes);
  a.expect_dtype(DType::kInt32);
  a.expect_contiguous();
  return static_cast<const std::int32_t*>(a.data);
}

// [N] of bool or uint8, or null.
inline const std::uint8_t* flags(const Array& a, std::int64_t sequences) {
  a.expect_shape({sequences}, "[N]");
  if (a && (a.type.bits != 8 || (a.type.code != kDLBool && a.type.code != kDLUInt)))
    invalid(std::string(a.name) + " is " + text_of(a.type) + "; expected bool or uint8");
  a.expect_contiguous();
  return static_cast<const std::uint8_t*>(a.data);
}

// Of offsets that are there.
inline DType offsets_dtype(const Array& a) {
  const DType dtype = dtype_of(a.type);
  if (dtype != DType::kInt32 && dtype != DType::kInt64)
    invalid(std::string(a.name) + " is " + text_of(a.type) + "; expected int32 or int64");
  a.expect_contiguous();
  return dtype;
}

// [.., heads, rows, columns], as a pool.
inline linattn::State pool_of(const Array& a) {
  a.expect_last_axis_dense();
  if (a.size() != 0 && a.shape[2] > 1 && a.stride[2] != a.shape[3])
    invalid(std::string(a.name) + " has stride " + std::to_string(a.stride[2]) +
            " on its third axis; expected " + std::to_string(a.shape[3]) +
            ": one head's matrix is dense, heads and slots may be strided");
  return {a.data, a.shape[0], a.stride[0], a.stride[1]};
}

// The part that forward, backward and step share. What most calls have comes first, so that the
// rest can be left out; what belongs to one pass stands between `write_slots` and the numbers.
struct Inputs {
  static constexpr int kCount = 19 + 5;

  Reader& reader;
  linattn::Problem problem;
  float scale, lower_bound;
  Array q, k, v, g, beta, a_log, dt_bias, initial_state, cu_seqlens;
  Array out, final_state;  // backward: their gradients
  Array erase, write, read_slots, has_initial_state, write_slots;
  std::int32_t first_slot = 0;
  std::string implementation;
  ffi::Optional<ffi::Function> allocate;  // (bytes) -> tensor
  std::int64_t batch, length, heads, value_heads, key_dim, value_dim, sequences;

  Inputs(Reader& r, const char* out_name, const char* final_state_name)
      : reader(r),
        problem(read_problem(r)),
        scale(static_cast<float>(r.real())),
        lower_bound(static_cast<float>(r.real())),
        q(r.array("q")),
        k(r.array("k")),
        v(r.array("v")),
        g(r.array("g")),
        beta(r.array("beta")),
        a_log(r.array("A_log")),
        dt_bias(r.array("dt_bias")),
        initial_state(r.array("initial_state")),
        cu_seqlens(r.array("cu_seqlens")),
        out(r.array(out_name)),
        final_state(r.array(final_state_name)),
        erase(r.array("erase")),
        write(r.array("write")),
        read_slots(r.array("read_slots")),
        has_initial_state(r.array("has_initial_state")),
        write_slots(r.array("write_slots")) {
    for (const Array* a : {&q, &k, &v})
      if (!*a) invalid(std::string(a->name) + " is absent; expected a [B, T, heads, dim] tensor");
    for (const Array* a : {&q, &k, &v})
      if (a->dims != 4)
        invalid(std::string(a->name) + " has shape " + a->shape_text() +
                "; expected 4 axes, [B, T, heads, dim]");
    batch = q.shape[0], length = q.shape[1], heads = q.shape[2], key_dim = q.shape[3];
    value_heads = v.shape[2], value_dim = v.shape[3];
    k.expect_shape({batch, length, heads, key_dim}, "[B, T, H, K] as q");
    if (v.shape[0] != batch || v.shape[1] != length)
      invalid("v has shape " + v.shape_text() + "; expected [B, T, HV, V] with B = " +
              std::to_string(batch) + " and T = " + std::to_string(length) + " as q");
    read_lengths();
    read_gate();
    read_update();
    problem.dtype = q.expect_float();
    k.expect_dtype(problem.dtype, " as q");
    v.expect_dtype(problem.dtype, " as q");
    problem.heads = static_cast<std::int32_t>(heads);
    problem.value_heads = static_cast<std::int32_t>(value_heads);
    problem.key_dim = static_cast<std::int32_t>(key_dim);
    problem.value_dim = static_cast<std::int32_t>(value_dim);
    problem.max_tokens = bucket(batch * length);
    problem.max_sequences = bucket(sequences);
    for (const Array* a : {&q, &k, &v, &erase, &write}) a->expect_last_axis_dense();
    if (problem.state_dtype == DType::kUnset)
      problem.state_dtype = initial_state ? initial_state.expect_float()
                            : final_state ? final_state.expect_float()
                                          : DType::kFloat32;
  }

  // The numbers at the end.
  void finish() {
    first_slot = static_cast<std::int32_t>(reader.integer());
    problem.checkpoint_interval = static_cast<std::int32_t>(reader.integer(64));
    problem.sm_limit = static_cast<std::int32_t>(reader.integer());
    implementation = reader.text();
    allocate = reader.function();
  }

  // [N] int32, or [N, columns]: then the stride is columns.
  void table(const Array& a, const std::int32_t*& ids, std::int64_t& stride) const {
    if (a.dims != 2) {
      ids = int32s(a, {sequences}, "[N]");
      return;
    }
    ids = int32s(a, {sequences, a.shape[1]}, "[N] or [N, columns]");
    stride = a.shape[1];
  }

  // One [B, T, HV, dim] tensor in the dtype of q.
  void like_value(const Array& a) const {
    a.expect_shape({batch, length, value_heads, value_dim}, "[B, T, HV, V] as v");
    a.expect_dtype(problem.dtype, " as q");
    a.expect_last_axis_dense();
  }

  linattn::State state(const Array& a, DType dtype, bool per_sequence) const {
    if (!a) return {};
    if (problem.state_layout == linattn::StateLayout::kUnset)
      invalid(std::string("state_layout is unset and ") + a.name +
              " is given; expected key_value ([K, V]) or value_key ([V, K]), which its shape "
              "cannot tell");
    const bool key_first = problem.state_layout == linattn::StateLayout::kKeyValue;
    const std::int64_t rows = key_first ? key_dim : value_dim,
                       columns = key_first ? value_dim : key_dim;
    const std::int64_t count = per_sequence ? sequences : a.dims == 4 ? a.shape[0] : 0;
    const char* axes = key_first ? (per_sequence ? "[N, HV, K, V]" : "[slots, HV, K, V]")
                                 : (per_sequence ? "[N, HV, V, K]" : "[slots, HV, V, K]");
    return matrix(a, dtype, count, rows, columns, axes);
  }

  linattn::State matrix(const Array& a, DType dtype, std::int64_t count, std::int64_t rows,
                        std::int64_t columns, const char* axes) const {
    if (!a) return {};
    a.expect_shape({count, value_heads, rows, columns}, axes);
    a.expect_dtype(dtype, ", the dtype of the states");
    return pool_of(a);
  }

  template <class Args>
  Args args() const {
    Args a;
    a.tokens = batch * length;
    a.sequences = sequences;
    if (cu_seqlens) {
      a.cu_seqlens = cu_seqlens.data;
      a.cu_seqlens_dtype = static_cast<std::int32_t>(dtype_of(cu_seqlens.type));
    }
    a.scale = scale;
    a.lower_bound = lower_bound;
    a.first_slot = first_slot;
    a.q = tensor(q), a.k = tensor(k), a.v = tensor(v);
    a.g = tensor(g), a.beta = tensor(beta), a.erase = tensor(erase), a.write = tensor(write);
    a.a_log = static_cast<const float*>(a_log.data);
    a.dt_bias = static_cast<const float*>(dt_bias.data);
    a.initial_state = state(initial_state, problem.state_dtype, !read_slots);
    if constexpr (std::is_same_v<Args, linattn::StepArgs>) {
      table(read_slots, a.read_slots, a.read_slot_stride);
    } else {
      a.read_slots = int32s(read_slots, {sequences}, "[N]");
    }
    a.has_initial_state = flags(has_initial_state, sequences);
    return a;
  }

 private:
  void read_lengths() {
    sequences = batch;
    if (!cu_seqlens) return;
    if (cu_seqlens.dims != 1 || cu_seqlens.shape[0] < 2)
      invalid("cu_seqlens has shape " + cu_seqlens.shape_text() +
              "; expected [N + 1] with N at least 1");
    offsets_dtype(cu_seqlens);
    if (batch != 1)
      invalid("q has a batch of " + std::to_string(batch) + "; expected 1 with cu_seqlens");
    sequences = cu_seqlens.shape[0] - 1;
  }

  void read_gate() {
    const bool channel = problem.op.gate == linattn::Gate::kChannel;
    if (problem.op.gate == linattn::Gate::kHeadConstant)
      g.expect_shape({value_heads}, "[HV]");
    else if (channel)
      g.expect_shape({batch, length, value_heads, key_dim}, "[B, T, HV, K]");
    else
      g.expect_shape({batch, length, value_heads}, "[B, T, HV]");
    if (g) problem.gate_dtype = g.expect_float();
    if (channel) g.expect_last_axis_dense();
    a_log.expect_shape({value_heads}, "[HV]");
    a_log.expect_dtype(DType::kFloat32);
    a_log.expect_contiguous();
    if (!channel)
      dt_bias.expect_shape({value_heads}, "[HV]");
    else if (dt_bias.dims != 1 || dt_bias.shape[0] != value_heads * key_dim)
      dt_bias.expect_shape({value_heads, key_dim}, "[HV, K]");
    dt_bias.expect_dtype(DType::kFloat32);
    dt_bias.expect_contiguous();
  }

  void read_update() {
    beta.expect_shape({batch, length, value_heads}, "[B, T, HV]");
    erase.expect_shape({batch, length, value_heads, key_dim}, "[B, T, HV, K]");
    write.expect_shape({batch, length, value_heads, value_dim}, "[B, T, HV, V]");
    if (beta) problem.beta_dtype = beta.expect_float();
    if (erase) problem.beta_dtype = erase.expect_float();
    if (erase) write.expect_dtype(problem.beta_dtype, " as erase");
  }
};

}  // namespace linattn_ffi
