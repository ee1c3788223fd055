// SPDX-License-Identifier: Apache-2.0
#include "cuda/portable/register.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "core/workspace.h"
#include "cuda/common/check.h"
#include "cuda/portable/launch.h"
#include "linattn/error.h"
#include "recurrence/dispatch.h"

namespace linattn::portable {

struct OperandBf16;
struct OperandTf32;  // fp16 problems: bf16 has too few digits for them, fp16 too small a range for
                     // decayed operands

namespace {

constexpr int kMaxStages = 4;
constexpr std::int64_t kPieceTokens =
    256;  // a piece is at least so long: two passes over fewer cost more than they save
constexpr std::int64_t kSplitBlocks =
    192;  // blocks that a split may make, per block that a multiprocessor holds

int padded(int key_dim) { return key_dim <= 64 ? 64 : key_dim <= 128 ? 128 : 256; }

// K = 256 in fp16 would need more shared memory than any device has.
int most_channels(const Problem& p) { return p.dtype == DType::kBFloat16 ? 256 : 128; }

// f(ForwardInstance<...>{}) for the problem's operand, dims and class.
template <class F>
void with_instance(const Problem& p, F&& f) {
  with_class(p.op, [&]<class Gate, class Update>(Gate, Update) {
    if (p.dtype == DType::kBFloat16) {
      with_dims<64, 128, 256>("key_dim", padded(p.key_dim), [&]<int kKeyDim>(Int<kKeyDim>) {
        f(ForwardInstance<OperandBf16, kKeyDim, Gate, Update>{});
      });
    } else {
      with_dims<64, 128>("key_dim", padded(p.key_dim), [&]<int kKeyDim>(Int<kKeyDim>) {
        f(ForwardInstance<OperandTf32, kKeyDim, Gate, Update>{});
      });
    }
  });
}

InstanceFacts facts_of(const Problem& p) {
  InstanceFacts facts{};
  with_instance(p, [&]<class Instance>(Instance) { facts = Instance::facts(); });
  return facts;
}

int stages_that_fit(const Problem& p, const InstanceFacts& facts, int shared_bytes) {
  // What a block may use if the multiprocessor is to hold as many as the tuning says.
  const std::int64_t limit = shared_bytes / facts.blocks_per_multiprocessor;
  const std::size_t fixed =
      facts.scratch_bytes + (p.op.update == Update::kEraseWrite ? facts.strength_bytes : 0);
  const auto room = limit - static_cast<std::int64_t>(fixed);
  return static_cast<int>(
      std::clamp<std::int64_t>(room / static_cast<std::int64_t>(facts.stage_bytes), 0, kMaxStages));
}

std::string refusal(const Problem& p, Device device) {
  if (std::string text = cuda::device_refusal(device); !text.empty()) return text;
  if (p.dtype == DType::kFloat32) return "dtype is fp32; compiled for bf16, fp16";
  if (p.key_dim > most_channels(p))
    return "key_dim is " + std::to_string(p.key_dim) + "; compiled for 1 to " +
           std::to_string(most_channels(p)) + " in " + to_string(p.dtype);
  if (p.key_dim % 2 != 0)
    return "key_dim is " + std::to_string(p.key_dim) + "; an even number is needed";
  if (p.value_dim % 2 != 0)
    return "value_dim is " + std::to_string(p.value_dim) + "; an even number is needed";
  if (p.checkpoint_interval % kChunk != 0)
    return "checkpoint_interval is " + std::to_string(p.checkpoint_interval) + "; a multiple of " +
           std::to_string(kChunk) + " is needed";
  const InstanceFacts facts = facts_of(p);
  const int shared = cuda::device_info(device.index).shared_bytes;
  if (stages_that_fit(p, facts, shared) < 1)
    return "key_dim " + std::to_string(p.key_dim) + " in " + to_string(p.dtype) + " needs " +
           std::to_string((facts.scratch_bytes + facts.stage_bytes) *
                          static_cast<std::size_t>(facts.blocks_per_multiprocessor)) +
           " bytes of shared memory; the device has " + std::to_string(shared);
  return {};
}

// Rows are read and written by pairs of elements.
std::string refusal_of(const Problem& p, const ForwardArgs& args) {
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
  return {};
}

// Value heads times blocks of value columns.
std::int64_t blocks_per_sequence(const Problem& p, const InstanceFacts& facts) {
  return static_cast<std::int64_t>(p.value_heads) *
         ((p.value_dim + facts.value_block - 1) / facts.value_block);
}

// Pieces per sequence that give every multiprocessor a block. Splitting costs a second pass and the
// transitions: it must find at least three idle places for each busy one.
std::int64_t pieces(const Problem& p, const InstanceFacts& facts, Sizes n,
                    std::int64_t multiprocessors) {
  if (p.batch_invariant || n.sequences == 0) return 1;
  if (p.sm_limit > 0) multiprocessors = std::min<std::int64_t>(multiprocessors, p.sm_limit);
  const std::int64_t places =
      std::min(multiprocessors, kSplitBlocks) * facts.blocks_per_multiprocessor;
  const std::int64_t wanted =
      std::min(places / (n.sequences * blocks_per_sequence(p, facts)), n.tokens / kPieceTokens);
  return wanted < 3 ? 1 : wanted;
}

struct ForwardBuffers {
  WorkspaceLayout layout;
  Slot<float> state;       // [pieces of all sequences, HV, V, K]
  Slot<float> transition;  // [pieces of all sequences, HV, K, K]

