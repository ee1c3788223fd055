// SPDX-License-Identifier: Apache-2.0
//
// The recurrence as it is written. A block walks one sequence of one value head and holds all K
// rows of a tile of the state's columns in registers, so no two blocks ever speak.
//
//   load     asks for the tile of the initial state, which nothing waits for before `advance`
//   stage    the block reads a group of tokens and leaves what they mean in shared memory
//   advance  each warp walks the group without a barrier:
//              S <- decay S;  a = S^T (b k), r = S^T q;  e = w v - a;  o = r + (q . k) e;  S += k e
//            a and r come from one pass over S and one exchange among the lanes
//   store    the block writes the group's outputs, rows contiguous
//
// Bound: with the machine full, the 5 fp32 operations per state element and token; with few heads,
// the chain of one token (reads of shared memory, 16 multiply-adds, the exchange) times T. The
// chunked rows exist because of the latter. A step is bound by reading and writing the states.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/common/convert.cuh"
#include "cuda/common/gate.cuh"
#include "cuda/common/ptx.cuh"
#include "cuda/common/sequence.cuh"
#include "cuda/recurrent/launch.h"
#include "cuda/recurrent/stage_fused.cuh"
#include "cuda/recurrent/tile.cuh"
#include "recurrence/update.h"

namespace linattn::cuda {

struct RecurrentParams {
  Problem problem;
  RecurrentArgs args;
  float scale;
  std::int32_t value_tiles;       // tiles of the state's V columns
  std::int32_t transition_tiles;  // and of the transition's K columns, which come after them
  std::int64_t sequences;         // N, at least 1: the rows past the last offset are cleared by all
  std::int64_t layers;            // at least 1
  Tensor record_k, record_v, record_g;  // of the replay record; absent: none is made
  std::int32_t group;                   // value heads of a fused step's block
};

template <class Tile>
struct RecurrentStorage {
  alignas(16) float q[Tile::kTokens][Tile::kKeys];
  alignas(16) float k[Tile::kTokens][Tile::kKeys];
  alignas(16) float erase_key[Tile::kTokens][Tile::kKeys];  // b k
  alignas(16) float decay_high[Tile::kTokens][Tile::kKeys];
  alignas(16) float decay_low[Tile::kTokens][Tile::kKeys];
  alignas(16) float v[Tile::kTokens][Tile::kColumns];
  alignas(16) float write[Tile::kTokens][Tile::kColumns];
  alignas(16) float out[Tile::kTokens][Tile::kColumns];
  alignas(16) float written[Tile::kTokens][Tile::kColumns];  // e
  typename Tile::Matrix::Storage matrix;
  Sequence sequence;  // here rather than in every thread's registers, as is the gate
  GateReader gate;
  void* pool;                 // of the layer, of a call for several
  std::int64_t layer_offset;  // of its inputs
  Decay constant;             // of a gate that no token changes
  float constant_log;
  float qk[Tile::kTokens];     // q . k
  int forgets[Tile::kTokens];  // some key's decay is 0
};

// One block's tile: a sequence, a value head, a range of columns.
template <class Tile>
struct RecurrentBlock {
  const RecurrentParams& params;
  const Problem& p;
  const RecurrentArgs& a;
  std::conditional_t<Tile::kFused, FusedStorage<RecurrentStorage<Tile>>, RecurrentStorage<Tile>>&
      smem;
  const Sequence& s;
  int head;
  int first_column;
  int columns;  // of the tile, at most kColumns
  bool transition;
  Staged staged;  // of a fused step
  typename Tile::Registers state;

  __device__ __forceinline__ static int warp() { return Tile::warp(); }
  __device__ __forceinline__ static int lane() { return Tile::lane(); }

  // ---- states in memory

