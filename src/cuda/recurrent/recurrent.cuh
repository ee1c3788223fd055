// SPDX-License-Identifier: Apache-2.0
//
// The recurrence as it is written. A block walks one sequence of one value head and holds all K
// rows of a tile of the state's columns in registers, so no two blocks ever speak.
//
//   kLanes neighbouring lanes share two columns; each holds 16 keys of both      16 kLanes >= K
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

#include "cuda/common/convert.cuh"
#include "cuda/common/gate.cuh"
#include "cuda/common/ptx.cuh"
#include "cuda/common/sequence.cuh"
#include "cuda/recurrent/launch.h"
#include "recurrence/update.h"

namespace linattn::cuda {

struct RecurrentParams {
  Problem problem;
  RecurrentArgs args;
  float scale;
  std::int32_t value_tiles;       // tiles of the state's V columns
  std::int32_t transition_tiles;  // and of the transition's K columns, which come after them
  std::int64_t sequences;         // N, at least 1: the rows past the last offset are cleared by all
};

template <int kLanesPerColumn>
struct RecurrentTile {
  static constexpr int kLanes = kLanesPerColumn;
  static constexpr int kThreads = 128;
  // On a multiprocessor: 128 registers a thread, of which the code of sm_80 spills.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  static constexpr int kBlocks = 3;
#else
  static constexpr int kBlocks = 4;
#endif
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kKeysPerLane = 16;
  static constexpr int kColumnsPerLane = 2;
  static constexpr int kKeys = kLanes * kKeysPerLane;
  static constexpr int kColumns = kThreads / kLanes * kColumnsPerLane;
  static constexpr int kWarpColumns = kColumns / kWarps;
  // Keys go in runs of four per lane, so that a lane reads 16 bytes and its neighbour the next 16.
  static constexpr int kRunKeys = 4 * kLanes;
  static constexpr int kRuns = kKeysPerLane / 4;
  // One or two tokens for each warp to stage, and several blocks still share a multiprocessor.
  static constexpr int kTokens = kKeys <= 128 ? 8 : 4;
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
  float transfer[Tile::kWarps][Tile::kWarpColumns][Tile::kRunKeys + 1];
  Sequence sequence;  // here rather than in every thread's registers, as is the gate
  GateReader gate;
  Decay constant;              // of a gate that no token changes
  float qk[Tile::kTokens];     // q . k
  int forgets[Tile::kTokens];  // some key's decay is 0
};

// One block's tile: a sequence, a value head, a range of columns.
template <class Tile>
struct RecurrentBlock {
  const RecurrentParams& params;
  const Problem& p;
  const RecurrentArgs& a;
  RecurrentStorage<Tile>& smem;
  float* saved_state;  // [kColumnsPerLane kKeysPerLane, kThreads], with parents only
  const Sequence& s;
  int head;
  int first_column;
  int columns;  // of the tile, at most kColumns
  bool transition;
  float state[Tile::kColumnsPerLane][Tile::kKeysPerLane];

  // ---- who holds what

  __device__ __forceinline__ static int warp() { return static_cast<int>(threadIdx.x) / 32; }
  __device__ __forceinline__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }
  __device__ __forceinline__ static int key(int i) {
    return i / 4 * Tile::kRunKeys + lane() % Tile::kLanes * 4 + i % 4;
  }
  __device__ __forceinline__ static int column(int c) {
    return static_cast<int>(threadIdx.x) / Tile::kLanes * Tile::kColumnsPerLane + c;
  }

  // ---- states in memory

