// SPDX-License-Identifier: Apache-2.0
//
// The C ABI: structs of any size in, exceptions to status codes, one text per thread.
#include "linattn/c.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <exception>
#include <string>
#include <type_traits>

#include "core/check.h"
#include "core/plan.h"
#include "cpu/thread_pool.h"
#include "linattn/error.h"

#define LINATTN_TEXT(x) #x
#define LINATTN_VERSION_TEXT(a, b, c) LINATTN_TEXT(a) "." LINATTN_TEXT(b) "." LINATTN_TEXT(c)

namespace {

using linattn::Error;
using linattn::ErrorCode;
using linattn::throw_invalid;

thread_local std::string last_error;
thread_local std::string explanation;

template <class F>
linattn_status guarded(F&& body) noexcept {
  try {
    last_error.clear();
    body();
    return LINATTN_OK;
  } catch (const Error& error) {
    last_error = error.what();
    return static_cast<linattn_status>(error.code());
  } catch (const std::exception& error) {
    last_error = std::string("linattn: ") + error.what();
    return LINATTN_INTERNAL_ERROR;
  } catch (...) {
    last_error = "linattn: unknown failure";
    return LINATTN_INTERNAL_ERROR;
  }
}

// A struct of another version: a shorter one is padded with zeros, a longer one is taken if what
// this library does not know is zero.
template <class T>
T read(const T* given, const char* name) {
  static_assert(std::is_trivially_copyable_v<T>);
  if (given == nullptr) throw_invalid(std::string(name) + " is null; expected a struct");
  const std::size_t size = given->size;
  if (size < sizeof(size))
    throw_invalid(std::string(name) + ".size is " + std::to_string(size) +
                  "; expected the size of its struct, " + std::to_string(sizeof(T)) +
                  " in this version");
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  if (size > sizeof(T) &&
      std::any_of(bytes + sizeof(T), bytes + size, [](unsigned char b) { return b != 0; }))
    throw_invalid(std::string(name) + ".size is " + std::to_string(size) + " and fields past " +
                  std::to_string(sizeof(T)) +
                  " bytes are set; expected zeros there: this library, " + linattn_version() +
                  ", does not know them");
  T known;
  std::memset(static_cast<void*>(&known), 0, sizeof known);
  std::memcpy(static_cast<void*>(&known), given, std::min(size, sizeof(T)));
  known.size = sizeof(T);
  return known;
}

template <class Enum>
Enum or_default(std::int32_t value, Enum fallback) {
  return value == 0 ? fallback : static_cast<Enum>(value);
}

linattn::Problem from_c(const linattn_problem* given) {
  using namespace linattn;  // NOLINT
  const linattn_problem c = read(given, "problem");
  Problem p;
  p.op = {static_cast<Gate>(c.gate), static_cast<Update>(c.update)};
  p.dtype = or_default(c.dtype, p.dtype);
  p.max_tokens = c.max_tokens;
  p.max_sequences = c.max_sequences;
  p.heads = c.heads;
  p.value_heads = c.value_heads;
  p.key_dim = c.key_dim;
  p.value_dim = c.value_dim;
  p.gate_input = static_cast<GateInput>(c.gate_input);
  p.gate_dtype = or_default(c.gate_dtype, p.gate_dtype);
  p.beta_input = static_cast<BetaInput>(c.beta_input);
  p.beta_dtype = or_default(c.beta_dtype, p.beta_dtype);
  p.qk_l2norm = c.qk_l2norm != 0;
  p.state_layout = static_cast<StateLayout>(c.state_layout);
  p.state_dtype = or_default(c.state_dtype, p.state_dtype);
  p.checkpoint_dtype = static_cast<DType>(c.checkpoint_dtype);
  p.checkpoint_interval =
      c.checkpoint_interval == 0 ? p.checkpoint_interval : c.checkpoint_interval;
  p.save_for_backward = c.save_for_backward != 0;
  p.batch_invariant = c.batch_invariant != 0;
  p.sm_limit = c.sm_limit;
  p.conv_width = c.conv_width;
  p.conv_activation = static_cast<Activation>(c.conv_activation);
  p.conv_dtype = static_cast<DType>(c.conv_dtype);
  p.conv_state_dtype = static_cast<DType>(c.conv_state_dtype);
  p.norm_gate = static_cast<Activation>(c.norm_gate);
  p.norm_dtype = static_cast<DType>(c.norm_dtype);
  return p;
}

linattn::Device from_c(linattn_device device) {
  return {static_cast<linattn::Device::Type>(device.type), device.index};
}

std::string or_empty(const char* text) {
  return text == nullptr ? std::string() : std::string(text);
}

const linattn_plan& deref(const linattn_plan* plan) {
  if (plan == nullptr) throw_invalid("plan is null; expected a plan");
  return *plan;
}

template <class Args>
linattn_status run(const linattn_plan* plan, const Args* args, linattn_workspace workspace,
                   void* stream) {
  return guarded([&] {
    deref(plan).run(read(args, "args"), workspace, static_cast<linattn::Stream>(stream));
  });
}

template <class Args>
const char* name_at(std::int32_t index) {
  const auto table = linattn::implementation_table<Args>();
  if (index < 0 || static_cast<std::size_t>(index) >= table.size()) return nullptr;
  return table[static_cast<std::size_t>(index)]->name;
}

}  // namespace

