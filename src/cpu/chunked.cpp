// SPDX-License-Identifier: Apache-2.0
#include "cpu/chunked.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <thread>

#include "core/dtype.h"
#include "core/workspace.h"
#include "cpu/register.h"
#include "cpu/thread_pool.h"

namespace linattn::cpu {
namespace {

constexpr int kWidestPanel = 2 * kMaxWidth;

constexpr int up_to(int count, int multiple) {
  return (count + multiple - 1) / multiple * multiple;
}

// Sizes fit the widest vectors, so that they do not depend on the machine. Whether the caller wants
// a transition is not known when the workspace is asked for: its columns of the state are always
// there.
ChunkScratch scratch_of(const Problem& p) {
  ChunkScratch s{};
  std::int64_t floats = 0;
  const auto book = [&](std::int64_t count) {
    const std::int64_t at = floats;
    floats += (count + 15) / 16 * 16;
    return at;
  };
  s.key_rows = up_to(p.key_dim, kMaxWidth);
  s.key_stride = s.key_rows + 16;  // rows 512 bytes apart would meet in the same sets of the cache
  const std::int64_t rows = static_cast<std::int64_t>(kChunk) * s.key_stride;
  const std::int64_t columns = static_cast<std::int64_t>(s.key_rows) * kChunk;
  const std::int64_t state_columns =
      up_to(p.value_dim, kWidestPanel) + up_to(p.key_dim, kWidestPanel);
  s.integer_decay = book(rows);
  s.fraction_decay = book(rows);
  s.q = book(rows);
  s.k = book(rows);
  s.k_erase = book(rows);
  s.k_tilde = book(rows);
  s.q_tilde = book(rows);
  s.k_state = book(rows);
  s.q_state = book(rows);
  s.k_hat_rows = book(rows);
  s.k_hat = book(columns);
  s.x = book(columns);
  for (std::int64_t* matrix : {&s.a_qk, &s.a_kk, &s.inverse, &s.inverse_decayed, &s.p})
    *matrix = book(kChunk * kChunk);
  s.r = book(kChunk * kWidestPanel);
  for (std::int64_t* row : {&s.beta, &s.row_decay, &s.integer_rows, &s.fraction_rows})
    *row = book(kChunk);
  for (std::int64_t* keys : {&s.anchor, &s.anchor_scale, &s.total_decay, &s.x_scale})
    *keys = book(s.key_rows);
  s.state_operand = book(static_cast<std::int64_t>(s.key_rows) * kWidestPanel);
  s.state = book(s.key_rows * state_columns);
  s.floats = floats;
  return s;
}

// Slices of scratch, one for each task that runs at a time.
struct Buffers {
  WorkspaceLayout layout;
  std::int64_t floats;
  Slot<float> slices;