  // Between registers and a matrix in memory, a run of keys at a time through shared memory: rows
  // of memory are contiguous along keys or along columns, and a lane holds neither. A warp's
  // columns are its own, so warps need not wait for each other.
  template <bool kLoad>
  __device__ __forceinline__ void transfer(const State& matrix, DType dtype, std::int64_t slot,
                                           StateLayout layout) {
    const std::int64_t base = matrix_offset(matrix, slot, head);
    const bool key_value = layout == StateLayout::kKeyValue;
    const std::int64_t width = transition ? p.key_dim : p.value_dim;
    const int first = warp() * Tile::kWarpColumns;
    auto& buffer = smem.transfer[warp()];  // [kWarpColumns][kRunKeys]
#pragma unroll
    for (int run = 0; run < Tile::kRuns; ++run) {
      const auto exchange = [&] {
#pragma unroll
        for (int c = 0; c < Tile::kColumnsPerLane; ++c)
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            float& x = buffer[column(c) - first][lane() % Tile::kLanes * 4 + i];
            if constexpr (kLoad)
              state[c][4 * run + i] = x;
            else
              x = state[c][4 * run + i];
          }
        __syncwarp();
      };
      // Element x of the run, in the order of memory.
      const auto place = [&](int x, int& c, int& i, std::int64_t& at) {
        c = key_value ? x % Tile::kWarpColumns : x / Tile::kRunKeys;
        i = key_value ? x / Tile::kWarpColumns : x % Tile::kRunKeys;
        const int k = run * Tile::kRunKeys + i;
        const std::int64_t v = first_column + first + c;
        at = base + (key_value ? k * width + v : v * p.key_dim + k);
        return k < p.key_dim && first + c < columns;
      };
      constexpr int kPerLane = Tile::kWarpColumns * Tile::kRunKeys / 32;
      int c, i;
      std::int64_t at;
      if constexpr (kLoad) {
        std::uint32_t raw[kPerLane];
#pragma unroll
        for (int j = 0; j < kPerLane; ++j)
          raw[j] = place(lane() + 32 * j, c, i, at) ? load_raw(matrix.data, dtype, at) : 0;
#pragma unroll
        for (int j = 0; j < kPerLane; ++j) {
          place(lane() + 32 * j, c, i, at);
          buffer[c][i] = from_raw(raw[j], dtype);
        }
      } else {
        exchange();
#pragma unroll 2
        for (int j = 0; j < kPerLane; ++j)
          if (place(lane() + 32 * j, c, i, at)) store(matrix.data, dtype, at, buffer[c][i]);
      }
      __syncwarp();
      if constexpr (kLoad) exchange();
    }
  }

  __device__ __forceinline__ void load_initial() {
    if (!transition && s.read_slot != kNullSlot) {
      transfer<true>(a.initial_state, p.state_dtype, s.read_slot, p.state_layout);
      return;
    }
#pragma unroll
    for (int c = 0; c < Tile::kColumnsPerLane; ++c)
#pragma unroll
      for (int i = 0; i < Tile::kKeysPerLane; ++i)
        state[c][i] = transition && key(i) == first_column + column(c) ? 1.0f : 0.0f;
  }

  // ---- outputs

  __device__ __forceinline__ void store_out(std::int64_t offset, int column, float x) const {
    store(a.out.data, p.dtype, offset + first_column + column, x);
  }

  __device__ __forceinline__ void zero_out(std::int64_t rows) const {
    for (std::int64_t i = threadIdx.x; i < rows * columns; i += Tile::kThreads)
      store_out(row_offset(a, a.out, s, i / columns, head), static_cast<int>(i % columns), 0.0f);
  }

  // Rows past the last offset, shared out among the blocks of the same columns.
  __device__ __forceinline__ void zero_surplus(std::int64_t n) const {
    for (std::int64_t row = used_rows(a) + n; row < a.tokens; row += params.sequences)
      for (int column = threadIdx.x; column < columns; column += Tile::kThreads)
        store_out(row * a.out.token_stride + head * a.out.head_stride, column, 0.0f);
  }

  // ---- one token into shared memory, by one warp

  // Rows of 32 kBatch keys are on their way together; what a lane puts into shared memory it alone
  // reads until the barrier.
  __device__ __forceinline__ void stage(int i, std::int64_t t) {
    constexpr int kPerLane = Tile::kKeys / 32, kBatch = kPerLane < 4 ? kPerLane : 4;
    constexpr int kColumnsPerThread = (Tile::kColumns + 31) / 32;
    const bool apart = p.op.update == Update::kEraseWrite;
    const bool per_channel = p.op.gate == Gate::kChannel;
    const int key_head = head / (p.value_heads / p.heads);
    const std::int64_t q_at = row_offset(a, a.q, s, t, key_head);
    const std::int64_t k_at = row_offset(a, a.k, s, t, key_head);
    const std::int64_t v_at = row_offset(a, a.v, s, t, head) + first_column;
    const std::int64_t g_at = a.g.data == nullptr ? 0 : row_offset(a, a.g, s, t, head);
    const std::int64_t erase_at = apart ? row_offset(a, a.erase, s, t, head) : 0;
    const std::int64_t write_at = apart ? row_offset(a, a.write, s, t, head) + first_column : 0;

    std::uint32_t head_g = 0, beta_raw = 0, v[kColumnsPerThread], write[kColumnsPerThread];
    if (p.op.gate == Gate::kHead) head_g = load_raw(a.g.data, p.gate_dtype, g_at);
    if (a.beta.data != nullptr)
      beta_raw = load_raw(a.beta.data, p.beta_dtype, row_offset(a, a.beta, s, t, head));
#pragma unroll
    for (int j = 0; j < kColumnsPerThread; ++j) {
      const int column = lane() + 32 * j;
      const bool inside = column < columns && !transition;
      v[j] = inside ? load_raw(a.v.data, p.dtype, v_at + column) : 0;
      write[j] = inside && apart ? load_raw(a.write.data, p.beta_dtype, write_at + column) : 0;
    }
#pragma unroll 1
    for (int first = 0; first < Tile::kKeys; first += 32 * kBatch) {
      std::uint32_t q[kBatch], k[kBatch], g[kBatch], erase[kBatch];
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        const int key = first + lane() + 32 * j;
        const bool inside = key < p.key_dim;
        q[j] = inside ? load_raw(a.q.data, p.dtype, q_at + key) : 0;
        k[j] = inside ? load_raw(a.k.data, p.dtype, k_at + key) : 0;
        g[j] = inside && per_channel ? load_raw(a.g.data, p.gate_dtype, g_at + key) : 0;
        erase[j] = inside && apart ? load_raw(a.erase.data, p.beta_dtype, erase_at + key) : 0;
      }
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        const int key = first + lane() + 32 * j;
        smem.q[i][key] = from_raw(q[j], p.dtype);
        smem.k[i][key] = from_raw(k[j], p.dtype);
        smem.decay_high[i][key] = from_raw(g[j], p.gate_dtype);
        smem.erase_key[i][key] = from_raw(erase[j], p.beta_dtype);
      }
    }

    float q_factor = 1, k_factor = 1;
    if (p.qk_l2norm) {
      q_factor = warp_inverse_norm(kPerLane, [&](int j) { return smem.q[i][lane() + 32 * j]; });
      k_factor = warp_inverse_norm(kPerLane, [&](int j) { return smem.k[i][lane() + 32 * j]; });
    }
    float beta = 1;
    if (a.beta.data != nullptr) beta = strength(p.beta_input, from_raw(beta_raw, p.beta_dtype));
    Decay decay = smem.constant;
    if (p.op.gate == Gate::kHead)
      decay = Decay::of(smem.gate.log_decay(from_raw(head_g, p.gate_dtype), 0));
    float qk = 0;
    bool forgets = false;
    // Hardly unrolled: the activations are long, and nvcc 13.0 crashes on sixteen copies of them.
