// x and integer dot products of int8 mode, a chunk of 8 rows, AVX-512 VNNI and VBMI.
#pragma once
#include "cpu/int8/x.hpp"
#include "cpu/int8/ymm.hpp"
#include "cpu/traits.hpp"
#include "cpu/x86_avx512/group_scales.hpp"
#include "cpu/x86_avx512/isa.hpp"

namespace qk::cpu {
namespace {

struct Avx512Int8X : Avx512, YmmSums {
    struct XChunk {
        int8_t low[64], high[64];  // for the low and the high nibbles
        float scale[8];            // a block; the unit of entries is in it
        int32_t sum[8];            // of a block's integers
    };

    struct XBytes {  // columns 0..63 and 64..127 after two packs: see place()
        __m512i half[2];
    };

    // Scales and integers; `blocks` of 128 / blocks columns. Results of 16 columns stand in lanes
    // of eight; wider blocks repeat theirs.
    class ChunkQuantizer {
      public:
        ChunkQuantizer(const float *x, int64_t blocks) : blocks_(blocks) {
            __m512i magnitude[8];
            for (int i = 0; i < 8; ++i) {
                x_[i] = _mm512_loadu_ps(x + 16 * i);
                const __m512i bits = _mm512_castps_si512(x_[i]);
                magnitude[i] = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
            }
            largest_ = spread(largest_of(magnitude),
                              [](__m256i a, __m256i b) { return _mm256_max_epu32(a, b); });
            const __m256 value = _mm256_castsi256_ps(largest_);
            wild_ = _mm256_cmp_epu32_mask(largest_, _mm256_set1_epi32(int32_t(kNotFinite)), 5);
            tiny_ = _mm256_cmp_ps_mask(value, _mm256_set1_ps(kInt8Smallest), _CMP_LT_OQ);
            inverse_ = _mm256_div_ps(_mm256_set1_ps(127), value);
        }

        void store_scales(float unit, float *to) const {
            const __m256 value = _mm256_castsi256_ps(largest_);
            __m256 scale =
                _mm256_mul_ps(_mm256_div_ps(value, _mm256_set1_ps(127)), _mm256_set1_ps(unit));
            scale = _mm256_mask_mov_ps(scale, tiny_, _mm256_setzero_ps());
            scale = _mm256_mask_mov_ps(scale, wild_, _mm256_set1_ps(__builtin_nanf("")));
            _mm256_storeu_ps(to, _mm256_permutevar8x32_ps(scale, firsts()));
        }

        XBytes integers(int32_t *sums) const {
            __m512i q[8];
            float inverse[8];
            _mm256_storeu_ps(inverse, inverse_);
            const uint32_t zeros = uint32_t(wild_) | tiny_;
            for (int i = 0; i < 8; ++i) {
                const __mmask16 live = zeros >> i & 1 ? 0 : 0xffff;
                q[i] = _mm512_maskz_cvtps_epi32(live,
                                                _mm512_mul_ps(x_[i], _mm512_set1_ps(inverse[i])));
            }
            Sums8 sum;
            fold_rows_1(q, &sum);
            const __m256i all =
                spread(sum.v, [](__m256i a, __m256i b) { return _mm256_add_epi32(a, b); });
            _mm256_storeu_si256(reinterpret_cast<__m256i *>(sums),
                                _mm256_permutevar8x32_epi32(all, firsts()));
            const auto pack = [&](int i) {
                return _mm512_packs_epi16(_mm512_packs_epi32(q[i], q[i + 1]),
                                          _mm512_packs_epi32(q[i + 2], q[i + 3]));
            };
            return {{pack(0), pack(4)}};
        }

