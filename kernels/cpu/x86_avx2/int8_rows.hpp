// Integer dot products of 8 rows of signed bytes, AVX2 and AVX-VNNI (Products: add_products). AVX2:
// |x| times entries that take the sign of x as a complement (int8_dots.hpp). |x| is 127 at most and
// an entry -128 .. 127, so two products fit 16 bits: 4 instructions for 32 bytes.
#pragma once
#include "cpu/int8/rows.hpp"
#include "cpu/x86_avx2/int8_products.hpp"

namespace qk::cpu {
namespace {

template <class Products>
struct YmmRowsOfBytes : Products {
    using typename Products::Sums8;
    static constexpr bool kFetchesNear = true;

    struct alignas(32) XChunk : ChunkInOrder {
        int32_t rest[8];  // what products leave out of a block, the same for every row
    };

    static void quantize_chunk(const float *x, int64_t blocks, float unit, XChunk *to) {
        quantize_in_order(x, blocks, unit, to);
        const int64_t size = 128 / blocks;
        for (int64_t b = 0; b < blocks; ++b)
            to->rest[b] = Products::rest_of(to->q + b * size, size);
    }

    // 128 columns of 8 rows that are `stride` bytes apart.
    template <int kBlocks>
    QK_INLINE static void dot_rows(const uint8_t *codes, int64_t stride, const XChunk &x,
                                   Sums8 (&to)[kBlocks]) {
        const auto nothing = [](int, int) {};
        dot_rows_beside<kBlocks>(codes, stride, x, nothing, to);
    }
    // 16 lines from `ahead` on are fetched a few at a time: all at once they wait for each other.
    template <int kBlocks>
    QK_INLINE static void dot_rows(const uint8_t *codes, int64_t stride, const XChunk &x,
                                   const uint8_t *ahead, Sums8 (&to)[kBlocks]) {
        const auto fetch = [=](int i, int count) QK_INLINE {
            for (int line = 16 * i / count; line < 16 * (i + 1) / count; ++line) {
                prefetch(ahead + 64 * line);
            }
        };
        dot_rows_beside<kBlocks>(codes, stride, x, fetch, to);
    }

  private:
    // beside(i, count) in front of the i-th of `count` sums.
    template <int kBlocks, class Beside>
    QK_INLINE static void dot_rows_beside(const uint8_t *codes, int64_t stride, const XChunk &x,
                                          const Beside &beside, Sums8 (&to)[kBlocks]) {
        constexpr int kVectors =
            kBlocks < 4 ? 4 / kBlocks : 1;  // of a block; or two blocks a vector
        QK_UNROLL
        for (int first = 0; first < 4; first += kVectors) {
            typename Products::OfX of_x[kVectors];  // once for all rows
            QK_UNROLL
            for (int v = 0; v < kVectors; ++v) of_x[v] = Products::of_x(x.q + 32 * (first + v));
            const auto row = [&](int i) QK_INLINE {
                const uint8_t *const from = codes + i * stride + 32 * first;
                beside(8 * first / kVectors + i, 32 / kVectors);
                __m256i sum = _mm256_setzero_si256();
                QK_UNROLL
                for (int v = 0; v < kVectors; ++v) {
                    Products::add_products(sum, Products::load_256(from + 32 * v), of_x[v]);
                }
                return sum;
            };
            if constexpr (kBlocks == 8) {
                Products::fold_rows_of_halves(row, to + 2 * first);
            } else {
                Products::fold_rows_1(row, to + first / kVectors);
            }
        }
        QK_UNROLL
        for (int b = 0; b < kBlocks; ++b) {
            to[b].v = _mm256_add_epi32(to[b].v, _mm256_set1_epi32(x.rest[b]));
        }
    }
};

}  // namespace
}  // namespace qk::cpu
