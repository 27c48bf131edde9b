// Rows to columns in registers, AVX2.
#pragma once
#include <immintrin.h>
#include <stdint.h>

#include "cpu/isa.hpp"

namespace qk::cpu {
namespace {

// to[i * to_stride][j] = from[j * from_stride][i] for 8 x 8 dwords, strides in bytes. A row meets
// the one four below it where it is loaded, so that nothing crosses 128 bits later.
QK_INLINE inline void transpose_8x8(const char *from, int64_t from_stride, char *to,
                                    int64_t to_stride) {
    const auto load = [=](int64_t row, int64_t column) QK_INLINE {
        const char *const at = from + row * from_stride + column * 4;
        const __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i *>(at));
        const __m128i high =
            _mm_loadu_si128(reinterpret_cast<const __m128i *>(at + 4 * from_stride));
        return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
    };
    const auto store = [=](int64_t row, __m256i columns) QK_INLINE {
        _mm256_storeu_si256(reinterpret_cast<__m256i *>(to + row * to_stride), columns);
    };
    QK_UNROLL for (int64_t i = 0; i < 8; i += 4) {
        const __m256i a = load(0, i), b = load(1, i), c = load(2, i), d = load(3, i);
        const __m256i ab_low = _mm256_unpacklo_epi32(a, b), ab_high = _mm256_unpackhi_epi32(a, b);
        const __m256i cd_low = _mm256_unpacklo_epi32(c, d), cd_high = _mm256_unpackhi_epi32(c, d);
        store(i, _mm256_unpacklo_epi64(ab_low, cd_low));
        store(i + 1, _mm256_unpackhi_epi64(ab_low, cd_low));
        store(i + 2, _mm256_unpacklo_epi64(ab_high, cd_high));
        store(i + 3, _mm256_unpackhi_epi64(ab_high, cd_high));
    }
}

}  // namespace
}  // namespace qk::cpu