      private:
        static __m256i largest_of(const __m512i (&v)[8]) {
            const auto dwords = [](__m512i a, __m512i b) {
                return _mm512_max_epu32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
            };
            const auto quads = [](__m512i a, __m512i b) {
                return _mm512_max_epu32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
            };
            const __m512i low = quads(dwords(v[0], v[1]), dwords(v[2], v[3]));
            const __m512i high = quads(dwords(v[4], v[5]), dwords(v[6], v[7]));
            const __m512i halves = _mm512_max_epu32(_mm512_shuffle_i64x2(low, high, 0x44),
                                                    _mm512_shuffle_i64x2(low, high, 0xee));
            const __m512i all = _mm512_max_epu32(_mm512_shuffle_i64x2(halves, halves, 0x88),
                                                 _mm512_shuffle_i64x2(halves, halves, 0xdd));
            return _mm512_castsi512_si256(all);
        }
        // Lanes of one block all take what they come to together.
        template <class Join>
        __m256i spread(__m256i v, const Join &join) const {
            if (blocks_ <= 4) v = join(v, _mm256_shuffle_epi32(v, 0xb1));
            if (blocks_ <= 2) v = join(v, _mm256_shuffle_epi32(v, 0x4e));
            if (blocks_ == 1) v = join(v, _mm256_permute2x128_si256(v, v, 1));
            return v;
        }
        // Where blocks start among groups of 16.
        __m256i firsts() const {
            const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            return _mm256_mullo_epi32(index, _mm256_set1_epi32(int32_t(8 / blocks_)));
        }

        int64_t blocks_;
        __m512 x_[8];
        __m256i largest_;
        __m256 inverse_;
        __mmask8 wild_, tiny_;
    };

    // Columns 4 d .. 4 d + 3, for 16 numbers d: packs leave dwords 0, 4, 8, 12, 1, 5, ... of 16.
    static __m512i place(const XBytes &x, __m512i d) {
        const __m512i fours = _mm512_set1_epi32(3), sixteens = _mm512_set1_epi32(16);
        const __m512i low = _mm512_slli_epi32(_mm512_and_si512(d, fours), 2);
        const __m512i high = _mm512_and_si512(_mm512_srli_epi32(d, 2), fours);
        const __m512i at =
            _mm512_or_si512(_mm512_or_si512(low, high), _mm512_and_si512(d, sixteens));
        return _mm512_permutex2var_epi32(x.half[0], at, x.half[1]);
    }

    // In the order of the codes' bytes: as stored where a chunk is one block, else transposed as
    // group_bytes does.
    static void quantize_chunk(const float *x, int64_t blocks, float unit, XChunk *to) {
        const ChunkQuantizer quantizer(x, blocks);
        quantizer.store_scales(unit, to->scale);
        const XBytes bytes = quantizer.integers(to->sum);
        const __m512i fours =
            _mm512_setr_epi32(0, 8, 16, 24, 1, 9, 17, 25, 2, 10, 18, 26, 3, 11, 19, 27);
        const __m512i twos = _mm512_shuffle_epi32(fours, _MM_PERM_ENUM(0xd8));
        const __m512i order = blocks == 2 ? twos : fours;
        __m512i low = place(bytes, order);
        __m512i high = place(bytes, _mm512_add_epi32(order, _mm512_set1_epi32(4)));
        if (blocks == 1) {
            const __m512i transpose = _mm512_broadcast_i32x4(
                _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
            low = _mm512_shuffle_epi8(low, transpose);
            high = _mm512_shuffle_epi8(high, transpose);
        }
        _mm512_storeu_si512(to->low, low);
        _mm512_storeu_si512(to->high, high);
    }

    // In place: GCC 12 copies the sum before and after its intrinsic.
    QK_INLINE static void add_dots(__m512i &sum, __m512i w, __m512i x) {
        asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(w), "v"(x));
    }