#pragma unroll 2
    for (int key = lane(); key < Tile::kKeys; key += 32) {
      if (per_channel && key < p.key_dim)
        decay = Decay::of(smem.gate.log_decay(smem.decay_high[i][key], key));
      const float erase = apart ? strength(p.beta_input, smem.erase_key[i][key]) : beta;
      const float q = smem.q[i][key] * q_factor, k = smem.k[i][key] * k_factor;
      qk = fmaf(q, k, qk);
      forgets = forgets || (decay.high == 0 && key < p.key_dim);
      smem.q[i][key] = q;
      smem.k[i][key] = k;
      smem.erase_key[i][key] = erase * k;
      smem.decay_high[i][key] = decay.high;
      smem.decay_low[i][key] = decay.low;
    }
    qk = warp_sum(qk);
    forgets = __any_sync(0xffffffffu, forgets);
    if (lane() == 0) {
      smem.qk[i] = qk;
      smem.forgets[i] = forgets;
    }
#pragma unroll
    for (int j = 0; j < kColumnsPerThread; ++j) {
      const int column = lane() + 32 * j;
      if (column >= Tile::kColumns) continue;
      smem.v[i][column] = from_raw(v[j], p.dtype);
      smem.write[i][column] =
          apart ? strength(p.beta_input, from_raw(write[j], p.beta_dtype)) : beta;
    }
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
    const int size = bytes_of(dtype);
    const char* row =
        static_cast<const char*>(x.data) + (row_offset(a, x, s, t, of_head) + first) * size;
    const int byte = lane() * 128;
    if (byte < count * size) ptx::prefetch_l2(row + byte);
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
        if (smem.decay_high[i][key(j)] == 0)
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
      const int column = this->column(c);
      const float v = smem.v[i][column];
      e[c] =
          p.op.update == Update::kAdd ? v : UpdateDelta::write(smem.write[i][column], v, erased[c]);
      if (lane() % Tile::kLanes == 0)
        smem.out[i][column] = params.scale * fmaf(smem.qk[i], e[c], read[c]);
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

  std::int64_t next_checkpoint, last_checkpoint, next_position;

  __device__ __forceinline__ void seek_checkpoint(std::int64_t position) {
    while (next_checkpoint < last_checkpoint && a.checkpoint_positions[next_checkpoint] < position)
      ++next_checkpoint;
    next_position =
        next_checkpoint < last_checkpoint ? a.checkpoint_positions[next_checkpoint] : -1;
  }

  __device__ __forceinline__ void begin_checkpoints() {
    next_checkpoint = last_checkpoint = 0;
    next_position = -1;
    if (a.checkpoints.data == nullptr || transition) return;
    const std::int64_t count = a.checkpoint_offsets[a.sequences];
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

  __device__ __forceinline__ void keep_initial(bool restore) {
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

  // Advances by `steps` tokens. A chain: tokens 0, 1, ..., each of which is output. A tree: the
  // ancestors of `leaf` that follow the state in the registers, then leaf, which alone is output.
  __device__ __forceinline__ void walk(std::int64_t steps, std::int64_t leaf) {
    const bool tree = leaf >= 0;
    for (std::int64_t first = 0; first < steps; first += Tile::kTokens) {
      const int count =
          static_cast<int>(min(static_cast<std::int64_t>(Tile::kTokens), steps - first));
      for (int i = warp(); i < count; i += Tile::kWarps) {
        stage(i, tree ? ancestor(leaf, steps - 1 - first - i) : first + i);
        if (!tree && first + i + Tile::kTokens < steps) prefetch(first + i + Tile::kTokens);
      }
      __syncthreads();
      for (int i = 0; i < count; ++i) {
        advance(i);
        // Checkpoints are a forward's, columns a step's: one place stores either.
        std::int64_t slot = kNullSlot;
        if (a.write_slot_stride > 0) {
          if (!tree || first + i == steps - 1)
            slot = token_write_slot(a, s.index, tree ? leaf : first + i);
        } else if (next_position >= 0) {
          slot = checkpoint_slot(first + i + 1);
        }
        if (slot != kNullSlot)
          transfer<false>(a.write_slot_stride > 0 ? a.final_state : a.checkpoints,
                          a.write_slot_stride > 0 ? p.state_dtype : p.checkpoint_dtype, slot,
                          p.state_layout);
      }
      __syncthreads();
      if (transition) continue;
      const bool last = first + count == steps;
      for (int x = threadIdx.x; x < count * Tile::kColumns; x += Tile::kThreads) {
        const int i = x / Tile::kColumns, column = x % Tile::kColumns;
        if (column >= columns || (tree && !(last && i == count - 1))) continue;
        store_out(row_offset(a, a.out, s, tree ? leaf : first + i, head), column,
                  smem.out[i][column]);
      }
    }
  }

  __device__ __forceinline__ void run() {
    if (s.pad && !transition) {
      zero_out(s.length);
      return;
    }
    load_initial();
    if (!s.pad) {
      begin_checkpoints();
      const std::int64_t slot = checkpoint_slot(0);
      if (slot != kNullSlot)
        transfer<false>(a.checkpoints, p.checkpoint_dtype, slot, p.state_layout);
      const bool tree = a.parents != nullptr;
      if (tree) keep_initial(false);
      const std::int64_t walks = tree ? s.length : 1;
      for (std::int64_t t = 0; t < walks; ++t) {
        std::int64_t steps = tree ? 1 : s.length;
        if (tree && parent(t) != t - 1) {
          keep_initial(true);
          for (std::int64_t x = t; (x = parent(x)) >= 0;) ++steps;
        }
        walk(steps, tree ? t : -1);
      }
    }
    const std::int64_t slot = transition ? s.index : s.write_slot;
    if (slot != kNullSlot)
      transfer<false>(transition ? a.transition : a.final_state,
                      transition ? DType::kFloat32 : p.state_dtype, slot,
                      transition ? StateLayout::kKeyValue : p.state_layout);
  }
};

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    recurrent_kernel(const __grid_constant__ RecurrentParams params) {
  __shared__ RecurrentStorage<Tile> smem;
  auto* saved_state = ptx::dynamic_shared<float>();
  const Problem& p = params.problem;
  const RecurrentArgs& a = params.args;
  const std::int64_t tiles = params.value_tiles + params.transition_tiles;
  const std::int64_t units = tiles * p.value_heads * params.sequences;
  for (std::int64_t unit = blockIdx.x; unit < units; unit += gridDim.x) {
    int tile = static_cast<int>(unit % tiles);
    const std::int64_t n = unit / tiles / p.value_heads;
    const bool transition = tile >= params.value_tiles;
    if (transition) tile -= params.value_tiles;
    RecurrentBlock<Tile> block{params, p, a, smem, saved_state, smem.sequence};
    block.head = static_cast<int>(unit / tiles % p.value_heads);
    block.transition = transition;
    block.first_column = tile * Tile::kColumns;
    block.columns =
        min(Tile::kColumns, (transition ? p.key_dim : p.value_dim) - block.first_column);
    if (!transition) block.zero_surplus(n);
    if (n < a.sequences) {
      if (threadIdx.x == 0) {
        smem.sequence = sequence_of(a, n);
        smem.gate = GateReader::of(p, a, block.head);
        smem.constant =
            p.op.gate == Gate::kHeadConstant ? constant_decay(p, a, block.head) : Decay{1.0f, 0.0f};
      }
      __syncthreads();
      block.run();
      __syncthreads();  // the next unit writes to shared memory that a warp may still be reading
    }
  }
}

}  // namespace linattn::cuda
