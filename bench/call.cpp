// SPDX-License-Identifier: Apache-2.0
#include "call.h"

#include <numeric>
#include <type_traits>
#include <utility>

#include "core/dtype.h"

namespace linattn::bench {
namespace {

using Draw = Fill::Draw;

bool has_activation(const TimedCase& c) {
  return c.gates == kUnbounded ||
         (c.gates == kForget && c.op.gate == Gate::kChannel && c.op.update != Update::kAdd);
}

// g as docs/benchmarks.md defines the settings.
Fill gate_fill(const TimedCase& c) {
  if (c.op.gate == Gate::kHeadConstant)
    return {.draw = Draw::kRamp, .a = 0, .b = -8.0f / static_cast<float>(c.value_heads)};
  if (has_activation(c)) return {.draw = Draw::kNormal};
  if (c.gates == kForget) return {.draw = Draw::kUniform, .a = -1, .b = 0};
  if (c.op.gate == Gate::kHead) return {.draw = Draw::kUniform, .a = -.02f, .b = 0};
  return {.draw = Draw::kLongDecay,
          .a = .001f,
          .b = .1f,
          .channels = std::int64_t{c.value_heads} * c.key_dim};
}

std::int64_t gate_width(const TimedCase& c) {
  return c.op.gate == Gate::kNone ? 0 : c.op.gate == Gate::kChannel ? c.key_dim : 1;
}

}  // namespace

Problem problem_of(const TimedCase& c, Storage storage) {
  const auto stored = [&](DType dtype) {
    return storage == Storage::kFp32 ? DType::kFloat32 : dtype;
  };
  Problem p{.op = c.op,
            .dtype = stored(c.dtype),
            .max_tokens = c.total_tokens(),
            .max_sequences = c.sequences,
            .heads = c.heads,
            .value_heads = c.value_heads,
            .key_dim = c.key_dim,
            .value_dim = c.value_dim,
            .qk_l2norm = c.op.update != Update::kAdd,
            .state_layout = c.layout,
            .state_dtype = stored(c.state_dtype)};
  // Models compute a gate per head in fp32, and hand over one per channel as the other activations.
  p.gate_dtype = stored(c.op.gate == Gate::kChannel ? c.dtype : DType::kFloat32);
  p.beta_dtype = stored(c.dtype);
  if (c.op.gate != Gate::kNone)
    p.gate_input = !has_activation(c)      ? GateInput::kLogDecay
                   : c.gates == kUnbounded ? GateInput::kSoftplus
                                           : GateInput::kBounded;
  if (c.op.update != Update::kAdd) p.beta_input = BetaInput::kLogit;
  if (c.fused) {
    p.conv_width = kConvWidth;
    p.conv_activation = p.norm_gate = Activation::kSilu;
  }
  return c.drafts == Drafts::kCommit ? commit_problem(p) : p;
}

std::int64_t Call::Buffer::bytes() const {
  return count * static_cast<std::int64_t>(size_of(dtype));
}

Call::Call(Machine& machine, const TimedCase& c, std::uint64_t seed, Storage storage)
    : machine_(machine), case_(c), problem_(problem_of(c, storage)), seed_(seed) {
  const Problem& p = problem_;
  const std::int64_t t = c.total_tokens(), hv = c.value_heads;
  if (c.drafts != Drafts::kCommit) add("q", p.dtype, t * c.heads * c.key_dim, {});
  add("k", p.dtype, t * c.heads * c.key_dim, {});
  add("v", p.dtype, t * hv * c.value_dim, {});
  if (c.op.gate != Gate::kNone)
    add("g", p.gate_dtype, (c.op.gate == Gate::kHeadConstant ? 1 : t) * hv * gate_width(c),
        gate_fill(c));
  if (has_activation(c)) {
    add("a_log", DType::kFloat32, hv, {.draw = Draw::kUniform});
    add("dt_bias", DType::kFloat32, hv * gate_width(c), {.draw = Draw::kUniform});
  }
  if (c.op.update == Update::kDelta) add("beta", p.beta_dtype, t * hv, {});
  if (c.op.update == Update::kEraseWrite) {
    add("erase", p.beta_dtype, t * hv * c.key_dim, {});
    add("write", p.beta_dtype, t * hv * c.value_dim, {});
  }
  add("initial_state", p.state_dtype, slots() * slot_stride(), {.a = 0, .b = .1f});
  if (c.drafts != Drafts::kCommit) add_output("out", p.dtype, t * hv * c.value_dim);
  if (c.pass == Pass::kForward) add_output("final_state", p.state_dtype, slots() * slot_stride());
  if (c.drafts == Drafts::kReplay) add_output("replay", DType::kFloat32, replay_elements(p, t));
  if (c.fused) {
    add("conv_weight", p.dtype, channels(c) * kConvWidth, {.a = 0, .b = .5f});
    add("conv_state", p.dtype, c.sequences * channels(c) * (kConvWidth - 1), {});
    add("norm_weight", p.dtype, c.value_dim, {});
    add("z", p.dtype, t * hv * c.value_dim, {});
  }
  draft_indices();
  if (c.pass == Pass::kForward && c.sequences > 1) {
    std::vector<std::int32_t> offsets{0};
    for (const std::int64_t length : lengths_of(c))
      offsets.push_back(offsets.back() + static_cast<std::int32_t>(length));
    add_indices("cu_seqlens", offsets);
  }
}

// Slots of the states, and elements from one to the next.
std::int64_t Call::slots() const {
  const std::int64_t used =
      case_.sequences * (case_.drafts == Drafts::kColumns ? 1 + case_.tokens : 1);
  return case_.scattered ? 2 * used : used;
}
std::int64_t Call::slot_stride() const {
  constexpr std::int64_t kGap = 4096;  // a page holds more than the state
  return std::int64_t{case_.value_heads} * case_.key_dim * case_.value_dim +
         (case_.scattered ? kGap : 0);
}

void Call::draft_indices() {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(slots()));
  std::iota(ids.begin(), ids.end(), 0);
  if (case_.scattered)
    for (std::size_t i = ids.size(); i > 1; --i)
      std::swap(ids[i - 1], ids[random_bits(seed_, i) % i]);
  const auto n = static_cast<std::ptrdiff_t>(case_.sequences);
  if (case_.scattered || case_.drafts == Drafts::kColumns)
    add_indices("read_slots", {ids.begin(), ids.begin() + n});
  if (case_.drafts == Drafts::kColumns)
    add_indices("write_slots", {ids.begin() + n, ids.begin() + n * (1 + case_.tokens)});
  else if (case_.scattered)
    add_indices("write_slots", {ids.begin(), ids.begin() + n});
  if (case_.drafts != Drafts::kTree) return;
  std::vector<std::int32_t> parents(static_cast<std::size_t>(case_.total_tokens()));
  for (std::size_t i = 0; i < parents.size(); ++i) {
    const auto token = static_cast<std::int32_t>(static_cast<std::int64_t>(i) % case_.tokens);
    parents[i] = (token + 1) / 2 - 1;
  }
  add_indices("parents", parents);
}

