// Dot products of integers in three signed bytes by codes of four bits, with VNNI.
#pragma once
#include <immintrin.h>

namespace qk::cpu {
namespace {

// Compilers copy the sum of the intrinsics in and out of another register.
__attribute__((always_inline)) inline void add_bytes(__m512i &sum, __m512i a, __m512i b) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
}

// Of the 8 columns of each dword: codes in even and odd nibbles, the bytes of x for them from the
// lowest on; take_zeros(sum) adds what zeros take off. Two chains: one would be long for what is in
// flight.
template <class TakeZeros>
__attribute__((always_inline)) inline __m512i dot_three_bytes(__m512i even, __m512i odd,
                                                              const __m512i *low,
                                                              const __m512i *high,
                                                              const TakeZeros &take_zeros) {
    __m512i dot = _mm512_setzero_si512(), least = dot;
    add_bytes(dot, even, low[2]);
    take_zeros(least);
    add_bytes(dot, odd, high[2]);
    add_bytes(least, even, low[0]);
    dot = _mm512_slli_epi32(dot, 8);
    add_bytes(least, odd, high[0]);
    add_bytes(dot, even, low[1]);
    add_bytes(dot, odd, high[1]);
    return _mm512_add_epi32(least, _mm512_slli_epi32(dot, 8));
}

// The same of several rows side by side, whose sums start with `start`.
template <int kRows>
__attribute__((always_inline)) inline void dot_three_bytes(const __m512i (&even)[kRows],
                                                           const __m512i (&odd)[kRows],
                                                           const __m512i *low, const __m512i *high,
                                                           __m512i (&start)[kRows],
                                                           __m512i (&dot)[kRows]) {
    const auto each = [](const auto &body) __attribute__((always_inline)) {
        _Pragma("GCC unroll 8") for (int i = 0; i < kRows; ++i) body(i);
    };
    const auto add = [&](__m512i(&to)[kRows], int part) __attribute__((always_inline)) {
        each([&](int i) __attribute__((always_inline)) { add_bytes(to[i], even[i], low[part]); });
        each([&](int i) __attribute__((always_inline)) { add_bytes(to[i], odd[i], high[part]); });
    };
    const auto shift = [&]() __attribute__((always_inline)) {
        each([&](int i) __attribute__((always_inline)) { dot[i] = _mm512_slli_epi32(dot[i], 8); });
    };
    each([&](int i) __attribute__((always_inline)) { dot[i] = _mm512_setzero_si512(); });
    add(dot, 2);
    add(start, 0);
    shift();
    add(dot, 1);
    shift();
    each([&](int i)
             __attribute__((always_inline)) { dot[i] = _mm512_add_epi32(start[i], dot[i]); });
}

}  // namespace
}  // namespace qk::cpu
