// Signed bytes to bf16, AVX2.
#pragma once
#include <immintrin.h>
#include <stdint.h>

#include "cpu/isa.hpp"

namespace qk::cpu {
namespace {

// code * scale as code * 2^16 times scale * 2^-16: bytes become words by one instruction, and of
// two words in 32 bits each is shifted up by one more. Columns 2 i and 2 i + 1 then come back as
// words by blends, and are rounded 16 at a time: 32 numbers take 32 instructions, where 52 rounded
// 8 at a time and asked each whether it is a NaN.
struct Avx2Bytes {
    // Whether that is so: scale * 2^-16 is exact, and no product is a NaN.
    static bool shifts_s8(float scale) {
        const float magnitude = __builtin_fabsf(scale);
        return scale == 0 || (magnitude >= 0x1p-110f && magnitude <= 0x1.fffffep127f);
    }

    // 16 codes.
    QK_INLINE static __m256i s8_to_bf16(const uint8_t *codes, __m256 shifted_scale) {
        const __m256i words =
            _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i *>(codes)));
        const auto times_scale = [&](__m256i shifted) QK_INLINE {
            return _mm256_castps_si256(_mm256_mul_ps(_mm256_cvtepi32_ps(shifted), shifted_scale));
        };
        const __m256i even = times_scale(_mm256_slli_epi32(words, 16));
        const __m256i odd =
            times_scale(_mm256_and_si256(words, _mm256_set1_epi32(int32_t(0xffff0000))));
        const __m256i upper = _mm256_blend_epi16(_mm256_srli_epi32(even, 16), odd, 0xaa);
        const __m256i lower = _mm256_blend_epi16(even, _mm256_slli_epi32(odd, 16), 0xaa);
        // Up where more than half is left, or half of an odd number.
        const __m256i more = _mm256_xor_si256(lower, _mm256_set1_epi16(int16_t(0x8000)));
        const __m256i odd_number = _mm256_and_si256(upper, _mm256_set1_epi16(1));
        const __m256i least = _mm256_sub_epi16(_mm256_setzero_si256(), odd_number);
        const __m256i up = _mm256_cmpgt_epi16(more, least);
        return _mm256_sub_epi16(upper, up);
    }

    // `count` codes, a multiple of 32, of a scale that shifts_s8() takes.
    template <bool stream>
    QK_NOINLINE static void put_s8_bf16(const uint8_t *codes, int64_t count, float scale,
                                        char *to) {
        const __m256 shifted = _mm256_set1_ps(scale * 0x1p-16f);
        __m256i *out = reinterpret_cast<__m256i *>(to);
        for (int64_t i = 0; i < count; i += 32, out += 2) {
            prefetch(codes + i + 8192);
            const __m256i low = s8_to_bf16(codes + i, shifted);
            const __m256i high = s8_to_bf16(codes + i + 16, shifted);
            stream ? _mm256_stream_si256(out, low) : _mm256_storeu_si256(out, low);
            stream ? _mm256_stream_si256(out + 1, high) : _mm256_storeu_si256(out + 1, high);
        }
    }
};

}  // namespace
}  // namespace qk::cpu
