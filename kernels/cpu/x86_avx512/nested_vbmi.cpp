// Nested scales and LUT8, 64 at a time: the 256 floats of the table lie in registers and memory
// operands as four planes of bytes, and a byte permute looks 64 codes up in half a plane.
#include "cpu/lists.hpp"
#include "cpu/x86_avx512/lanes.hpp"

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

// The numbers of 64 codes, 16 at a time in order: put(bits, 0 .. 3). The codes change places first,
// so that interleaving their bytes leaves them in order.
template <class Put>
inline __attribute__((always_inline)) void look_up_64(const Plane (&plane)[4], __m512i in_order,
                                                      const Put &put) {
    const __m512i first_of_quarters = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3,
                                                        7, 11, 15);
    const __m512i codes = _mm512_permutexvar_epi32(first_of_quarters, in_order);
    const __mmask64 upper = _mm512_movepi8_mask(codes);
    const __m512i b0 = look_up_plane(plane[0], codes, upper);
    const __m512i b1 = look_up_plane(plane[1], codes, upper);
    const __m512i b2 = look_up_plane(plane[2], codes, upper);
    const __m512i b3 = look_up_plane(plane[3], codes, upper);
    const __m512i low_even = _mm512_unpacklo_epi8(b0, b1);
    const __m512i low_odd = _mm512_unpackhi_epi8(b0, b1);
    const __m512i high_even = _mm512_unpacklo_epi8(b2, b3);
    const __m512i high_odd = _mm512_unpackhi_epi8(b2, b3);
    put(_mm512_unpacklo_epi16(low_even, high_even), 0);
    put(_mm512_unpackhi_epi16(low_even, high_even), 1);
    put(_mm512_unpacklo_epi16(low_odd, high_odd), 2);
    put(_mm512_unpackhi_epi16(low_odd, high_odd), 3);
}

struct Second16 {  // of 2 groups of 8 rows
    __m512 first, last;
    __m512i change;
};

// Groups `group` and `group` + 1, counted from the start of the run.
inline void put(__m512i bits, int64_t group, const Second16 &second, __m512 bias, float *to) {
    const __m512i half = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi32(1), 1);
    const __m512i number = _mm512_add_epi32(half, _mm512_set1_epi32(int(group)));
    const __mmask16 before = _mm512_cmplt_epi32_mask(number, second.change);
    const __m512 factor = _mm512_mask_blend_ps(before, second.last, second.first);
    const __m512 product = _mm512_mul_ps(_mm512_castsi512_ps(bits), factor);
    _mm512_storeu_ps(to, _mm512_add_ps(product, bias));
}

void widen(const NestedCode &code, const char *from, int64_t count, const SecondScales &second,
           float bias, float (*to)[8]) {
    const __m256i change = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(second.change));
    const Second16 both = {_mm512_broadcast_f32x8(_mm256_loadu_ps(second.first)),
                           _mm512_broadcast_f32x8(_mm256_loadu_ps(second.last)),
                           _mm512_broadcast_i64x4(change)};
    Plane planes[4];  // they stay in registers, past the stores
    for (int p = 0; p < 4; ++p) planes[p] = load_plane(code.plane[p]);
    for (int64_t i = 0; i < count; i += 8) {
        const int64_t codes = (count - i) * 8;
        const __mmask64 mask = codes >= 64 ? ~__mmask64(0) : (__mmask64(1) << codes) - 1;
        const __m512i some = _mm512_maskz_loadu_epi8(mask, from + i * 8);
        look_up_64(planes, some, [&](__m512i bits, int quarter) {
            put(bits, i + 2 * quarter, both, _mm512_set1_ps(bias), to[i] + 16 * quarter);
        });
    }
}

void look_up(const NestedCode &code, const uint8_t *from, int64_t count, float scale, float *to) {
    Plane planes[4];
    for (int p = 0; p < 4; ++p) planes[p] = load_plane(code.plane[p]);
    for (int64_t i = 0; i < count; i += 64) {
        const int64_t codes = count - i;
        const __mmask64 mask = codes >= 64 ? ~__mmask64(0) : (__mmask64(1) << codes) - 1;
        const __m512i some = _mm512_maskz_loadu_epi8(mask, from + i);
        look_up_64(planes, some, [&](__m512i bits, int quarter) {
            const __m512 product = _mm512_mul_ps(_mm512_castsi512_ps(bits), _mm512_set1_ps(scale));
            _mm512_mask_storeu_ps(to + i + 16 * quarter, __mmask16(mask >> 16 * quarter), product);
        });
    }
}

}  // namespace

const LookUpBytes kLookUpBytesVbmi = look_up;
const WidenNested kWidenNestedVbmi = widen;

}  // namespace qk::cpu