const char* linattn_last_error(void) { return last_error.c_str(); }

const char* linattn_version(void) {
  return LINATTN_VERSION_TEXT(LINATTN_VERSION_MAJOR, LINATTN_VERSION_MINOR, LINATTN_VERSION_PATCH);
}

linattn_status linattn_plan_create(const linattn_problem* problem, linattn_device device,
                                   int32_t pass, const char* implementation, linattn_plan** plan) {
  return guarded([&] {
    if (plan == nullptr) throw_invalid("plan is null; expected where to put the handle");
    *plan = nullptr;
    *plan = new linattn_plan(from_c(problem), from_c(device), static_cast<linattn::Pass>(pass),
                             or_empty(implementation));
  });
}

linattn_status linattn_plan_create_backward(const linattn_plan* forward, const char* implementation,
                                            linattn_plan** plan) {
  return guarded([&] {
    if (plan == nullptr) throw_invalid("plan is null; expected where to put the handle");
    *plan = nullptr;
    *plan = new linattn_plan(deref(forward), or_empty(implementation));
  });
}

void linattn_plan_retain(linattn_plan* plan) {
  if (plan != nullptr) plan->references.fetch_add(1, std::memory_order_relaxed);
}

void linattn_plan_release(linattn_plan* plan) {
  if (plan != nullptr && plan->references.fetch_sub(1, std::memory_order_acq_rel) == 1) delete plan;
}

const char* linattn_plan_implementation(const linattn_plan* plan) {
  if (plan == nullptr) return "";
  return std::visit([](const auto& chosen) { return chosen.rows.front()->name; }, plan->rows);
}

linattn_status linattn_workspace_bytes(const linattn_plan* plan, int64_t tokens, int64_t sequences,
                                       size_t* bytes) {
  return guarded([&] { *bytes = deref(plan).workspace_bytes({tokens, sequences}); });
}

linattn_status linattn_saved_bytes(const linattn_plan* plan, int64_t coefficients[3]) {
  return guarded([&] {
    const auto c = deref(plan).saved_coefficients();
    std::copy(c.begin(), c.end(), coefficients);
  });
}

linattn_status linattn_forward(const linattn_plan* plan, const linattn_forward_args* args,
                               linattn_workspace workspace, void* stream) {
  return run(plan, args, workspace, stream);
}

linattn_status linattn_backward(const linattn_plan* plan, const linattn_backward_args* args,
                                linattn_workspace workspace, void* stream) {
  return run(plan, args, workspace, stream);
}

linattn_status linattn_step(const linattn_plan* plan, const linattn_step_args* args,
                            linattn_workspace workspace, void* stream) {
  return run(plan, args, workspace, stream);
}

linattn_status linattn_explain(const linattn_problem* problem, linattn_device device, int32_t pass,
                               const char** text) {
  return guarded([&] {
    explanation =
        linattn::explain_problem(from_c(problem), from_c(device), static_cast<linattn::Pass>(pass));
    *text = explanation.c_str();
  });
}

linattn_status linattn_plan_explain(const linattn_plan* plan, const void* args, const char** text) {
  return guarded([&] {
    const linattn_plan& p = deref(plan);
    explanation = std::visit(
        [&]<class Args>(const linattn::Rows<Args>&) {
          return p.explain(read(static_cast<const Args*>(args), "args"));
        },
        p.rows);
    *text = explanation.c_str();
  });
}

linattn_status linattn_commit_problem(const linattn_problem* problem, linattn_problem* commit) {
  return guarded([&] {
    if (commit == nullptr) throw_invalid("commit is null; expected where to put the problem");
    // As much as the caller's struct holds.
    const std::size_t size = commit->size;
    if (size < offsetof(linattn_problem, max_sequences))
      throw_invalid("commit.size is " + std::to_string(size) +
                    "; expected sizeof(linattn_problem)");
    linattn_problem made = linattn::to_c(linattn::commit_problem(from_c(problem)));
    made.size = size;
    std::memcpy(static_cast<void*>(commit), &made, std::min(size, sizeof made));
  });
}

const char* linattn_implementation_name(int32_t pass, int32_t index) {
  switch (pass) {
    case LINATTN_FORWARD:
      return name_at<linattn::ForwardArgs>(index);
    case LINATTN_BACKWARD:
      return name_at<linattn::BackwardArgs>(index);
    case LINATTN_STEP:
      return name_at<linattn::StepArgs>(index);
    default:
      return nullptr;
  }
}

linattn_status linattn_set_threads(int32_t threads) {
  return guarded([&] {
    if (threads < 0)
      throw_invalid("threads is " + std::to_string(threads) +
                    "; expected 0 (one per core) or more");
    linattn::cpu::set_threads(threads);
  });
}
