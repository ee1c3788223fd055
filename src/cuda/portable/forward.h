// SPDX-License-Identifier: Apache-2.0
//
// Host side of a forward by two kernels, prepare and scan: what it takes, how its chunks are cut,
// its workspace and its launches. A row names its kernels by `Instances`:
//
//   kName                       "portable.forward"
//   shape_refusal(problem)      which dims it is compiled for
//   with(problem, f)            f(PrepareInstance<...>{} or NoPrepare{}, ScanInstance<...>{})
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>

#include "core/dtype.h"
#include "core/registry.h"
#include "core/workspace.h"
#include "cuda/common/check.h"
#include "cuda/portable/launch.h"
#include "linattn/error.h"

namespace linattn::portable {

// Stages of one segment at most, of which the workspace holds two: one is prepared while the other
// is scanned. It stays small beside the inputs, and much of it in the cache between the kernels.
inline constexpr std::int64_t kSegmentBytes = std::int64_t{40} << 20;
inline constexpr std::int64_t kSegmentChunks = 16;  // at least, whatever they take
inline constexpr std::int64_t kPieceChunks =
    8;  // a piece is at least so long: two passes over fewer cost more than they save
inline constexpr std::int64_t kMostBlocks = 1 << 30;  // of a scan, whose segments no stages bound
inline constexpr std::int64_t kSplitBlocks =
    160;  // blocks that a split may make, per block that a multiprocessor holds

struct Facts : PrepareFacts, ScanFacts {
  Facts(const PrepareFacts& prepare, const ScanFacts& scan)
      : PrepareFacts(prepare), ScanFacts(scan) {}

  template <class Instances>
  static Facts of(const Problem& p) {
    Facts facts{{}, {}};
    Instances::with(p, [&]<class Prepare, class Scan>(Prepare, Scan) {
      facts = Facts(Prepare::facts(), Scan::facts());
    });
    if (p.op.update != Update::kEraseWrite) facts.erase_bytes = facts.strength_bytes = 0;
    return facts;
  }

  // Chunks in shared memory: as many as let a multiprocessor hold `blocks` blocks, at most those
  // that it has registers for; or two in a single block. Fewer than two: it does not fit. Where the
  // next segment is prepared meanwhile, one block leaves half of the memory to that if it can.
  int buffers_in(int shared_bytes, std::int64_t blocks, bool beside) const {
    const auto fit = [&](std::int64_t together, int all) {
      constexpr int kReserved = 1024;  // of each block, by the system
      const std::int64_t room = (all + kReserved) / together - kReserved -
                                static_cast<std::int64_t>(exchange_bytes + strength_bytes);
      return static_cast<int>(std::clamp<std::int64_t>(
          room / static_cast<std::int64_t>(buffer_bytes), 0, kMostBuffers));
    };
    const std::int64_t together = std::clamp<std::int64_t>(blocks, 1, blocks_per_multiprocessor);
    const int several = fit(together, together == 1 && beside ? shared_bytes / 2 : shared_bytes);
    return several >= 2 ? several : std::min(fit(1, shared_bytes), 2);
  }
};

// How the chunks of a call are cut: all that plan and run must agree on.
struct Cut {
  std::int64_t numbers;     // of all chunks, see chunks.cuh
  std::int64_t capacity;    // most numbers of one segment: rises with the call's sizes
  std::int64_t segment;     // numbers of one segment: all are about as long
  std::int64_t sequences;   // most that meet one segment
  std::int64_t pieces;      // of a sequence in a segment, 1: not split
  std::int64_t all_pieces;  // at most in a segment: rises with the call's sizes

  // multiprocessors: of the device, or more than any has.
  Cut(const Problem& p, const Facts& facts, Sizes n, int spare_numbers,
      std::int64_t multiprocessors) {
    numbers = n.sequences == 0 ? 0 : n.tokens / kChunk + n.sequences * spare_numbers;
    const auto blocks_of = [&](std::int64_t columns) {
      return p.value_heads * ((columns + facts.value_block - 1) / facts.value_block);
    };
    const std::int64_t blocks = blocks_of(p.value_dim) + blocks_of(p.key_dim);
    const std::int64_t bytes = static_cast<std::int64_t>(facts.stage_bytes) * p.value_heads;
    const std::int64_t most =
        std::max(kSegmentChunks, bytes == 0 ? kMostBlocks / blocks : kSegmentBytes / bytes);
    capacity = std::min(numbers, most);
    const std::int64_t segments = std::max<std::int64_t>((numbers + most - 1) / most, 1);
    segment = (numbers + segments - 1) / segments;
    sequences = std::min(n.sequences, capacity);
    // Pieces whose summaries, of V and K columns, take all places at once. Splitting costs that
    // second pass: it must find at least three idle places for each busy one.
    const std::int64_t places =
        std::min(multiprocessors, kSplitBlocks) * facts.blocks_per_multiprocessor;
    all_pieces = p.batch_invariant ? 0 : std::min(places / blocks, capacity / kPieceChunks);
    const std::int64_t split = std::max<std::int64_t>(sequences, 1);
    pieces = std::max<std::int64_t>(
        places < 3 * split * blocks_of(p.value_dim) ? 1 : all_pieces / split, 1);
  }