  __device__ __forceinline__ MatrixTile matrix(const State& of, DType dtype, StateLayout layout,
                                               std::int64_t slot, int columns) const {
    return {smem.pool == nullptr ? of.data : smem.pool,
            dtype,
            layout,
            matrix_offset(of, slot, head),
            p.key_dim,
            transition ? p.key_dim : p.value_dim,
            first_column,
            columns};
  }

  // Zeros if there is no initial state.
  __device__ __forceinline__ void load_initial() {
    const bool exists = !transition && s.read_slot != kNullSlot;
    Tile::Matrix::load(
        matrix(a.initial_state, p.state_dtype, p.state_layout, s.read_slot, exists ? columns : 0),
        smem.matrix, state);
  }

  __device__ __forceinline__ void settle_initial() {
    Tile::Matrix::settle(p.state_dtype, state);
    if (!transition) return;
#pragma unroll
    for (int c = 0; c < Tile::kColumnsPerLane; ++c)
#pragma unroll
      for (int i = 0; i < Tile::kKeysPerLane; ++i)
        state[c][i] = Tile::key(i) == first_column + Tile::column(c) ? 1.0f : 0.0f;
  }

  __device__ __forceinline__ void store_state(const State& to, DType dtype, StateLayout layout,
                                              std::int64_t slot) {
    if (slot != kNullSlot)
      Tile::Matrix::store(matrix(to, dtype, layout, slot, columns), smem.matrix, state);
  }

  // ---- outputs

  __device__ __forceinline__ void store_out(std::int64_t offset, int column, float x) const {
    store(a.out.data, p.dtype, offset + first_column + column, x);
  }

  __device__ __forceinline__ void zero_out(std::int64_t rows) const {
    if (a.out.data == nullptr) return;
    for (std::int64_t i = threadIdx.x; i < rows * columns; i += Tile::kThreads)
      store_out(row_offset(a, a.out, s, i / columns, head), static_cast<int>(i % columns), 0.0f);
  }

  // Rows past the last offset, shared out among the blocks of the same columns.
  __device__ __forceinline__ void zero_surplus() const {
    if (a.out.data == nullptr) return;
    for (std::int64_t row = used_rows(a) + s.index; row < a.tokens; row += params.sequences)
      for (int column = threadIdx.x; column < columns; column += Tile::kThreads)
        store_out(row * a.out.token_stride + head * a.out.head_stride, column, 0.0f);
  }

  // Of the head, by two warps.
  __device__ __forceinline__ void read_gate() {
    if (threadIdx.x == 32) smem.gate = GateReader::of(p, a, head);
    if (threadIdx.x == 64) {
      const double log_decay =
          p.op.gate == Gate::kHeadConstant ? constant_log_decay(p, a, head) : 0.0;
      smem.constant = Decay::of(log_decay);
      smem.constant_log = static_cast<float>(log_decay);
    }
  }

  // ---- one token into shared memory, by two warps: its vectors, and its decays

  // Of an input's row.
  __device__ __forceinline__ std::int64_t offset_of(const Tensor& x, std::int64_t t,
                                                    int of_head) const {
    return row_offset(a, x, s, t, of_head) + smem.layer_offset;
  }

  // Of a row of the replay record, which is dense.
  __device__ __forceinline__ float* record(const Tensor& x, std::int64_t t, int of_head) const {
    return static_cast<float*>(x.data) + (s.begin + t) * x.token_stride + of_head * x.head_stride;
  }

  // A head's K numbers, 32 kBatch at a time, zeros of a tensor that is absent. What a lane puts
  // into shared memory it alone reads until the barrier.
  static constexpr int kPerLane = Tile::kKeys / 32, kBatch = kPerLane < 4 ? kPerLane : 4;
  struct Batch {
    std::uint32_t raw[kBatch];
  };

