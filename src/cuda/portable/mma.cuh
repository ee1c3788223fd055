// SPDX-License-Identifier: Apache-2.0
//
// One warp's tensor-core products by mma.sync, for two kinds of operand: bf16 (m16n8k16) and tf32
// (two m16n8k8). Both are used as products of depth 16. Fragments, with lane = 4 * row + pair:
//
//   Accumulator [16, 8]   c[0], c[1]: (row, 2 pair), (row, 2 pair + 1);   c[2], c[3]: the same of
//   row + 8
//
// Where tf32 wants its depth as (pair, pair + 4), it gets (2 pair, 2 pair + 1) from both operands:
// the order of a sum's terms is free, and so an accumulator becomes an operand without leaving its
// registers, as with bf16.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace linattn::portable {

struct Accumulator {
  float c[4];
};

__device__ inline std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

struct OperandBf16 {
  using Type = __nv_bfloat16;  // element in shared memory

  struct A {  // [16, 16]
    std::uint32_t a[4];
  };
  struct B {  // [16, 8]
    std::uint32_t b[2];
  };

  __device__ static Type round(float x) { return __float2bfloat16_rn(x); }
  __device__ static std::uint32_t pack(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<const std::uint32_t&>(pair);
  }
  // Two neighbouring elements.
  __device__ static void store_pair(Type* to, float low, float high) {
    *reinterpret_cast<std::uint32_t*>(to) = pack(low, high);
  }

  __device__ static void mma(Accumulator& d, const A& a, const B& b) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d.c[0]), "+f"(d.c[1]), "+f"(d.c[2]), "+f"(d.c[3])
        : "r"(a.a[0]), "r"(a.a[1]), "r"(a.a[2]), "r"(a.a[3]), "r"(b.b[0]), "r"(b.b[1]));
  }

  // A from two accumulators that stand side by side.
  __device__ static A to_a(const Accumulator& left, const Accumulator& right) {
    return {pack(left.c[0], left.c[1]), pack(left.c[2], left.c[3]), pack(right.c[0], right.c[1]),
            pack(right.c[2], right.c[3])};
  }
  // The same, its 16 columns scaled by powers of two, which is exact also after rounding.
  __device__ static A to_a(const Accumulator& left, const Accumulator& right, const Type* powers,
                           int lane) {
    A out = to_a(left, right);
    const auto* by = reinterpret_cast<const __nv_bfloat162*>(powers) + lane % 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const __nv_bfloat162 scaled =
          __hmul2(reinterpret_cast<const __nv_bfloat162&>(out.a[i]), by[i / 2 * 4]);
      out.a[i] = reinterpret_cast<const std::uint32_t&>(scaled);
    }
    return out;
  }

  // A from [16, 16] of a row-major matrix.
  __device__ static A load_a(const Type* tile, int pitch, int lane) {
    A out;
    const std::uint32_t address = shared_address(tile + (lane % 16) * pitch + lane / 16 * 8);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out.a[0]), "=r"(out.a[1]), "=r"(out.a[2]), "=r"(out.a[3])
                 : "r"(address));
    return out;
  }

  // Two B, columns 0-7 and 8-15, from [16 columns, 16 deep]: the matrix's rows are B's columns.
  __device__ static void load_b(B (&out)[2], const Type* tile, int pitch, int lane) {
    const int row = lane % 8 + lane / 16 * 8;
    const std::uint32_t address = shared_address(tile + row * pitch + lane / 8 % 2 * 8);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0].b[0]), "=r"(out[0].b[1]), "=r"(out[1].b[0]), "=r"(out[1].b[1])
                 : "r"(address));
  }

  // Two B, columns 0-7 and 8-15, from [16 deep, 16 columns].
  __device__ static void load_b_deep(B (&out)[2], const Type* tile, int pitch, int lane) {
    const int row = lane % 16;
    const std::uint32_t address = shared_address(tile + row * pitch + lane / 16 * 8);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0].b[0]), "=r"(out[0].b[1]), "=r"(out[1].b[0]), "=r"(out[1].b[1])
                 : "r"(address));
  }
};

