// Integer dot products of a chunk of 8 rows, AVX2.
//
// Products of bytes add up in pairs of 16 bits (vpmaddubsw), unsigned times signed, and saturate.
// What is unsigned, and how many pairs fit 16 bits, depends on the entries:
//
//     affine codes      0..15 as they are; 8 products of a dword's nibbles fit
//     small tables      -16..15 after a shift (both FP4): plus 16; 8 products fit
//     wide tables       NF4: |x|. An entry takes the sign of x as its complement, ~e = -e - 1, and
//                       what that leaves out is the same for every row; 2 products fit
//
// 64 bytes of NF4 are 29 instructions here and 3 in the folds. On AMD's fifth Zen, products and
// signs (vpsignb) share two of four ports, byte shuffles and shifts the other two, and all else
// runs anywhere; so complements instead of signs, and blends and unpacks where they will do.
#pragma once
#include "cpu/int8/x.hpp"
#include "cpu/x86_avx2/int8_folds.hpp"
#include "cpu/x86_avx2/int8_scales.hpp"
#include "cpu/x86_avx2/isa.hpp"

namespace qk::cpu {
namespace {

struct Avx2Dots : Avx2, YmmFolds {
    template <int kBlocks>
    using Scales = YmmScales<Avx2Dots, kBlocks>;

    struct alignas(32) XChunk : PlainChunk {
        int32_t below[8];  // what a block's negative integers come to, without the sign
    };

