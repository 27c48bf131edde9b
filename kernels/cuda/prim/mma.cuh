// One instruction a function: matrix products of 16-bit operands with f32 sums, arithmetic on pairs
// of 16 bits, and the controls of programmatic dependent launch. Needs sm_80; older architectures
// compile empty bodies that no chooser selects. Off the GPU, where kernels run on simulated
// threads, the same functions are C++.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#include <type_traits>

#include "base/half.hpp"
#include "qk.h"

namespace qk::cuda {
namespace {

// The type of x decides the type of the matrix operands.
struct F16 {
    using Pair = __half2;
};
struct BF16 {
    using Pair = __nv_bfloat162;
};
struct F32 {};  // split into terms of 16 bits

template <qk_format format>
using TypeOf = std::conditional_t<format == QK_FORMAT_F16, F16,
                                  std::conditional_t<format == QK_FORMAT_BF16, BF16, F32>>;

template <class T>
constexpr qk_format kFormatOf = std::is_same_v<T, F16>    ? QK_FORMAT_F16
                                : std::is_same_v<T, BF16> ? QK_FORMAT_BF16
                                                          : QK_FORMAT_F32;

// d += a . b: a is 16 x 16 (rows of w by k), b is 16 x 8 (k by rows of x), d is 16 x 8.
template <class T>
__device__ inline void mma_16x8x16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);

template <>
__device__ inline void mma_16x8x16<F16>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                        uint32_t b1) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#elif defined(QK_CUDA_SIMULATED)
    simulator::multiply_16x8x16(d, a, b0, b1, f32_from_f16);
#endif
}

template <>
__device__ inline void mma_16x8x16<BF16>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                         uint32_t b1) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#elif defined(QK_CUDA_SIMULATED)
    simulator::multiply_16x8x16(d, a, b0, b1, f32_from_bf16);
#endif
}

// d += a . b in 8-bit integers: a is 16 x 32, b is 32 x 8, d is 16 x 8. Of the 32 columns of a row,
// lane l % 4 holds four in the first word and four in the second; which ones is the caller's
// affair, as long as a and b agree.
__device__ inline void mma_16x8x32(int32_t (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                   uint32_t b1) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

// (word & mask) | bits in one instruction.
__device__ inline uint32_t and_or(uint32_t word, uint32_t mask, uint32_t bits) {
#if defined(__CUDA_ARCH__)
    uint32_t result;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(result) : "r"(word), "r"(mask), "r"(bits));
    return result;
#else
    return (word & mask) | bits;
#endif
}

// Byte i of the result is byte (select >> 4 i) & 7 of the eight of b:a; with bit 3 of the selector
// set, eight copies of its top bit.
__device__ inline uint32_t byte_permute(uint32_t a, uint32_t b, uint32_t select) {
#if defined(__CUDA_ARCH__)
    uint32_t result;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(select));
    return result;
#else
    const uint64_t both = uint64_t(b) << 32 | a;
    uint32_t result = 0;
    for (int i = 0; i < 4; ++i) {
        const uint32_t from = select >> 4 * i & 15, byte = uint32_t(both >> (from & 7) * 8) & 255;
        result |= (from < 8 ? byte : (byte >> 7) * 255) << 8 * i;
    }
    return result;
#endif
}

// In the low 16 bits one less than the integer nearest to a number from 0 to 2^16 - 1, of ties the
// upper one: the number plus 1/2 - 1, rounded down where the bits of a sum are integers. Below 1/2
// they are 0xffff.
__device__ inline uint32_t nearest_less_one(float value) {
#if defined(__CUDA_ARCH__)
    return __float_as_uint(__fadd_rd(value, 8388607.5f));
#else
    return uint32_t(value + 0.5f) - 1;
#endif
}

