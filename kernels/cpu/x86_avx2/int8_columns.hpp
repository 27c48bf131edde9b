// Integer dot products of codes stored by columns, AVX2: a dword has four columns of a row, so a
// vector of products has 8 rows. What is unsigned, and how many products fit 16 bits, is as in
// int8_dots.hpp.
#pragma once
#include "cpu/linear/columns_tile.hpp"
#include "cpu/x86_avx2/columns.hpp"
#include "cpu/x86_avx2/int8_dots.hpp"

namespace qk::cpu {
namespace {

struct Avx2Int8Columns : Avx2Columns, YmmSums {
    static int32_t rest_of(const int8_t *q, int64_t count) { return Avx2Dots::rest_of(q, count); }
    // Nibbles of a word in the order of its rows.
    static Sums8 load_awq_zeros8(uint32_t word) {
        const __m256i shift = _mm256_setr_epi32(0, 16, 4, 20, 8, 24, 12, 28);
        const __m256i all = _mm256_srlv_epi32(_mm256_set1_epi32(int32_t(word)), shift);
        return {_mm256_and_si256(all, _mm256_set1_epi32(15))};
    }

    struct ColumnEntries {
        const bool is_table;
        const Avx2Dots::EntryBytes bytes;

        explicit ColumnEntries(const Weight &w)
            : is_table(w.format->kind == FormatKind::kLut4), bytes(Int8Entries(w), is_table) {}

        // 16 columns of x times `tiles` tiles, which are side by side.
        template <class Layout>
        QK_INLINE void add(const WordTile &words, int64_t tiles, const int8_t *x,
                           Ahead<Avx2Int8Columns> *ahead, Sums8 *sums) const {
            if (!is_table) return add_as<Kind::kCodes>(Layout(), words, tiles, x, ahead, sums);
            bytes.small ? add_as<Kind::kSmall>(Layout(), words, tiles, x, ahead, sums)
                        : add_as<Kind::kWide>(Layout(), words, tiles, x, ahead, sums);
        }
        // What products of tables leave out, or have too much.
        template <size_t kVectors>
        QK_INLINE void finish(Sums8 (&sums)[kVectors], int32_t x_sum, int32_t rest) const {
            if (!is_table) return;
            const __m128i shift = _mm_cvtsi32_si128(bytes.shift);
            const __m256i more = _mm256_set1_epi32(bytes.small ? -bytes.offset * x_sum : rest);
            QK_UNROLL
            for (size_t i = 0; i < kVectors; ++i) {
                sums[i].v = _mm256_sll_epi32(_mm256_add_epi32(sums[i].v, more), shift);
            }
        }

      private:
        using Kind = Avx2Dots::Int8Factors;

        template <Kind kind>
        struct OfX {  // four columns
            __m256i q, negative;

            explicit OfX(const int8_t *from) : q(spread_bits<false>(from)) {
                if (kind != Kind::kWide) return;
                negative = _mm256_cmpgt_epi8(_mm256_setzero_si256(), q);
                q = _mm256_abs_epi8(q);
            }
        };

        static __m256i widen(__m256i pairs) {
            return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
        }
        // Up to four of these fit 16 bits but for wide entries, which are widened one by one.
        template <Kind kind>
        QK_INLINE __m256i products(__m256i code, const OfX<kind> &x) const {
            if (kind == Kind::kCodes) return _mm256_maddubs_epi16(code, x.q);
            const __m256i entry = _mm256_shuffle_epi8(bytes.table, code);
            if (kind == Kind::kSmall) return _mm256_maddubs_epi16(entry, x.q);
            return widen(_mm256_maddubs_epi16(x.q, _mm256_xor_si256(entry, x.negative)));
        }
        template <Kind kind>
        static __m256i add_up(__m256i a, __m256i b) {
            return kind == Kind::kWide ? _mm256_add_epi32(a, b) : _mm256_add_epi16(a, b);
        }
        template <Kind kind>
        static __m256i whole(__m256i sum) {
            return kind == Kind::kWide ? sum : widen(sum);
        }