  ForwardBuffers(const Problem& p, std::int64_t all_pieces)
      : state(layout.book<float>(all_pieces * p.value_heads * p.key_dim * p.value_dim)),
        transition(layout.book<float>(all_pieces * p.value_heads * p.key_dim * p.key_dim)) {}
};

// Holds for every device and for every smaller call.
std::size_t workspace_bytes(const Problem& p, Sizes n) {
  const InstanceFacts facts = facts_of(p);
  const std::int64_t most =
      kSplitBlocks * facts.blocks_per_multiprocessor / blocks_per_sequence(p, facts);
  const std::int64_t all_pieces =
      std::min(most, n.tokens / kPieceTokens * std::max<std::int64_t>(n.sequences, 1));
  return p.batch_invariant || all_pieces < 3 ? 0 : ForwardBuffers(p, all_pieces).layout.bytes();
}

void run(const Problem& p, const ForwardArgs& args, Workspace workspace, Queue queue) {
  if (args.sequences == 0 && args.tokens == 0) return;
  const cuda::DeviceGuard guard(queue.device);
  const cuda::DeviceInfo& device = cuda::device_info(queue.device.index);
  const InstanceFacts facts = facts_of(p);

  ForwardParams params{};
  params.args = args;
  params.problem = p;
  params.phase = Phase::kOutput;
  params.pieces = 1;
  const auto wide = [](const Tensor& t, DType dtype, int dim) {
    const auto unit = static_cast<std::int64_t>(16 / size_of(dtype));
    return reinterpret_cast<std::uintptr_t>(t.data) % 16 == 0 && dim % unit == 0 &&
           t.sequence_stride % unit == 0 && t.token_stride % unit == 0 && t.head_stride % unit == 0;
  };
  params.wide_qk = wide(args.q, p.dtype, p.key_dim) && wide(args.k, p.dtype, p.key_dim);
  params.wide_g = wide(args.g, p.gate_dtype, p.key_dim);
  params.wide_v = wide(args.v, p.dtype, p.value_dim);
  params.value_blocks = (p.value_dim + facts.value_block - 1) / facts.value_block;
  const int key_blocks = (p.key_dim + facts.value_block - 1) / facts.value_block;
  params.extra_blocks = args.transition.data == nullptr ? 0 : key_blocks;
  params.stages = stages_that_fit(p, facts, device.shared_bytes);
  if (args.transition.data == nullptr)
    params.pieces =
        static_cast<int>(pieces(p, facts, {args.tokens, args.sequences}, device.multiprocessors));

  const auto launch = [&](const ForwardParams& which) {
    const std::int64_t tail = which.phase == Phase::kOutput && args.cu_seqlens != nullptr ? 1 : 0;
    const std::int64_t blocks = (args.sequences * which.pieces + tail) * p.value_heads *
                                (which.value_blocks + which.extra_blocks);
    with_instance(p, [&]<class Instance>(Instance) {
      Instance::launch(which, blocks, device.index, queue.stream);
    });
  };
  if (params.pieces > 1) {
    const ForwardBuffers buffers(p, args.sequences * params.pieces);
    params.piece_state = buffers.state.in(workspace);
    params.piece_transition = buffers.transition.in(workspace);
    ForwardParams summary = params;
    summary.phase = Phase::kSummarise;
    summary.extra_blocks = key_blocks;
    launch(summary);
    launch_fold(params, queue.stream);
  }
  launch(params);
}

}  // namespace

const Implementation<ForwardArgs> kForward = {.name = "portable.forward",
                                              .refusal = refusal,
                                              .refusal_of = refusal_of,
                                              .workspace_bytes = workspace_bytes,
                                              .run = run};

}  // namespace linattn::portable