  // offset: of the head's row.
  __device__ __forceinline__ Batch ask(const void* data, DType dtype, std::int64_t offset,
                                       int first) const {
    const int keys = data == nullptr ? 0 : p.key_dim;
    Batch batch;
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int key = first + lane() + 32 * j;
      batch.raw[j] = key < keys ? load_raw(data, dtype, offset + key) : 0;
    }
    return batch;
  }
  __device__ __forceinline__ static void put(float* row, const Batch& batch, DType dtype,
                                             int first) {
#pragma unroll
    for (int j = 0; j < kBatch; ++j) row[first + lane() + 32 * j] = from_raw(batch.raw[j], dtype);
  }

  __device__ __forceinline__ void stage_vectors(int i, std::int64_t t) {
    constexpr int kColumnsPerThread = (Tile::kColumns + 31) / 32;
    const bool apart = p.op.update == Update::kEraseWrite;
    const bool fetched = convolves();
    const int key_head = head / (p.value_heads / p.heads);
    const std::int64_t v_at = offset_of(a.v, t, head) + first_column;
    const std::int64_t write_at = apart ? row_offset(a, a.write, s, t, head) + first_column : 0;

    std::uint32_t beta_raw = 0, v[kColumnsPerThread], write[kColumnsPerThread];
    if (a.beta.data != nullptr)
      beta_raw = load_raw(a.beta.data, p.beta_dtype, row_offset(a, a.beta, s, t, head));
#pragma unroll
    for (int j = 0; j < kColumnsPerThread; ++j) {
      const int column = lane() + 32 * j;
      const bool inside = column < columns && !transition;
      v[j] = inside && !fetched ? load_raw(a.v.data, p.dtype, v_at + column) : 0;
      write[j] = inside && apart ? load_raw(a.write.data, p.beta_dtype, write_at + column) : 0;
    }
    const std::int64_t q_at = offset_of(a.q, t, key_head), k_at = offset_of(a.k, t, key_head);
    const std::int64_t erase_at = apart ? offset_of(a.erase, t, head) : 0;
#pragma unroll 1
    for (int first = 0; first < Tile::kKeys; first += 32 * kBatch) {
      if (!fetched) {
        const Batch q = ask(a.q.data, p.dtype, q_at, first);
        const Batch k = ask(a.k.data, p.dtype, k_at, first);
        put(smem.q[i], q, p.dtype, first);
        put(smem.k[i], k, p.dtype, first);
      }
      if (apart)
        put(smem.erase_key[i], ask(a.erase.data, p.beta_dtype, erase_at, first), p.beta_dtype,
            first);
    }

    float q_factor = 1, k_factor = 1;
    if (p.qk_l2norm && !has_keys()) {
      q_factor = warp_inverse_norm(kPerLane, [&](int j) { return smem.q[i][lane() + 32 * j]; });
      k_factor = warp_inverse_norm(kPerLane, [&](int j) { return smem.k[i][lane() + 32 * j]; });
    }
    float beta = 1;
    if (a.beta.data != nullptr) beta = strength(p.beta_input, from_raw(beta_raw, p.beta_dtype));
    float qk = 0;
#pragma unroll 2
    for (int j = 0; j < kPerLane; ++j) {
      const int key = lane() + 32 * j;
      const float erase = apart ? strength(p.beta_input, smem.erase_key[i][key]) : beta;
      const float q = smem.q[i][key] * q_factor, k = smem.k[i][key] * k_factor;
      qk = fmaf(q, k, qk);
      smem.q[i][key] = q;
      smem.k[i][key] = k;
      smem.erase_key[i][key] = erase * k;
    }
    qk = warp_sum(qk);
    if (lane() == 0) smem.qk[i] = qk;
#pragma unroll
    for (int j = 0; j < kColumnsPerThread; ++j) {
      const int column = lane() + 32 * j;
      if (column >= Tile::kColumns) continue;
      if (!fetched) smem.v[i][column] = from_raw(v[j], p.dtype);
      smem.write[i][column] =
          apart ? strength(p.beta_input, from_raw(write[j], p.beta_dtype)) : beta;
    }
  }

