// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/register.h"

#include <string>

#include "cuda/portable/forward.h"
#include "recurrence/dispatch.h"

namespace linattn::sm90 {

struct OperandSwizzled;
struct OperandDirect;

namespace {

struct Instances {
  static constexpr const char* kName = "sm90.forward";

  static std::string shape_refusal(const Problem& p, Device device) {
    const int capability = cuda::device_info(device.index).capability;
    if (capability != 90)
      return "compute capability is " + std::to_string(capability / 10) + "." +
             std::to_string(capability % 10) + "; compiled for 9.0";
    if (p.dtype != DType::kBFloat16)
      return "dtype is " + std::string(to_string(p.dtype)) + "; compiled for bf16";
    if (p.key_dim > 128)
      return "key_dim is " + std::to_string(p.key_dim) + "; compiled for 1 to 128";
    return {};
  }

  template <class F>
  static void with(const Problem& p, F&& f) {
    with_class(p.op, [&]<class Gate, class Update>(Gate, Update) {
      with_dims<64, 128>("key_dim", p.key_dim <= 64 ? 64 : 128, [&]<int kKeyDim>(Int<kKeyDim>) {
        f(portable::PrepareInstance<OperandSwizzled, kKeyDim, Gate, Update>{},
          portable::ScanInstance<OperandSwizzled, kKeyDim, Update>{});
      });
    });
  }
};

// Additive ops with a gate per head, or none, whose q and k are operands as they came.
struct DirectInstances {
  static constexpr const char* kName = "sm90.direct";

  static std::string shape_refusal(const Problem& p, Device device) {
    if (std::string text = Instances::shape_refusal(p, device); !text.empty()) return text;
    if (p.op.update != Update::kAdd) return "the update is no plain addition; compiled for that";
    if (p.op.gate == Gate::kChannel) return "the gate is per channel; compiled for one per head";
    if (p.qk_l2norm) return "qk_l2norm is set; q and k are taken as they came";
    return {};
  }

  template <class F>
  static void with(const Problem& p, F&& f) {
    with_dims<64, 128>("key_dim", p.key_dim <= 64 ? 64 : 128, [&]<int kKeyDim>(Int<kKeyDim>) {
      f(portable::NoPrepare{}, portable::ScanInstance<OperandDirect, kKeyDim, UpdateAdd>{});
    });
  }
};

}  // namespace

const Implementation<ForwardArgs> kDirectForward = portable::implementation<DirectInstances>();
const Implementation<ForwardArgs> kForward = portable::implementation<Instances>();

}  // namespace linattn::sm90