  bool several_segments() const { return numbers > capacity; }
};

struct ForwardBuffers {
  WorkspaceLayout layout;
  Slot<std::byte> stages[2];  // [capacity, HV] of Stage, for segments in turn
  Slot<float> carried[2];     // [HV, V, K]: between segments, in turn
  Slot<float> state;          // [all_pieces, HV, V, K]
  Slot<float> transition;     // [all_pieces, HV, K, K]

  ForwardBuffers(const Problem& p, const Facts& facts, const Cut& cut) {
    const std::int64_t bytes =
        cut.capacity * p.value_heads * static_cast<std::int64_t>(facts.stage_bytes);
    const std::int64_t matrix = std::int64_t{p.value_heads} * p.key_dim;
    stages[0] = layout.book<std::byte>(bytes);
    if (cut.several_segments()) {
      stages[1] = layout.book<std::byte>(bytes);
      for (auto& slot : carried) slot = layout.book<float>(matrix * p.value_dim);
    }
    if (cut.all_pieces < 2) return;
    state = layout.book<float>(cut.all_pieces * matrix * p.value_dim);
    transition = layout.book<float>(cut.all_pieces * matrix * p.key_dim);
  }
};

// Whatever the kernels are.
template <class Instances>
std::string refusal(const Problem& p, Device device) {
  if (std::string text = cuda::device_refusal(device); !text.empty()) return text;
  if (std::string text = Instances::shape_refusal(p, device); !text.empty()) return text;
  if (p.sm_limit > 0)
    return "sm_limit is " + std::to_string(p.sm_limit) + "; this row takes all multiprocessors";
  if (p.key_dim % 2 != 0)
    return "key_dim is " + std::to_string(p.key_dim) + "; an even number is needed";
  if (p.value_dim % 2 != 0)
    return "value_dim is " + std::to_string(p.value_dim) + "; an even number is needed";
  if (p.checkpoint_interval % kChunk != 0)
    return "checkpoint_interval is " + std::to_string(p.checkpoint_interval) + "; a multiple of " +
           std::to_string(kChunk) + " is needed";
  const Facts facts = Facts::of<Instances>(p);
  const int shared = cuda::device_info(device.index).shared_bytes;
  const std::size_t needed =
      std::max(facts.shared_bytes + facts.erase_bytes,
               2 * facts.buffer_bytes + facts.exchange_bytes + facts.strength_bytes);
  if (needed > static_cast<std::size_t>(shared))
    return "key_dim " + std::to_string(p.key_dim) + " in " + to_string(p.dtype) + " needs " +
           std::to_string(needed) + " bytes of shared memory; the device has " +
           std::to_string(shared);
  return {};
}

// Rows are read and written by pairs of elements.
inline std::string refusal_of(const Problem& p, const ForwardArgs& args) {
  const auto odd = [](const Tensor& t, const char* name, DType dtype) -> std::string {
    if (t.data == nullptr) return {};
    const std::size_t pair = 2 * size_of(dtype);
    if (reinterpret_cast<std::uintptr_t>(t.data) % pair != 0)
      return std::string(name) + " is not aligned to " + std::to_string(pair) +
             " bytes, a pair of elements";
    if ((t.sequence_stride | t.token_stride | t.head_stride) % 2 != 0)
      return std::string(name) + " has an odd stride; rows are accessed by pairs of elements";
    return {};
  };
  for (const std::string& text :
       {odd(args.q, "q", p.dtype), odd(args.k, "k", p.dtype), odd(args.v, "v", p.dtype),
        odd(args.out, "out", p.dtype),
        p.op.gate == Gate::kChannel ? odd(args.g, "g", p.gate_dtype) : std::string()})
    if (!text.empty()) return text;
  if (p.op.gate == Gate::kChannel && reinterpret_cast<std::uintptr_t>(args.dt_bias) % 8 != 0)
    return "dt_bias is not aligned to 8 bytes, a pair of elements";
  constexpr std::int64_t kMostTokens = std::numeric_limits<std::int32_t>::max() - 2 * kChunk;
  if (args.tokens > kMostTokens)
    return "tokens is " + std::to_string(args.tokens) + "; at most " + std::to_string(kMostTokens);
  return {};
}

// Of a few tokens, the states are most of the work, and chunks of 32 rows mostly padding. Where
// only the device knows the lengths, one sequence may have all tokens, so there they are few in
// all.
inline const char* yields_of(const Problem& p, const ForwardArgs& args) {
  constexpr std::int64_t kFew = 16, kFewInAll = 256;
  if (args.cu_seqlens == nullptr)
    return args.tokens > kFew * args.sequences
               ? nullptr
               : "sequences of at most 16 tokens, which go one by one";
  // The counts depend on the batch.
  return args.tokens > std::min(args.sequences, kFewInAll) || p.batch_invariant
             ? nullptr
             : "at most one token a sequence in the mean, and 256 in all, which go one by one";
}

// Holds for every device and for every smaller call.
template <class Instances>
std::size_t workspace_bytes(const Problem& p, Sizes n) {
  const Facts facts = Facts::of<Instances>(p);
  return ForwardBuffers(p, facts, Cut(p, facts, n, 2, kSplitBlocks)).layout.bytes();
}

template <class Instances>
void run(const Problem& p, const ForwardArgs& args, Workspace workspace, Queue queue) {
  if (args.sequences == 0 && (args.tokens == 0 || args.cu_seqlens == nullptr)) return;
  const cuda::DeviceGuard guard(queue.device);
  const cuda::DeviceInfo& device = cuda::device_info(queue.device.index);
  const Facts facts = Facts::of<Instances>(p);

  ForwardParams params{};
  params.args = args;
  params.problem = p;
  const auto wide = [](const Tensor& t, DType dtype, int dim) {
    const auto unit = static_cast<std::int64_t>(16 / size_of(dtype));
    return reinterpret_cast<std::uintptr_t>(t.data) % 16 == 0 && dim % 8 == 0 &&
           t.sequence_stride % unit == 0 && t.token_stride % unit == 0 && t.head_stride % unit == 0;
  };
  params.wide_qk = wide(args.q, p.dtype, p.key_dim) && wide(args.k, p.dtype, p.key_dim);
  params.wide_g = wide(args.g, p.gate_dtype, p.key_dim) &&
                  reinterpret_cast<std::uintptr_t>(args.dt_bias) % 16 == 0;
  params.wide_v = wide(args.v, p.dtype, p.value_dim);
  params.wide_out = wide(args.out, p.dtype, p.value_dim);
  params.sequence_length = args.sequences == 0 ? 0 : args.tokens / args.sequences;
  params.spare_numbers = args.start_positions == nullptr ? 1 : 2;
  params.value_blocks = (p.value_dim + facts.value_block - 1) / facts.value_block;
  const int key_blocks = (p.key_dim + facts.value_block - 1) / facts.value_block;
  params.extra_blocks = args.transition.data == nullptr ? 0 : key_blocks;

  Cut cut(p, facts, {args.tokens, args.sequences}, params.spare_numbers, device.multiprocessors);
  if (args.transition.data != nullptr) cut.pieces = 1, cut.all_pieces = 0;
  const ForwardBuffers buffers(p, facts, cut);
  if (buffers.layout.bytes() > workspace.bytes)
    throw Error(ErrorCode::kInternal, std::string("linattn: ") + Instances::kName + " books " +
                                          std::to_string(buffers.layout.bytes()) +
                                          " bytes of workspace; its plan said " +
                                          std::to_string(workspace.bytes));
  params.sequences = static_cast<int>(cut.sequences);
  params.pieces = static_cast<int>(cut.pieces);
  const std::int64_t scans = cut.sequences * cut.pieces * p.value_heads *
                             (params.value_blocks + (cut.pieces > 1 ? key_blocks : 0));
  params.buffers = facts.buffers_in(device.shared_bytes,
                                    (scans + device.multiprocessors - 1) / device.multiprocessors,
                                    cut.pieces == 1 && cut.several_segments());
  params.piece_state = buffers.state.in(workspace);
  params.piece_transition = buffers.transition.in(workspace);

  int parity = 0;
  for (std::int64_t first = 0; first < std::max<std::int64_t>(cut.numbers, 1);
       first += std::max<std::int64_t>(cut.segment, 1), parity ^= 1) {
    params.segment = {static_cast<int>(first),
                      static_cast<int>(std::min(cut.segment, cut.numbers - first))};
    params.stages = buffers.stages[parity].in(workspace);
    params.carried_in = buffers.carried[parity].in(workspace);
    params.carried_out = buffers.carried[parity ^ 1].in(workspace);
    Instances::with(p, [&]<class Prepare, class Scan>(Prepare, Scan) {
      // A call begins behind what came before it. Splitting has kernels of its own in between.
      const bool beside = first > 0 && params.pieces == 1 && Prepare::can_overlap(device.index);
      const cuda::Order order = beside ? cuda::Order::kBeside : cuda::Order::kBehind;
      if (params.segment.count > 0) Prepare::launch(params, device.index, queue.stream, order);
      if (params.pieces > 1) {
        ForwardParams summary = params;
        summary.phase = Phase::kSummarise;
        summary.extra_blocks = key_blocks;
        Scan::launch(summary, device.index, queue.stream, cuda::Order::kBehind);
        launch_fold(params, device.index, queue.stream);
      }
      Scan::launch(params, device.index, queue.stream, cuda::Order::kBehind);
    });
  }
}

template <class Instances>
constexpr Implementation<ForwardArgs> implementation() {
  return {.name = Instances::kName,
          .refusal = refusal<Instances>,
          .refusal_of = refusal_of,
          .yields_of = yields_of,
          .workspace_bytes = workspace_bytes<Instances>,
          .run = run<Instances>};
}

}  // namespace linattn::portable
