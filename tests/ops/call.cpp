// SPDX-License-Identifier: Apache-2.0
#include "ops/call.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace linattn::test {
namespace {

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

}  // namespace

const Output& output(const Results& results, const std::string& name) {
  for (const Output& one : results)
    if (one.name == name) return one;
  throw std::logic_error("no output " + name);
}

std::string difference(const Results& a, const Results& b) {
  for (const Output& mine : a) {
    const Output& theirs = output(b, mine.name);
    if (mine.values.size() != theirs.values.size()) return mine.name + ": other size";
    for (std::size_t i = 0; i < mine.values.size(); ++i)
      if (std::memcmp(&mine.values[i], &theirs.values[i], sizeof(float)) != 0)
        return mine.name + "[" + std::to_string(i) + "]: " + std::to_string(mine.values[i]) +
               " against " + std::to_string(theirs.values[i]);
  }
  return "";
}

Guarded& Call::buffer(const std::string& name, std::size_t bytes, bool owned) {
  buffers_.push_back(std::make_unique<Guarded>(memory_, name, bytes, poison_, owned));
  return *buffers_.back();
}

template <class T>
const T* Call::indices(const std::string& name, const std::vector<T>& values) {
  if (values.empty()) return nullptr;
  Guarded& b = buffer(name, values.size() * sizeof(T));
  b.put_bytes(0, values.data(), values.size() * sizeof(T));
  return static_cast<const T*>(b.data());
}

const float* Call::floats(const std::string& name, const std::vector<float>& values) {
  return indices(name, values);
}

Call::Layout Call::layout(std::int64_t heads, std::int64_t dim) const {
  const bool dense = !s_.variable_length;
  const std::int64_t n = dense ? s_.sequences() : 1;
  const std::int64_t length = n == 0 ? 0 : s_.tokens() / n;
  Layout l{};
  l.base = s_.has(kUnaligned) ? 1 : 0;
  const std::int64_t row = dim + (s_.has(kPadded) ? 3 : 0);
  if (s_.has(kHeadMajor)) {
    l.token = row;
    l.head = length * row;
    l.sequence = heads * l.head;
  } else {
    l.head = row;
    l.token = heads * row + (s_.has(kPadded) ? 5 : 0);
    l.sequence = (length + (s_.has(kSlice) ? 7 : 0)) * l.token;
  }
  l.elements = length == 0 ? 0
                           : l.base + (n - 1) * l.sequence + (length - 1) * l.token +
                                 (heads - 1) * l.head + dim;
  if (!dense) l.sequence = 0;
  return l;
}

std::int64_t Call::element(const Placed& t, std::int64_t row, std::int64_t head) const {
  const std::int64_t length = s_.variable_length ? s_.tokens() : s_.tokens() / s_.sequences();
  return t.layout.base + row / length * t.layout.sequence + row % length * t.layout.token +
         head * t.layout.head;
}

Tensor Call::view(const Placed& t) const {
  return {t.buffer->at(t.dtype, t.layout.elements == 0 ? 0 : t.layout.base), t.layout.sequence,
          t.layout.token, t.layout.head};
}

void Call::fill(const Placed& t, const std::vector<float>& values) {
  std::size_t i = 0;
  for (std::int64_t row = 0; row < s_.tokens(); ++row)
    for (std::int64_t head = 0; head < t.heads; ++head)
      for (std::int64_t c = 0; c < t.dim; ++c)
        t.buffer->put(t.dtype, element(t, row, head) + c, values.at(i++));
}

Tensor Call::input(const std::string& name, DType dtype, const std::vector<float>& values,
                   std::int64_t heads, std::int64_t dim) {
  const Layout l = layout(heads, dim);
  Guarded& b = buffer(name, index(l.elements) * size_of(dtype));
  const Placed placed{&b, dtype, l, heads, dim};
  fill(placed, values);
  return view(placed);
}

