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

}  // namespace
}  // namespace qk::cpu
