// Sums of 8 rows out of vectors of partial ones, 256 bits, by how a vector has its blocks.
#pragma once
#include "cpu/int8/ymm.hpp"
#include "cpu/isa.hpp"

namespace qk::cpu {
namespace {

struct YmmFolds : YmmSums {
    template <int order>
    static __m256i shuffle_dwords(__m256i a, __m256i b) {
        return _mm256_castps_si256(
            _mm256_shuffle_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), order));
    }
    // [a0 + a1, a2 + a3, b0 + b1, b2 + b3] in both halves.
    static __m256i add_neighbours(__m256i a, __m256i b) {
        return _mm256_add_epi32(shuffle_dwords<0x88>(a, b), shuffle_dwords<0xdd>(a, b));
    }
    // The sum of a's halves, then of b's.
    static __m256i add_halves(__m256i a, __m256i b) {
        return _mm256_add_epi32(_mm256_blend_epi32(a, b, 0xf0),
                                _mm256_permute2x128_si256(a, b, 0x21));
    }
    static __m256i add_halves_of_words(__m256i a, __m256i b) {
        return _mm256_add_epi16(_mm256_blend_epi32(a, b, 0xf0),
                                _mm256_permute2x128_si256(a, b, 0x21));
    }

    template <class Row>
    QK_INLINE static __m256i add_two(const Row &row, int i) {
        const __m256i first = row(i);
        return add_neighbours(first, row(i + 1));
    }

    // Of rows i .. i + 3, `row(i)` each: sums of four partial ones, in either half of a vector.
    // Rows go two by two, so that few of them wait in registers.
    template <class Row>
    QK_INLINE static __m256i fold_four(const Row &row, int i) {
        const __m256i low = add_two(row, i);
        return add_neighbours(low, add_two(row, i + 2));
    }
    // Sums of 8 rows out of 8 partial ones a row.
    template <class Row>
    QK_INLINE static void fold_rows_1(const Row &row, Sums8 *to) {
        const __m256i low = fold_four(row, 0);
        to->v = add_halves(low, fold_four(row, 4));
    }
    // The halves of a vector are two blocks.
    template <class Row>
    QK_INLINE static void fold_rows_of_halves(const Row &row, Sums8 *to) {
        const __m256i low = fold_four(row, 0), high = fold_four(row, 4);
        to[0].v = _mm256_permute2x128_si256(low, high, 0x20);
        to[1].v = _mm256_permute2x128_si256(low, high, 0x31);
    }
    // Even dwords are block 0, odd ones block 1.
    struct Blocks {
        __m256i even, odd;
    };
    // Of rows i .. i + 3, `row(i)` each.
    template <class Row>
    QK_INLINE static Blocks fold_four_apart(const Row &row, int i) {
        const auto two = [&](int j) QK_INLINE {  // [a0, a1, b0, b1]
            const __m256i a = row(j), b = row(j + 1);
            return _mm256_add_epi32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
        };
        const __m256i low = two(i), high = two(i + 2);
        return {shuffle_dwords<0x88>(low, high), shuffle_dwords<0xdd>(low, high)};
    }
    template <class Row>
    QK_INLINE static void fold_rows_2(const Row &row, Sums8 *to) {
        const Blocks low = fold_four_apart(row, 0), high = fold_four_apart(row, 4);
        to[0].v = add_halves(low.even, high.even);
        to[1].v = add_halves(low.odd, high.odd);
    }
    // Even dwords are blocks 0 and 1, one in either half, odd ones 2 and 3.
    template <class Row>
    QK_INLINE static void fold_rows_of_quarters(const Row &row, Sums8 *to) {
        const Blocks low = fold_four_apart(row, 0), high = fold_four_apart(row, 4);
        to[0].v = _mm256_permute2x128_si256(low.even, high.even, 0x20);
        to[1].v = _mm256_permute2x128_si256(low.even, high.even, 0x31);
        to[2].v = _mm256_permute2x128_si256(low.odd, high.odd, 0x20);
        to[3].v = _mm256_permute2x128_si256(low.odd, high.odd, 0x31);
    }
    struct Quads {
        __m256i v[4];
    };
    // Of rows i .. i + 3: 4 x 4 dwords transposed, twice.
    template <class Row>
    QK_INLINE static Quads transpose_four(const Row &row, int i) {
        const __m256i a = row(i), b = row(i + 1), c = row(i + 2), d = row(i + 3);
        const __m256i ab = _mm256_unpacklo_epi32(a, b), ab_high = _mm256_unpackhi_epi32(a, b);
        const __m256i cd = _mm256_unpacklo_epi32(c, d), cd_high = _mm256_unpackhi_epi32(c, d);
        return {{_mm256_unpacklo_epi64(ab, cd), _mm256_unpackhi_epi64(ab, cd),
                 _mm256_unpacklo_epi64(ab_high, cd_high), _mm256_unpackhi_epi64(ab_high, cd_high)}};
    }
    // Dwords of a row are blocks 0, 1, 4, 5, then 2, 3, 6, 7.
    template <class Row>
    QK_INLINE static void fold_rows_8(const Row &row, Sums8 *to) {
        const Quads low = transpose_four(row, 0), high = transpose_four(row, 4);
        for (int i = 0; i < 4; ++i) {
            const int block = i + i / 2 * 2;
            to[block].v = _mm256_permute2x128_si256(low.v[i], high.v[i], 0x20);
            to[block + 2].v = _mm256_permute2x128_si256(low.v[i], high.v[i], 0x31);
        }
    }
    // Dword b of both halves is block b. Halves are added up first, those of rows i and i + 4 in
    // one vector, so that half as many are transposed.
    template <class Row>
    QK_INLINE static void fold_rows_4(const Row &row, Sums8 *to) {
        __m256i pairs[4];
        QK_UNROLL
        for (int i = 0; i < 4; ++i) {
            const __m256i first = row(i);
            pairs[i] = add_halves(first, row(i + 4));
        }
        const Quads sums = transpose_four([&](int i) QK_INLINE { return pairs[i]; }, 0);
        for (int b = 0; b < 4; ++b) to[b].v = sums.v[b];
    }
};

}  // namespace
}  // namespace qk::cpu