    // Two vectors folded into one. A blend runs on any port, a shuffle on two of four; so one of
    // each where positions allow.
    //
    //     fold_dwords      every 128 bits: [a0 + a2, a1 + a3, b0 + b2, b1 + b3]
    //     fold_halves      quarters of 128 bits: the same
    //     fold_quarters    quarters: [a0 + a1, a2 + a3, b0 + b1, b2 + b3]
    static __m512i fold_dwords(__m512i a, __m512i b) {
        const __m512 x = _mm512_castsi512_ps(a), y = _mm512_castsi512_ps(b);
        const __m512i crossed = _mm512_castps_si512(_mm512_shuffle_ps(x, y, 0x4e));
        return _mm512_add_epi32(_mm512_mask_blend_epi32(0xcccc, a, b), crossed);
    }
    static __m512i fold_halves(__m512i a, __m512i b) {
        const __m512i crossed = _mm512_shuffle_i64x2(a, b, 0x4e);
        return _mm512_add_epi32(_mm512_mask_blend_epi32(0xff00, a, b), crossed);
    }
    static __m512i fold_quarters(__m512i a, __m512i b) {
        return _mm512_add_epi32(_mm512_shuffle_i64x2(a, b, 0x88), _mm512_shuffle_i64x2(a, b, 0xdd));
    }
    // Rows 2 q, 2 q + 1 in quarter q, dwords as fold_dwords leaves them.
    QK_INLINE static __m512i fold_eight(const __m512i (&d)[8]) {
        const __m512i low = fold_halves(fold_dwords(d[0], d[1]), fold_dwords(d[2], d[3]));
        const __m512i high = fold_halves(fold_dwords(d[4], d[5]), fold_dwords(d[6], d[7]));
        return fold_quarters(low, high);
    }

    // 8 rows of 16 partial sums -> 8 sums.
    QK_INLINE static void fold_rows_1(const __m512i (&d)[8], Sums8 *to) {
        const __m512i pairs = fold_eight(d);
        const __m512i order = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 0, 0, 0, 0, 0, 0, 0, 0);
        const __m512i all = _mm512_add_epi32(pairs, _mm512_srli_epi64(pairs, 32));
        to->v = _mm512_castsi512_si256(_mm512_permutexvar_epi32(order, all));
    }
    // Dwords 0, 2 of every 128 bits are block 0, dwords 1, 3 block 1.
    QK_INLINE static void fold_rows_2(const __m512i (&d)[8], Sums8 *to) {
        const __m512i order =
            _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
        const __m512i all = _mm512_permutexvar_epi32(order, fold_eight(d));
        to[0].v = _mm512_castsi512_si256(all);
        to[1].v = _mm512_extracti64x4_epi64(all, 1);
    }
    // The halves of `first`, then those of `last`, to every stride-th.
    QK_INLINE static void store_halves(__m512i first, __m512i last, Sums8 *to, int stride) {
        to[0].v = _mm512_castsi512_si256(first);
        to[stride].v = _mm512_extracti64x4_epi64(first, 1);
        to[2 * stride].v = _mm512_castsi512_si256(last);
        to[3 * stride].v = _mm512_extracti64x4_epi64(last, 1);
    }
    // Dword b of every 128 bits is block b: to[b * stride].
    QK_INLINE static void fold_rows_4(const __m512i (&d)[8], Sums8 *to, int stride) {
        const __m512i low = fold_quarters(fold_halves(d[0], d[1]), fold_halves(d[2], d[3]));
        const __m512i high = fold_quarters(fold_halves(d[4], d[5]), fold_halves(d[6], d[7]));
        const __m512i order =
            _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29);
        const __m512i rest = _mm512_add_epi32(order, _mm512_set1_epi32(2));
        const __m512i first = _mm512_permutex2var_epi32(low, order, high);
        const __m512i last = _mm512_permutex2var_epi32(low, rest, high);
        store_halves(first, last, to, stride);
    }

