// SPDX-License-Identifier: Apache-2.0
//
// Rows between the caller's tensors and fp32: any dtype, any count, never an element past the row's
// end.
#pragma once

#include "cpu/chunked.h"
#include "cpu/mutants.h"
#include "cpu/simd.h"

namespace linattn::cpu::LINATTN_ISA {

inline constexpr int kPanel = 2 * kWidth;  // columns of a panel
static_assert(kChunk % kPanel == 0 && kPanel <= 2 * kMaxWidth);

constexpr int padded(int count) { return (count + kWidth - 1) / kWidth * kWidth; }

constexpr std::int64_t bytes_of(DType dtype) { return dtype == DType::kFloat32 ? 4 : 2; }

LINATTN_INLINE Vec load_as(const void* p, DType dtype) {
  if (dtype == DType::kFloat32) return load(static_cast<const float*>(p));
  VecHalf half;
  __builtin_memcpy(&half, p, sizeof half);
  return dtype == DType::kBFloat16 ? from_bf16(half) : from_fp16(half);
}
LINATTN_INLINE void store_as(void* p, DType dtype, Vec x) {
  if (dtype == DType::kFloat32) return store(static_cast<float*>(p), x);
  const VecHalf half = dtype == DType::kBFloat16 ? to_bf16(x) : to_fp16(x);
  __builtin_memcpy(p, &half, sizeof half);
}

// The first `count` of kWidth elements; the rest is 0, and is not touched.
inline Vec load_first(const void* p, DType dtype, int count) {
  if (count >= kWidth) return load_as(p, dtype);
  float buffer[kWidth] = {};
  if (count > 0) __builtin_memcpy(buffer, p, static_cast<std::size_t>(count * bytes_of(dtype)));
  return load_as(buffer, dtype);
}
inline void store_first(void* p, DType dtype, int count, Vec x) {
  if (count >= kWidth) return store_as(p, dtype, x);
  float buffer[kWidth];
  store_as(buffer, dtype, x);
  if (count > 0) __builtin_memcpy(p, buffer, static_cast<std::size_t>(count * bytes_of(dtype)));
}

// A row of `count` elements, 0 up to padded(count).
inline void load_row(const void* p, DType dtype, int count, float* out) {
  const char* from = static_cast<const char*>(p);
  const int whole = count / kWidth * kWidth;
  switch (dtype) {
    case DType::kFloat32:
      for (int c = 0; c < whole; c += kWidth)
        store(out + c, load_as(from + 4 * c, DType::kFloat32));
      break;
    case DType::kBFloat16:
      for (int c = 0; c < whole; c += kWidth)
        store(out + c, load_as(from + 2 * c, DType::kBFloat16));
      break;
    default:
      for (int c = 0; c < whole; c += kWidth)
        store(out + c, load_as(from + 2 * c, DType::kFloat16));
  }
  if (whole < count)
    store(out + whole, load_first(from + whole * bytes_of(dtype), dtype, count - whole));
}

// The rows of one sequence and head in a tensor.
struct Rows {
  char* data = nullptr;
  DType dtype = DType::kFloat32;
  std::int64_t token_stride = 0;  // bytes

  char* at(std::int64_t token) const { return data + token * token_stride; }
};

// Log decays to base 2. exp(A_log) is kept finite: an infinite rate times 0 would be NaN.
struct GateActivation {
  GateInput input = GateInput::kUnset;
  float a_log = 0;
  float rate = 1;         // exp(A_log)
  float lower_bound = 0;  // to base 2
  const float* dt_bias = nullptr;

  template <GateInput kInput>
  LINATTN_INLINE Vec apply(Vec g, Vec bias) const {
    Vec y = g * kLog2e;
    if constexpr (kInput == GateInput::kDecay) y = log2(g);
    if constexpr (kInput == GateInput::kSoftplus) {
      const Vec x = g + bias;
      y = softplus(x) * rate * -kLog2e;
      const VecInt tiny = x < -40.0f;  // there softplus(x) is exp(x), and rate may be huge
      if (any(tiny)) y = select(tiny, exp(x + a_log) * -kLog2e, y);
    }
    if constexpr (kInput == GateInput::kBounded) y = sigmoid((g + bias) * rate) * lower_bound;
    // A token that decays by more is a reset, as -infinity is, and leaves no infinity to subtract.
    // NaN stays.
    return select(y < -0x1p14f, splat(-0x1p14f), y);
  }

  template <GateInput kInput>
  void apply_to(float* row, int count) const {
    for (int c = 0; c < count; c += kWidth) {
      const Vec bias =
          dt_bias == nullptr ? Vec{} : load_first(dt_bias + c, DType::kFloat32, count - c);
      store(row + c, apply<kInput>(load(row + c), bias));
    }
  }

  void apply_to(float* row, int count) const {
    switch (input) {
      case GateInput::kDecay:
        return apply_to<GateInput::kDecay>(row, count);
      case GateInput::kSoftplus:
        return apply_to<GateInput::kSoftplus>(row, count);
      case GateInput::kBounded:
        return apply_to<GateInput::kBounded>(row, count);
      default:
        return apply_to<GateInput::kLogDecay>(row, count);
    }
  }
};

LINATTN_INLINE Vec strength(Vec x, BetaInput input) {
  Vec y = x;
  if (input == BetaInput::kLogit) y = sigmoid(x);
  if (input == BetaInput::kTwiceLogit) y = sigmoid(x) * 2.0f;
  if constexpr (kMutantBetaBf16) y = rounded_to_bf16(y);
  return y;
}

// x / sqrt(sum x^2 + 1e-6) over a padded row.
inline void normalise(float* row, int count) {
  Vec squares[2] = {};
  int c = 0;
  for (; c + 2 * kWidth <= count; c += 2 * kWidth)
    for (int v = 0; v < 2; ++v) {
      const Vec x = load(row + c + v * kWidth);
      squares[v] = fma(x, x, squares[v]);
    }
  for (; c < count; c += kWidth) squares[0] = fma(load(row + c), load(row + c), squares[0]);
  const float total = sum(squares[0] + squares[1]) + 1e-6f;
  float norm = __builtin_sqrtf(total);
  if (!(total < 1e38f)) {  // the squares overflowed, or nearly
    double wide = 1e-6;
    for (int i = 0; i < count; ++i) wide += static_cast<double>(row[i]) * row[i];
    norm = static_cast<float>(__builtin_sqrt(wide));
  }
  const Vec scale = splat(1.0f / norm);
  for (int i = 0; i < count; i += kWidth) store(row + i, load(row + i) * scale);
}

}  // namespace linattn::cpu::LINATTN_ISA