    static __m256i load_256(const void *from) {
        return _mm256_loadu_si256(static_cast<const __m256i *>(from));
    }
    // 32 integers of x: |x|, and all ones where x is below 0. As cheap as a load where eight rows
    // share it, and x takes half of the first cache.
    struct SignedX {
        __m256i magnitude, negative;
    };
    static SignedX signs_of(const int8_t *integers) {
        const __m256i x = load_256(integers);
        return {_mm256_abs_epi8(x), _mm256_cmpgt_epi8(_mm256_setzero_si256(), x)};
    }
    // Negative integers without the sign: a complement is one less.
    static int32_t rest_of(const int8_t *q, int64_t count) {
        int32_t sum = 0;
        for (int64_t i = 0; i < count; ++i) sum += q[i] < 0 ? -q[i] : 0;
        return sum;
    }
    static void set_rest(const int8_t *q, int64_t count, int64_t block, XChunk *to) {
        to->below[block] = rest_of(q, count);
    }
    struct Bytes {  // of a row's chunk
        __m256i half[2];
    };
    // Bytes change places so that dwords belong to one block. Two blocks: dwords are of the first
    // and of the second in turn; four and eight: dword b of 128 bits has the b-th bytes of the
    // four.
    template <int kBlocks>
    static Bytes group_bytes(Bytes b) {
        if (kBlocks == 1) return b;
        if (kBlocks == 2) {
            return {_mm256_unpacklo_epi16(b.half[0], b.half[1]),
                    _mm256_unpackhi_epi16(b.half[0], b.half[1])};
        }
        const __m256i order = _mm256_broadcastsi128_si256(
            _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
        return {_mm256_shuffle_epi8(b.half[0], order), _mm256_shuffle_epi8(b.half[1], order)};
    }

    // x as group_bytes<2> leaves codes; it comes with dword b of 128 bits as the b-th bytes of the
    // four.
    static void group_twos(int8_t *at) {
        for (int i = 0; i < 64; i += 16) transpose_bytes_of_x(at + i);
        const Bytes transposed = group_bytes<2>({load_256(at), load_256(at + 32)});
        _mm256_storeu_si256(reinterpret_cast<__m256i *>(at), transposed.half[0]);
        _mm256_storeu_si256(reinterpret_cast<__m256i *>(at + 32), transposed.half[1]);
    }

    static void quantize_in_groups(const float *x, int64_t blocks, float unit, PlainChunk *to) {
        quantize_plain(x, blocks, unit, to);
        if (blocks != 2) return;
        group_twos(to->low);
        group_twos(to->high);
    }
    static void quantize_chunk(const float *x, int64_t blocks, float unit, XChunk *to) {
        quantize_in_groups(x, blocks, unit, to);
        int32_t below[4][2] = {};  // of four dwords in turn, by nibble
        for (int i = 0; i < 64; ++i) {
            const int32_t low = to->low[i], high = to->high[i];
            below[i / 4 % 4][0] += low < 0 ? -low : 0;
            below[i / 4 % 4][1] += high < 0 ? -high : 0;
        }
        for (int32_t &sum : to->below) sum = 0;
        for (int64_t i = 0; i < 4; ++i) {
            const int64_t block = blocks == 2 ? i % 2 : blocks == 1 ? 0 : i * blocks / 4;
            to->below[block] += below[i][0];
            to->below[block + (blocks == 8)] += below[i][1];
        }
    }

    // 64 bytes of a row of codes, grouped.
    template <int kBlocks>
    QK_INLINE static Bytes load_codes(const uint8_t *codes) {
        prefetch_stream(codes + 8192);
        return group_bytes<kBlocks>({load_words(codes), load_words(codes + 32)});
    }
    static __m256i load_words(const uint8_t *codes) {
        __m256i words = load_256(codes);
        asm("" : "+x"(words));  // loaded once, not once per use
        return words;
    }
    // A row of 64 bytes has two blocks in halves, four in quarters. Dwords of the halves in turn.
    template <int kBlocks>
    static Bytes group_stored(Bytes b) {
        if (kBlocks != 2 && kBlocks != 4) return b;
        return {_mm256_unpacklo_epi32(b.half[0], b.half[1]),
                _mm256_unpackhi_epi32(b.half[0], b.half[1])};
    }
    template <int kBlocks>
    QK_INLINE static Bytes load_stored(const uint8_t *codes) {
        return group_stored<kBlocks>({load_words(codes), load_words(codes + 32)});
    }
    static __m256i nibbles(__m256i words) { return _mm256_and_si256(words, _mm256_set1_epi8(15)); }

    // Sums of a chunk of 8 rows: of low nibbles and of high ones by themselves, or of both.
    template <class Factors, int kBlocks>
    QK_INLINE static void fold_chunk(const Factors &factors, const uint8_t *codes,
                                     Sums8 (&to)[kBlocks]) {
        if constexpr (kBlocks == 8) {  // low nibbles are the even blocks
            __m256i low[4], high[4];   // of rows i and i + 4, one in either half
            QK_UNROLL
            for (int i = 0; i < 4; ++i) {
                __m256i l[2], h[2];
                factors.add_apart(codes + 64 * i, l[0], h[0]);
                factors.add_apart(codes + 64 * (i + 4), l[1], h[1]);
                low[i] = Factors::join(l[0], l[1]);
                high[i] = Factors::join(h[0], h[1]);
            }
            const Quads even = transpose_four([&](int i) QK_INLINE { return low[i]; }, 0);
            const Quads odd = transpose_four([&](int i) QK_INLINE { return high[i]; }, 0);
            QK_UNROLL
            for (int b = 0; b < 4; ++b) {
                to[2 * b].v = Factors::end(even.v[b]);
                to[2 * b + 1].v = Factors::end(odd.v[b]);
            }
        } else {
            const auto row = [&](int i) QK_INLINE { return factors.add_all(codes + 64 * i); };
            if constexpr (kBlocks == 1) fold_rows_1(row, to);
            if constexpr (kBlocks == 2) fold_rows_2(row, to);
            if constexpr (kBlocks == 4) fold_rows_4(row, to);
        }
    }

    // The same of rows as they are stored.
    template <class Factors, int kBlocks>
    QK_INLINE static void fold_stored(const Factors &factors, const uint8_t *codes, int64_t pitch,
                                      Sums8 (&to)[kBlocks]) {
        const auto row = [&](int i) QK_INLINE { return factors.add_all(codes + i * pitch); };
        if constexpr (kBlocks == 1) fold_rows_1(row, to);
        if constexpr (kBlocks == 2) fold_rows_2(row, to);
        if constexpr (kBlocks == 4) fold_rows_of_quarters(row, to);
        if constexpr (kBlocks == 8) {
            fold_rows_8(
                [&](int i) QK_INLINE {
                __m256i first, last;
                factors.add_bytes_apart(codes + i * pitch, first, last);
                return add_neighbours(first, last);
                },
                to);
        }
    }

    // Entries of codes as bytes: those of tables that fit -16..15 after a shift as unsigned
    // numbers.
    struct EntryBytes {
        int shift = 0, offset = 0;  // of small ones
        bool small = true;
        __m256i table;

        EntryBytes(const Int8Entries &entries, bool is_table) {
            int common = 0;
            for (const int8_t value : entries.value) common |= value;
            while ((common >> shift & 1) == 0) ++shift;
            for (const int8_t value : entries.value) {
                small = small && value >> shift >= -16 && value >> shift < 16;
            }
            if (!small) shift = 0;
            if (small && is_table) offset = 16;
            int8_t bytes[16];
            for (int code = 0; code < 16; ++code) {
                bytes[code] = int8_t((entries.value[code] >> shift) + offset);
            }
            table = _mm256_broadcastsi128_si256(
                _mm_loadu_si128(reinterpret_cast<const __m128i *>(bytes)));
        }
    };

    // Takes 2^log2 times a block's integers off its sums. Multiplied for all blocks at once.
    template <int log2, int kBlocks>
    QK_INLINE static void take_offset(const int32_t (&of_x)[8], Sums8 (&from)[kBlocks]) {
        alignas(32) int32_t offset[8];
        _mm256_store_si256(reinterpret_cast<__m256i *>(offset),
                           _mm256_slli_epi32(load_256(of_x), log2));
        asm("" : "+m"(offset));  // or each would be a permute, and ports for those are few
        QK_UNROLL
        for (int b = 0; b < kBlocks; ++b) {
            from[b].v = _mm256_sub_epi32(from[b].v, _mm256_set1_epi32(offset[b]));
        }
    }

    enum class Int8Factors { kCodes, kSmall, kWide };

    // `stored`: rows of nibbles in sequence, not packed chunks.
    template <int kBlocks, bool table, bool stored>
    class DotsOfChunk {
      public:
        explicit DotsOfChunk(const Int8Entries &entries) : entries_(entries, table) {}

        QK_INLINE void run(const uint8_t *codes, const XChunk &x, Sums8 (&to)[kBlocks]) const {
            run_stored(codes, 64, x, to);
        }
        // Rows that are `pitch` bytes apart.
        QK_INLINE void run_stored(const uint8_t *codes, int64_t pitch, const XChunk &x,
                                  Sums8 (&to)[kBlocks]) const {
            if (!table) return fold<Int8Factors::kCodes>(codes, pitch, x, to);
            if (entries_.small) {
                fold<Int8Factors::kSmall>(codes, pitch, x, to);
                take_offset<4>(x.sum, to);
                if (entries_.shift == 0) return;
                const __m128i shift = _mm_cvtsi32_si128(entries_.shift);
                for (Sums8 &sums : to) sums.v = _mm256_sll_epi32(sums.v, shift);
            } else {
                fold<Int8Factors::kWide>(codes, pitch, x, to);
                for (int b = 0; b < kBlocks; ++b) {
                    to[b].v = _mm256_add_epi32(to[b].v, _mm256_set1_epi32(x.below[b]));
                }
            }
        }

      private:
        template <Int8Factors kind>
        QK_INLINE void fold(const uint8_t *codes, int64_t pitch, const XChunk &x,
                            Sums8 (&to)[kBlocks]) const {
            const Factors<kind> factors(x, entries_.table);
            if constexpr (stored) fold_stored(factors, codes, pitch, to);
            if constexpr (!stored) fold_chunk(factors, codes, to);
        }

        struct Products {  // pairs, of the low and the high nibbles
            __m256i low[2], high[2];
        };

        // What the rows of a chunk share.
        template <Int8Factors kind>
        struct Factors {
            const XChunk &x;
            __m256i table_of_entries;
            __m256i magnitude[4];
            __m256i negative[4];  // stays in memory: there are not registers for both

            Factors(const XChunk &chunk, __m256i entries) : x(chunk), table_of_entries(entries) {
                if (kind != Int8Factors::kWide) return;
                for (int i = 0; i < 4; ++i) {
                    const SignedX signs = signs_of((i / 2 == 0 ? x.low : x.high) + 32 * (i % 2));
                    magnitude[i] = signs.magnitude;
                    negative[i] = signs.negative;
                }
                asm volatile("" : : "r"(negative) : "memory");
            }

            // Low and high nibbles by themselves, of which join() adds up the halves of two rows.
            // Small ones stay words until end(), as 8 products fit.
            QK_INLINE void add_apart(const uint8_t *codes, __m256i &low, __m256i &high) const {
                const Products p = products(codes);
                constexpr bool wide = kind == Int8Factors::kWide;
                low = wide ? add(p.low[0], p.low[1]) : _mm256_add_epi16(p.low[0], p.low[1]);
                high = wide ? add(p.high[0], p.high[1]) : _mm256_add_epi16(p.high[0], p.high[1]);
            }
            static __m256i join(__m256i a, __m256i b) {
                return kind == Int8Factors::kWide ? add_halves(a, b) : add_halves_of_words(a, b);
            }
            static __m256i end(__m256i sums) {
                return kind == Int8Factors::kWide ? sums : widen(sums);
            }
            // Both nibbles, of the first and of the last 32 bytes.
            QK_INLINE void add_bytes_apart(const uint8_t *codes, __m256i &first,
                                           __m256i &last) const {
                const Products p = products(codes);
                first = add(p.low[0], p.high[0]);
                last = add(p.low[1], p.high[1]);
            }
            QK_INLINE __m256i add_all(const uint8_t *codes) const {
                const Products p = products(codes);
                if (kind == Int8Factors::kWide) {
                    return _mm256_add_epi32(add(p.low[0], p.low[1]), add(p.high[0], p.high[1]));
                }
                return add(_mm256_add_epi16(p.low[0], p.low[1]),
                           _mm256_add_epi16(p.high[0], p.high[1]));
            }

          private:
            QK_INLINE Products products(const uint8_t *codes) const {
                const Bytes words =
                    stored ? load_stored<kBlocks>(codes) : load_codes<kBlocks>(codes);
                Products p;
                _Pragma("GCC unroll 2") for (int half = 0; half < 2; ++half) {
                    const __m256i high = _mm256_srli_epi16(words.half[half], 4);
                    p.low[half] = multiply<0>(nibbles(words.half[half]), half);
                    p.high[half] = multiply<1>(nibbles(high), half);
                }
                return p;
            }
            template <int nibble>
            QK_INLINE __m256i multiply(__m256i code, int half) const {
                const __m256i q = load_256((nibble == 0 ? x.low : x.high) + 32 * half);
                if (kind == Int8Factors::kCodes) return _mm256_maddubs_epi16(code, q);
                const __m256i entry = _mm256_shuffle_epi8(table_of_entries, code);
                if (kind == Int8Factors::kSmall) return _mm256_maddubs_epi16(entry, q);
                return _mm256_maddubs_epi16(magnitude[2 * nibble + half],
                                            _mm256_xor_si256(entry, negative[2 * nibble + half]));
            }
            QK_INLINE static __m256i add(__m256i a, __m256i b) {
                if (kind == Int8Factors::kWide) return _mm256_add_epi32(widen(a), widen(b));
                return widen(_mm256_add_epi16(a, b));
            }
            static __m256i widen(__m256i pairs) {
                return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
            }
        };

        EntryBytes entries_;
    };
    template <int kBlocks, bool table>
    using ChunkDots = DotsOfChunk<kBlocks, table, false>;
};

}  // namespace
}  // namespace qk::cpu