    // Pairs of lanes of `low` and `high`, by quarter: those of 0 and 1 to to[0] and to[stride], of
    // 2 and 3 behind them.
    QK_INLINE static void join_quarters(__m512i low, __m512i high, Sums8 *to, int stride) {
        const __m512i order = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
        const __m512i rest = _mm512_add_epi64(order, _mm512_set1_epi64(4));
        const __m512i first = _mm512_permutex2var_epi64(low, order, high);
        const __m512i last = _mm512_permutex2var_epi64(low, rest, high);
        store_halves(first, last, to, stride);
    }
    template <int order>
    static __m512i shuffle_dwords(__m512i a, __m512i b) {
        return _mm512_castps_si512(
            _mm512_shuffle_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), order));
    }
    // [a0 + a1, a2 + a3, b0 + b1, b2 + b3] in every quarter.
    static __m512i add_neighbours(__m512i a, __m512i b) {
        return _mm512_add_epi32(shuffle_dwords<0x88>(a, b), shuffle_dwords<0xdd>(a, b));
    }
    // Quarter b of every vector is block b.
    QK_INLINE static void fold_rows_of_quarters(const __m512i (&d)[8], Sums8 *to) {
        const auto four = [&](int i) QK_INLINE {
            return add_neighbours(fold_dwords(d[i], d[i + 1]), fold_dwords(d[i + 2], d[i + 3]));
        };
        join_quarters(four(0), four(4), to, 1);
    }
    QK_INLINE static void fold_rows_of_halves(const __m512i (&d)[8], Sums8 *to) {
        Sums8 quarter[4];
        fold_rows_of_quarters(d, quarter);
        to[0].v = _mm256_add_epi32(quarter[0].v, quarter[1].v);
        to[1].v = _mm256_add_epi32(quarter[2].v, quarter[3].v);
    }
    // Two dwords are a block.
    QK_INLINE static void fold_rows_of_eighths(const __m512i (&d)[8], Sums8 *to) {
        __m512i pairs[4];  // blocks 2 q, 2 q + 1 of row 2 i, then of row 2 i + 1
        for (int i = 0; i < 4; ++i) pairs[i] = add_neighbours(d[2 * i], d[2 * i + 1]);
        join_quarters(shuffle_dwords<0x88>(pairs[0], pairs[1]),
                      shuffle_dwords<0x88>(pairs[2], pairs[3]), to, 2);
        join_quarters(shuffle_dwords<0xdd>(pairs[0], pairs[1]),
                      shuffle_dwords<0xdd>(pairs[2], pairs[3]), to + 1, 2);
    }
};

// Scales of a chunk of several groups.
template <int kBlocks>
class Int8GroupScales : public GroupScales<kBlocks> {
  public:
    using GroupScales<kBlocks>::GroupScales;

    QK_INLINE void widen(const char *from, int64_t group, int64_t there,
                         YmmSums::Floats8 (&to)[kBlocks]) const {
        __m512 pairs[kBlocks / 2];
        GroupScales<kBlocks>::widen(from, group, there, pairs);
        QK_UNROLL
        for (int b = 0; b < kBlocks; ++b) {
            to[b].v = b % 2 == 0 ? _mm512_castps512_ps256(pairs[b / 2])
                                 : _mm512_extractf32x8_ps(pairs[b / 2], 1);
        }
    }
};

struct Avx512Dots : Avx512Int8X {
    template <int kBlocks>
    using Scales = std::conditional_t < (kBlocks > 1),
          Int8GroupScales<kBlocks<2 ? 2 : kBlocks>, PanelScales<Avx512Dots, 1>>;

    // The bytes of four dwords (every 128 bits) change places: dword b of the result holds the b-th
    // bytes of the four; dwords 1 and 2 trade places where fold_dwords is to add groups of 64.
    template <int kBlocks>
    static __m512i group_bytes(__m512i words) {
        const __m128i fours = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
        const __m128i twos = _mm_setr_epi8(0, 4, 8, 12, 2, 6, 10, 14, 1, 5, 9, 13, 3, 7, 11, 15);
        return _mm512_shuffle_epi8(words, _mm512_broadcast_i32x4(kBlocks == 2 ? twos : fours));
    }

    // Entries of 4-bit codes as unsigned bytes.
    struct ByteTable {
        __m512i v;