  __device__ __forceinline__ void stage_decays(int i, std::int64_t t) {
    const bool per_channel = p.op.gate == Gate::kChannel;
    float log_decay = smem.constant_log;
    Decay decay = smem.constant;
    if (p.op.gate == Gate::kHead) {
      log_decay = smem.gate.log_decay(load(a.g.data, p.gate_dtype, offset_of(a.g, t, head)), 0);
      decay = Decay::of(log_decay);
    }
    const bool recorded = params.record_g.data != nullptr && first_column == 0;
    if (recorded && lane() == 0) *record(params.record_g, t, head) = log_decay;
    // The bias waits where the decays' low parts will be.
    if (per_channel) {
      const std::int64_t g_at = offset_of(a.g, t, head);
#pragma unroll 1
      for (int first = 0; first < Tile::kKeys; first += 32 * kBatch) {
        const Batch g = ask(a.g.data, p.gate_dtype, g_at, first);
        const Batch bias = ask(smem.gate.dt_bias, DType::kFloat32, 0, first);
        put(smem.decay_high[i], g, p.gate_dtype, first);
        put(smem.decay_low[i], bias, DType::kFloat32, first);
      }
    }
    bool forgets = false;
    // Hardly unrolled: the activations are long, and nvcc 13.0 crashes on sixteen copies of them.
#pragma unroll 2
    for (int key = lane(); key < Tile::kKeys; key += 32) {
      if (per_channel && key < p.key_dim) {
        log_decay = smem.gate.biased_log_decay(smem.decay_high[i][key], smem.decay_low[i][key]);
        decay = Decay::of(log_decay);
        if (recorded) record(params.record_g, t, head)[key] = log_decay;
      }
      forgets = forgets || (decay.high == 0 && key < p.key_dim);
      smem.decay_high[i][key] = decay.high;
      smem.decay_low[i][key] = decay.low;
    }
    forgets = __any_sync(0xffffffffu, forgets);
    if (lane() == 0) smem.forgets[i] = forgets;
  }

  // Asks for a later token's rows, so that staging it does not wait for device memory.
  __device__ __forceinline__ void prefetch(std::int64_t t) const {
    const int key_head = head / (p.value_heads / p.heads);
    prefetch_row(a.q, p.dtype, t, key_head, 0, p.key_dim);
    prefetch_row(a.k, p.dtype, t, key_head, 0, p.key_dim);
    if (!transition) prefetch_row(a.v, p.dtype, t, head, first_column, columns);
    if (p.op.gate == Gate::kChannel) prefetch_row(a.g, p.gate_dtype, t, head, 0, p.key_dim);
  }

  __device__ __forceinline__ void prefetch_row(const Tensor& x, DType dtype, std::int64_t t,
                                               int of_head, int first, int count) const {
    if (x.data == nullptr) return;
    const int size = bytes_of(dtype);
    const char* row = static_cast<const char*>(x.data) + (offset_of(x, t, of_head) + first) * size;
    const int byte = lane() * 128;
    if (byte < count * size) ptx::prefetch_l2(row + byte);
  }

  // ---- fused steps

  __device__ __forceinline__ bool has_keys() const {
    return Tile::kFused && staged != Staged::kNothing;
  }
  __device__ __forceinline__ bool convolves() const { return Tile::kFused && p.conv_width > 0; }
  __device__ __forceinline__ bool normalizes() const {
    return Tile::kFused && p.norm_gate != Activation::kUnset;
  }
  __device__ __forceinline__ bool pad() const {
    if constexpr (Tile::kFused) return s.pad || smem.conv.pad;
    return s.pad;
  }
  // What comes before the norm, [LINATTN_FUSED_TOKENS, V].
  __device__ __forceinline__ float* unnormalized(std::int64_t t) const {
    return ptx::dynamic_shared<float>() + t * p.value_dim;
  }

  // ---- the recurrence

