// E8M0, whose codes are exponents.
#pragma once
#include <immintrin.h>

namespace qk::cpu {
namespace {

// 2^(code - 127); 255 is a NaN, 0 is below the normal numbers.
inline __m512i exponents_to_bits(__m128i codes) {
    const __m512i bits = _mm512_slli_epi32(_mm512_cvtepu8_epi32(codes), 23);
    const __mmask16 nan = _mm_cmpeq_epi8_mask(codes, _mm_set1_epi8(-1));
    return _mm512_mask_mov_epi32(_mm512_max_epu32(bits, _mm512_set1_epi32(0x00400000)), nan,
                                 _mm512_set1_epi32(0x7fc00000));
}

}  // namespace
}  // namespace qk::cpu