        // gptq: two lines, each word even and odd columns of a row.
        template <Kind kind>
        QK_NOINLINE void add_as(WordsOfColumns, const WordTile &words, int64_t tiles,
                                const int8_t *x, Ahead<Avx2Int8Columns> *ahead, Sums8 *sums) const {
            const uint8_t *from = words.from;
            const int64_t stride = words.stride;
            const OfX<kind> of_x[4] = {OfX<kind>(x), OfX<kind>(x + 4), OfX<kind>(x + 8),
                                       OfX<kind>(x + 12)};
            for (int64_t i = 0; i < tiles; ++i, from += 128, sums += 4) {
                if (ahead != nullptr) ahead->fetch();
                QK_UNROLL
                for (int v = 0; v < 4; ++v) {
                    const __m256i a = load_bits(from + 32 * v);
                    const __m256i b = load_bits(from + stride + 32 * v);
                    const __m256i of_a = add_up<kind>(products<kind>(nibbles<0>(a), of_x[0]),
                                                      products<kind>(nibbles<1>(a), of_x[1]));
                    const __m256i of_b = add_up<kind>(products<kind>(nibbles<0>(b), of_x[2]),
                                                      products<kind>(nibbles<1>(b), of_x[3]));
                    const __m256i all = whole<kind>(add_up<kind>(of_a, of_b));
                    sums[v].v = _mm256_add_epi32(sums[v].v, all);
                }
            }
        }

        // awq_gemm: 16 lines, each word a column of 8 rows. Bytes of four columns are transposed to
        // dwords of a row; low nibbles are of other rows than high ones.
        template <Kind kind>
        QK_NOINLINE void add_as(WordsOfRows, const WordTile &words, int64_t tiles, const int8_t *x,
                                Ahead<Avx2Int8Columns> *ahead, Sums8 *sums) const {
            const uint8_t *from = words.from;
            const int64_t stride = words.stride;
            for (int64_t i = 0; i < tiles; ++i, from += 32, sums += 8) {
                if (ahead != nullptr) ahead->fetch(), ahead->fetch();
                __m256i of_step[8] = {};
                QK_UNROLL
                for (int four = 0; four < 4; ++four) {
                    const uint8_t *const at = from + 4 * four * stride;
                    const __m256i columns[4] = {load_bits(at), load_bits(at + stride),
                                                load_bits(at + 2 * stride),
                                                load_bits(at + 3 * stride)};
                    __m256i dwords[4];
                    bytes_to_dwords(columns, dwords);
                    const OfX<kind> of_x(x + 4 * four);
                    QK_UNROLL
                    for (int v = 0; v < 4; ++v) {
                        of_step[2 * v] = add_up<kind>(of_step[2 * v],
                                                      products<kind>(nibbles<0>(dwords[v]), of_x));
                        of_step[2 * v + 1] = add_up<kind>(
                            of_step[2 * v + 1], products<kind>(nibbles<1>(dwords[v]), of_x));
                    }
                }
                QK_UNROLL
                for (int v = 0; v < 8; ++v) {
                    sums[v].v = _mm256_add_epi32(sums[v].v, whole<kind>(of_step[v]));
                }
            }
        }
    };

    template <class Layout>
    static constexpr int64_t kTileRows = Layout::quads ? 32 : 64;

    // Sums of a tile, a vector for 8 rows in order.
    template <class Layout>
    QK_INLINE static void in_order(const Sums8 *sums, Sums8 (&to)[kTileRows<Layout> / 8]) {
        QK_UNROLL
        for (int i = 0; i < 4; ++i) {
            if constexpr (Layout::quads) {
                to[i] = sums[i];
            } else {  // rows 0, 4, 1, 5 and 2, 6, 3, 7 of words i and i + 4, one in either half
                const __m256i low = sums[2 * i].v, high = sums[2 * i + 1].v;
                const __m256i even = _mm256_unpacklo_epi32(low, high),
                              odd = _mm256_unpackhi_epi32(low, high);
                const __m256i a = _mm256_unpacklo_epi32(even, odd),
                              b = _mm256_unpackhi_epi32(even, odd);
                to[i].v = _mm256_permute2x128_si256(a, b, 0x20);
                to[i + 4].v = _mm256_permute2x128_si256(a, b, 0x31);
            }
        }
    }
};

}  // namespace
}  // namespace qk::cpu
