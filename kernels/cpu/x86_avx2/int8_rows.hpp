// Integer dot products of 8 rows of signed bytes, AVX2: |x| times entries that take the sign of x
// as a complement (int8_dots.hpp). |x| is 127 at most and an entry -128 .. 127, so two products
// fit 16 bits: 4 instructions for 32 bytes.
#pragma once
#include "cpu/int8/rows.hpp"
#include "cpu/x86_avx2/int8_dots.hpp"

namespace qk::cpu {
namespace {

struct Avx2RowsOfBytes : Avx2Dots {
    struct alignas(32) XChunk : ChunkInOrder {
        int32_t below[8];  // what a block's negative integers come to, without the sign
    };

    static void quantize_chunk(const float *x, int64_t blocks, float unit, XChunk *to) {
        quantize_in_order(x, blocks, unit, to);
        for (int32_t &sum : to->below) sum = 0;
        for (int64_t i = 0; i < 128; ++i) {
            const int32_t q = to->q[i];
            to->below[i * blocks / 128] += q < 0 ? -q : 0;
        }
    }

    // 128 columns of 8 rows that are `stride` bytes apart.
    template <int kBlocks>
    QK_INLINE static void dot_rows(const uint8_t *codes, int64_t stride, const XChunk &x,
                                   Sums8 (&to)[kBlocks]) {
        constexpr int kVectors =
            kBlocks < 4 ? 4 / kBlocks : 1;  // of a block; or two blocks a vector
        QK_UNROLL
        for (int first = 0; first < 4; first += kVectors) {
            SignedX of_x[kVectors];  // once for all rows
            QK_UNROLL
            for (int v = 0; v < kVectors; ++v) of_x[v] = signs_of(x.q + 32 * (first + v));
            const auto row = [&](int i) QK_INLINE {
                const uint8_t *const from = codes + i * stride + 32 * first;
                __m256i sum = dots(from, of_x[0]);
                QK_UNROLL
                for (int v = 1; v < kVectors; ++v) {
                    sum = _mm256_add_epi32(sum, dots(from + 32 * v, of_x[v]));
                }
                return sum;
            };
            if constexpr (kBlocks == 8) {
                fold_rows_of_halves(row, to + 2 * first);
            } else {
                fold_rows_1(row, to + first / kVectors);
            }
        }
        QK_UNROLL
        for (int b = 0; b < kBlocks; ++b) {
            to[b].v = _mm256_add_epi32(to[b].v, _mm256_set1_epi32(x.below[b]));
        }
    }

  private:
    // 32 columns, four a dword.
    QK_INLINE static __m256i dots(const uint8_t *row, const SignedX &x) {
        const __m256i entries = _mm256_xor_si256(load_256(row), x.negative);
        const __m256i pairs = _mm256_maddubs_epi16(x.magnitude, entries);
        return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    }
};

}  // namespace
}  // namespace qk::cpu
