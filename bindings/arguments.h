// SPDX-License-Identifier: Apache-2.0
//
// One argument of a call: a DLPack tensor with its name, and the sentences that refuse it.
#pragma once

#include <dlpack/dlpack.h>
#include <tvm/ffi/any.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>
#include <tvm/ffi/string.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>

#include "linattn/linattn.h"

namespace linattn_ffi {

namespace ffi = tvm::ffi;
using linattn::DType;

inline constexpr std::size_t kAlignment = 256;  // of a workspace

[[noreturn]] inline void raise(const char* kind, const std::string& text) {
  throw ffi::Error(kind, text, "");
}
[[noreturn]] inline void invalid(const std::string& text) {
  raise("ValueError", "linattn: " + text);
}

// ---- one argument ----

inline std::string text_of(DLDataType type) {
  if (type.code == kDLBool) return "bool";
  if (type.code == kDLBfloat && type.bits == 16) return "bfloat16";
  const char* kind = type.code == kDLFloat  ? "float"
                     : type.code == kDLInt  ? "int"
                     : type.code == kDLUInt ? "uint"
                                            : "?";
  return kind + std::to_string(type.bits);
}

inline std::string text_of(DType type) {
  const char* names[] = {"unset", "bfloat16", "float16", "float32", "int32", "int64"};
  return names[static_cast<int>(type)];
}

inline DType dtype_of(DLDataType type) {
  if (type.lanes != 1) return DType::kUnset;
  if (type.code == kDLBfloat && type.bits == 16) return DType::kBFloat16;
  if (type.code == kDLFloat && type.bits == 16) return DType::kFloat16;
  if (type.code == kDLFloat && type.bits == 32) return DType::kFloat32;
  if (type.code == kDLInt && type.bits == 32) return DType::kInt32;
  if (type.code == kDLInt && type.bits == 64) return DType::kInt64;
  return DType::kUnset;
}

inline std::string text_of(const std::int64_t* shape, int dims) {
  std::string text = "[";
  for (int i = 0; i < dims; ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

// A tensor argument, or its absence. Zero elements may come with a null pointer, which the C API
// reads as absent.
struct Array {
  alignas(kAlignment) static inline unsigned char nothing[kAlignment];

  const char* name = "";
  void* data = nullptr;
  DLDataType type{};
  DLDevice device{};
  int dims = 0;
  bool present = false;
  const std::int64_t* shape = nullptr;  // the caller's
  const std::int64_t* stride = nullptr;

  explicit operator bool() const { return present; }
  std::int64_t size() const {
    std::int64_t n = 1;
    for (int i = 0; i < dims; ++i) n *= shape[i];
    return n;
  }
  std::string shape_text() const { return text_of(shape, dims); }

  void expect_shape(std::initializer_list<std::int64_t> expected, const char* axes) const {
    if (!present) return;
    if (dims == static_cast<int>(expected.size()) &&
        std::equal(expected.begin(), expected.end(), shape))
      return;
    invalid(std::string(name) + " has shape " + shape_text() + "; expected " +
            text_of(expected.begin(), static_cast<int>(expected.size())) + ", " + axes);
  }
  DType expect_float() const {
    const DType got = dtype_of(type);
    if (got == DType::kBFloat16 || got == DType::kFloat16 || got == DType::kFloat32) return got;
    invalid(std::string(name) + " is " + text_of(type) + "; expected bfloat16, float16 or float32");
  }
  void expect_dtype(DType expected, const char* because = "") const {
    if (present && dtype_of(type) != expected)
      invalid(std::string(name) + " is " + text_of(type) + "; expected " + text_of(expected) +
              because);
  }
  void expect_contiguous() const {
    if (!present) return;
    std::int64_t expected = 1;
    for (int i = dims - 1; i >= 0; --i) {
      if (shape[i] != 1 && stride[i] != expected && size() != 0)
        invalid(std::string(name) + " has strides " + text_of(stride, dims) + " for shape " +
                shape_text() + "; expected a contiguous tensor");
      expected *= shape[i];
    }
  }
  void expect_last_axis_dense() const {
    if (present && dims > 0 && shape[dims - 1] > 1 && stride[dims - 1] != 1 && size() != 0)
      invalid(std::string(name) + " has stride " + std::to_string(stride[dims - 1]) +
              " on its last axis; expected 1 (other axes may have any stride)");
  }
};

// Walks the packed arguments in order. A caller may leave out the last ones: they are absent.
class Reader {
 public:
  Reader(const TVMFFIAny* args, std::int32_t count, std::int32_t most)
      : args_(reinterpret_cast<const ffi::AnyView*>(args)), count_(count) {
    if (count > most)
      raise("RuntimeError", "linattn: the binding was called with " + std::to_string(count) +
                                " arguments and takes " + std::to_string(most) +
                                ": liblinattn_ffi and the Python package differ in version");
  }

  Array array(const char* name) {
    Array a;
    a.name = name;
    const ffi::AnyView arg = next();
    if (arg == nullptr) return a;
    const std::optional<ffi::TensorView> view = arg.try_cast<ffi::TensorView>();
    if (!view)
      raise("TypeError",
            std::string("linattn: ") + name + " is a " + arg.GetTypeKey() + "; expected a tensor");
    a.present = true;
    a.type = view->dtype();
    a.device = view->device();
    a.dims = view->ndim();
    a.shape = view->shape().data();
    a.stride = view->strides().data();
    a.data = static_cast<char*>(view->data_ptr()) + view->byte_offset();
    if (a.size() == 0) a.data = Array::nothing;
    remember_device(a);
    return a;
  }
  std::int64_t integer(std::int64_t absent = 0) {
    const ffi::AnyView arg = next();
    return arg == nullptr ? absent : arg.cast<std::int64_t>();
  }
  double real() { return next().cast<double>(); }
  double real(double absent) {
    const ffi::AnyView arg = next();
    return arg == nullptr ? absent : arg.cast<double>();
  }
  std::string text() {
    const ffi::AnyView arg = next();
    return arg == nullptr ? std::string() : std::string(arg.cast<ffi::String>());
  }
  ffi::Optional<ffi::Function> function() { return next().cast<ffi::Optional<ffi::Function>>(); }

  linattn::Device device() const {
    if (device_.device_type == kDLCUDA) return linattn::Device::cuda(device_.device_id);
    return linattn::Device::cpu();
  }
  DLDevice dl_device() const { return device_; }

 private:
  // All tensors of a call live on one device.
  void remember_device(const Array& a) {
    const bool host = a.device.device_type == kDLCPU || a.device.device_type == kDLCUDAHost;
    if (!host && a.device.device_type != kDLCUDA && a.device.device_type != kDLCUDAManaged)
      invalid(std::string(a.name) + " is on a device of DLPack type " +
              std::to_string(a.device.device_type) + "; expected cpu or cuda");
    const DLDevice device = host ? DLDevice{kDLCPU, 0} : DLDevice{kDLCUDA, a.device.device_id};
    if (first_ == nullptr) {
      first_ = a.name;
      device_ = device;
    } else if (device.device_type != device_.device_type || device.device_id != device_.device_id) {
      const auto text = [](DLDevice d) {
        return d.device_type == kDLCPU ? std::string("cpu") : "cuda:" + std::to_string(d.device_id);
      };
      invalid(std::string(a.name) + " is on " + text(device) + "; expected " + text(device_) +
              ", where " + first_ + " is");
    }
  }

  ffi::AnyView next() { return next_ < count_ ? args_[next_++] : ffi::AnyView(); }

  const ffi::AnyView* args_;
  const int count_;
  int next_ = 0;
  const char* first_ = nullptr;
  DLDevice device_{kDLCPU, 0};
};

}  // namespace linattn_ffi