        explicit ByteTable(const Int8Entries &entries, bool table) {
            uint8_t bytes[16];
            for (int i = 0; i < 16; ++i) {
                bytes[i] = uint8_t(entries.value[i] + (table ? kZeroOfBytes : 0));
            }
            v = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i *>(bytes)));
        }
        // The permute ignores the upper bits of an index, and the table repeats after 16.
        QK_INLINE __m512i look_up(__m512i codes) const { return _mm512_permutexvar_epi8(codes, v); }
    };

    // `stored`: rows of nibbles in sequence, not packed chunks.
    template <int kBlocks, bool table, bool stored>
    class DotsOfChunk {
      public:
        explicit DotsOfChunk(const Int8Entries &entries)
            : table_(entries, table), paged_((traits() & kPagedStreams) != 0) {}

        QK_INLINE void run(const uint8_t *codes, const XChunk &x, Sums8 (&to)[kBlocks]) const {
            paged_ ? run_as<true>(codes, 64, x, to) : run_as<false>(codes, 64, x, to);
        }
        // Rows that are `pitch` bytes apart, which are fetched elsewhere.
        QK_INLINE void run_stored(const uint8_t *codes, int64_t pitch, const XChunk &x,
                                  Sums8 (&to)[kBlocks]) const {
            run_as<false>(codes, pitch, x, to);
        }

      private:
        static constexpr bool kApart = kBlocks == 8 && !stored;  // nibbles of a byte: two blocks

        template <bool paged>
        QK_INLINE void run_as(const uint8_t *codes, int64_t pitch, const XChunk &x,
                              Sums8 (&to)[kBlocks]) const {
            __m512i low = _mm512_loadu_si512(x.low), high = _mm512_loadu_si512(x.high);
            asm volatile("" : "+v"(low), "+v"(high));
            // Entries of tables are kZeroOfBytes above themselves.
            __m512i start = _mm512_setzero_si512(), other = start;
            if (table) {
                const __m512i zero = start, above = _mm512_set1_epi8(char(kZeroOfBytes));
                add_dots(start, above, low);
                add_dots(kApart ? other : start, above, high);
                start = _mm512_sub_epi32(zero, start);
                other = _mm512_sub_epi32(zero, other);
            }
            __m512i e[8];
            const auto dot = [&](int row) QK_INLINE {
                const uint8_t *const from = codes + row * pitch;
                if (!stored) fetch_line<paged, kInt8Ahead<paged>>(from);
                if (!stored && row == 7) fetch_page<paged>(codes + kInt8Ahead<paged>);
                __m512i words = load_words(from).v;
                if (kBlocks > 1 && !stored) words = group_bytes<kBlocks>(words);
                __m512i sum = start;
                e[row] = other;
                add_dots(sum, entry(words), low);
                add_dots(kApart ? e[row] : sum, entry(_mm512_srli_epi16(words, 4)), high);
                return sum;
            };
            // Not in a loop: GCC 12 stores its array as well.
            const __m512i d[8] = {dot(0), dot(1), dot(2), dot(3), dot(4), dot(5), dot(6), dot(7)};
            if constexpr (kBlocks == 1) fold_rows_1(d, to);
            if constexpr (stored) {
                if constexpr (kBlocks == 2) fold_rows_of_halves(d, to);
                if constexpr (kBlocks == 4) fold_rows_of_quarters(d, to);
                if constexpr (kBlocks == 8) fold_rows_of_eighths(d, to);
            } else {
                if (kBlocks == 2) fold_rows_2(d, to);
                if (kBlocks == 4 || kBlocks == 8) fold_rows_4(d, to, kBlocks / 4);
                if (kBlocks == 8) fold_rows_4(e, to + 1, 2);  // low nibbles are the even blocks
            }
        }

        QK_INLINE __m512i entry(__m512i codes) const {
            return table ? table_.look_up(codes) : _mm512_and_si512(codes, _mm512_set1_epi8(15));
        }

        template <bool paged>
        static constexpr int64_t kInt8Ahead = paged ? 12288 : 8192;  // bytes fetched ahead of use
        ByteTable table_;
        const bool paged_;
    };
    template <int kBlocks, bool table>
    using ChunkDots = DotsOfChunk<kBlocks, table, false>;
};

}  // namespace
}  // namespace qk::cpu