Tensor Call::output_tensor(const std::string& name, Kind kind, DType dtype, std::int64_t heads,
                           std::int64_t dim) {
  const Layout l = layout(heads, dim);
  Guarded& b = buffer(name, index(l.elements) * size_of(dtype));
  const Placed placed{&b, dtype, l, heads, dim};
  for (std::int64_t row = 0; row < s_.tokens(); ++row)
    for (std::int64_t head = 0; head < heads; ++head) b.own(dtype, element(placed, row, head), dim);
  Pending pending;
  pending.output = {name, kind, dtype, {}, heads * dim};
  pending.tensor = placed;
  pending_.push_back(pending);
  return view(placed);
}

float* Call::output_floats(const std::string& name, std::int64_t count) {
  Guarded& b = buffer(name, index(count) * sizeof(float), true);
  Pending pending;
  pending.output = {name, Kind::kGradient, DType::kFloat32, std::vector<float>(index(count)), 0};
  pending.plain = &b;
  pending_.push_back(pending);
  return static_cast<float*>(b.data());
}

Call::PlacedState Call::place_state(const std::string& name, DType dtype, std::int64_t slots,
                                    std::int64_t rows, std::int64_t columns, bool transposed) {
  // Pools of engines keep the alignment of rows; some rows want it.
  const std::int64_t past = s_.has(kPadded) ? 7 : s_.has(kSlots) ? 8 : 0;
  PlacedState s{nullptr, dtype, s_.has(kUnaligned) ? 1 : 0, 0, 0, rows, columns, transposed};
  s.head_stride = rows * columns + past;
  s.slot_stride = s_.value_heads() * s.head_stride + 3 * past;
  const std::int64_t elements = slots == 0
                                    ? 0
                                    : s.base + (slots - 1) * s.slot_stride +
                                          (s_.value_heads() - 1) * s.head_stride + rows * columns;
  s.buffer = &buffer(name, index(elements) * size_of(dtype));
  return s;
}

std::int64_t Call::element(const PlacedState& s, std::int64_t slot, std::int64_t head,
                           std::int64_t row, std::int64_t column) const {
  return s.base + slot * s.slot_stride + head * s.head_stride +
         (s.transposed ? column * s.rows + row : row * s.columns + column);
}

State Call::view(const PlacedState& s, std::int64_t slots) const {
  return {s.buffer->at(s.dtype, s.buffer->bytes() == 0 ? 0 : s.base), slots, s.slot_stride,
          s.head_stride};
}

State Call::input_state(const std::string& name, const std::vector<float>& values,
                        std::int64_t slots) {
  const PlacedState placed = place_state(name, p_.state_dtype, slots, p_.key_dim, p_.value_dim,
                                         p_.state_layout == StateLayout::kValueKey);
  std::size_t i = 0;
  for (std::int64_t slot = 0; slot < slots; ++slot)
    for (std::int64_t head = 0; head < s_.value_heads(); ++head)
      for (std::int64_t row = 0; row < p_.key_dim; ++row)
        for (std::int64_t column = 0; column < p_.value_dim; ++column)
          placed.buffer->put(placed.dtype, element(placed, slot, head, row, column),
                             values.at(i++));
  if (name == "initial_state") initial_ = placed;
  return view(placed, slots);
}

State Call::output_state(const std::string& name, Kind kind, PlacedState placed, std::int64_t slots,
                         std::vector<std::int64_t> entries) {
  for (const std::int64_t slot : entries)
    if (slot >= 0)
      for (std::int64_t head = 0; head < s_.value_heads(); ++head)
        placed.buffer->own(placed.dtype,
                           placed.base + slot * placed.slot_stride + head * placed.head_stride,
                           placed.rows * placed.columns);
  Pending pending;
  pending.output = {name, kind, placed.dtype, {}, 0};
  pending.state = placed;
  pending.slots = std::move(entries);
  pending_.push_back(pending);
  return view(placed, slots);
}

// By sequence, or with write columns by token.
std::vector<std::int64_t> Call::stored_slots() const {
  std::vector<std::int64_t> entries;
  for (std::int64_t n = 0; n < s_.sequences(); ++n) {
    const std::int64_t count = in_.write_columns > 0 ? s_.lengths[index(n)] : 1;
    for (std::int64_t t = 0; t < count; ++t) entries.push_back(stored_in(s_, in_, n, t));
  }
  return entries;
}

