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

    // Bytes that two packs have left.
    QK_INLINE static __m256i in_order(__m256i bytes) {
        return _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    }

    // See PlainQuantizer. Ranks are counted down from 0, which a comparison's -1 does by itself; a
    // permute takes the lower three bits of such a number as well.
    static void rank(const float *thresholds, const uint8_t *code, const float *s, int64_t count,
                     uint8_t *codes) {
        const Ranking ranking(thresholds, code);
        int64_t i = 0;
        for (; i + 32 <= count; i += 32) ranking.put(s + i, codes + i);
        if (i == count) return;
        float rest[32] = {};
        uint8_t some[32];
        memcpy(rest, s + i, size_t(count - i) * sizeof(float));
        ranking.put(rest, some);
        memcpy(codes + i, some, size_t(count - i));
    }

    class Ranking {
      public:
        Ranking(const float *t, const uint8_t *code)
            : at_7_(_mm256_set1_ps(t[7])), at_3_(_mm256_setr_ps(t[3], 0, 0, 0, 0, 0, 0, t[11])),
              at_1_(_mm256_setr_ps(t[1], 0, 0, 0, 0, t[13], t[9], t[5])),
              at_0_(_mm256_setr_ps(t[0], t[14], t[12], t[10], t[8], t[6], t[4], t[2])) {
            uint8_t down[16];
            for (int i = 0; i < 16; ++i) down[i] = code[-i & 15];
            order_ = _mm256_broadcastsi128_si256(
                _mm_loadu_si128(reinterpret_cast<const __m128i *>(down)));
        }

        // Codes of 32 numbers.
        QK_INLINE void put(const float *s, uint8_t *codes) const {
            __m256i r[4];
            QK_UNROLL
            for (int i = 0; i < 4; ++i) r[i] = minus_rank(_mm256_loadu_ps(s + 8 * i));
            const __m256i bytes =
                _mm256_packs_epi16(_mm256_packs_epi32(r[0], r[1]), _mm256_packs_epi32(r[2], r[3]));
            const __m256i index = _mm256_and_si256(in_order(bytes), _mm256_set1_epi8(15));
            _mm256_storeu_si256(reinterpret_cast<__m256i *>(codes),
                                _mm256_shuffle_epi8(order_, index));
        }

      private:
        QK_INLINE __m256i minus_rank(__m256 value) const {
            const auto below = [&](__m256 threshold) QK_INLINE {  // all ones: -1
                return _mm256_castps_si256(_mm256_cmp_ps(value, threshold, _CMP_NLE_UQ));
            };
            __m256i rank = below(at_7_);
            const auto step = [&](__m256 by_rank) QK_INLINE {
                const __m256 threshold = _mm256_permutevar8x32_ps(by_rank, rank);
                rank = _mm256_add_epi32(_mm256_add_epi32(rank, rank), below(threshold));
            };
            step(at_3_);
            step(at_1_);
            step(at_0_);
            return rank;
        }

        const __m256 at_7_, at_3_, at_1_, at_0_;
        __m256i order_;
    };

    // See Avx512Quantizer. 32 numbers at a time where none is a NaN: packs clamp them.
    static void round_u4(const float *x, int64_t count, float divisor, int zero, uint8_t *codes) {
        const __m256 by = _mm256_set1_ps(divisor), most = _mm256_set1_ps(32);
        const __m256i offset = _mm256_set1_epi16(int16_t(zero >= 0 ? zero : 8));
        int64_t i = 0;
        for (; i + 32 <= count; i += 32) {
            __m256 value[4];
            QK_UNROLL
            for (int j = 0; j < 4; ++j)
                value[j] = _mm256_div_ps(_mm256_loadu_ps(x + i + 8 * j), by);
            if (Avx2::has_nan(value[0], value[1], value[2], value[3])) [[unlikely]] {
                round_eights(x + i, 32, divisor, zero, codes + i);
                continue;
            }
            // What is below every integer becomes the smallest.
            const auto words = [&](int j) QK_INLINE {
                const __m256i low = _mm256_cvtps_epi32(_mm256_min_ps(value[j], most));
                const __m256i high = _mm256_cvtps_epi32(_mm256_min_ps(value[j + 1], most));
                return _mm256_adds_epi16(_mm256_packs_epi32(low, high), offset);
            };
            const __m256i first = words(0);
            const __m256i bytes = _mm256_packus_epi16(first, words(2));
            _mm256_storeu_si256(reinterpret_cast<__m256i *>(codes + i),
                                _mm256_min_epu8(in_order(bytes), _mm256_set1_epi8(15)));
        }
        if (i < count) round_eights(x + i, count - i, divisor, zero, codes + i);
    }
    static void round_eights(const float *x, int64_t count, float divisor, int zero,
                             uint8_t *codes) {
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
