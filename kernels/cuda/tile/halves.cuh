// f32 x on tensor cores of 16 bits: x, and weights to go with it, as halves. The sum of a row is
// put together from products of first and second halves, each with sums of its own.
//
//     x = 2^e (first + second / 2^12)
//     first = half(x / 2^e),  second = half((x / 2^e - first) 2^12)
//
// where 2^e scales the largest magnitude of a set of x into [2^14, 2^15). All scaling is exact, and
// both halves are normal or exact for magnitudes down to 2^-28 of the largest, so the two are x to
// 2^-23 of it. A set with smaller ones has a rest, which is split and multiplied in another round.
#pragma once
#include <string.h>

#include "base/half.hpp"
#include "cuda/tile/decode.cuh"

namespace qk::cuda {
namespace {

// ---- x

constexpr uint32_t kInfiniteX = 0x7f800000u;
constexpr int32_t kWindowOfX = 28;  // powers of two below the largest magnitude

// Largest magnitude below a bound; what is not below becomes 0, but not in the first round, where
// it is infinite or NaN.
__device__ inline uint32_t largest_below(uint32_t bound, uint32_t (&x)[8]) {
    uint32_t top = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const uint32_t size = x[i] & 0x7fffffffu;
        if (size < bound) {
            top = max(top, size);
        } else if (bound != kInfiniteX) {
            x[i] = 0;
        }
    }
    return top;
}

// What is below becomes 0.
__device__ inline void keep_from(uint32_t bound, uint32_t (&x)[8]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = (x[i] & 0x7fffffffu) < bound ? 0 : x[i];
    asm volatile("");  // a branch goes around it: most sets have nothing below
}

// 16 values, of which lanes l and l ^ 4 have 8 each: their first halves to the even lane (of rows
// of operands), their second ones to the odd one.
__device__ inline void halve(const uint32_t (&x)[8], float inverse, bool special, uint32_t lane,
                             uint32_t (&b)[8]) {
    uint32_t firsts[4];
    float seconds[8];
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
        const float low = __fmul_rn(__uint_as_float(x[i]), inverse);
        const float high = __fmul_rn(__uint_as_float(x[i + 1]), inverse);
        const __half2 first = __floats2half2_rn(low, high);
        const float2 back = __half22float2(first);
        firsts[i / 2] = *reinterpret_cast<const uint32_t *>(&first);
        seconds[i] = __fmul_rn(__fadd_rn(low, -back.x), 4096);
        seconds[i + 1] = __fmul_rn(__fadd_rn(high, -back.y), 4096);
    }
    if (__builtin_expect(special, 0)) {  // infinity less itself is not a number
#pragma unroll
        for (int i = 0; i < 8; ++i) seconds[i] = isnan(seconds[i]) ? 0 : seconds[i];
        asm volatile("");
    }
    const bool odd = (lane & 4) != 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const uint32_t second = pack_pair(F16{}, seconds[2 * i], seconds[2 * i + 1]);
        // The other lane wants what this one does not keep.
        const uint32_t own = odd ? second : firsts[i];
        const uint32_t other = __shfl_xor_sync(~0u, odd ? firsts[i] : second, 4);
        b[i] = odd ? other : own;
        b[4 + i] = odd ? own : other;
    }
}

// Splits two sets, of which kLanes lanes side by side have 8 values each, to operands `b` and 2^e.
// Both go together, since each step waits for the one before. `again`: what is left of the same
// sets, as `below` says: magnitudes that were multiplied are not below it. Returns whether any of
// the warp's sets has smaller ones.
template <int kLanes>
__device__ bool split_x(uint32_t (&x)[2][8], bool again, uint32_t lane, uint32_t (&below)[2],
                        float (&unit)[2], uint32_t (&b)[2][8]) {
    uint32_t top[2] = {}, least[2] = {~0u, ~0u};  // least: less 1, so that zeros are largest
    bool special = false, left = false;
#pragma unroll
    for (int s = 0; s < 2; ++s) {
        if (!again) below[s] = kInfiniteX;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const uint32_t size = x[s][i] & 0x7fffffffu;
            top[s] = max(top[s], size);
            least[s] = __viaddmin_u32(size, ~0u, least[s]);
        }
        special |= top[s] >= below[s];
    }
    special = __any_sync(~0u, special);
    if (__builtin_expect(special, 0)) {
#pragma unroll
        for (int s = 0; s < 2; ++s) top[s] = largest_below(below[s], x[s]);
    }
    float inverse[2];
#pragma unroll
    for (int s = 0; s < 2; ++s) {
#pragma unroll
        for (int i = 1; i < kLanes; i *= 2) top[s] = max(top[s], __shfl_xor_sync(~0u, top[s], i));
        const int32_t exponent = max(int32_t(top[s] >> 23), kWindowOfX);
        inverse[s] = __int_as_float((268 - exponent) << 23);
        unit[s] = __int_as_float((exponent - 14) << 23);
        below[s] = uint32_t(exponent - kWindowOfX) << 23;
        left |= least[s] + 1 < below[s] && least[s] != ~0u;
    }
    const bool rest = __any_sync(~0u, left);
    if (__builtin_expect(rest, 0)) {
        keep_from(below[0], x[0]);
        keep_from(below[1], x[1]);
    }