  Buffers(const Problem& p, std::int64_t count)
      : floats((scratch_of(p).floats + 63) / 64 * 64), slices(layout.book<float>(floats * count)) {}
};

std::int64_t panels_of(const Problem& p) {
  return up_to(p.value_dim, 2 * 4) / (2 * 4) + up_to(p.key_dim, 2 * 4) / (2 * 4);
}

// As many slices as threads may ever be of use; set_threads may come between the plan and the run.
std::int64_t slices_wanted(const Problem& p, Sizes sizes) {
  static const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  return std::min<std::int64_t>(std::max(cores, threads()),
                                sizes.sequences * p.value_heads * panels_of(p));
}

std::size_t workspace_bytes(const Problem& p, Sizes sizes) {
  return Buffers(p, slices_wanted(p, sizes)).layout.bytes();
}

std::atomic<int> forced_isa{-1};
std::atomic<StageHook> stage_hook{nullptr};
std::atomic<void*> stage_context{nullptr};

ChunkedTask task_of(Isa isa) {
  switch (isa) {
    case Isa::kAvx512:
      return avx512::run_task;
    case Isa::kAvx2:
      return avx2::run_task;
    case Isa::kBaseline:
      break;
  }
  return baseline::run_task;
}

// Rows past the last offset.
void clear_rest(const Problem& p, const ForwardArgs& a) {
  if (a.cu_seqlens == nullptr) return;
  const DType index = a.cu_seqlens_dtype == LINATTN_INT64 ? DType::kInt64 : DType::kInt32;
  const std::int64_t size = static_cast<std::int64_t>(size_of(p.dtype));
  for (std::int64_t t = load_index(a.cu_seqlens, index, a.sequences); t < a.tokens; ++t)
    for (std::int64_t h = 0; h < p.value_heads; ++h)
      std::memset(
          static_cast<char*>(a.out.data) + (t * a.out.token_stride + h * a.out.head_stride) * size,
          0, static_cast<std::size_t>(p.value_dim * size));
}

void run(const Problem& p, const ForwardArgs& a, Workspace workspace, Rounding rounding) {
  ChunkedCall call{};
  call.problem = &p;
  call.args = &a;
  call.scratch = scratch_of(p);
  call.dense_length = a.sequences == 0 ? 0 : a.tokens / a.sequences;
  call.scale = a.scale != 0 ? a.scale : 1.0f / std::sqrt(static_cast<float>(p.key_dim));
  call.per_channel = p.op.gate == Gate::kChannel;
  call.reads_state = p.op.update != Update::kAdd;
  call.erase_write = p.op.update == Update::kEraseWrite;
  call.has_gate = p.op.gate != Gate::kNone;
  call.rounding = rounding;
  call.hook = stage_hook.load();
  call.hook_context = stage_context.load();

  clear_rest(p, a);
  const std::int64_t pairs = a.sequences * p.value_heads;
  if (pairs == 0) return;
  // Few heads: several tasks share the columns of one. Each prepares the chunk for itself and
  // computes its columns as one task would, so the result is the same to the last bit.
  const std::int64_t most = a.tokens / a.sequences < kChunk ? 1 : (p.value_dim + 63) / 64;
  call.parts = static_cast<int>(
      std::clamp<std::int64_t>(threads() / pairs, 1, std::max<std::int64_t>(most, 1)));
  const std::int64_t tasks = pairs * call.parts;
  const Buffers one(p, 1);
  const std::int64_t room = static_cast<std::int64_t>(workspace.bytes / sizeof(float)) / one.floats;
  const std::int64_t slices = std::min({tasks, room, static_cast<std::int64_t>(threads())});
  float* scratch = one.slices.in(workspace);
  const ChunkedTask task = task_of(rounding != Rounding::kNone ? Isa::kBaseline
                                   : forced_isa < 0            ? best_isa()
                                                    : static_cast<Isa>(forced_isa.load()));
  std::atomic<std::int64_t> next{0};
  const auto work = [&](std::int64_t slice, int) {
    for (std::int64_t i; (i = next.fetch_add(1)) < tasks;)
      task(call, i, scratch + slice * one.floats);
  };
  parallel_for(slices, std::ref(work));  // a reference: run allocates nothing
}

void run_chunked(const Problem& p, const ForwardArgs& a, Workspace workspace, Queue) {
  run(p, a, workspace, Rounding::kNone);
}

void run_emulated(const Problem& p, const ForwardArgs& a, Workspace workspace, Queue) {
  run(p, a, workspace, p.dtype == DType::kFloat16 ? Rounding::kFp16 : Rounding::kBf16);
}

std::string refusal(const Problem&, Device device) {
  return device.type == Device::Type::kCpu
             ? ""
             : "device is " + to_string(device) + "; this is code for the CPU";
}

}  // namespace

const Implementation<ForwardArgs> kChunkedForward{
    .name = "cpu.chunked",
    .refusal = refusal,
    .workspace_bytes = workspace_bytes,
    .run = run_chunked,
};

const Implementation<ForwardArgs> kEmulatedForward{
    .name = "cpu.emulated",
    .only_by_name = true,
    .refusal = refusal,
    .workspace_bytes = workspace_bytes,
    .run = run_emulated,
};

bool isa_available(Isa isa) {
  return isa == Isa::kBaseline || (isa == Isa::kAvx2 ? avx2::available() : avx512::available());
}

Isa best_isa() {
  static const Isa best = isa_available(Isa::kAvx512) ? Isa::kAvx512
                          : isa_available(Isa::kAvx2) ? Isa::kAvx2
                                                      : Isa::kBaseline;
  return best;
}

void set_isa(Isa isa) { forced_isa = static_cast<int>(isa); }

void set_stage_hook(StageHook hook, void* context) {
  stage_hook = hook;
  stage_context = context;
}

}  // namespace linattn::cpu