template <class Args>
Args Call::args() const {
  const std::int64_t hv = case_.value_heads;
  Args a;
  a.tokens = case_.total_tokens();
  a.sequences = case_.sequences;
  a.cu_seqlens = data("cu_seqlens");
  a.q = tensor("q", case_.heads, case_.key_dim);
  a.k = tensor("k", case_.heads, case_.key_dim);
  a.v = tensor("v", hv, case_.value_dim);
  a.g = tensor("g", hv, gate_width(case_));
  if (case_.op.gate == Gate::kHeadConstant) a.g.sequence_stride = a.g.token_stride = 0;
  a.beta = tensor("beta", hv, 1);
  a.erase = tensor("erase", hv, case_.key_dim);
  a.write = tensor("write", hv, case_.value_dim);
  a.a_log = static_cast<const float*>(data("a_log"));
  a.dt_bias = static_cast<const float*>(data("dt_bias"));
  if (problem_.gate_input == GateInput::kBounded) a.lower_bound = kLowerBound;
  a.out = tensor("out", hv, case_.value_dim);
  a.initial_state = state("initial_state");
  if constexpr (std::is_same_v<Args, StepArgs>) {
    const auto indices = [&](const char* name) {
      return static_cast<const std::int32_t*>(data(name));
    };
    a.parents = indices("parents");
    a.read_slots = indices("read_slots");
    a.write_slots = indices("write_slots");
    a.replay = static_cast<float*>(data("replay"));
    if (stored_states(case_) > 0) a.final_state = a.initial_state;
    if (case_.drafts == Drafts::kColumns) a.write_slot_stride = case_.tokens;
    if (case_.fused) fused(a);
  } else {
    a.final_state = state("final_state");
  }
  return a;
}