void Call::packed_qkv(Tensor& q, Tensor& k, Tensor& v) {
  const std::int64_t hk = static_cast<std::int64_t>(p_.heads) * p_.key_dim;
  const std::int64_t hv = s_.value_heads() * p_.value_dim;
  Layout l = layout(1, 2 * hk + hv + 3);
  Guarded& b = buffer("qkv", index(l.elements) * size_of(p_.dtype));
  const auto part = [&](const std::vector<float>& values, std::int64_t offset, std::int64_t heads,
                        std::int64_t dim) {
    Placed placed{&b, p_.dtype, l, heads, dim};
    placed.layout.base += offset;
    placed.layout.head = dim;
    fill(placed, values);
    return view(placed);
  };
  q = part(in_.q, 0, p_.heads, p_.key_dim);
  k = part(in_.k, hk, p_.heads, p_.key_dim);
  v = part(in_.v, 2 * hk, s_.value_heads(), p_.value_dim);
}

template <class Args>
void Call::fill_inputs(Args& a) {
  const std::int64_t hv = s_.value_heads();
  a.tokens = s_.tokens();
  a.sequences = s_.sequences();
  if (s_.variable_length) {
    std::vector<std::int64_t> offsets{0};
    for (const std::int64_t length : s_.lengths) offsets.push_back(offsets.back() + length);
    if (s_.has(kInt64)) {
      a.cu_seqlens = indices("cu_seqlens", offsets);
      a.cu_seqlens_dtype = LINATTN_INT64;
    } else {
      a.cu_seqlens =
          indices("cu_seqlens", std::vector<std::int32_t>(offsets.begin(), offsets.end()));
    }
  }
  a.scale = s_.scale;
  a.lower_bound = s_.lower_bound;
  a.first_slot = in_.first_slot;
  if (s_.has(kPackedQkv)) {
    packed_qkv(a.q, a.k, a.v);
  } else {
    a.q = input("q", p_.dtype, in_.q, p_.heads, p_.key_dim);
    a.k = input("k", p_.dtype, in_.k, p_.heads, p_.key_dim);
    a.v = input("v", p_.dtype, in_.v, hv, p_.value_dim);
  }
  if (p_.op.gate == Gate::kHeadConstant) {
    Guarded& b = buffer("g", index(hv) * size_of(p_.gate_dtype));
    for (std::int64_t h = 0; h < hv; ++h) b.put(p_.gate_dtype, h, in_.g.at(index(h)));
    a.g = {b.data(), 0, 0, 1};
  } else if (p_.op.gate != Gate::kNone) {
    a.g = input("g", p_.gate_dtype, in_.g, hv, s_.gate_dim());
  }
  if (p_.op.update == Update::kDelta && p_.beta_input != BetaInput::kOne)
    a.beta = input("beta", p_.beta_dtype, in_.beta, hv, 1);
  if (p_.op.update == Update::kEraseWrite) {
    a.erase = input("erase", p_.beta_dtype, in_.erase, hv, p_.key_dim);
    a.write = input("write", p_.beta_dtype, in_.write, hv, p_.value_dim);
  }
  a.a_log = floats("a_log", in_.a_log);
  a.dt_bias = floats("dt_bias", in_.dt_bias);
  if (in_.initial_slots > 0)
    a.initial_state = input_state("initial_state", in_.initial, in_.initial_slots);
  a.read_slots = indices("read_slots", in_.read_slots);
  a.has_initial_state = indices("has_initial_state", in_.has_initial);
}

