// SPDX-License-Identifier: Apache-2.0
//
// Where a test's tensors live, and buffers with guards around them. A device adds a Memory, and
// nothing else changes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/dtype.h"
#include "linattn/linattn.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define LINATTN_POISON(data, bytes) ASAN_POISON_MEMORY_REGION(data, bytes)
#define LINATTN_UNPOISON(data, bytes) ASAN_UNPOISON_MEMORY_REGION(data, bytes)
#else
#define LINATTN_POISON(data, bytes) (static_cast<void>(data), static_cast<void>(bytes))
#define LINATTN_UNPOISON(data, bytes) (static_cast<void>(data), static_cast<void>(bytes))
#endif

namespace linattn::test {

class Memory {
 public:
  virtual ~Memory() = default;
  virtual Device device() const = 0;
  // Bytes before and behind a buffer that nothing may touch. 0: a tool watches the ends of every
  // allocation, and for reads of what nothing has written, so nothing poisons a workspace then.
  virtual std::size_t guard() const { return 512; }
  // Why a test whose largest buffer, and all of whose buffers, take so much cannot run here; "": it
  // can.
  virtual std::string lacks(std::size_t largest, std::size_t all) const = 0;
  virtual void* allocate(std::size_t bytes) = 0;  // 256-byte aligned
  virtual void release(void* data) = 0;
  virtual void upload(void* to, const void* from, std::size_t bytes) = 0;
  virtual void download(void* to, const void* from, std::size_t bytes) = 0;
  // No access is legal between here and `open`: the guards of a buffer, where a sanitizer can
  // enforce it.
  virtual void close(void*, std::size_t) {}
  virtual void open(void*, std::size_t) {}
  // Runs what enqueues and waits for it. Another mode (replay from a graph) is another Memory.
  virtual void run(const std::function<void(Stream)>& enqueue) = 0;
};

class HostMemory : public Memory {
 public:
  Device device() const override { return Device::cpu(); }
  // What nothing touches costs addresses only.
  std::string lacks(std::size_t largest, std::size_t) const override {
    void* volatile data = std::malloc(largest);  // volatile: an unused pair is no allocation
    std::free(data);
    return data != nullptr ? "" : "no buffer of " + std::to_string(largest >> 30) + " GiB";
  }
  void* allocate(std::size_t bytes) override {
    return std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  }
  void release(void* data) override { std::free(data); }
  void upload(void* to, const void* from, std::size_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }
  void download(void* to, const void* from, std::size_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }
  void close(void* data, std::size_t bytes) override { LINATTN_POISON(data, bytes); }
  void open(void* data, std::size_t bytes) override { LINATTN_UNPOISON(data, bytes); }
  void run(const std::function<void(Stream)>& enqueue) override { enqueue(nullptr); }
};

inline Memory& host() {
  static HostMemory memory;
  return memory;
}

// Where the implementations under test run. The program of device tests replaces it before main.
inline Memory*& memory_under_test() {
  static Memory* memory = &host();
  return memory;
}

// Two poisons: whatever is read by mistake differs between them, so a run under each must give the
// same bits.
enum class Poison { kNaN, kLarge };

inline unsigned char poison_byte(Poison poison, std::size_t index) {
  constexpr unsigned char kLarge[4] = {0xca, 0xf2, 0x49, 0x71};  // 1e30f; as bf16 -8e30 and 1e30
  return poison == Poison::kNaN ? 0xff : kLarge[index % 4];
}

// Guard bytes, the data, guard bytes. The data end exactly where the guard starts. `owned` bytes
// may change in a run.
class Guarded {
 public:
  Guarded(Memory& memory, std::string name, std::size_t bytes, Poison poison, bool owned = false)
      : memory_(memory),
        name_(std::move(name)),
        bytes_(bytes),
        guard_(memory.guard()),
        image_(bytes + 2 * guard_),
        owned_(bytes, owned ? 1 : 0),
        start_(static_cast<unsigned char*>(memory.allocate(image_.size()))) {
    for (std::size_t i = 0; i < image_.size(); ++i) image_[i] = poison_byte(poison, i);
  }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  ~Guarded() {
    memory_.open(start_, image_.size());
    memory_.release(start_);
  }

  const std::string& name() const { return name_; }
  std::size_t bytes() const { return bytes_; }
  void* data() const { return start_ + guard_; }
  void* at(DType dtype, std::int64_t element) const {
    return start_ + guard_ + static_cast<std::size_t>(element) * size_of(dtype);
  }

  void put(DType dtype, std::int64_t element, float value) {
    store(element_address(image_, dtype, element), dtype, 0, value);
  }
  void put_bytes(std::size_t offset, const void* from, std::size_t bytes) {
    if (offset + bytes > bytes_) throw std::logic_error(name_ + ": put past its end");
    if (bytes > 0) std::memcpy(image_.data() + guard_ + offset, from, bytes);
  }
  void own(DType dtype, std::int64_t element, std::int64_t count) {
    const std::size_t size = size_of(dtype);
    for (std::size_t i = 0; i < static_cast<std::size_t>(count) * size; ++i)
      owned_.at(static_cast<std::size_t>(element) * size + i) = 1;
  }
  float get(DType dtype, std::int64_t element) {
    return load(element_address(after_, dtype, element), dtype, 0);
  }

  void upload() {
    memory_.upload(start_, image_.data(), image_.size());
    memory_.close(start_, guard_);
    memory_.close(start_ + guard_ + bytes_, guard_);
  }
  // Fetches what a run left; the first byte that changed and must not have, in words, or "".
  std::string fetch() {
    memory_.open(start_, image_.size());
    after_.resize(image_.size());
    memory_.download(after_.data(), start_, image_.size());
    const auto begin = after_.begin();
    for (auto at = begin;; ++at) {
      at = std::mismatch(at, after_.end(), image_.begin() + (at - begin)).first;
      if (at == after_.end()) break;
      const auto i = static_cast<std::size_t>(at - begin);
      if (i < guard_) return name_ + ": written " + std::to_string(guard_ - i) + " bytes before it";
      if (i >= guard_ + bytes_)
        return name_ + ": written " + std::to_string(i - guard_ - bytes_) + " bytes past its end";
      if (owned_[i - guard_] == 0)
        return name_ + ": byte " + std::to_string(i - guard_) + " of " + std::to_string(bytes_) +
               " changed and is not the call's to write";
    }
    return "";
  }

 private:
  unsigned char* element_address(std::vector<unsigned char>& from, DType dtype,
                                 std::int64_t element) {
    const std::size_t offset = static_cast<std::size_t>(element) * size_of(dtype);
    if (element < 0 || offset + size_of(dtype) > bytes_)
      throw std::logic_error(name_ + ": element " + std::to_string(element) + " is outside");
    return from.data() + guard_ + offset;
  }

  Memory& memory_;
  std::string name_;
  std::size_t bytes_, guard_;
  std::vector<unsigned char> image_, after_;
  std::vector<unsigned char> owned_;  // of each byte: 1 if the call may write it

  unsigned char* start_;
};

}  // namespace linattn::test
