// Nested scales, 64 at a time: the 256 floats of the table lie in registers and memory operands as
// four planes of bytes, and a byte permute looks 64 codes up in half a plane.
#include "cpu/lists.hpp"
#include "cpu/x86_avx512/lanes.hpp"

namespace qk::cpu {
namespace {

__m512i look_up_plane(const uint8_t *at, __m512i codes, __mmask64 upper) {
    const __m512i low = _mm512_permutex2var_epi8(_mm512_load_si512(at), codes,
                                                 _mm512_load_si512(at + 64));
    const __m512i high = _mm512_permutex2var_epi8(_mm512_load_si512(at + 128), codes,
                                                  _mm512_load_si512(at + 192));
    return _mm512_mask_blend_epi8(upper, low, high);
}

// Interleaving bytes leaves 4 neighbouring codes in each 128 bits: half the rows of a group.
void put(__m512i bits, int quarter, __m512 second, __m512 bias, float (*to)[8]) {
    const __m512 product = _mm512_mul_ps(_mm512_castsi512_ps(bits), second);
    const __m512 scale = _mm512_add_ps(product, bias);
    float *const at = &to[quarter >> 1][4 * (quarter & 1)];
    _mm_storeu_ps(at, _mm512_castps512_ps128(scale));
    _mm_storeu_ps(at + 16, _mm512_extractf32x4_ps(scale, 1));
    _mm_storeu_ps(at + 32, _mm512_extractf32x4_ps(scale, 2));
    _mm_storeu_ps(at + 48, _mm512_extractf32x4_ps(scale, 3));
}

void widen_64(const NestedCode &code, const char *from, const float *second, float bias,
              float (*to)[8]) {
    const __m512i codes = _mm512_loadu_si512(from);
    const __mmask64 upper = _mm512_movepi8_mask(codes);
    const __m512i b0 = look_up_plane(code.plane[0], codes, upper);
    const __m512i b1 = look_up_plane(code.plane[1], codes, upper);
    const __m512i b2 = look_up_plane(code.plane[2], codes, upper);
    const __m512i b3 = look_up_plane(code.plane[3], codes, upper);
    const __m512i low_even = _mm512_unpacklo_epi8(b0, b1);
    const __m512i low_odd = _mm512_unpackhi_epi8(b0, b1);
    const __m512i high_even = _mm512_unpacklo_epi8(b2, b3);
    const __m512i high_odd = _mm512_unpackhi_epi8(b2, b3);
    const __m512 first = _mm512_broadcast_f32x4(_mm_loadu_ps(second));
    const __m512 last = _mm512_broadcast_f32x4(_mm_loadu_ps(second + 4));
    const __m512 offset = _mm512_set1_ps(bias);
    put(_mm512_unpacklo_epi16(low_even, high_even), 0, first, offset, to);
    put(_mm512_unpackhi_epi16(low_even, high_even), 1, last, offset, to);
    put(_mm512_unpacklo_epi16(low_odd, high_odd), 2, first, offset, to);
    put(_mm512_unpackhi_epi16(low_odd, high_odd), 3, last, offset, to);
}

void widen(const NestedCode &code, const char *from, int64_t count, const float *second,
           float bias, float (*to)[8]) {
    int64_t i = 0;
    for (; i + 8 <= count; i += 8) widen_64(code, from + i * 8, second, bias, to + i);
    for (; i < count; ++i) widen_nested(from + i * 8, code.value, second, bias, to[i]);
}

}  // namespace

const WidenNested kWidenNestedVbmi = widen;

}  // namespace qk::cpu