template <class Args>
void Call::state_outputs(Args& a) {
  a.out = output_tensor("out", Kind::kOut, p_.dtype, s_.value_heads(), p_.value_dim);
  if (in_.final_slots == 0) return;
  const bool in_place = s_.has(kInPlace) && initial_.buffer != nullptr;
  const PlacedState placed =
      in_place ? initial_
               : place_state("final_state", p_.state_dtype, in_.final_slots, p_.key_dim,
                             p_.value_dim, p_.state_layout == StateLayout::kValueKey);
  a.final_state =
      output_state("final_state", Kind::kState, placed, in_.final_slots, stored_slots());
  a.write_slots = indices("write_slots", in_.write_slots);
}

void Call::fill_forward(std::size_t saved_bytes) {
  fill_inputs(forward);
  state_outputs(forward);
  if (saved_bytes > 0) forward.saved = buffer("saved", saved_bytes, true).data();
  if (s_.pass != Pass::kForward) return;
  forward.start_positions = indices("start_positions", in_.start_positions);
  if (!in_.checkpoint_offsets.empty()) {
    std::vector<std::int64_t> entries;
    for (std::int64_t n = 0; n < s_.sequences(); ++n)
      for (std::int64_t i = in_.checkpoint_offsets[index(n)];
           i < in_.checkpoint_offsets[index(n + 1)]; ++i)
        entries.push_back(checkpoint_written(s_, in_, n, i) ? in_.checkpoint_slots[index(i)] : -1);
    const DType dtype = p_.checkpoint_dtype == DType::kUnset ? p_.state_dtype : p_.checkpoint_dtype;
    const PlacedState placed = place_state("checkpoints", dtype, in_.checkpoint_pool, p_.key_dim,
                                           p_.value_dim, p_.state_layout == StateLayout::kValueKey);
    forward.checkpoints =
        output_state("checkpoints", Kind::kState, placed, in_.checkpoint_pool, std::move(entries));
    forward.checkpoint_offsets = indices("checkpoint_offsets", in_.checkpoint_offsets);
    forward.checkpoint_positions = indices("checkpoint_positions", in_.checkpoint_positions);
    forward.checkpoint_slots = indices("checkpoint_slots", in_.checkpoint_slots);
  }
  if (s_.has(kTransition)) {
    std::vector<std::int64_t> entries;
    for (std::int64_t n = 0; n < s_.sequences(); ++n) entries.push_back(n);
    const PlacedState placed =
        place_state("transition", DType::kFloat32, s_.sequences(), p_.key_dim, p_.key_dim, false);
    forward.transition =
        output_state("transition", Kind::kState, placed, s_.sequences(), std::move(entries));
  }
}