  __device__ __forceinline__ static float4 four(const float* row, int i) {
    return *reinterpret_cast<const float4*>(row + i * Tile::kRunKeys + lane() % Tile::kLanes * 4);
  }

  __device__ __forceinline__ void advance(int i) {
    constexpr int kColumnsPerLane = Tile::kColumnsPerLane;
    if (smem.forgets[i]) {
#pragma unroll
      for (int j = 0; j < Tile::kKeysPerLane; ++j)
        if (smem.decay_high[i][Tile::key(j)] == 0)
#pragma unroll
          for (int c = 0; c < kColumnsPerLane; ++c) state[c][j] = 0;
    }
    float erased[kColumnsPerLane] = {}, read[kColumnsPerLane] = {};
#pragma unroll
    for (int j = 0; j < Tile::kRuns; ++j) {
      const float4 high = four(smem.decay_high[i], j), low = four(smem.decay_low[i], j);
      const float4 b = four(smem.erase_key[i], j), q = four(smem.q[i], j);
#pragma unroll
      for (int c = 0; c < kColumnsPerLane; ++c) {
        float* x = state[c] + 4 * j;
        x[0] = Decay{high.x, low.x}(x[0]);
        x[1] = Decay{high.y, low.y}(x[1]);
        x[2] = Decay{high.z, low.z}(x[2]);
        x[3] = Decay{high.w, low.w}(x[3]);
        erased[c] = fmaf(x[0], b.x, erased[c]);
        erased[c] = fmaf(x[1], b.y, erased[c]);
        erased[c] = fmaf(x[2], b.z, erased[c]);
        erased[c] = fmaf(x[3], b.w, erased[c]);
        read[c] = fmaf(x[0], q.x, read[c]);
        read[c] = fmaf(x[1], q.y, read[c]);
        read[c] = fmaf(x[2], q.z, read[c]);
        read[c] = fmaf(x[3], q.w, read[c]);
      }
    }
#pragma unroll
    for (int step = Tile::kLanes / 2; step > 0; step /= 2)
#pragma unroll
      for (int c = 0; c < kColumnsPerLane; ++c) {
        erased[c] += __shfl_xor_sync(0xffffffffu, erased[c], step);
        read[c] += __shfl_xor_sync(0xffffffffu, read[c], step);
      }
    float e[kColumnsPerLane];
#pragma unroll
    for (int c = 0; c < kColumnsPerLane; ++c) {
      const int column = Tile::column(c);
      const float v = smem.v[i][column];
      e[c] =
          p.op.update == Update::kAdd ? v : UpdateDelta::write(smem.write[i][column], v, erased[c]);
      if (lane() % Tile::kLanes == 0) {
        smem.out[i][column] = params.scale * fmaf(smem.qk[i], e[c], read[c]);
        smem.written[i][column] = e[c];
      }
    }
#pragma unroll
    for (int j = 0; j < Tile::kRuns; ++j) {
      const float4 k = four(smem.k[i], j);
#pragma unroll
      for (int c = 0; c < kColumnsPerLane; ++c) {
        float* x = state[c] + 4 * j;
        x[0] = fmaf(k.x, e[c], x[0]);
        x[1] = fmaf(k.y, e[c], x[1]);
        x[2] = fmaf(k.z, e[c], x[2]);
        x[3] = fmaf(k.w, e[c], x[3]);
      }
    }
  }

  // ---- checkpoints: entries next .. last of this sequence are still to come

  std::int32_t next_checkpoint, last_checkpoint, next_position;

  __device__ __forceinline__ void seek_checkpoint(std::int64_t position) {
    while (next_checkpoint < last_checkpoint && a.checkpoint_positions[next_checkpoint] < position)
      ++next_checkpoint;
    next_position =
        next_checkpoint < last_checkpoint ? a.checkpoint_positions[next_checkpoint] : -1;
  }

