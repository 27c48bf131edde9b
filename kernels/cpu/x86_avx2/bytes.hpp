// Signed bytes to bf16, AVX2.
#pragma once
#include <immintrin.h>
#include <stdint.h>

#include "cpu/isa.hpp"
#include "cpu/x86_avx2/halves.hpp"

namespace qk::cpu {
namespace {

// code * scale as code * 2^16 times scale * 2^-16: bytes become words by one instruction, and of
// two words in 32 bits each is shifted up by one more. Columns 2 i and 2 i + 1 then come back as
// words by blends. Rounding 16 at a time, to even where a number is halfway, takes 32 instructions
// for 32 numbers; where no code's number is, adding half is enough, and they take 22.
struct Avx2Bytes {
    // Whether that is so: scale * 2^-16 is exact, and no product is a NaN.
    static bool shifts_s8(float scale) {
        const float magnitude = __builtin_fabsf(scale);
        return scale == 0 || (magnitude >= 0x1p-110f && magnitude <= 0x1.fffffep127f);
    }

    // `count` codes, a multiple of 32, of a scale that shifts_s8() takes.
    template <bool stream>
    static void put_s8_bf16(const uint8_t *codes, int64_t count, float scale, char *to) {
        has_halfway(scale, count) ? put_s8_bf16<stream, true>(codes, count, scale, to)
                                  : put_s8_bf16<stream, false>(codes, count, scale, to);
    }

  private:
    // Whether a product may be halfway between two bf16 numbers, 9 bits from its first to its last.
    // An exact one, of an odd number of so many bits, is not if these are 10 and more. Others are
    // asked one by one, which takes as long as some 300 codes.
    static bool has_halfway(float scale, int64_t count) {
        const uint32_t mantissa = f32_bits(scale) | 0x00800000u;
        const int bits = 24 - __builtin_ctz(mantissa);
        if (bits <= 17) return bits < 10;
        if (count < 1024) return true;
        const __m256i halfway = _mm256_set1_epi32(int32_t(0x80000000));
        __m256i code = _mm256_setr_epi32(1, 2, 3, 4, 5, 6, 7, 8), any = _mm256_setzero_si256();
        for (int i = 0; i < 16; ++i) {
            const __m256 number = _mm256_mul_ps(_mm256_cvtepi32_ps(code), _mm256_set1_ps(scale));
            const __m256i lower = _mm256_slli_epi32(_mm256_castps_si256(number), 16);
            any = _mm256_or_si256(any, _mm256_cmpeq_epi32(lower, halfway));
            code = _mm256_add_epi32(code, _mm256_set1_epi32(8));
        }
        return _mm256_testz_si256(any, any) == 0;
    }

    // 16 codes.
    template <bool halfway>
    QK_INLINE static __m256i s8_to_bf16(const uint8_t *codes, __m256 shifted_scale) {
        const __m256i words =
            _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i *>(codes)));
        const auto times_scale = [&](__m256i shifted) QK_INLINE {
            return _mm256_mul_ps(_mm256_cvtepi32_ps(shifted), shifted_scale);
        };
        const __m256 even = times_scale(_mm256_slli_epi32(words, 16));
        const __m256 odd =
            times_scale(_mm256_and_si256(words, _mm256_set1_epi32(int32_t(0xffff0000))));
        return Avx2Halves::join_bf16<halfway>(even, odd);
    }

    template <bool stream, bool halfway>
    QK_NOINLINE static void put_s8_bf16(const uint8_t *codes, int64_t count, float scale,
                                        char *to) {
        const __m256 shifted = _mm256_set1_ps(scale * 0x1p-16f);
        __m256i *out = reinterpret_cast<__m256i *>(to);
        for (int64_t i = 0; i < count; i += 32, out += 2) {
            prefetch(codes + i + 8192);
            const __m256i low = s8_to_bf16<halfway>(codes + i, shifted);
            const __m256i high = s8_to_bf16<halfway>(codes + i + 16, shifted);
            stream ? _mm256_stream_si256(out, low) : _mm256_storeu_si256(out, low);
            stream ? _mm256_stream_si256(out + 1, high) : _mm256_storeu_si256(out + 1, high);
        }
    }
};

}  // namespace
}  // namespace qk::cpu