void Call::fill_backward() {
  const std::int64_t hv = s_.value_heads();
  const bool all = !s_.has(kSomeGradients);
  BackwardArgs& a = backward;
  // The same input buffers as the forward call's.
  a.tokens = forward.tokens, a.sequences = forward.sequences;
  a.cu_seqlens = forward.cu_seqlens, a.cu_seqlens_dtype = forward.cu_seqlens_dtype;
  a.scale = forward.scale, a.lower_bound = forward.lower_bound, a.first_slot = forward.first_slot;
  a.q = forward.q, a.k = forward.k, a.v = forward.v, a.g = forward.g, a.beta = forward.beta;
  a.erase = forward.erase, a.write = forward.write;
  a.a_log = forward.a_log, a.dt_bias = forward.dt_bias;
  a.initial_state = forward.initial_state, a.read_slots = forward.read_slots;
  a.has_initial_state = forward.has_initial_state;
  a.saved = forward.saved;
  pending_.clear();  // the forward's outputs are not this pass's
  if (!in_.dout.empty()) a.dout = input("dout", p_.dtype, in_.dout, hv, p_.value_dim);
  if (!in_.dfinal.empty()) a.dfinal_state = input_state("dfinal_state", in_.dfinal, s_.sequences());
  a.dk = output_tensor("dk", Kind::kGradient, p_.dtype, p_.heads, p_.key_dim);
  if (p_.op.gate == Gate::kHeadConstant) {
    Guarded& b = buffer("dg", index(hv) * size_of(p_.gate_dtype), true);
    Pending pending;
    pending.output = {"dg", Kind::kGradient, p_.gate_dtype, std::vector<float>(index(hv)), 0};
    pending.plain = &b;
    pending_.push_back(pending);
    a.dg = {b.data(), 0, 0, 1};
  } else if (p_.op.gate != Gate::kNone) {
    a.dg = output_tensor("dg", Kind::kGradient, p_.gate_dtype, hv, s_.gate_dim());
  }
  if (!all) return;
  a.dq = output_tensor("dq", Kind::kGradient, p_.dtype, p_.heads, p_.key_dim);
  a.dv = output_tensor("dv", Kind::kGradient, p_.dtype, hv, p_.value_dim);
  if (a.beta.data != nullptr)
    a.dbeta = output_tensor("dbeta", Kind::kGradient, p_.beta_dtype, hv, 1);
  if (a.erase.data != nullptr) {
    a.derase = output_tensor("derase", Kind::kGradient, p_.beta_dtype, hv, p_.key_dim);
    a.dwrite = output_tensor("dwrite", Kind::kGradient, p_.beta_dtype, hv, p_.value_dim);
  }
  if (a.a_log != nullptr) a.da_log = output_floats("da_log", hv);
  if (a.dt_bias != nullptr)
    a.ddt_bias = output_floats("ddt_bias", static_cast<std::int64_t>(in_.dt_bias.size()));
  if (a.initial_state.data != nullptr) {
    std::vector<std::int64_t> entries;
    for (std::int64_t n = 0; n < s_.sequences(); ++n) entries.push_back(n);
    const PlacedState placed =
        place_state("dinitial_state", p_.state_dtype, s_.sequences(), p_.key_dim, p_.value_dim,
                    p_.state_layout == StateLayout::kValueKey);
    a.dinitial_state =
        output_state("dinitial_state", Kind::kGradient, placed, s_.sequences(), std::move(entries));
  }
}

void Call::fill_step() {
  fill_inputs(step);
  state_outputs(step);
  step.read_slot_stride = in_.read_columns;
  step.accepted = indices("accepted", in_.accepted);
  step.write_slot_stride = in_.write_columns;
  step.parents = indices("parents", in_.parents);
}

Call::Call(const Scenario& scenario, const Inputs& inputs, Memory& memory, Poison poison,
           std::size_t saved_bytes)
    : s_(scenario), p_(scenario.problem), in_(inputs), memory_(memory), poison_(poison) {
  if (s_.pass == Pass::kStep) {
    fill_step();
  } else {
    fill_forward(saved_bytes);
    if (s_.pass == Pass::kBackward) fill_backward();
  }
  for (const auto& b : buffers_) b->upload();
}

std::string Call::fetch() {
  std::string fault;
  for (const auto& b : buffers_) {
    const std::string found = b->fetch();
    if (fault.empty()) fault = found;
  }
  return fault;
}

Results Call::results() {
  Results all;
  for (Pending& pending : pending_) {
    Output out = pending.output;
    if (pending.plain != nullptr) {
      for (std::size_t i = 0; i < out.values.size(); ++i)
        out.values[i] = pending.plain->get(out.dtype, static_cast<std::int64_t>(i));
    } else if (pending.tensor.buffer != nullptr) {
      const Placed& t = pending.tensor;
      for (std::int64_t row = 0; row < s_.tokens(); ++row)
        for (std::int64_t head = 0; head < t.heads; ++head)
          for (std::int64_t c = 0; c < t.dim; ++c)
            out.values.push_back(t.buffer->get(t.dtype, element(t, row, head) + c));
    } else {
      const PlacedState& s = pending.state;
      for (const std::int64_t slot : pending.slots)
        for (std::int64_t head = 0; head < s_.value_heads(); ++head)
          for (std::int64_t row = 0; row < s.rows; ++row)
            for (std::int64_t column = 0; column < s.columns; ++column)
              out.values.push_back(
                  slot < 0 ? 0.f : s.buffer->get(s.dtype, element(s, slot, head, row, column)));
    }
    all.push_back(std::move(out));
  }
  return all;
}

}  // namespace linattn::test
