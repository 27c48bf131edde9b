// 4-bit codes to floats by their bytes, and products of what they stand for, AVX2.
#pragma once
#include <immintrin.h>
#include <stdint.h>

#include "cpu/isa.hpp"

namespace qk::cpu {
namespace {

struct Avx2Planes {
    // 16 floats as planes of their first, second, third and last bytes. A permute of floats takes
    // two cycles of some processors (Zen 2 and 3), a shuffle of bytes half of one, so that where
    // all nibbles of 8 words are looked up, shuffles of four bytes and interleaving them is faster:
    // 25 for 64 entries of 96 instructions.
    struct Planes {
        __m256i of_byte[4];  // twice, for either half of a register
    };
    static Planes load_planes(const float *entries) {
        const __m128i by_bytes =
            _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
        const auto four = [=](int i) {
            const __m128i *const at = reinterpret_cast<const __m128i *>(entries + 4 * i);
            return _mm_shuffle_epi8(_mm_loadu_si128(at), by_bytes);
        };
        const __m128i a = _mm_unpacklo_epi32(four(0), four(1));
        const __m128i b = _mm_unpacklo_epi32(four(2), four(3));
        const __m128i c = _mm_unpackhi_epi32(four(0), four(1));
        const __m128i d = _mm_unpackhi_epi32(four(2), four(3));
        return {_mm256_broadcastsi128_si256(_mm_unpacklo_epi64(a, b)),
                _mm256_broadcastsi128_si256(_mm_unpackhi_epi64(a, b)),
                _mm256_broadcastsi128_si256(_mm_unpacklo_epi64(c, d)),
                _mm256_broadcastsi128_si256(_mm_unpackhi_epi64(c, d))};
    }
    // Entries of 32 codes, a byte each; byte 4 b + j of either half goes to lane j of its half of
    // to[2 * b].
    QK_INLINE static void look_up_planes(const Planes &planes, __m256i codes, __m256 *to) {
        const __m256i first = _mm256_shuffle_epi8(planes.of_byte[0], codes);
        const __m256i second = _mm256_shuffle_epi8(planes.of_byte[1], codes);
        const __m256i third = _mm256_shuffle_epi8(planes.of_byte[2], codes);
        const __m256i last = _mm256_shuffle_epi8(planes.of_byte[3], codes);
        const __m256i a = _mm256_unpacklo_epi8(first, second);
        const __m256i b = _mm256_unpackhi_epi8(first, second);
        const __m256i c = _mm256_unpacklo_epi8(third, last);
        const __m256i d = _mm256_unpackhi_epi8(third, last);
        to[0] = _mm256_castsi256_ps(_mm256_unpacklo_epi16(a, c));
        to[2] = _mm256_castsi256_ps(_mm256_unpackhi_epi16(a, c));
        to[4] = _mm256_castsi256_ps(_mm256_unpacklo_epi16(b, d));
        to[6] = _mm256_castsi256_ps(_mm256_unpackhi_epi16(b, d));
    }
    // Of all nibbles of 8 words.
    QK_INLINE static void look_up_words(const Planes &planes, const uint8_t *words,
                                        __m256 (&to)[8]) {
        const __m256i by_bytes = _mm256_broadcastsi128_si256(
            _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
        const __m256i nibble = _mm256_set1_epi8(15);
        const __m256i bytes = _mm256_shuffle_epi8(
            _mm256_loadu_si256(reinterpret_cast<const __m256i *>(words)), by_bytes);
        look_up_planes(planes, _mm256_and_si256(bytes, nibble), to);
        look_up_planes(planes, _mm256_and_si256(_mm256_srli_epi16(bytes, 4), nibble), to + 1);
    }

    // Adds the 64 products of half of a chunk's words; see Avx2Base::add_products and add_pieces.
    template <int kSteps, int kCount>
    QK_INLINE static void add_half(const Planes &planes, const uint8_t *words, const float *scales,
                                   const float *const (&x)[kCount], int64_t first,
                                   __m256 (&sum)[kCount]) {
        __m256 entry[8];
        look_up_words(planes, words, entry);
        QK_UNROLL
        for (int step = 0; step < 8; ++step) {
            const __m256 scale = _mm256_broadcast_ss(scales + step / kSteps * 8);
            const __m256 weight = _mm256_mul_ps(entry[step], scale);
            QK_UNROLL
            for (int j = 0; j < kCount; ++j) {
                const __m256 of_x = _mm256_loadu_ps(x[j] + first + 16 * step);
                sum[j] = _mm256_fmadd_ps(weight, of_x, sum[j]);
            }
        }
    }
    // Of pieces that end before step kStart, kStart + kSteps and so on, with a scale each, side by
    // side; where kCut, the lanes `before` of those steps are the piece's before.
    template <int kSteps, int kStart, bool kCut, int kCount>
    QK_INLINE static void add_half_pieces(const Planes &planes, const uint8_t *words,
                                          const float *scales, __m256 before,
                                          const float *const (&x)[kCount], int64_t first,
                                          __m256 (&sum)[kCount]) {
        __m256 entry[8];
        look_up_words(planes, words, entry);
        QK_UNROLL
        for (int step = 0; step < 8; ++step) {
            const float *const of_piece = scales + (step - kStart + kSteps) / kSteps;
            __m256 scale = _mm256_broadcast_ss(of_piece);
            if (kCut && step % kSteps == kStart) {
                scale = _mm256_blendv_ps(scale, _mm256_broadcast_ss(of_piece - 1), before);
            }
            const __m256 weight = _mm256_mul_ps(entry[step], scale);
            QK_UNROLL
            for (int j = 0; j < kCount; ++j) {
                const __m256 of_x = _mm256_loadu_ps(x[j] + first + 16 * step);
                sum[j] = _mm256_fmadd_ps(weight, of_x, sum[j]);
            }
        }
    }
    // The same by a number: twice kStart, and one more where kCut.
    template <int kSteps, int kCount, int kPlace = 0>
    QK_INLINE static void add_half_at(int32_t place, const Planes &planes, const uint8_t *words,
                                      const float *scales, __m256 before,
                                      const float *const (&x)[kCount], int64_t first,
                                      __m256 (&sum)[kCount]) {
        if constexpr (kPlace < 2 * kSteps) {
            if (place != kPlace) {
                return add_half_at<kSteps, kCount, kPlace + 1>(place, planes, words, scales, before,
                                                               x, first, sum);
            }
        }
        add_half_pieces<kSteps, kPlace / 2, kPlace % 2 != 0>(planes, words, scales, before, x,
                                                             first, sum);
    }
};

}  // namespace
}  // namespace qk::cpu
