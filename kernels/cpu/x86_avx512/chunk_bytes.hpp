// A row of 128 nibbles in order to a packed chunk and back, AVX-512: seven instructions each.
#pragma once
#include <immintrin.h>
#include <stdint.h>

namespace qk::cpu {
namespace {

inline __m512i swap_middle_nibbles(__m512i x) {  // of 16 bits
    const __m512i outer = _mm512_ternarylogic_epi32(
        _mm512_set1_epi16(short(0xff00)), _mm512_slli_epi16(x, 4), _mm512_srli_epi16(x, 4), 0xca);
    return _mm512_ternarylogic_epi32(_mm512_set1_epi16(0x0ff0), outer, x, 0xca);
}

// Within 128 bits: byte b of dword p to byte p of dword b; then dwords likewise between them.
inline __m512i byte_turn() {
    return _mm512_broadcast_i32x4(
        _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
}
inline __m512i dword_turn() {
    return _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
}

// Byte p of dword j has columns 32 p + j and 32 p + 16 + j.
inline void pack_chunk(const uint8_t *from, uint8_t *to) {
    const __m512i interleave =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15));
    const __m512i pairs = _mm512_shuffle_epi8(_mm512_loadu_si512(from), interleave);
    const __m512i turned = _mm512_permutexvar_epi32(dword_turn(), swap_middle_nibbles(pairs));
    _mm512_storeu_si512(to, _mm512_shuffle_epi8(turned, byte_turn()));
}

inline void unpack_chunk(const uint8_t *from, uint8_t *to) {
    const __m512i apart =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15));
    const __m512i bytes = _mm512_shuffle_epi8(_mm512_loadu_si512(from), byte_turn());
    const __m512i pairs = swap_middle_nibbles(_mm512_permutexvar_epi32(dword_turn(), bytes));
    _mm512_storeu_si512(to, _mm512_shuffle_epi8(pairs, apart));
}

}  // namespace
}  // namespace qk::cpu
