// SPDX-License-Identifier: Apache-2.0
//
// A scenario laid out in guarded memory with the strides that its options ask for, and what a run
// left there.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ops/scenario.h"
#include "support/memory.h"

namespace linattn::test {

enum class Kind { kOut, kState, kGradient };

struct Output {
  std::string name;
  Kind kind;
  DType dtype;
  std::vector<float> values;  // logical order; states [N or stored tokens, HV, K, V]; not stored: 0
  std::int64_t row_width = 0;  // per token; 0: not a tensor over tokens
};

using Results = std::vector<Output>;

const Output& output(const Results& results, const std::string& name);

// Same outputs, same bits. "" or the first difference.
std::string difference(const Results& a, const Results& b);

class Call {
 public:
  Call(const Scenario& scenario, const Inputs& inputs, Memory& memory, Poison poison,
       std::size_t saved_bytes = 0);

  ForwardArgs forward;  // of a forward pass, or the one that a backward follows
  BackwardArgs backward;
  StepArgs step;

  // Fetches all buffers; "" or which byte changed that the call does not own.
  std::string fetch();
  Results results();

 private:
  struct Layout {
    std::int64_t base, sequence, token, head, elements;
  };
  struct Placed {  // a tensor over tokens
    Guarded* buffer;
    DType dtype;
    Layout layout;
    std::int64_t heads, dim;
  };
  struct PlacedState {
    Guarded* buffer;
    DType dtype;
    std::int64_t base, slot_stride, head_stride, rows, columns;
    bool transposed;
  };
  struct Pending {  // an output to read back
    Output output;
    Placed tensor{};
    PlacedState state{};
    std::vector<std::int64_t> slots;  // of a state output, by logical entry; -1: not stored
    Guarded* plain = nullptr;         // a vector of floats
  };

  Guarded& buffer(const std::string& name, std::size_t bytes, bool owned = false);
  template <class T>
  const T* indices(const std::string& name, const std::vector<T>& values);
  const float* floats(const std::string& name, const std::vector<float>& values);
  Layout layout(std::int64_t heads, std::int64_t dim) const;
  std::int64_t element(const Placed& t, std::int64_t row, std::int64_t head) const;
  Tensor view(const Placed& t) const;
  void fill(const Placed& t, const std::vector<float>& values);
  Tensor input(const std::string& name, DType dtype, const std::vector<float>& values,
               std::int64_t heads, std::int64_t dim);
  Tensor output_tensor(const std::string& name, Kind kind, DType dtype, std::int64_t heads,
                       std::int64_t dim);
  float* output_floats(const std::string& name, std::int64_t count);
  PlacedState place_state(const std::string& name, DType dtype, std::int64_t slots,
                          std::int64_t rows, std::int64_t columns, bool transposed);
  std::int64_t element(const PlacedState& s, std::int64_t slot, std::int64_t head, std::int64_t row,
                       std::int64_t column) const;
  State view(const PlacedState& s, std::int64_t slots) const;
  State input_state(const std::string& name, const std::vector<float>& values, std::int64_t slots);
  State output_state(const std::string& name, Kind kind, PlacedState placed, std::int64_t slots,
                     std::vector<std::int64_t> entries);
  std::vector<std::int64_t> stored_slots() const;
  template <class Args>
  void fill_inputs(Args& args);
  void packed_qkv(Tensor& q, Tensor& k, Tensor& v);
  void fill_forward(std::size_t saved_bytes);
  void fill_backward();
  void fill_step();
  template <class Args>
  void state_outputs(Args& args);

  const Scenario& s_;
  const Problem& p_;
  const Inputs& in_;
  Memory& memory_;
  Poison poison_;
  std::vector<std::unique_ptr<Guarded>> buffers_;
  std::vector<Pending> pending_;
  PlacedState initial_{};
};

}  // namespace linattn::test
