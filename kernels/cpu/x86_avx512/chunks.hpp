// A row of 128 nibbles to a chunk of the packed layout and back, AVX-512.
#pragma once
#include <immintrin.h>
#include <stdint.h>

#include "cpu/isa.hpp"

namespace qk::cpu {
namespace {

struct Avx512Chunks {
    static __m512i swap_middle_nibbles(__m512i x) {  // of 16 bits
        const __m512i outer =
            _mm512_ternarylogic_epi32(_mm512_set1_epi16(short(0xff00)), _mm512_slli_epi16(x, 4),
                                      _mm512_srli_epi16(x, 4), 0xca);
        return _mm512_ternarylogic_epi32(_mm512_set1_epi16(0x0ff0), outer, x, 0xca);
    }

    // Within 128 bits: byte b of dword p to byte p of dword b; then dwords likewise between them.
    static __m512i byte_transposition() {
        return _mm512_set4_epi32(0x0f0b0703, 0x0e0a0602, 0x0d090501, 0x0c080400);
    }
    static __m512i transpose_dwords() {
        return _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    }

    static __m512i swap_outer_nibbles(__m512i x) {  // of 16 bits
        const __m512i outer = _mm512_or_si512(_mm512_slli_epi16(x, 12), _mm512_srli_epi16(x, 12));
        return _mm512_ternarylogic_epi32(_mm512_set1_epi16(0x0ff0), x, outer, 0xca);
    }

    // Byte p of dword j has columns 32 p + j and 32 p + 16 + j. `high_first`: of nibbles whose
    // pairs are swapped.
    template <bool high_first = false>
    QK_INLINE static void pack_chunk(const uint8_t *from, uint8_t *to) {
        const __m512i low_first = _mm512_set4_epi32(0x0f070e06, 0x0d050c04, 0x0b030a02, 0x09010800);
        const __m512i swapped = _mm512_set4_epi32(0x070f060e, 0x050d040c, 0x030b020a, 0x01090008);
        const __m512i pairs =
            _mm512_shuffle_epi8(_mm512_loadu_si512(from), high_first ? swapped : low_first);
        const __m512i bytes = high_first ? swap_outer_nibbles(pairs) : swap_middle_nibbles(pairs);
        const __m512i transposed = _mm512_permutexvar_epi32(transpose_dwords(), bytes);
        _mm512_storeu_si512(to, _mm512_shuffle_epi8(transposed, byte_transposition()));
    }

    static void unpack_chunk(const uint8_t *from, uint8_t *to) {
        const __m512i apart = _mm512_broadcast_i32x4(
            _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15));
        const __m512i bytes = _mm512_shuffle_epi8(_mm512_loadu_si512(from), byte_transposition());
        const __m512i pairs =
            swap_middle_nibbles(_mm512_permutexvar_epi32(transpose_dwords(), bytes));
        _mm512_storeu_si512(to, _mm512_shuffle_epi8(pairs, apart));
    }
};

}  // namespace
}  // namespace qk::cpu
