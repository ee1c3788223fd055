// SPDX-License-Identifier: Apache-2.0
//
// The tvm-ffi binding: framework tensors in, the public C++ API called. It reads shapes, checks
// that they agree, builds the Problem, keeps a bounded cache of plans, and takes scratch from the
// framework's allocator. It decides nothing.
//
// Tensors are [B, T, heads, dim]; with cu_seqlens B is 1. Arguments are positional, in the order of
// Inputs and of each pass.
#include <tvm/ffi/any.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/string.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "arguments.h"
#include "fused.h"
#include "inputs.h"
#include "linattn/linattn.h"
#include "plans.h"

namespace linattn_ffi {
namespace {

// ---- the passes ----

template <class Args>
void outputs(const Inputs& in, Args& a) {
  if (!in.out) invalid("out is absent; expected [B, T, HV, V]");
  in.like_value(in.out);
  a.out = tensor(in.out);
  a.final_state = in.state(in.final_state, in.problem.state_dtype, !in.write_slots);
}

void forward(const TVMFFIAny* packed, std::int32_t count) {
  Reader r(packed, count, Inputs::kCount + 7);
  Inputs in(r, "out", "final_state");
  const Array start_positions = r.array("start_positions"), checkpoints = r.array("checkpoints"),
              offsets = r.array("checkpoint_offsets"), positions = r.array("checkpoint_positions"),
              checkpoint_slots = r.array("checkpoint_slots"), transition = r.array("transition"),
              saved = r.array("saved");
  in.finish();
  linattn::ForwardArgs a = in.args<linattn::ForwardArgs>();
  outputs(in, a);
  a.write_slots = int32s(in.write_slots, {in.sequences}, "[N]");
  a.start_positions = int32s(start_positions, {in.sequences}, "[N]");
  if (checkpoints) {
    in.problem.checkpoint_dtype = checkpoints.expect_float();
    a.checkpoints = in.state(checkpoints, in.problem.checkpoint_dtype, false);
    if (!offsets || !positions || !checkpoint_slots)
      invalid(
          "checkpoints came without checkpoint_offsets, checkpoint_positions and checkpoint_slots; "
          "expected all four");
    a.checkpoint_offsets = int32s(offsets, {in.sequences + 1}, "[N]");
    if (positions.dims != 1)
      invalid("checkpoint_positions has shape " + positions.shape_text() + "; expected one axis");
    a.checkpoint_positions = int32s(positions, {positions.shape[0]}, "[N]");
    a.checkpoint_slots = int32s(checkpoint_slots, {positions.shape[0]}, "[N]");
    if (r.dl_device().device_type == kDLCPU &&
        a.checkpoint_offsets[in.sequences] > positions.shape[0])
      invalid("checkpoint_offsets ends with " + std::to_string(a.checkpoint_offsets[in.sequences]) +
              "; expected at most the " + std::to_string(positions.shape[0]) +
              " entries of checkpoint_positions");
  } else if (offsets || positions || checkpoint_slots) {
    invalid(
        "checkpoints is absent; expected it with checkpoint_offsets, checkpoint_positions and "
        "checkpoint_slots");
  }
  a.transition =
      in.matrix(transition, DType::kFloat32, in.sequences, in.key_dim, in.key_dim, "[N, HV, K, K]");

  const auto chosen = plan<linattn::ForwardArgs>(in.problem, r.device(), in.implementation);
  const std::size_t bytes =
      in.problem.save_for_backward ? chosen->saved_bytes(a.tokens, a.sequences) : 0;
  const Saved kept(saved, bytes, in, /*read=*/false);
  a.saved = kept.data();
  run(*chosen, a, in);
  kept.store();
}

void backward(const TVMFFIAny* packed, std::int32_t count) {
  Reader r(packed, count, Inputs::kCount + 12);
  Inputs in(r, "dout", "dfinal_state");
  const Array saved = r.array("saved"), dq = r.array("dq"), dk = r.array("dk"), dv = r.array("dv"),
              dg = r.array("dg"), dbeta = r.array("dbeta"), da_log = r.array("dA_log"),
              ddt_bias = r.array("ddt_bias"), dinitial_state = r.array("dinitial_state"),
              derase = r.array("derase"), dwrite = r.array("dwrite");
  const std::string forward_implementation = r.text();
  in.finish();
  linattn::BackwardArgs a = in.args<linattn::BackwardArgs>();
  in.like_value(in.out);
  a.dout = tensor(in.out);
  a.dfinal_state = in.state(in.final_state, in.problem.state_dtype, true);
  const auto gradient = [](const Array& d, const Array& input) -> linattn::Tensor {
    if (!d) return {};
    if (!input || d.dims != input.dims || !std::equal(d.shape, d.shape + d.dims, input.shape))
      invalid(std::string(d.name) + " has shape " + d.shape_text() + "; expected its input's, " +
              input.shape_text());
    d.expect_dtype(dtype_of(input.type), " as its input");
    if (d.dims == 4) d.expect_last_axis_dense();
    return tensor(d);
  };
  a.dq = gradient(dq, in.q), a.dk = gradient(dk, in.k), a.dv = gradient(dv, in.v),
  a.dg = gradient(dg, in.g);
  a.dbeta = gradient(dbeta, in.beta), a.derase = gradient(derase, in.erase),
  a.dwrite = gradient(dwrite, in.write);
  gradient(da_log, in.a_log), gradient(ddt_bias, in.dt_bias);
  da_log.expect_contiguous(), ddt_bias.expect_contiguous();
  a.da_log = static_cast<float*>(da_log.data);
  a.ddt_bias = static_cast<float*>(ddt_bias.data);
  a.dinitial_state = in.state(dinitial_state, in.problem.state_dtype, true);

  const auto forward_plan =
      plan<linattn::ForwardArgs>(in.problem, r.device(), forward_implementation);
  const Saved kept(saved, forward_plan->saved_bytes(a.tokens, a.sequences), in, /*read=*/true);
  a.saved = kept.data();
  run(*backward_plan(in.problem, r.device(), in.implementation, forward_implementation), a, in);
}

// counts and picks of a step.
void chosen(linattn::StepArgs& a, const Array& counts, const Array& picks, std::int64_t sequences) {
  a.counts = int32s(counts, {sequences}, "[N]");
  if (picks) a.picks_stride = picks.dims == 2 ? picks.shape[1] : 1;
  a.picks = int32s(picks, {sequences, a.picks_stride}, "[N, columns]");
}

// A step of the additive op over a replay record, or one in each of many layers.
void commit(const TVMFFIAny* packed, std::int32_t count) {
  Reader r(packed, count, 15);
  linattn::Problem draft = read_problem(r);
  const Array replay = r.array("replay"), pool = r.array("pool"), counts = r.array("counts"),
              read_slots = r.array("read_slots"), write_slots = r.array("write_slots"),
              has_initial_state = r.array("has_initial_state"), picks = r.array("picks"),
              cu_seqlens = r.array("cu_seqlens"), pools = r.array("pools");
  draft.heads = static_cast<std::int32_t>(r.integer());
  const auto first_slot = static_cast<std::int32_t>(r.integer());
  draft.sm_limit = static_cast<std::int32_t>(r.integer());
  const std::string implementation = r.text();
  const ffi::Optional<ffi::Function> allocate = r.function();

  for (const Array* a : {&replay, &pool, &counts})
    if (!*a) invalid(std::string(a->name) + " is absent; expected a tensor");
  if (draft.state_layout == linattn::StateLayout::kUnset)
    invalid("state_layout is unset; expected key_value ([K, V]) or value_key ([V, K])");
  const bool key_first = draft.state_layout == linattn::StateLayout::kKeyValue;
  if (pool.dims != 4)
    invalid("pool has shape " + pool.shape_text() + "; expected [slots, HV, " +
            (key_first ? "K, V]" : "V, K]"));
  const linattn::State states = pool_of(pool);
  draft.value_heads = static_cast<std::int32_t>(pool.shape[1]);
  draft.key_dim = static_cast<std::int32_t>(pool.shape[key_first ? 2 : 3]);
  draft.value_dim = static_cast<std::int32_t>(pool.shape[key_first ? 3 : 2]);
  draft.state_dtype = pool.expect_float();
  if (draft.heads < 1) invalid("heads is " + std::to_string(draft.heads) + "; expected at least 1");
  if (draft.value_heads < 1 || draft.key_dim < 1 || draft.value_dim < 1)
    invalid("pool has shape " + pool.shape_text() + "; expected at least 1 of HV, K and V");
  if (counts.dims != 1) invalid("counts has shape " + counts.shape_text() + "; expected [N]");
  const std::int64_t sequences = counts.shape[0];

  const std::int64_t elements = linattn::replay_elements(draft, 1);
  const bool layered = static_cast<bool>(pools);
  replay.expect_dtype(DType::kFloat32);
  replay.expect_last_axis_dense();
  if (replay.dims != (layered ? 2 : 1) || replay.shape[replay.dims - 1] % elements != 0)
    invalid("replay has shape " + replay.shape_text() + "; expected " +
            (layered ? "[layers, " : "[") + "a multiple of " + std::to_string(elements) +
            "], the elements of a token's record");
  const std::int64_t tokens = replay.shape[replay.dims - 1] / elements;

  linattn::Problem problem = linattn::commit_problem(draft);
  problem.max_tokens = bucket(tokens);
  problem.max_sequences = bucket(sequences);
  linattn::StepArgs a =
      linattn::commit_args(draft, static_cast<const float*>(replay.data), tokens, sequences);
  a.first_slot = first_slot;
  if (cu_seqlens) {
    cu_seqlens.expect_shape({sequences + 1}, "[N + 1]");
    a.cu_seqlens = cu_seqlens.data;
    a.cu_seqlens_dtype = static_cast<std::int32_t>(offsets_dtype(cu_seqlens));
  }
  a.initial_state = a.final_state = states;
  a.read_slots = int32s(read_slots, {sequences}, "[N]");
  a.write_slots = int32s(write_slots, {sequences}, "[N]");
  a.has_initial_state = flags(has_initial_state, sequences);
  chosen(a, counts, picks, sequences);
  if (layered) {
    pools.expect_shape({replay.shape[0]}, "[layers]");
    pools.expect_dtype(DType::kInt64, ", addresses");
    pools.expect_contiguous();
    a.layers = replay.shape[0];
    a.layer_stride = replay.stride[0];
    a.pools = static_cast<void* const*>(pools.data);
  }
  run(*plan<linattn::StepArgs>(problem, r.device(), implementation), a, allocate, r.dl_device());
}

void step(const TVMFFIAny* packed, std::int32_t count) {
  Reader r(packed, count, Inputs::kCount + 5 + Fused::kCount);
  Inputs in(r, "out", "final_state");
  const Array accepted = r.array("accepted"), parents = r.array("parents"),
              replay = r.array("replay"), counts = r.array("counts"), picks = r.array("picks");
  const Fused fused(r);
  in.finish();
  linattn::StepArgs a = in.args<linattn::StepArgs>();
  fused.fill(in, a);
  outputs(in, a);
  in.table(in.write_slots, a.write_slots, a.write_slot_stride);
  a.accepted = int32s(accepted, {in.sequences}, "[N]");
  a.parents = int32s(parents, {in.batch * in.length}, "[T], tokens over all sequences");
  replay.expect_shape({linattn::replay_elements(in.problem, a.tokens)},
                      "what a record of so many tokens holds");
  replay.expect_dtype(DType::kFloat32);
  replay.expect_contiguous();
  a.replay = static_cast<float*>(replay.data);
  chosen(a, counts, picks, in.sequences);
  run(*plan<linattn::StepArgs>(in.problem, r.device(), in.implementation), a, in);
}

// ---- questions ----

// The problem without tensors, and the device.
struct Question {
  static constexpr int kCount = 15;
  linattn::Problem problem;
  linattn::Device device;
  explicit Question(Reader& r) : problem(read_problem(r)) {
    problem.checkpoint_interval = static_cast<std::int32_t>(r.integer());
    problem.sm_limit = static_cast<std::int32_t>(r.integer());
    problem.dtype = static_cast<DType>(r.integer());
    problem.gate_dtype = static_cast<DType>(r.integer());
    problem.beta_dtype = static_cast<DType>(r.integer());
    problem.checkpoint_dtype = static_cast<DType>(r.integer());
    problem.max_tokens = r.integer();
    problem.max_sequences = r.integer();
    problem.heads = static_cast<std::int32_t>(r.integer());
    problem.value_heads = static_cast<std::int32_t>(r.integer());
    problem.key_dim = static_cast<std::int32_t>(r.integer());
    problem.value_dim = static_cast<std::int32_t>(r.integer());
    device.type = static_cast<linattn::Device::Type>(r.integer());
    device.index = static_cast<std::int32_t>(r.integer());
  }
};

// Every entry: the library's Error becomes the Python exception of its code.
template <class Body>
int guarded(ffi::Any* result, Body&& body) {
  TVM_FFI_SAFE_CALL_BEGIN();
  try {
    *result = body();
  } catch (const linattn::Error& error) {
    const bool mistake = error.code() == linattn::ErrorCode::kInvalidArgument;
    const bool unsupported = error.code() == linattn::ErrorCode::kUnsupported;
    raise(mistake       ? "ValueError"
          : unsupported ? "NotImplementedError"
                        : "RuntimeError",
          error.what());
  }
  TVM_FFI_SAFE_CALL_END();
}

ffi::Any* any(TVMFFIAny* result) { return reinterpret_cast<ffi::Any*>(result); }

}  // namespace

// tvm-ffi looks these names up: __tvm_ffi_<name>.
extern "C" {

TVM_FFI_DLL_EXPORT int __tvm_ffi_forward(void*, const TVMFFIAny* args, std::int32_t count,
                                         TVMFFIAny* result) {
  return guarded(any(result), [&] { return forward(args, count), ffi::Any(); });
}

TVM_FFI_DLL_EXPORT int __tvm_ffi_backward(void*, const TVMFFIAny* args, std::int32_t count,
                                          TVMFFIAny* result) {
  return guarded(any(result), [&] { return backward(args, count), ffi::Any(); });
}

TVM_FFI_DLL_EXPORT int __tvm_ffi_step(void*, const TVMFFIAny* args, std::int32_t count,
                                      TVMFFIAny* result) {
  return guarded(any(result), [&] { return step(args, count), ffi::Any(); });
}

TVM_FFI_DLL_EXPORT int __tvm_ffi_commit(void*, const TVMFFIAny* args, std::int32_t count,
                                        TVMFFIAny* result) {
  return guarded(any(result), [&] { return commit(args, count), ffi::Any(); });
}

// (problem, pass) -> a line per implementation
TVM_FFI_DLL_EXPORT int __tvm_ffi_explain(void*, const TVMFFIAny* args, std::int32_t count,
                                         TVMFFIAny* result) {
  return guarded(any(result), [&] {
    Reader r(args, count, Question::kCount + 1);
    const Question question(r);
    const auto pass = static_cast<linattn::Pass>(r.integer());
    return ffi::Any(ffi::String(linattn::explain(question.problem, question.device, pass)));
  });
}

// (problem, implementation) -> the three coefficients of saved_bytes
TVM_FFI_DLL_EXPORT int __tvm_ffi_saved_coefficients(void*, const TVMFFIAny* args,
                                                    std::int32_t count, TVMFFIAny* result) {
  return guarded(any(result), [&] {
    Reader r(args, count, Question::kCount + 1);
    const Question question(r);
    const auto c = plan<linattn::ForwardArgs>(question.problem, question.device, r.text())
                       ->saved_coefficients();
    return ffi::Any(ffi::Array<std::int64_t>{c[0], c[1], c[2]});
  });
}

// (pass) -> names, best first
TVM_FFI_DLL_EXPORT int __tvm_ffi_implementations(void*, const TVMFFIAny* args, std::int32_t count,
                                                 TVMFFIAny* result) {
  return guarded(any(result), [&] {
    Reader r(args, count, 1);
    ffi::Array<ffi::String> names;
    for (const std::string& name :
         linattn::implementations(static_cast<linattn::Pass>(r.integer())))
      names.push_back(name);
    return ffi::Any(names);
  });
}

TVM_FFI_DLL_EXPORT int __tvm_ffi_set_threads(void*, const TVMFFIAny* args, std::int32_t count,
                                             TVMFFIAny* result) {
  return guarded(any(result), [&] {
    Reader r(args, count, 1);
    return linattn::set_threads(static_cast<int>(r.integer())), ffi::Any();
  });
}

TVM_FFI_DLL_EXPORT int __tvm_ffi_version(void*, const TVMFFIAny* args, std::int32_t count,
                                         TVMFFIAny* result) {
  return guarded(any(result), [&] {
    Reader r(args, count, 0);
    return ffi::Any(ffi::String(linattn_version()));
  });
}

}  // extern "C"

}  // namespace linattn_ffi