  __device__ __forceinline__ void begin_checkpoints() {
    next_checkpoint = last_checkpoint = 0;
    next_position = -1;
    if (!Tile::kForward || a.checkpoints.data == nullptr || transition) return;
    const std::int32_t count = a.checkpoint_offsets[a.sequences];
    next_checkpoint = a.checkpoint_offsets[s.index];
    last_checkpoint = a.checkpoint_offsets[s.index + 1];
    if (next_checkpoint < 0) next_checkpoint = 0;
    if (last_checkpoint > count) last_checkpoint = count;
    seek_checkpoint(s.start_position);
  }

  // The slot of the state after `done` of this call's tokens; calls rise by one.
  __device__ __forceinline__ std::int64_t checkpoint_slot(std::int64_t done) {
    const std::int64_t position = s.start_position + done;
    if (next_position != position || position < 0) return kNullSlot;
    const std::int64_t slot =
        slot_or_null(a, a.checkpoint_slots[next_checkpoint], a.checkpoints.slots);
    seek_checkpoint(position + 1);
    return slot;
  }

  // ---- draft trees

  __device__ __forceinline__ std::int64_t parent(std::int64_t t) const {
    const std::int64_t of = a.parents[s.begin + t];
    return of >= t || of < 0 ? -1 : of;
  }

  __device__ __forceinline__ std::int64_t ancestor(std::int64_t t, std::int64_t generations) const {
    for (; generations > 0; --generations) t = parent(t);
    return t;
  }

  // Kept in the launch's shared memory, [kColumnsPerLane kKeysPerLane, kThreads].
  __device__ __forceinline__ void keep_initial(bool restore) {
    auto* saved_state = ptx::dynamic_shared<float>();
#pragma unroll
    for (int c = 0; c < Tile::kColumnsPerLane; ++c)
#pragma unroll
      for (int i = 0; i < Tile::kKeysPerLane; ++i) {
        float& kept = saved_state[(c * Tile::kKeysPerLane + i) * Tile::kThreads + threadIdx.x];
        if (restore)
          state[c][i] = kept;
        else
          kept = state[c][i];
      }
  }

  // A path of `steps` tokens. A chain: tokens 0, 1, ..., each of which is output. A tree: the
  // ancestors of `leaf` that follow the state in the registers, then leaf, which alone is output.
  struct Path {
    std::int64_t steps, leaf;  // leaf -1: a chain

    __device__ __forceinline__ int group(std::int64_t first) const {
      return static_cast<int>(min(std::int64_t{Tile::kTokens}, steps - first));
    }
  };

  __device__ __forceinline__ std::int64_t token(const Path& path, std::int64_t i) const {
    if (path.leaf >= 0) return ancestor(path.leaf, path.steps - 1 - i);
    if (Tile::kFused || a.picks == nullptr) return i;
    const std::int64_t pick = a.picks[s.index * a.picks_stride + i];
    return pick < 0 ? 0 : min(pick, s.length - 1);
  }

  // Tokens that are taken, at least 0 and at most the sequence's.
  __device__ __forceinline__ std::int64_t taken() const {
    std::int64_t count = s.length;
    if (a.counts != nullptr)
      count = min(count, max(std::int64_t{a.counts[s.index]}, std::int64_t{0}));
    if (Tile::kFused) return min(count, std::int64_t{LINATTN_FUSED_TOKENS});
    return a.picks == nullptr ? count : min(count, a.picks_stride);
  }

  __device__ __forceinline__ void stage(const Path& path, std::int64_t first) {
    const int count = path.group(first);
    if constexpr (Tile::kFused)
      if (stage_fused(*this, first, count)) return;
    for (int task = warp(); task < 2 * count; task += Tile::kWarps) {
      const std::int64_t t = token(path, first + task / 2);
      if (task % 2 == 0) {
        stage_vectors(task / 2, t);
        if (path.leaf < 0 && t + Tile::kTokens < path.steps) prefetch(t + Tile::kTokens);
      } else {
        stage_decays(task / 2, t);
      }
    }
    __syncthreads();
  }