// Of vLLM's layouts: weights [channels, width], rows [width - 1, channels].
void Call::fused(StepArgs& a) const {
  const std::int64_t keys = std::int64_t{case_.heads} * case_.key_dim, all = channels(case_);
  std::int64_t first = 0;
  const auto size = static_cast<std::int64_t>(size_of(problem_.dtype));
  for (Conv* c : {&a.conv_q, &a.conv_k, &a.conv_v}) {
    *c = {static_cast<std::byte*>(data("conv_weight")) + first * kConvWidth * size,
          kConvWidth,
          1,
          nullptr,
          static_cast<std::byte*>(data("conv_state")) + first * size,
          case_.sequences,
          all * (kConvWidth - 1),
          1,
          all};
    first += keys;
  }
  a.z = tensor("z", case_.value_heads, case_.value_dim);
  a.norm_weight = data("norm_weight");
}

template ForwardArgs Call::args<ForwardArgs>() const;
template StepArgs Call::args<StepArgs>() const;

std::int64_t Call::input_bytes() const {
  std::int64_t bytes = 0;
  for (const auto& [name, buffer] : buffers_) bytes += buffer.read ? buffer.bytes() : 0;
  return bytes;
}

std::int64_t Call::traffic_bytes() const {
  std::int64_t bytes = 0;
  for (const auto& [name, buffer] : buffers_)
    if (case_.pass == Pass::kForward || (name != "initial_state" && name != "conv_state"))
      bytes += (buffer.read ? buffer.bytes() : 0) + (buffer.written ? buffer.bytes() : 0);
  // Of pools, what is read and stored.
  if (case_.pass == Pass::kStep) bytes += static_cast<std::int64_t>(floor_bytes(case_));
  return bytes;
}

void Call::take_inputs(const Call& from) {
  for (const auto& [name, buffer] : from.buffers_)
    if (buffer.read && buffer.dtype != DType::kInt32) put(buffers_.at(name), from.get(buffer));
}

std::vector<float> Call::values(const std::string& name) const { return get(buffers_.at(name)); }

void Call::add(const std::string& name, DType dtype, std::int64_t count, Fill fill) {
  fill.seed = ++seed_;
  Buffer& buffer = buffers_[name];
  buffer = {nullptr, dtype, count, true};
  buffer.data = machine_.allocate(static_cast<std::size_t>(buffer.bytes()));
  machine_.fill(buffer.data.get(), dtype, count, fill);
}

void Call::add_indices(const std::string& name, const std::vector<std::int32_t>& values) {
  const std::size_t bytes = values.size() * sizeof(std::int32_t);
  Buffer& to = buffers_[name];
  to = {machine_.allocate(bytes), DType::kInt32, static_cast<std::int64_t>(values.size()), true};
  machine_.upload(to.data.get(), values.data(), bytes);
}

// Poisoned: what a run leaves out shows.
void Call::add_output(const std::string& name, DType dtype, std::int64_t count) {
  constexpr float kNaN = __builtin_nanf("");
  add(name, dtype, count, {.draw = Draw::kRamp, .a = kNaN});
  buffers_[name].read = false;
  buffers_[name].written = true;
}

// Null: the call has none.
void* Call::data(const std::string& name) const {
  const auto found = buffers_.find(name);
  return found == buffers_.end() ? nullptr : found->second.data.get();
}

Tensor Call::tensor(const std::string& name, std::int64_t heads, std::int64_t dim) const {
  if (!has(name)) return {};
  return contiguous(data(name), heads, dim, case_.total_tokens() / case_.sequences);
}

State Call::state(const std::string& name) const {
  State pool = contiguous_state(buffers_.at(name).data.get(), slots(), case_.value_heads,
                                case_.key_dim, case_.value_dim);
  pool.slot_stride = slot_stride();
  return pool;
}

void Call::put(const Buffer& to, const std::vector<float>& values) const {
  std::vector<std::byte> bytes(static_cast<std::size_t>(to.bytes()));
  for (std::size_t i = 0; i < values.size(); ++i)
    store(bytes.data(), to.dtype, static_cast<std::int64_t>(i), values[i]);
  machine_.upload(to.data.get(), bytes.data(), bytes.size());
}

std::vector<float> Call::get(const Buffer& from) const {
  std::vector<std::byte> bytes(static_cast<std::size_t>(from.bytes()));
  machine_.download(bytes.data(), from.data.get(), bytes.size());
  std::vector<float> values(static_cast<std::size_t>(from.count));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = load(bytes.data(), from.dtype, static_cast<std::int64_t>(i));
  return values;
}

}  // namespace linattn::bench
