// Rows of words to columns, AVX-512: 16 x 16 dwords in registers.
#pragma once
#include "cpu/x86_avx512/lanes.hpp"

namespace qk::cpu {
namespace {

// words[j] lane r: dword j of row r; `low` has rows 0..7, `high` rows 8..15, 64 bytes each.
inline __attribute__((always_inline)) void turn_words(const uint8_t *low, const uint8_t *high,
                                                      Words (&words)[16]) {
    __m512i a[16], b[16];
    _Pragma("GCC unroll 16") for (int i = 0; i < 8; ++i) {
        a[i] = _mm512_loadu_si512(low + 64 * i);
        a[i + 8] = _mm512_loadu_si512(high + 64 * i);
    }
    // Within 128 bits: dwords of two rows, then of four.
    _Pragma("GCC unroll 16") for (int i = 0; i < 16; i += 2) {
        b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
    }
    _Pragma("GCC unroll 16") for (int i = 0; i < 16; i += 4) {
        a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
        a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
        a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
        a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
    }
    // a[4 q + i], 128 bits p: dword 4 p + i of rows 4 q .. 4 q + 3.
    _Pragma("GCC unroll 16") for (int i = 0; i < 4; ++i) {
        const __m512i even_low = _mm512_shuffle_i32x4(a[i], a[4 + i], 0x88);
        const __m512i odd_low = _mm512_shuffle_i32x4(a[i], a[4 + i], 0xdd);
        const __m512i even_high = _mm512_shuffle_i32x4(a[8 + i], a[12 + i], 0x88);
        const __m512i odd_high = _mm512_shuffle_i32x4(a[8 + i], a[12 + i], 0xdd);
        words[i].v = _mm512_shuffle_i32x4(even_low, even_high, 0x88);
        words[8 + i].v = _mm512_shuffle_i32x4(even_low, even_high, 0xdd);
        words[4 + i].v = _mm512_shuffle_i32x4(odd_low, odd_high, 0x88);
        words[12 + i].v = _mm512_shuffle_i32x4(odd_low, odd_high, 0xdd);
    }
}

}  // namespace
}  // namespace qk::cpu