  // The staged group of a path.
  __device__ __forceinline__ void advance(const Path& path, std::int64_t first) {
    const bool tree = path.leaf >= 0;
    const int count = path.group(first);
    for (int i = 0; i < count; ++i) {
      advance(i);
      // Checkpoints are a forward's, columns a step's: one place stores either.
      const bool by_token = a.write_slot_stride > 0;
      std::int64_t slot = kNullSlot;
      if (!by_token)
        slot = Tile::kForward ? checkpoint_slot(first + i + 1) : kNullSlot;
      else if (!tree || first + i == path.steps - 1)
        slot = token_write_slot(a, s.index, token(path, first + i));
      store_state(by_token ? a.final_state : a.checkpoints,
                  by_token ? p.state_dtype : p.checkpoint_dtype, p.state_layout, slot);
    }
    __syncthreads();
    if (transition) return;
    if (params.record_v.data != nullptr) store_record(path, first);
    if (a.out.data == nullptr) return;
    const bool last = first + count == path.steps;
    for (int x = threadIdx.x; x < count * Tile::kColumns; x += Tile::kThreads) {
      const int i = x / Tile::kColumns, column = x % Tile::kColumns;
      if (column >= columns || (tree && !(last && i == count - 1))) continue;
      const float o = smem.out[i][column];
      if (normalizes())
        unnormalized(first + i)[first_column + column] = o;
      else
        store_out(row_offset(a, a.out, s, token(path, first + i), head), column, o);
    }
  }

  // What the group wrote, and once for the heads that share them, its keys. Tokens on the way to a
  // tree's leaf are recorded again with the same bits.
  __device__ __forceinline__ void store_record(const Path& path, std::int64_t first) const {
    const int group = p.value_heads / p.heads;
    for (int i = warp(); i < path.group(first); i += Tile::kWarps) {
      const std::int64_t t = token(path, first + i);
      for (int column = lane(); column < columns; column += 32)
        record(params.record_v, t, head)[first_column + column] = smem.written[i][column];
      if (first_column == 0 && head % group == 0)
        for (int key = lane(); key < p.key_dim; key += 32)
          record(params.record_k, t, head / group)[key] = smem.k[i][key];
    }
  }

  __device__ __forceinline__ void run() {
    if (pad() || a.counts != nullptr || a.picks != nullptr ||
        (Tile::kFused && s.length > LINATTN_FUSED_TOKENS))
      zero_out(transition ? 0 : s.length);
    if (pad() && !transition) return;
    const std::int64_t length = pad() ? 0 : taken();
    const bool tree = !Tile::kFused && a.parents != nullptr && length > 0;
    Path path{tree ? std::int64_t{1} : length, tree ? 0 : -1};
    // The first group is staged ahead of the loop: ptxas waits for loads before a loop that uses
    // what they bring.
    load_initial();
    std::int64_t first = 0;
    stage(path, first);
    settle_initial();
    if constexpr (Tile::kForward) {
      begin_checkpoints();
      store_state(a.checkpoints, p.checkpoint_dtype, p.state_layout, checkpoint_slot(0));
    }
    if (tree) keep_initial(false);
    while (true) {
      advance(path, first);
      first += Tile::kTokens;
      if (first >= path.steps) {
        if (!tree || ++path.leaf == length) break;
        first = 0;
        path.steps = 1;
        if (parent(path.leaf) != path.leaf - 1) {
          keep_initial(true);
          for (std::int64_t x = path.leaf; (x = parent(x)) >= 0;) ++path.steps;
        }
      }
      stage(path, first);
    }
    if (transition)
      store_state(a.transition, DType::kFloat32, StateLayout::kKeyValue, s.index);
    else
      store_state(a.final_state, p.state_dtype, p.state_layout, s.write_slot);
  }
};

}  // namespace linattn::cuda
