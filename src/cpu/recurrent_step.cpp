// SPDX-License-Identifier: Apache-2.0
//
// The oracle's step: a few tokens per sequence, whose states may go to a slot each, along a chain
// or a draft tree.
#include "cpu/fused.h"
#include "cpu/recurrent.h"

namespace linattn::cpu {
namespace {

struct StepBuffers {
  WorkspaceLayout layout;
  std::int64_t lanes;
  TokenRows rows;
  Slot<double> initial;  // [lanes, K, V]
  Slot<double> state;    // [lanes, K, V]
  Slot<double> convolved;

  StepBuffers(const Problem& p, Sizes n)
      : lanes(lanes_for(n.sequences * p.value_heads)),
        rows(layout, p, lanes),
        initial(layout.book<double>(lanes * p.key_dim * p.value_dim)),
        state(layout.book<double>(lanes * p.key_dim * p.value_dim)),
        convolved(layout.book<double>(
            p.conv_width == 0 ? 0
                              : n.tokens * (2 * std::int64_t{p.heads} * p.key_dim +
                                            std::int64_t{p.value_heads} * p.value_dim))) {}
};

// Where sequence n reads and writes.
struct Place {
  bool pad = false;
  std::int64_t read_slot = -1;  // -1: it starts from zero

  Place(const Problem& p, const StepArgs& a, const Reader& reader, std::int64_t n) {
    pad = ConvRow(p, a, n).pad;
    if (pad) return;
    std::int64_t index = n;
    if (a.read_slot_stride > 0) {
      const std::int64_t column = static_cast<std::int64_t>(a.accepted[n]) - 1;
      pad = column < 0 || column >= a.read_slot_stride;
      if (pad) return;
      index = n * a.read_slot_stride + column;
    }
    read_slot = reader.initial_slot(n, index);
    if (a.read_slots == nullptr || a.write_slots == nullptr ||
        slot_of(a.read_slots, index, n, a.first_slot) >= 0)
      return;
    const std::int64_t writes = a.write_slot_stride == 0 ? 1 : reader.length(n);
    pad = true;
    for (std::int64_t t = 0; t < writes; ++t) pad = pad && write_slot(a, n, t) < 0;
  }

  // Of the state after token t, or after the last token.
  static std::int64_t write_slot(const StepArgs& a, std::int64_t n, std::int64_t t) {
    return slot_of(a.write_slots, a.write_slot_stride == 0 ? n : n * a.write_slot_stride + t, n,
                   a.first_slot);
  }
};

template <GatePolicy Gate, UpdatePolicy Update>
class Sequence {
 public:
  Sequence(const Problem& p, const StepArgs& a, const Reader& reader, std::int64_t n,
           std::int64_t head, const Token& x, double* initial, double* state)
      : p_(p),
        a_(a),
        reader_(reader),
        n_(n),
        head_(head),
        x_(x),
        initial_(initial),
        state_(state) {}

  void run() {
    const Place place(p_, a_, reader_, n_);
    const std::int64_t length = place.pad ? 0 : taken_tokens(a_, reader_, n_);
    const bool skips = place.pad || a_.counts != nullptr || a_.picks != nullptr;
    if (skips && a_.out.data != nullptr)
      for (std::int64_t t = 0; t < reader_.length(n_); ++t)
        zero_row(a_.out, p_.dtype, reader_.offset(a_.out, n_, t, head_), p_.value_dim);
    if (place.pad) return;
    // Kept apart from the state: a token's state may go to the slot that it came from, before its
    // siblings begin.
    reader_.initial_state(place.read_slot, head_, initial_);
    std::copy_n(initial_, matrix(), state_);
    for (std::int64_t t = 0; t < length; ++t) {
      const std::int64_t parent = parent_of(t);
      if (parent != t - 1) {
        std::copy_n(initial_, matrix(), state_);
        replay(parent);
      }
      const std::int64_t token = a_.picks == nullptr ? t : a_.picks[n_ * a_.picks_stride + t];
      advance_by(token);
      if (p_.norm_gate != Activation::kUnset) normalize(p_, a_, reader_, n_, token, head_, x_.out);
      if (a_.out.data != nullptr)
        store_row(a_.out, p_.dtype, reader_.offset(a_.out, n_, token, head_), p_.value_dim, x_.out);
      if (a_.replay != nullptr) record(token);
      if (a_.write_slot_stride > 0) store(Place::write_slot(a_, n_, token));
    }
    if (a_.write_slot_stride == 0) store(Place::write_slot(a_, n_, 0));
  }

