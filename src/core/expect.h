// SPDX-License-Identifier: Apache-2.0
//
// What checks are made of. Each throws Error(kInvalidArgument) with a sentence that names the
// argument, what came and what was expected.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <sstream>
#include <string>

#include "core/check.h"
#include "core/dtype.h"
#include "linattn/plan.h"

namespace linattn::checks {

inline std::string number(double value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

// The name of an argument: its parts, put together only for the sentence of a check that fails.
struct Name {
  const char* base;
  const char* field = "";
  std::int64_t index = -1;

  Name(const char* name) : base(name) {}  // NOLINT: a plain name is a Name
  Name(const char* name, const char* part) : base(name), field(part) {}
  Name(const char* name, std::int64_t i) : base(name), index(i) {}
  std::string text() const {
    return index < 0 ? std::string(base) + field
                     : std::string(base) + "[" + std::to_string(index) + "]";
  }
};

// What was expected: words, or a callable that makes them.
inline std::string words(const char* text) { return text; }
template <class Make>
std::string words(const Make& make) {
  return make();
}

[[noreturn]] inline void refuse(const Name& name, const std::string& got,
                                const std::string& expected) {
  throw_invalid(name.text() + " is " + got + "; expected " + expected);
}

template <class Expected>
void expect(bool holds, const Name& name, std::int64_t got, const Expected& expected) {
  if (!holds) refuse(name, std::to_string(got), words(expected));
}

inline void expect_float(const char* field, DType dtype) {
  if (dtype != DType::kBFloat16 && dtype != DType::kFloat16 && dtype != DType::kFloat32)
    refuse({"problem.", field}, to_string(dtype), "bf16, fp16 or fp32");
}

template <class Enum>
void expect_enum(const char* field, Enum value, int last, const char* expected) {
  const auto code = static_cast<std::int64_t>(value);
  expect(code >= 1 && code <= last, {"problem.", field}, code, expected);
}

template <class Why>
void present(const void* data, const Name& name, const Why& why) {
  if (data == nullptr) refuse(name, "absent", "a pointer, since " + words(why));
}

template <class Why>
void absent(const void* data, const Name& name, const Why& why) {
  if (data != nullptr) refuse(name, "given", "none, since " + words(why));
}

// alignment is a power of two.
inline void aligned(const void* data, const Name& name, std::size_t alignment) {
  const auto past = reinterpret_cast<std::uintptr_t>(data) & (alignment - 1);
  if (past != 0)
    refuse(name,
           "at an address that is " + std::to_string(past) + " more than a multiple of " +
               std::to_string(alignment),
           "alignment to its element, " + std::to_string(alignment) + " bytes");
}

// One axis of a tensor that is written: no two elements may share an address.
struct Axis {
  const char* name;
  std::int64_t count, stride;
};

template <std::size_t kAxes>
void no_overlap(const char* name, std::int64_t inner, std::array<Axis, kAxes> axes) {
  std::sort(axes.begin(), axes.end(),
            [](const Axis& a, const Axis& b) { return a.stride < b.stride; });
  std::int64_t extent = inner;  // elements that the axes so far span
  for (const Axis& axis : axes) {
    if (axis.count <= 1) continue;
    expect(axis.stride >= extent, {name, axis.name}, axis.stride, [&] {
      return "at least " + std::to_string(extent) + ", since its " + std::to_string(axis.count) +
             " rows are written and must not overlap";
    });
    extent = axis.stride * (axis.count - 1) + extent;
  }
}

// Of a tensor over tokens, of which there are some.
inline void strides(const Tensor& t, const char* name, DType dtype) {
  present(t.data, name, "there are tokens");
  aligned(t.data, name, size_of(dtype));
  expect(t.sequence_stride >= 0, {name, ".sequence_stride"}, t.sequence_stride, "0 or more");
  expect(t.token_stride >= 0, {name, ".token_stride"}, t.token_stride, "0 or more");
  expect(t.head_stride >= 0, {name, ".head_stride"}, t.head_stride, "0 or more");
}

}  // namespace linattn::checks