#pragma unroll
    for (int s = 0; s < 2; ++s) halve(x[s], inverse[s], special, lane, b[s]);
    return rest;
}

// ---- Weights

// They are to be as good as f32. Numbers and tables of numbers of 11 bits (but for a factor, which
// the sums are multiplied by) are halves.

// Entries of other tables are two halves, first + 2^-12 second, of one sign and neither of them 0
// unless the entry is: then infinities survive. A byte of two codes becomes a register of first
// and one of second halves by one load of 8 bytes. Half a warp at a time is served, so 16 copies
// of the table, as large as 32 of half of it.
struct SplitLut4 : RingLut4<F16> {
    static __device__ void prepare(const float (&entries)[16], uint32_t threads, uint32_t = 0) {
        const float entry = entries[threadIdx.x & 15];
        uint16_t first = __half_as_ushort(__float2half_rz(entry));
        if (entry != 0 && __half2float(__ushort_as_half(first)) == entry) --first;
        const float left = __fmul_rn(entry - __half2float(__ushort_as_half(first)), 4096);
        const uint32_t own = uint32_t(__half_as_ushort(__float2half_rn(left))) << 16 | first;
        for (uint32_t i = threadIdx.x; i < 256 * 8; i += threads) {
            const uint32_t byte = i / 8;
            const uint32_t low = __shfl_sync(~0u, own, int(byte & 15));
            const uint32_t high = __shfl_sync(~0u, own, int(byte >> 4));
            const uint32_t firsts = __byte_perm(low, high, 0x5410);
            const uint32_t seconds = __byte_perm(low, high, 0x7632);
            const uint32_t to = kSharedStart + byte % 128 * 256 + byte / 128 * 128 + i % 8 * 16;
            shared_store_16(to, {firsts, seconds, firsts, seconds});
        }
    }
    static __device__ uint32_t lanes(uint32_t = 0) { return threadIdx.x % 16 * 0x08080808u; }
    // Of a sum by {first w, first x}, {first w, second x}, {second w, first x}, {second, second}:
    // what second halves add to the first number.
    static __device__ float rest(const float (&d)[4]) {
        return __fmaf_rn(d[3], 0x1p-12f, __fadd_rn(d[1], d[2]));
    }
    template <uint32_t i>
    static __device__ void look_up(uint32_t low, uint32_t high, uint32_t *first, uint32_t *second) {
        uint32_t at;
        asm("prmt.b32 %0, %1, %2, %3;"
            : "=r"(at)
            : "r"(low), "r"(high), "n"(0x8804u + 0x1111u * i));
        asm("ld.shared.v2.u32 {%0, %1}, [%2 + %3];"
            : "=r"(*first), "=r"(*second)
            : "r"(at), "n"(kSharedStart));
    }
    // Operands whose rows 0 to 7 are first, 8 to 15 second halves: of rows r, of rows r + 8.
    static __device__ void decode_two(uint32_t word, uint32_t lanes, uint32_t (&a)[2][4]) {
        const uint32_t low = word & 0x7f7f7f7fu, high = (word & 0x80808080u) | lanes;
        look_up<0>(low, high, &a[0][0], &a[0][1]);
        look_up<1>(low, high, &a[1][0], &a[1][1]);
        look_up<2>(low, high, &a[0][2], &a[0][3]);
        look_up<3>(low, high, &a[1][2], &a[1][3]);
    }
};

// Whether `entries` are halves once multiplied by `factor`; f32's own rounding of them aside.
inline bool are_halves(const float (&entries)[16], float factor, float (&halves)[16]) {
    for (int i = 0; i < 16; ++i) {
        const float product = entries[i] * factor;
        halves[i] = f32_from_f16(f16_from_f32(product));
        const float error = halves[i] - product, size = product < 0 ? -product : product;
        if ((error < 0 ? -error : error) > size * 0x1p-24f) return false;
    }
    return true;
}

// run(decode), for a table's entries; where they are halves but for a factor, these are put in
// their place. `unit`: what sums are to be multiplied by.
template <class Run>
Status with_halves(float (&entries)[16], float *unit, const Run &run) {
    float halves[16];
    for (const float factor : {1.0f, 12.0f}) {  // FP4 has twelfths
        if (!are_halves(entries, factor, halves)) continue;
        memcpy(entries, halves, sizeof(halves));
        *unit = 1 / factor;
        return run(RingLut4<F16>());
    }
    *unit = 1;
    return run(SplitLut4());
}

}  // namespace
}  // namespace qk::cuda
