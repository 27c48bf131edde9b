// Integer dot products of bytes, AVX-512 VNNI, and partial sums of 8 rows folded into 8 sums.
#pragma once
#include "cpu/vector/int8_ymm.hpp"

namespace qk::cpu {
namespace {

#define QK_INT8_INLINE __attribute__((always_inline))

// In place: GCC 12 copies the sum before and after its intrinsic.
QK_INT8_INLINE inline void add_dots(__m512i &sum, __m512i w, __m512i x) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(w), "v"(x));
}

// Two vectors folded into one. A blend runs on any port, a shuffle on two of four; so one of each
// where positions allow.
//
//     fold_dwords      every 128 bits: [a0 + a2, a1 + a3, b0 + b2, b1 + b3]
//     fold_halves      quarters of 128 bits: the same
//     fold_quarters    quarters: [a0 + a1, a2 + a3, b0 + b1, b2 + b3]
inline __m512i fold_dwords(__m512i a, __m512i b) {
    const __m512 x = _mm512_castsi512_ps(a), y = _mm512_castsi512_ps(b);
    const __m512i crossed = _mm512_castps_si512(_mm512_shuffle_ps(x, y, 0x4e));
    return _mm512_add_epi32(_mm512_mask_blend_epi32(0xcccc, a, b), crossed);
}
inline __m512i fold_halves(__m512i a, __m512i b) {
    const __m512i crossed = _mm512_shuffle_i64x2(a, b, 0x4e);
    return _mm512_add_epi32(_mm512_mask_blend_epi32(0xff00, a, b), crossed);
}
inline __m512i fold_quarters(__m512i a, __m512i b) {
    return _mm512_add_epi32(_mm512_shuffle_i64x2(a, b, 0x88), _mm512_shuffle_i64x2(a, b, 0xdd));
}
// Rows 2 q, 2 q + 1 in quarter q, dwords as fold_dwords leaves them.
inline __m512i fold_eight(const __m512i (&d)[8]) {
    const __m512i low = fold_halves(fold_dwords(d[0], d[1]), fold_dwords(d[2], d[3]));
    const __m512i high = fold_halves(fold_dwords(d[4], d[5]), fold_dwords(d[6], d[7]));
    return fold_quarters(low, high);
}

// 8 rows of 16 partial sums -> 8 sums.
inline void fold_rows_1(const __m512i (&d)[8], Sums8 *to) {
    const __m512i pairs = fold_eight(d);
    const __m512i order = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 0, 0, 0, 0, 0, 0, 0, 0);
    const __m512i all = _mm512_add_epi32(pairs, _mm512_srli_epi64(pairs, 32));
    to->v = _mm512_castsi512_si256(_mm512_permutexvar_epi32(order, all));
}
// Dwords 0, 2 of every 128 bits are block 0, dwords 1, 3 block 1.
inline void fold_rows_2(const __m512i (&d)[8], Sums8 *to) {
    const __m512i order = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    const __m512i all = _mm512_permutexvar_epi32(order, fold_eight(d));
    to[0].v = _mm512_castsi512_si256(all);
    to[1].v = _mm512_extracti64x4_epi64(all, 1);
}
// Dword b of every 128 bits is block b: to[b * stride].
inline void fold_rows_4(const __m512i (&d)[8], Sums8 *to, int stride) {
    const __m512i low = fold_quarters(fold_halves(d[0], d[1]), fold_halves(d[2], d[3]));
    const __m512i high = fold_quarters(fold_halves(d[4], d[5]), fold_halves(d[6], d[7]));
    const __m512i order =
        _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29);
    const __m512i rest = _mm512_add_epi32(order, _mm512_set1_epi32(2));
    const __m512i first = _mm512_permutex2var_epi32(low, order, high);
    const __m512i last = _mm512_permutex2var_epi32(low, rest, high);
    to[0].v = _mm512_castsi512_si256(first);
    to[stride].v = _mm512_extracti64x4_epi64(first, 1);
    to[2 * stride].v = _mm512_castsi512_si256(last);
    to[3 * stride].v = _mm512_extracti64x4_epi64(last, 1);
}

}  // namespace
}  // namespace qk::cpu
