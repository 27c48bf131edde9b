// 256 floats that bytes index: four planes of bytes, in registers and memory operands, and a byte
// permute looks 64 codes up in half a plane (VBMI).
#pragma once
#include <immintrin.h>
#include <stdint.h>

#include "cpu/x86_avx512/exponents.hpp"

namespace qk::cpu {
namespace {

struct Plane {
    __m512i quarter[4];
};
inline Plane load_plane(const uint8_t *at) {
    return {{_mm512_load_si512(at), _mm512_load_si512(at + 64), _mm512_load_si512(at + 128),
             _mm512_load_si512(at + 192)}};
}
inline __m512i look_up_plane(const Plane &plane, __m512i codes, __mmask64 upper) {
    const __m512i low = _mm512_permutex2var_epi8(plane.quarter[0], codes, plane.quarter[1]);
    const __m512i high = _mm512_permutex2var_epi8(plane.quarter[2], codes, plane.quarter[3]);
    return _mm512_mask_blend_epi8(upper, low, high);
}

// Codes below 128 have one half of it.
inline __m512i look_up_lower_half(const Plane &plane, __m512i codes) {
    return _mm512_permutex2var_epi8(plane.quarter[0], codes, plane.quarter[1]);
}

// The numbers of 64 codes, 16 at a time in order: put(bits, 0 .. 3). The codes change places first,
// so that interleaving their bytes leaves them in order.
template <class Put>
inline __attribute__((always_inline)) void look_up_64(const Plane (&plane)[4], __m512i in_order,
                                                      const Put &put) {
    const __m512i first_of_quarters =
        _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i codes = _mm512_permutexvar_epi32(first_of_quarters, in_order);
    const __mmask64 upper = _mm512_movepi8_mask(codes);
    __m512i b0, b1, b2, b3;
    if (upper == 0) {  // scales without a sign, as E4M3 has them
        b0 = look_up_lower_half(plane[0], codes);
        b1 = look_up_lower_half(plane[1], codes);
        b2 = look_up_lower_half(plane[2], codes);
        b3 = look_up_lower_half(plane[3], codes);
    } else {
        b0 = look_up_plane(plane[0], codes, upper);
        b1 = look_up_plane(plane[1], codes, upper);
        b2 = look_up_plane(plane[2], codes, upper);
        b3 = look_up_plane(plane[3], codes, upper);
    }
    const __m512i low_even = _mm512_unpacklo_epi8(b0, b1);
    const __m512i low_odd = _mm512_unpackhi_epi8(b0, b1);
    const __m512i high_even = _mm512_unpacklo_epi8(b2, b3);
    const __m512i high_odd = _mm512_unpackhi_epi8(b2, b3);
    put(_mm512_unpacklo_epi16(low_even, high_even), 0);
    put(_mm512_unpackhi_epi16(low_even, high_even), 1);
    put(_mm512_unpacklo_epi16(low_odd, high_odd), 2);
    put(_mm512_unpackhi_epi16(low_odd, high_odd), 3);
}

}  // namespace
}  // namespace qk::cpu
