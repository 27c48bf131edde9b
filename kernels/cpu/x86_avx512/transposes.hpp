// Rows to columns, AVX-512.
#pragma once
#include <immintrin.h>
#include <stdint.h>

#include "cpu/isa.hpp"

namespace qk::cpu {
namespace {

struct Avx512Transposes {
    // a[i] lane j becomes transposed(j) lane i.
    template <class Turned>
    QK_INLINE static void transpose_registers(__m512i (&a)[16], const Turned &transposed) {
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
            transposed(i, _mm512_shuffle_i32x4(even_low, even_high, 0x88));
            transposed(8 + i, _mm512_shuffle_i32x4(even_low, even_high, 0xdd));
            transposed(4 + i, _mm512_shuffle_i32x4(odd_low, odd_high, 0x88));
            transposed(12 + i, _mm512_shuffle_i32x4(odd_low, odd_high, 0xdd));
        }
    }

    // to[i * to_stride][j] = from[j * from_stride][i] for 16 x 16 dwords, strides in bytes.
    static void transpose_block(const void *from, int64_t from_stride, void *to,
                                int64_t to_stride) {
        __m512i a[16];
        _Pragma("GCC unroll 16") for (int i = 0; i < 16; ++i) {
            a[i] = _mm512_loadu_si512(static_cast<const char *>(from) + i * from_stride);
        }
        transpose_registers(
            a, [&](int j, __m512i word) __attribute__((always_inline)) {
                _mm512_storeu_si512(static_cast<char *>(to) + j * to_stride, word);
            });
    }

    // to[c][i] = from[i * stride + c]: 16 rows of 64 bytes.
    static void transpose_bytes(const uint8_t *from, int64_t stride, uint8_t (*to)[16]) {
        const __m512i by_bytes = _mm512_broadcast_i32x4(
            _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
        const __m512i by_words =
            _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
        __m512i a[16];
        _Pragma("GCC unroll 16") for (int i = 0; i < 16; ++i) {
            a[i] = _mm512_loadu_si512(from + i * stride);
        }
        transpose_registers(
            a, [&](int j, __m512i word) __attribute__((always_inline)) {
                const __m512i bytes = _mm512_shuffle_epi8(word, by_bytes);
                _mm512_storeu_si512(to[4 * j], _mm512_permutexvar_epi32(by_words, bytes));
            });
    }
};

}  // namespace
}  // namespace qk::cpu
