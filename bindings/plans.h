// SPDX-License-Identifier: Apache-2.0
//
// Plans, kept for the next call, and memory for one call.
#pragma once

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/c_env_api.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include "arguments.h"
#include "inputs.h"
#include "linattn/linattn.h"

namespace linattn_ffi {

inline constexpr std::size_t kPlans = 256;  // per pass: layers x buckets of T and N in one process

struct Key {
  linattn::Problem problem;
  linattn::Device device;
  std::string implementation, forward_implementation;
  bool operator==(const Key& other) const {
    return problem == other.problem && device == other.device &&
           implementation == other.implementation &&
           forward_implementation == other.forward_implementation;
  }
};

struct KeyHash {
  std::size_t operator()(const Key& key) const {
    const std::hash<std::string> text;
    return std::hash<linattn::Problem>{}(key.problem) ^
           (static_cast<std::size_t>(key.device.index) << 8) ^
           static_cast<std::size_t>(key.device.type) ^ (text(key.implementation) << 1) ^
           (text(key.forward_implementation) << 2);
  }
};

// The kPlans most recently used plans of a pass.
template <class Args>
class PlanCache {
 public:
  template <class Make>
  std::shared_ptr<const linattn::Plan<Args>> get(const Key& key, Make&& make) {
    {
      const std::lock_guard lock(mutex_);
      if (const auto found = index_.find(key); found != index_.end()) {
        entries_.splice(entries_.begin(), entries_, found->second);
        return found->second->second;
      }
    }
    // Outside the lock: another thread may make the same plan, which is harmless.
    const std::shared_ptr<const linattn::Plan<Args>> plan = make();
    const std::lock_guard lock(mutex_);
    if (index_.find(key) == index_.end()) {
      entries_.emplace_front(key, plan);
      index_.emplace(key, entries_.begin());
      if (entries_.size() > kPlans) {
        index_.erase(entries_.back().first);
        entries_.pop_back();
      }
    }
    return plan;
  }

 private:
  using Entry = std::pair<Key, std::shared_ptr<const linattn::Plan<Args>>>;
  std::mutex mutex_;
  std::list<Entry> entries_;
  std::unordered_map<Key, typename std::list<Entry>::iterator, KeyHash> index_;
};

// Leaked on purpose: a thread may still run while the process ends.
template <class Args>
PlanCache<Args>& plans() {
  static auto* cache = new PlanCache<Args>;
  return *cache;
}

inline const char* pin(const std::string& implementation) {
  return implementation.empty() ? nullptr : implementation.c_str();
}

template <class Args>
std::shared_ptr<const linattn::Plan<Args>> plan(const linattn::Problem& problem,
                                                linattn::Device device,
                                                const std::string& implementation) {
  return plans<Args>().get({problem, device, implementation, {}}, [&] {
    return std::make_shared<const linattn::Plan<Args>>(problem, device, pin(implementation));
  });
}

inline std::shared_ptr<const linattn::BackwardPlan> backward_plan(
    const linattn::Problem& problem, linattn::Device device, const std::string& implementation,
    const std::string& forward_implementation) {
  return plans<linattn::BackwardArgs>().get(
      {problem, device, implementation, forward_implementation}, [&] {
        return std::make_shared<const linattn::BackwardPlan>(
            *plan<linattn::ForwardArgs>(problem, device, forward_implementation),
            pin(implementation));
      });
}

// Bytes from the allocator of the framework whose tensors came: the one that the call brings, else
// the one that the framework registered with tvm-ffi.
class Scratch {
 public:
  Scratch(std::size_t bytes, const ffi::Optional<ffi::Function>& allocate, DLDevice device)
      : bytes_(bytes) {
    if (bytes == 0) return;
    const auto padded = static_cast<std::int64_t>(bytes + kAlignment);
    if (allocate.has_value()) {
      tensor_ = (*allocate)(padded).cast<ffi::Tensor>();
    } else {
      tensor_ = ffi::Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc, ffi::ShapeView(&padded, 1),
                                          DLDataType{kDLUInt, 8, 1}, device);
    }
    data_ = static_cast<char*>(tensor_.data_ptr()) + tensor_.byte_offset();
    const auto address = reinterpret_cast<std::uintptr_t>(data_);
    data_ += (kAlignment - address % kAlignment) % kAlignment;
  }
  char* data() const { return data_; }
  linattn::Workspace workspace() const { return {data_, bytes_}; }

 private:
  std::size_t bytes_;
  char* data_ = nullptr;
  ffi::Tensor tensor_;
};

// `saved` as the library wants it. A framework may move it between forward and backward to an
// address that is aligned differently; on the host an aligned copy serves then (device allocators
// align to 256 bytes and more).
class Saved {
 public:
  Saved(const Array& saved, std::size_t bytes, const Inputs& in, bool read)
      : saved_(saved),
        bytes_(bytes),
        copy_(must_copy(saved, bytes, in) ? bytes : 0, in.allocate, in.reader.dl_device()) {
    if (copy_.data() != nullptr && read) std::memcpy(copy_.data(), saved.data, bytes);
  }
  void* data() const {
    return bytes_ == 0 ? nullptr : copy_.data() != nullptr ? copy_.data() : saved_.data;
  }
  void store() const {
    if (copy_.data() != nullptr) std::memcpy(saved_.data, copy_.data(), bytes_);
  }

 private:
  static bool must_copy(const Array& saved, std::size_t bytes, const Inputs& in) {
    if (bytes == 0) return false;
    saved.expect_contiguous();
    if (!saved || saved.type.bits != 8 || saved.size() < static_cast<std::int64_t>(bytes))
      invalid("saved has " + std::to_string(saved ? saved.size() : 0) + " bytes; expected uint8 [" +
              std::to_string(bytes) + "]");
    return in.reader.dl_device().device_type == kDLCPU &&
           reinterpret_cast<std::uintptr_t>(saved.data) % kAlignment != 0;
  }
  const Array& saved_;
  std::size_t bytes_;
  Scratch copy_;
};

inline linattn::Stream stream_of(DLDevice device) {
  if (device.device_type == kDLCPU) return nullptr;
  return static_cast<linattn::Stream>(TVMFFIEnvGetStream(device.device_type, device.device_id));
}

template <class Args>
inline void run(const linattn::Plan<Args>& plan, const Args& args,
                const ffi::Optional<ffi::Function>& allocate, DLDevice device) {
  const Scratch scratch(plan.workspace_bytes(args.tokens, args.sequences), allocate, device);
  plan.run(args, scratch.workspace(), stream_of(device));
}
template <class Args>
inline void run(const linattn::Plan<Args>& plan, const Args& args, const Inputs& in) {
  run(plan, args, in.allocate, in.reader.dl_device());
}

}  // namespace linattn_ffi
