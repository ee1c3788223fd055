// SPDX-License-Identifier: Apache-2.0
#include "cuda/portable/register.h"

#include <string>

#include "cuda/portable/forward.h"
#include "recurrence/dispatch.h"

namespace linattn::portable {

struct OperandBf16;
struct OperandTf32;  // fp16 problems: bf16 has too few digits for them, fp16 too small a range for
                     // decayed operands

namespace {

struct Instances {
  static constexpr const char* kName = "portable.forward";

  static int padded(int key_dim) { return key_dim <= 64 ? 64 : key_dim <= 128 ? 128 : 256; }

  // K = 256 in fp16 would need more shared memory than any device has.
  static int most_channels(const Problem& p) { return p.dtype == DType::kBFloat16 ? 256 : 128; }

  static std::string shape_refusal(const Problem& p, Device) {
    if (p.dtype == DType::kFloat32) return "dtype is fp32; compiled for bf16, fp16";
    if (p.key_dim > most_channels(p))
      return "key_dim is " + std::to_string(p.key_dim) + "; compiled for 1 to " +
             std::to_string(most_channels(p)) + " in " + to_string(p.dtype);
    return {};
  }

  template <class F>
  static void with(const Problem& p, F&& f) {
    with_class(p.op, [&]<class Gate, class Update>(Gate, Update) {
      const auto with = [&]<class Operand, int kKeyDim>(Int<kKeyDim>, Operand*) {
        f(PrepareInstance<Operand, kKeyDim, Gate, Update>{},
          ScanInstance<Operand, kKeyDim, Update>{});
      };
      if (p.dtype == DType::kBFloat16) {
        with_dims<64, 128, 256>("key_dim", padded(p.key_dim), [&](auto key_dim) {
          with(key_dim, static_cast<OperandBf16*>(nullptr));
        });
      } else {
        with_dims<64, 128>("key_dim", padded(p.key_dim), [&](auto key_dim) {
          with(key_dim, static_cast<OperandTf32*>(nullptr));
        });
      }
    });
  }
};

}  // namespace

const Implementation<ForwardArgs> kForward = implementation<Instances>();

}  // namespace linattn::portable