struct OperandTf32 {
  using Type = float;

  struct A {
    std::uint32_t a[8];
  };
  struct B {
    std::uint32_t b[4];
  };

  __device__ static Type round(float x) { return __uint_as_float(bits(x)); }
  __device__ static std::uint32_t bits(float x) {
    std::uint32_t out;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(out) : "f"(x));
    return out;
  }
  __device__ static void store_pair(Type* to, float low, float high) {
    *reinterpret_cast<float2*>(to) = make_float2(round(low), round(high));
  }

  __device__ static void mma(Accumulator& d, const A& a, const B& b) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      asm volatile(
          "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
          "{%8, %9}, "
          "{%0, %1, %2, %3};"
          : "+f"(d.c[0]), "+f"(d.c[1]), "+f"(d.c[2]), "+f"(d.c[3])
          : "r"(a.a[4 * half]), "r"(a.a[4 * half + 1]), "r"(a.a[4 * half + 2]),
            "r"(a.a[4 * half + 3]), "r"(b.b[2 * half]), "r"(b.b[2 * half + 1]));
  }

  __device__ static A to_a(const Accumulator& left, const Accumulator& right) {
    return {bits(left.c[0]),  bits(left.c[2]),  bits(left.c[1]),  bits(left.c[3]),
            bits(right.c[0]), bits(right.c[2]), bits(right.c[1]), bits(right.c[3])};
  }
  __device__ static A to_a(const Accumulator& left, const Accumulator& right, const Type* powers,
                           int lane) {
    const auto* by = reinterpret_cast<const float2*>(powers) + lane % 4;
    const auto scaled = [](const Accumulator& tile, float2 f) {
      return Accumulator{{tile.c[0] * f.x, tile.c[1] * f.y, tile.c[2] * f.x, tile.c[3] * f.y}};
    };
    return to_a(scaled(left, by[0]), scaled(right, by[4]));
  }

  __device__ static A load_a(const Type* tile, int pitch, int lane) {
    A out;
    const Type* at = tile + lane / 4 * pitch + lane % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint2 top = *reinterpret_cast<const uint2*>(at + 8 * half);
      const uint2 bottom = *reinterpret_cast<const uint2*>(at + 8 * pitch + 8 * half);
      out.a[4 * half] = top.x;
      out.a[4 * half + 1] = bottom.x;
      out.a[4 * half + 2] = top.y;
      out.a[4 * half + 3] = bottom.y;
    }
    return out;
  }

  __device__ static void load_b(B (&out)[2], const Type* tile, int pitch, int lane) {
    const Type* at = tile + lane / 4 * pitch + lane % 4 * 2;
#pragma unroll
    for (int side = 0; side < 2; ++side)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint2 pair = *reinterpret_cast<const uint2*>(at + 8 * side * pitch + 8 * half);
        out[side].b[2 * half] = pair.x;
        out[side].b[2 * half + 1] = pair.y;
      }
  }

  __device__ static void load_b_deep(B (&out)[2], const Type* tile, int pitch, int lane) {
    const Type* at = tile + lane % 4 * 2 * pitch + lane / 4;
#pragma unroll
    for (int side = 0; side < 2; ++side)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        out[side].b[2 * half] = __float_as_uint(at[8 * half * pitch + 8 * side]);
        out[side].b[2 * half + 1] = __float_as_uint(at[(8 * half + 1) * pitch + 8 * side]);
      }
  }
};

// Transposes an 8 x 8 tile of 16-bit elements among the lanes of a warp.
__device__ inline std::uint32_t transpose8x8(std::uint32_t x) {
  std::uint32_t out;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(x));
  return out;
}

}  // namespace linattn::portable
