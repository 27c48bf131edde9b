// The quantizer on AVX2: 8 numbers at a time. Thresholds are searched by halves, a permute of 8
// floats finding the next one.
#pragma once
#include <immintrin.h>

#include "cpu/convert/quantize_plain.hpp"
#include "cpu/x86_avx2/isa.hpp"

namespace qk::cpu {
namespace {

struct Avx2Quantizer : PlainQuantizer<Avx2> {
    // Codes of 8 numbers at a time, in dwords; past the last the numbers are 0.
    template <class Code>
    QK_INLINE static void code_eights(const float *x, int64_t count, uint8_t *codes,
                                      const Code &code) {
        const auto put = [&](const float *from, uint8_t *to) QK_INLINE {
            const __m256i each = code(_mm256_loadu_ps(from));
            const __m128i words =
                _mm_packus_epi32(_mm256_castsi256_si128(each), _mm256_extracti128_si256(each, 1));
            _mm_storel_epi64(reinterpret_cast<__m128i *>(to), _mm_packus_epi16(words, words));
        };
        int64_t i = 0;
        for (; i + 8 <= count; i += 8) put(x + i, codes + i);
        if (i == count) return;
        float rest[8] = {};
        uint8_t some[8];
        memcpy(rest, x + i, size_t(count - i) * sizeof(float));
        put(rest, some);
        memcpy(codes + i, some, size_t(count - i));
    }

    // Largest, smallest and largest magnitude by lanes; no order changes them. NaN as the first
    // operand of a minimum or maximum gives the second.
    static void scan(const float *x, int64_t count, GroupRange *range) {
        __m256 low = _mm256_set1_ps(range->low), high = _mm256_set1_ps(range->high);
        __m256i most = _mm256_set1_epi32(int(f32_bits(range->absmax)));
        __m256i numbers = _mm256_set1_epi32(-1);
        const auto add = [&](__m256 value) QK_INLINE {
            const __m256i magnitude =
                _mm256_and_si256(_mm256_castps_si256(value), _mm256_set1_epi32(0x7fffffff));
            const __m256i number = _mm256_cmpgt_epi32(_mm256_set1_epi32(0x7f800001), magnitude);
            low = _mm256_min_ps(value, low);
            high = _mm256_max_ps(value, high);
            most = _mm256_max_epi32(most, _mm256_and_si256(number, magnitude));
            numbers = _mm256_and_si256(numbers, number);
        };
        int64_t i = 0;
        for (; i + 8 <= count; i += 8) add(_mm256_loadu_ps(x + i));
        if (i < count) {
            float rest[8] = {};
            memcpy(rest, x + i, size_t(count - i) * sizeof(float));
            add(_mm256_loadu_ps(rest));
        }
        range->low = fold(low, [](__m128 a, __m128 b) { return _mm_min_ps(a, b); });
        range->high = fold(high, [](__m128 a, __m128 b) { return _mm_max_ps(a, b); });
        range->absmax = fold(_mm256_castsi256_ps(most), [](__m128 a, __m128 b) {
            return _mm_castsi128_ps(_mm_max_epi32(_mm_castps_si128(a), _mm_castps_si128(b)));
        });
        range->nan |= _mm256_movemask_epi8(numbers) != -1;
    }
    template <class Join>
    QK_INLINE static float fold(__m256 lanes, const Join &join) {
        __m128 four = join(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps(lanes, 1));
        four = join(four, _mm_movehl_ps(four, four));
        return _mm_cvtss_f32(join(four, _mm_movehdup_ps(four)));
    }

    // See PlainQuantizer.
    static void rank(const float *thresholds, const uint8_t *code, const float *s, int64_t count,
                     uint8_t *codes) {
        const float *const t = thresholds;
        const __m256 at_7 = _mm256_set1_ps(t[7]);
        const __m256 at_3 = _mm256_set1_ps(t[3]), at_11 = _mm256_set1_ps(t[11]);
        const __m256 at_1 = _mm256_setr_ps(t[1], t[5], t[9], t[13], t[1], t[5], t[9], t[13]);
        const __m256 at_0 = _mm256_setr_ps(t[0], t[2], t[4], t[6], t[8], t[10], t[12], t[14]);
        code_eights(s, count, codes, [=](__m256 value) QK_INLINE {
            const auto below = [=](__m256 threshold) QK_INLINE {  // all ones: -1
                return _mm256_castps_si256(_mm256_cmp_ps(value, threshold, _CMP_NLE_UQ));
            };
            const __m256i first = below(at_7);
            const __m256i second = below(_mm256_blendv_ps(at_3, at_11, _mm256_castsi256_ps(first)));
            __m256i rank = _mm256_sub_epi32(_mm256_setzero_si256(), first);
            const auto step = [&](__m256i is_below) QK_INLINE {
                rank = _mm256_sub_epi32(_mm256_add_epi32(rank, rank), is_below);
            };
            step(second);
            step(below(_mm256_permutevar8x32_ps(at_1, rank)));
            step(below(_mm256_permutevar8x32_ps(at_0, rank)));
            return rank;
        });
        const __m128i order = _mm_loadu_si128(reinterpret_cast<const __m128i *>(code));
        int64_t i = 0;
        for (; i + 16 <= count; i += 16) {
            __m128i *const at = reinterpret_cast<__m128i *>(codes + i);
            _mm_storeu_si128(at, _mm_shuffle_epi8(order, _mm_loadu_si128(at)));
        }
        for (; i < count; ++i) codes[i] = code[codes[i]];
    }

    // See Avx512Quantizer.
    static void round_u4(const float *x, int64_t count, float divisor, int zero, uint8_t *codes) {
        const __m256 by = _mm256_set1_ps(divisor), most = _mm256_set1_ps(32);
        const __m256i offset = _mm256_set1_epi32(zero >= 0 ? zero : 8);
        const __m256i of_nan = _mm256_set1_epi32(zero >= 0 ? 0 : 8);
        code_eights(x, count, codes, [=](__m256 number) QK_INLINE {
            const __m256 value = _mm256_div_ps(number, by);
            const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
            const __m256 within = _mm256_max_ps(_mm256_min_ps(value, most), _mm256_set1_ps(-32));
            const __m256i code = _mm256_add_epi32(_mm256_cvtps_epi32(within), offset);
            const __m256i clamped = _mm256_max_epi32(_mm256_min_epi32(code, _mm256_set1_epi32(15)),
                                                     _mm256_setzero_si256());
            return _mm256_blendv_epi8(clamped, of_nan, nan);
        });
    }

    // Of a NaN, infinity by infinity, the code is 0.
    static void round_s8(const float *x, int64_t count, float divisor, uint8_t *codes) {
        const __m256 by = _mm256_set1_ps(divisor), most = _mm256_set1_ps(127);
        code_eights(x, count, codes, [=](__m256 number) QK_INLINE {
            const __m256 value = _mm256_div_ps(number, by);
            const __m256i is_number = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_ORD_Q));
            const __m256 within = _mm256_max_ps(_mm256_min_ps(value, most), _mm256_set1_ps(-127));
            const __m256i code = _mm256_and_si256(_mm256_cvtps_epi32(within), is_number);
            return _mm256_and_si256(code, _mm256_set1_epi32(255));
        });
    }
};

}  // namespace
}  // namespace qk::cpu
