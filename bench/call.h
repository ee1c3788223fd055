// SPDX-License-Identifier: Apache-2.0
//
// One call of a case: its problem, its tensors on a machine, and the library's arguments over them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "linattn/linattn.h"
#include "machine.h"
#include "timed_case.h"

namespace linattn::bench {

// How inputs reach the library: all in the case's dtypes, or all in fp32 for the oracle.
enum class Storage : std::uint8_t { kAsTimed, kFp32 };

Problem problem_of(const TimedCase&, Storage storage = Storage::kAsTimed);

class Call {
 public:
  Call(Machine& machine, const TimedCase& c, std::uint64_t seed,
       Storage storage = Storage::kAsTimed);

  const Problem& problem() const { return problem_; }

  // ForwardArgs or StepArgs, by the case's pass.
  template <class Args>
  Args args() const;

  std::int64_t input_bytes() const;
  // What a call must move: every input read once, every output written once.
  std::int64_t traffic_bytes() const;

  // The inputs of another call on this case, by value.
  void take_inputs(const Call& from);
  bool has(const std::string& name) const { return buffers_.contains(name); }
  std::vector<float> values(const std::string& name) const;

 private:
  struct Buffer {
    std::shared_ptr<void> data;
    DType dtype = DType::kUnset;
    std::int64_t count = 0;
    bool read = false, written = false;
    std::int64_t bytes() const;
  };

  void add(const std::string& name, DType dtype, std::int64_t count, Fill fill);
  void add_indices(const std::string& name, const std::vector<std::int32_t>& values);
  void add_output(const std::string& name, DType dtype, std::int64_t count);
  void draft_indices();
  void fused(StepArgs& args) const;
  std::int64_t slots() const;
  std::int64_t slot_stride() const;
  void* data(const std::string& name) const;
  Tensor tensor(const std::string& name, std::int64_t heads, std::int64_t dim) const;
  State state(const std::string& name) const;
  void put(const Buffer& to, const std::vector<float>& values) const;
  std::vector<float> get(const Buffer& from) const;

  Machine& machine_;
  TimedCase case_;
  Problem problem_;
  std::uint64_t seed_;
  std::map<std::string, Buffer> buffers_;
};

}  // namespace linattn::bench
