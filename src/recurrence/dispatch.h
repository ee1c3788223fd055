// SPDX-License-Identifier: Apache-2.0
//
// The only way from run time to compile time. An unknown value is refused with its number.
//
//   with_class(p.op, [&]<class Gate, class Update>(Gate, Update) { launch<Gate, Update>(...); });
//   with_dims<64, 128>("key_dim", p.key_dim, [&]<int kKeyDim>(Int<kKeyDim>) { ... });
#pragma once

#include <string>
#include <type_traits>
#include <utility>

#include "core/dtype.h"
#include "linattn/error.h"
#include "linattn/op.h"
#include "linattn/problem.h"
#include "recurrence/gate.h"
#include "recurrence/gate_input.h"
#include "recurrence/update.h"

namespace linattn {

template <int kValue>
using Int = std::integral_constant<int, kValue>;

[[noreturn]] inline void refuse_value(const char* name, long long value, const std::string& known) {
  throw Error(ErrorCode::kUnsupported, "linattn: " + std::string(name) + " is " +
                                           std::to_string(value) + "; compiled for " + known);
}

// Ten ops, four compiled classes. f(GateHead{} or GateChannel{}, UpdateAdd{} or UpdateDelta{}).
template <class F>
decltype(auto) with_class(Op op, F&& f) {
  const auto gated = [&](auto gate) -> decltype(auto) {
    switch (op.update) {
      case Update::kAdd:
        return f(gate, UpdateAdd{});
      case Update::kDelta:
      case Update::kEraseWrite:
        return f(gate, UpdateDelta{});
      case Update::kUnset:
        break;
    }
    refuse_value("op.update", static_cast<int>(op.update), "add, delta, erase and write (1 to 3)");
  };
  switch (op.gate) {
    case Gate::kNone:
    case Gate::kHeadConstant:
    case Gate::kHead:
      return gated(GateHead{});
    case Gate::kChannel:
      return gated(GateChannel{});
    case Gate::kUnset:
      break;
  }
  refuse_value("op.gate", static_cast<int>(op.gate), "none, head constant, head, channel (1 to 4)");
}

// The activation of g; an op without a gate has a log decay of 0, whatever the activation.
template <class F>
decltype(auto) with_gate_input(GateInput input, F&& f) {
  switch (input) {
    case GateInput::kLogDecay:
      return f(InputLogDecay{});
    case GateInput::kDecay:
      return f(InputDecay{});
    case GateInput::kSoftplus:
      return f(InputSoftplus{});
    case GateInput::kBounded:
      return f(InputBounded{});
    case GateInput::kUnset:
      break;
  }
  refuse_value("gate_input", static_cast<int>(input),
               "log decay, decay, softplus, bounded (1 to 4)");
}

template <class F>
decltype(auto) with_beta_input(BetaInput input, F&& f) {
  switch (input) {
    case BetaInput::kOne:
      return f(BetaOne{});
    case BetaInput::kValue:
      return f(BetaValue{});
    case BetaInput::kLogit:
      return f(BetaLogit{});
    case BetaInput::kTwiceLogit:
      return f(BetaTwiceLogit{});
    case BetaInput::kUnset:
      break;
  }
  refuse_value("beta_input", static_cast<int>(input), "one, value, logit, twice logit (1 to 4)");
}

// f(T{}), T being the storage type.
template <class F>
decltype(auto) with_dtype(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kBFloat16:
      return f(BFloat16{});
    case DType::kFloat16:
      return f(Float16{});
    case DType::kFloat32:
      return f(float{});
    default:
      break;
  }
  refuse_value("dtype", static_cast<int>(dtype), "bf16, fp16, fp32 (1 to 3)");
}

// f(Int<dim>{}) for the dim among kDims.
template <int... kDims, class F>
void with_dims(const char* name, long long dim, F&& f) {
  static_assert(sizeof...(kDims) > 0);
  if (((dim == kDims && (f(Int<kDims>{}), true)) || ...)) return;
  std::string known;
  ((known += (known.empty() ? "" : ", ") + std::to_string(kDims)), ...);
  refuse_value(name, dim, known);
}

}  // namespace linattn
