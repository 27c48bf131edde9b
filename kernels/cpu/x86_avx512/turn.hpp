// Rows of words to columns, AVX-512: 16 x 16 dwords in registers.
#pragma once
#include "cpu/x86_avx512/lanes.hpp"

namespace qk::cpu {
namespace {

// a[i] lane j becomes turned(j) lane i.
template <class Turned>
inline __attribute__((always_inline)) void turn_registers(__m512i (&a)[16], const Turned &turned) {
    __m512i b[16];
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
        turned(i, _mm512_shuffle_i32x4(even_low, even_high, 0x88));
        turned(8 + i, _mm512_shuffle_i32x4(even_low, even_high, 0xdd));
        turned(4 + i, _mm512_shuffle_i32x4(odd_low, odd_high, 0x88));
        turned(12 + i, _mm512_shuffle_i32x4(odd_low, odd_high, 0xdd));
    }
}

// words[j] lane r: dword j of row r; `low` has rows 0..7, `high` rows 8..15, 64 bytes each.
inline __attribute__((always_inline)) void turn_words(const uint8_t *low, const uint8_t *high,
                                                      Words (&words)[16]) {
    __m512i a[16];
    _Pragma("GCC unroll 16") for (int i = 0; i < 8; ++i) {
        a[i] = _mm512_loadu_si512(low + 64 * i);
        a[i + 8] = _mm512_loadu_si512(high + 64 * i);
    }
    turn_registers(
        a, [&](int j, __m512i word) __attribute__((always_inline)) { words[j].v = word; });
}

// Weights of 16 rows' codes (vector/defaults.hpp).
template <bool zeros>
inline __attribute__((always_inline)) void look_up_turned(const uint8_t *const (&codes)[2],
                                                          const Table &table,
                                                          const float *const *scales,
                                                          const float *const *minus_zeros,
                                                          float *to, int64_t pitch) {
    Words words[16];
    turn_words(codes[0], codes[1], words);
    const Table entries = table;
    for (int64_t step = 0; step < 8; ++step) {
        const Lanes scale = load_f32(scales[step]);
        const Lanes minus_zero = zeros ? load_f32(minus_zeros[step]) : zero_lanes();
        _Pragma("GCC unroll 16") for (int64_t j = 0; j < 16; ++j, to += pitch) {
            Lanes entry = look_up<0>(entries, words[j]);
            if (zeros) entry = add(entry, minus_zero);
            store_f32(to, mul(entry, scale));
            words[j] = {_mm512_srli_epi32(words[j].v, 4)};
        }
    }
}

// to[i * to_stride][j] = from[j * from_stride][i] for 16 x 16 dwords, strides in bytes.
inline void turn_block(const void *from, int64_t from_stride, void *to, int64_t to_stride) {
    __m512i a[16];
    _Pragma("GCC unroll 16") for (int i = 0; i < 16; ++i) {
        a[i] = _mm512_loadu_si512(static_cast<const char *>(from) + i * from_stride);
    }
    turn_registers(
        a, [&](int j, __m512i word) __attribute__((always_inline)) {
            _mm512_storeu_si512(static_cast<char *>(to) + j * to_stride, word);
        });
}

}  // namespace
}  // namespace qk::cpu
