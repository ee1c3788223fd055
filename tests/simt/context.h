// SPDX-License-Identifier: Apache-2.0
//
// A stack to run on, and the switch between two of them.
#pragma once

#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <cstddef>
#include <cstdlib>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace simt {

class Context {
 public:
  // The stack of whoever switches away from it.
  Context() = default;
  // body is called at the first switch here and must not return.
  explicit Context(void (*body)()) : bytes_(kBytes), body_(body) {
    stack_ = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (stack_ == MAP_FAILED) std::abort();
  }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  // Returns when somebody switches back to `from`.
  static void change(Context& from, Context& to) {
#if defined(__SANITIZE_ADDRESS__)
    void* fake = nullptr;
    last() = &from;
    __sanitizer_start_switch_fiber(&fake, to.stack_, to.bytes_);
#endif
    if (_setjmp(from.point_) == 0) {
      if (to.body_ == nullptr) _longjmp(to.point_, 1);
      ucontext_t start;
      getcontext(&start);
      start.uc_stack.ss_sp = const_cast<void*>(to.stack_);
      start.uc_stack.ss_size = to.bytes_;
      start.uc_link = nullptr;
      makecontext(&start, enter, 0);
      entered() = &to;
      setcontext(&start);
    }
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake, &last()->stack_, &last()->bytes_);
#endif
  }

 private:
  static constexpr std::size_t kBytes = std::size_t{256} << 10;

  static Context*& entered() {
    static Context* context;
    return context;
  }
#if defined(__SANITIZE_ADDRESS__)
  static Context*& last() {
    static Context* context;
    return context;
  }
#endif
  static void enter() {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &last()->stack_, &last()->bytes_);
#endif
    void (*body)() = entered()->body_;
    entered()->body_ = nullptr;
    body();
    std::abort();
  }

  jmp_buf point_;
  const void* stack_ = nullptr;
  std::size_t bytes_ = 0;
  void (*body_)() = nullptr;  // null: it has begun
};

}  // namespace simt