 private:
  // What the token did, to the dense tensors that a commit reads.
  void record(std::int64_t t) {
    const StepArgs to = commit_args(p_, a_.replay, a_.tokens, a_.sequences);
    const auto store = [&](const Tensor& x, std::int64_t head, std::int64_t dim,
                           const double* row) {
      const std::int64_t at = (reader_.begin(n_) + t) * x.token_stride + head * x.head_stride;
      store_row(x, DType::kFloat32, at, dim, row);
    };
    if (head_ % (p_.value_heads / p_.heads) == 0)
      store(to.k, reader_.key_head(head_), p_.key_dim, x_.k);
    store(to.v, head_, p_.value_dim, x_.e);
    if (p_.op.gate == linattn::Gate::kNone) return;
    reader_.log_decay(n_, t, head_, x_.decay);
    store(to.g, head_, reader_.gate_width(), x_.decay);
  }

  std::int64_t matrix() const { return static_cast<std::int64_t>(p_.key_dim) * p_.value_dim; }
  std::int64_t parent_of(std::int64_t t) const {
    return a_.parents == nullptr ? t - 1 : a_.parents[reader_.begin(n_) + t];
  }

  void advance_by(std::int64_t t) {
    reader_.token(n_, t, head_, x_);
    advance<Gate, Update>(x_, p_.key_dim, p_.value_dim, state_);
  }

  // The tokens from the root down to `last`, instead of a state per token: a tree of a call is
  // small, and K V doubles for each of its tokens are not. Ancestors are in rising order, so the
  // next one is the smallest above `done`.
  void replay(std::int64_t last) {
    for (std::int64_t done = -1; done < last;) {
      std::int64_t next = last;
      while (parent_of(next) != done) next = parent_of(next);
      advance_by(next);
      done = next;
    }
  }

  void store(std::int64_t slot) {
    if (a_.final_state.data != nullptr && slot >= 0)
      store_state(p_, a_.final_state, p_.state_dtype, slot, head_, state_);
  }

  const Problem& p_;
  const StepArgs& a_;
  const Reader& reader_;
  const std::int64_t n_, head_;
  const Token& x_;
  double* const initial_;
  double* const state_;
};

}  // namespace

std::size_t recurrent_step_bytes(const Problem& p, Sizes n) {
  return StepBuffers(p, n).layout.bytes();
}

namespace {

// One layer's call of a call for many.
StepArgs layer_of(const Problem& p, const StepArgs& a, std::int64_t layer) {
  StepArgs one = a;
  if (a.layers == 0) return one;
  const auto advance = [&](Tensor& x, DType dtype) {
    if (x.data != nullptr)
      x.data = static_cast<std::byte*>(x.data) +
               layer * a.layer_stride * static_cast<std::int64_t>(size_of(dtype));
  };
  advance(one.k, p.dtype), advance(one.v, p.dtype), advance(one.g, p.gate_dtype);
  one.initial_state.data = one.final_state.data = a.pools[layer];
  return one;
}

}  // namespace

void run_recurrent_step(const Problem& p, const StepArgs& all, Workspace workspace, Queue) {
  const StepBuffers buffers(p, {all.tokens, all.sequences});
  const std::int64_t matrix = static_cast<std::int64_t>(p.key_dim) * p.value_dim;
  for (std::int64_t layer = 0; layer < std::max<std::int64_t>(all.layers, 1); ++layer) {
    const StepArgs a = layer_of(p, all, layer);
    const Inputs inputs = inputs_of(a);
    double* convolved = p.conv_width == 0 ? nullptr : buffers.convolved.in(workspace);
    const Reader reader(p, inputs, convolved);
    // Value heads share the keys' channels: no row is stored before all are read.
    const auto for_each_row = [&](const auto& visit) {
      if (convolved == nullptr) return;
      for_each_unit(a.sequences, buffers.lanes, [&](std::int64_t n, std::int64_t) {
        if (!Place(p, a, reader, n).pad) visit(ConvRow(p, a, n), n);
      });
    };
    for_each_row(
        [&](const ConvRow& row, std::int64_t n) { convolve(p, a, reader, row, n, convolved); });
    with_class(p.op, [&]<class Gate, class Update>(Gate, Update) {
      for_each_unit(
          a.sequences * p.value_heads, buffers.lanes, [&](std::int64_t unit, std::int64_t lane) {
            const Token x = buffers.rows.in(workspace, lane);
            Sequence<Gate, Update>(p, a, reader, unit / p.value_heads, unit % p.value_heads, x,
                                   buffers.initial.in(workspace) + lane * matrix,
                                   buffers.state.in(workspace) + lane * matrix)
                .run();
          });
    });
    for_each_row(
        [&](const ConvRow& row, std::int64_t n) { store_conv_state(p, a, reader, row, n); });
    if (a.out.data != nullptr)
      zero_rows(reader, a.out, p.dtype, a.sequences, reader.surplus(), p.value_heads, p.value_dim);
  }
}

}  // namespace linattn::cpu
