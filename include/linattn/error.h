// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>
#include <string>

#include "linattn/c.h"

namespace linattn {
inline namespace v0 {

enum class ErrorCode : linattn_status {
  kInvalidArgument = LINATTN_INVALID_ARGUMENT,
  kUnsupported = LINATTN_UNSUPPORTED,
  kCuda = LINATTN_CUDA_ERROR,
  kInternal = LINATTN_INTERNAL_ERROR,
};

// The only exception the library throws. The text names the argument, what came and what was
// expected.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& text) : std::runtime_error(text), code_(code) {}
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace v0
}  // namespace linattn