// a - b of pairs.
__device__ inline uint32_t subtract_f16(uint32_t a, uint32_t b) {
#if defined(__CUDA_ARCH__)
    uint32_t result;
    asm("sub.f16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
    return result;
#else
    const float low = f32_from_f16(uint16_t(a)) - f32_from_f16(uint16_t(b));
    const float high = f32_from_f16(uint16_t(a >> 16)) - f32_from_f16(uint16_t(b >> 16));
    return uint32_t(f16_from_f32(high)) << 16 | f16_from_f32(low);
#endif
}

__device__ inline uint32_t subtract_bf16(uint32_t a, uint32_t b) {
#if defined(__CUDA_ARCH__)
    const __nv_bfloat162 result =
        __hsub2(*reinterpret_cast<__nv_bfloat162 *>(&a), *reinterpret_cast<__nv_bfloat162 *>(&b));
    return *reinterpret_cast<const uint32_t *>(&result);
#else
    const float low = f32_from_bf16(uint16_t(a)) - f32_from_bf16(uint16_t(b));
    const float high = f32_from_bf16(uint16_t(a >> 16)) - f32_from_bf16(uint16_t(b >> 16));
    return uint32_t(bf16_from_f32(high)) << 16 | bf16_from_f32(low);
#endif
}

// The larger magnitude of each of two pairs; a NaN where there is one.
__device__ inline uint32_t larger_magnitudes(F16, uint32_t a, uint32_t b) {
#if __CUDA_ARCH__ >= 800
    uint32_t result;
    asm("{.reg .b32 c, d; abs.f16x2 c, %1; abs.f16x2 d, %2; max.NaN.f16x2 %0, c, d;}"
        : "=r"(result)
        : "r"(a), "r"(b));
    return result;
#else
    const uint32_t c = a & 0x7fff7fffu, d = b & 0x7fff7fffu, low = 0xffffu;
    return max(c & ~low, d & ~low) | max(c & low, d & low);
#endif
}
__device__ inline uint32_t larger_magnitudes(BF16, uint32_t a, uint32_t b) {
#if __CUDA_ARCH__ >= 800
    uint32_t result;
    asm("{.reg .b32 c, d; abs.bf16x2 c, %1; abs.bf16x2 d, %2; max.NaN.bf16x2 %0, c, d;}"
        : "=r"(result)
        : "r"(a), "r"(b));
    return result;
#else
    return larger_magnitudes(F16{}, a, b);
#endif
}

// The larger number of each of two pairs, or of the pairs negated; a NaN where there is one.
template <class T>
__device__ inline uint32_t larger_halves(T, uint32_t a, uint32_t b) {
    uint32_t result = 0;
#pragma unroll
    for (int half = 0; half < 32; half += 16) {
        const uint16_t x = uint16_t(a >> half), y = uint16_t(b >> half);
        const bool f16 = std::is_same_v<T, F16>;
        const float first = f16 ? f32_from_f16(x) : f32_from_bf16(x);
        const float second = f16 ? f32_from_f16(y) : f32_from_bf16(y);
        result |= uint32_t(second > first || second != second ? y : x) << half;
    }
    return result;
}
template <class T>
__device__ inline uint32_t larger_numbers(T, uint32_t a, uint32_t b) {
#if __CUDA_ARCH__ >= 800
    uint32_t result;
    if constexpr (std::is_same_v<T, F16>) {
        asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
    } else {
        asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
    }
    return result;
#else
    return larger_halves(T{}, a, b);
#endif
}
template <class T>
__device__ inline uint32_t larger_negated(T, uint32_t a, uint32_t b) {
#if __CUDA_ARCH__ >= 800
    uint32_t result;
    if constexpr (std::is_same_v<T, F16>) {
        asm("{.reg .b32 c, d; neg.f16x2 c, %1; neg.f16x2 d, %2; max.NaN.f16x2 %0, c, d;}"
            : "=r"(result)
            : "r"(a), "r"(b));
    } else {
        asm("{.reg .b32 c, d; neg.bf16x2 c, %1; neg.bf16x2 d, %2; max.NaN.bf16x2 %0, c, d;}"
            : "=r"(result)
            : "r"(a), "r"(b));
    }
    return result;
#else
    return larger_halves(T{}, a ^ 0x80008000u, b ^ 0x80008000u);
#endif
}

// The larger number; a NaN if there is one.
__device__ inline float larger_number(float a, float b) {
#if __CUDA_ARCH__ >= 800
    float result;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
    return result;
#else
    return b > a || b != b ? b : a;
#endif
}

// sum += kAdded where a > b, in two instructions.
template <uint32_t kAdded>
__device__ inline void add_if_above(uint32_t &sum, float a, float b) {
#if defined(__CUDA_ARCH__)
    asm("{.reg .pred p; setp.gt.f32 p, %2, %3; @p add.u32 %0, %0, %1;}"
        : "+r"(sum)
        : "n"(kAdded), "f"(a), "f"(b));
#else
    sum += a > b ? kAdded : 0;
#endif
}

template <uint32_t kAdded>
__device__ inline void add_if_above(uint32_t &sum, uint32_t a, uint32_t b) {
#if defined(__CUDA_ARCH__)
    asm("{.reg .pred p; setp.gt.u32 p, %2, %3; @p add.u32 %0, %0, %1;}"
        : "+r"(sum)
        : "n"(kAdded), "r"(a), "r"(b));
#else
    sum += a > b ? kAdded : 0;
#endif
}

__device__ inline uint32_t smallest(uint32_t a, uint32_t b, uint32_t c) {
#if defined(__CUDA_ARCH__)
    return __vimin3_u32(a, b, c);  // before sm_90 two
#else
    return min(a, min(b, c));
#endif
}

// A pair from two numbers, each rounded once.
__device__ inline uint32_t pack_pair(F16, float low, float high) {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t *>(&pair);
}
__device__ inline uint32_t pack_pair(BF16, float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t *>(&pair);
}

// a . b of pairs, each rounded once.
template <class T>
__device__ inline uint32_t multiply_pair(uint32_t a, uint32_t b) {
#if defined(__CUDA_ARCH__)
    using Pair = typename T::Pair;
    const Pair result =
        __hmul2(*reinterpret_cast<const Pair *>(&a), *reinterpret_cast<const Pair *>(&b));
    return *reinterpret_cast<const uint32_t *>(&result);
#else
    const auto value = [](uint32_t half) {
        return std::is_same_v<T, F16> ? f32_from_f16(uint16_t(half))
                                      : f32_from_bf16(uint16_t(half));
    };
    return pack_pair(T{}, value(a) * value(b), value(a >> 16) * value(b >> 16));
#endif
}

// Keeps a value in its register: the compiler would recompute it at every use.
template <class V>
__device__ void keep(V &value) {
#if !defined(__CUDA_ARCH__)
    (void)value;
#else
    if constexpr (std::is_pointer_v<V>) asm("" : "+l"(value));
    if constexpr (!std::is_pointer_v<V>) asm("" : "+r"(value));
#endif
}

// Lets the next kernel of the stream start where it may; it waits for this one on its own.
__device__ inline void allow_next_kernel() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Waits until every kernel before this one has finished and its writes are visible.
__device__ inline void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace
}  // namespace qk::cuda
