// Tiles of a batch in int8 mode, AVX2 (int8/batch.hpp): a lane is a row of w. Two forms, by
// how many bits an entry needs:
//
//     small    affine codes and both FP4: at most 5 bits, unsigned. vpmaddubsw, a lane's dword 4
//              columns; 8 products are added in 16 bits, then widened: 9 instructions, 5 of them on
//              the two ports that multiply, for 4 x 32 products
//     wide     NF4 and bytes (S8): 16-bit entries and x. vpmaddwd, a lane's dword 2 columns: a
//              product and an addition for 16 products. No form with bytes multiplies less: a pair
//              of 8-bit products fills 16 bits
//
// A tile is 16 rows of w (two vectors) and 4 rows of x, broadcast; of the small form 2, whose sums
// of 16 and of 32 bits share the registers. To decode takes 25 or 40 instructions a row and chunk.
#pragma once
#include "cpu/int8/strip.hpp"
#include "cpu/x86_avx2/int8_dots.hpp"

namespace qk::cpu {
namespace {

struct Avx2Int8 : Avx2Dots {
    using Session = NoSession;
    using Strip = StripOfBlocks<Avx2Int8>;

    // 128 columns of a tile's rows of x.
    struct XTile : Tile8 {
        int32_t x[64]
                 [kTile];  // small: 4 columns each, 32 of them; wide: columns 0, 2, or 1, 3 of 4
        float scale[8][kTile];    // by block; the unit of entries is in it
        int32_t minus[8][kTile];  // minus a block's sum, times the zero where all have the same

        // What minima are multiplied by, where there are some.
        float of_minima(int64_t b, int64_t j) const { return scale[b][j] * -float(minus[b][j]); }
    };

    class TileKernel {
      public:
        explicit TileKernel(const Weight &w)
            : zeros_(w.zero != nullptr || has_minimum(w)),
              entries_(Int8Entries(w), w.format->kind == FormatKind::kLut4),
              small_(is_small(entries_, w)), shift_(_mm_cvtsi32_si128(entries_.shift)),
              steps_(small_ ? 32 : 64) {}

        void decode(const uint8_t *const (&codes)[4], const TileFactors *, int64_t) {
            for (int block = 0; block < 4; ++block) {
                small_ ? decode_block<true>(codes[block], block)
                       : decode_block<false>(codes[block], block);
            }
        }

        // Up to `rows` rows of a tile of x; `count` of the chunk's `groups` have columns.
        void add(const XTile *x, int64_t rows, const TileFactors *factors, int64_t count,
                 int64_t groups, float (*acc)[kTaskRows], int64_t) const {
            const int64_t steps = steps_ / groups, most = min64(rows, kTile);
            for (int64_t b = 0; b < count; ++b) {
                for (int64_t j = 0; j < most; j += small_ ? 2 : 4) {
                    const Group group = {x->x[steps * b] + j, steps * b, steps, x->scale[b] + j,
                                         x->minus[b] + j};
                    for (int64_t v = 0; v < 4; v += 2) {
                        small_ ? add_rows<true>(group, factors[b], v, acc + j)
                               : add_rows<false>(group, factors[b], v, acc + j);
                    }
                }
            }
        }

        void finish() {}

      protected:
        // Four columns: 0 and 2, then 1 and 3.
        QK_INLINE static void put_wide(__m256i bytes, __m256i (*to)[4], int64_t block) {
            to[0][block] = _mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8);
            to[1][block] = _mm256_srai_epi16(bytes, 8);
        }

        __m256i w_[64][4];  // small: [4 columns][8 rows]; wide: [2 columns][8 rows]

      private:
        struct Group {  // of x, from the tile's row on
            const int32_t *x;
            int64_t first, steps;
            const float *scale;
            const int32_t *minus;
        };

        // 8 rows, 16 bytes of each at a time; 128 bits of a vector hold 4 rows.
        template <bool small>
        QK_NOINLINE void decode_block(const uint8_t *codes, int block) {
            const __m256i order = _mm256_broadcastsi128_si256(
                _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
            for (int quarter = 0; quarter < 4; ++quarter, codes += 16) {
                __m256i v[4];
                QK_UNROLL
                for (int i = 0; i < 4; ++i) {
                    const __m128i *const from = reinterpret_cast<const __m128i *>(codes + 64 * i);
                    const __m256i row = _mm256_castsi128_si256(_mm_loadu_si128(from));
                    v[i] = _mm256_inserti128_si256(row, _mm_loadu_si128(from + 16), 1);
                    v[i] = _mm256_shuffle_epi8(v[i], order);
                }
                prefetch(codes + 2048 + 112 * quarter);
                prefetch(codes + 2048 + 112 * quarter + 64);
                const __m256i t[4] = {
                    _mm256_unpacklo_epi32(v[0], v[1]), _mm256_unpackhi_epi32(v[0], v[1]),
                    _mm256_unpacklo_epi32(v[2], v[3]), _mm256_unpackhi_epi32(v[2], v[3])};
                const __m256i by_byte[4] = {
                    _mm256_unpacklo_epi64(t[0], t[2]), _mm256_unpackhi_epi64(t[0], t[2]),
                    _mm256_unpacklo_epi64(t[1], t[3]), _mm256_unpackhi_epi64(t[1], t[3])};
                QK_UNROLL
                for (int b = 0; b < 4; ++b) {  // columns 32 b + 4 quarter .. + 3, and 16 further
                    put<small>(by_byte[b], 8 * b + quarter, block);
                    put<small>(_mm256_srli_epi16(by_byte[b], 4), 8 * b + 4 + quarter, block);
                }
            }
        }
        template <bool small>
        QK_INLINE void put(__m256i codes, int four, int block) {
            codes = _mm256_and_si256(codes, _mm256_set1_epi8(15));
            const __m256i bytes = _mm256_shuffle_epi8(entries_.table, codes);
            if (small) {
                w_[four][block] = bytes;
            } else {
                put_wide(bytes, w_ + 2 * four, block);
            }
        }

        // 16 rows of w from vector `v` on.
        template <bool small>
        QK_NOINLINE void add_rows(const Group &x, const TileFactors &factors, int64_t v,
                                  float (*acc)[kTaskRows]) const {
            constexpr int kRows = small ? 2 : 4;
            __m256i sum[kRows][2];
            QK_UNROLL
            for (int j = 0; j < kRows; ++j) sum[j][0] = sum[j][1] = _mm256_setzero_si256();
            multiply(&w_[x.first][v], x, sum);
            QK_UNROLL
            for (int j = 0; j < kRows; ++j) {
                const __m256i off = _mm256_set1_epi32(x.minus[j]);
                const __m256 x_scale = _mm256_broadcast_ss(x.scale + j);
                for (int i = 0; i < 2; ++i) {
                    float *const to = acc[j] + 8 * (v + i);
                    __m256i whole = sum[j][i];
                    if (small) {  // what zeros take off: both factors fit 16 bits
                        const __m256i zero = load_256(factors.zero + 8 * (v + i));
                        whole =
                            _mm256_add_epi32(whole, zeros_ ? _mm256_madd_epi16(zero, off) : off);
                        whole = _mm256_sll_epi32(whole, shift_);
                    }
                    const __m256 scale = _mm256_load_ps(factors.scale + 8 * (v + i));
                    const __m256 factor = _mm256_mul_ps(x_scale, scale);
                    _mm256_store_ps(
                        to, _mm256_fmadd_ps(_mm256_cvtepi32_ps(whole), factor, _mm256_load_ps(to)));
                }
            }
        }

        // Sums in the order that is written: GCC 12 finds others, which spill.
        QK_INLINE static void add_words(__m256i &sum, __m256i more) {
            asm("vpaddw %1, %0, %0" : "+x"(sum) : "x"(more));
        }
        QK_INLINE static void add_dwords(__m256i &sum, __m256i more) {
            asm("vpaddd %1, %0, %0" : "+x"(sum) : "x"(more));
        }
        QK_INLINE static void fetch_next(const int32_t *x) {  // the next tile's, two lines
            prefetch(reinterpret_cast<const uint8_t *>(x) + sizeof(XTile));
            prefetch(reinterpret_cast<const uint8_t *>(x + 2 * kTile) + sizeof(XTile));
        }

        QK_INLINE static void multiply(const __m256i *w, const Group &group, __m256i (&sum)[4][2]) {
            const int32_t *x = group.x;
            for (int64_t i = 0; i < group.steps; i += 4) {  // a group has 8 at least
                fetch_next(x);
                QK_UNROLL
                for (int step = 0; step < 4; ++step, w += 4, x += kTile) {
                    const __m256i low = w[0], high = w[1];
                    QK_UNROLL
                    for (int j = 0; j < 4; ++j) {
                        const __m256i both = _mm256_set1_epi32(x[j]);
                        add_dwords(sum[j][0], _mm256_madd_epi16(low, both));
                        add_dwords(sum[j][1], _mm256_madd_epi16(high, both));
                    }
                }
            }
        }

        // 8 products of at most 31 * 127 fit 16 bits.
        QK_INLINE static void multiply(const __m256i *w, const Group &group, __m256i (&sum)[2][2]) {
            const int32_t *x = group.x;
            const __m256i ones = _mm256_set1_epi16(1);
            for (int64_t i = 0; i < group.steps; i += 4) {  // a group has 4 at least
                fetch_next(x);
                __m256i pairs[2][2];
                QK_UNROLL
                for (int step = 0; step < 4; ++step, w += 4, x += kTile) {
                    const __m256i low = w[0], high = w[1];
                    QK_UNROLL
                    for (int j = 0; j < 2; ++j) {
                        const __m256i four = _mm256_set1_epi32(x[j]);
                        const __m256i first = _mm256_maddubs_epi16(low, four);
                        const __m256i second = _mm256_maddubs_epi16(high, four);
                        if (step == 0) {
                            pairs[j][0] = first, pairs[j][1] = second;
                        } else {
                            add_words(pairs[j][0], first);
                            add_words(pairs[j][1], second);
                        }
                    }
                }
                QK_UNROLL
                for (int j = 0; j < 2; ++j) {
                    add_dwords(sum[j][0], _mm256_madd_epi16(pairs[j][0], ones));
                    add_dwords(sum[j][1], _mm256_madd_epi16(pairs[j][1], ones));
                }
            }
        }

        const bool zeros_;
        const EntryBytes entries_;
        const bool small_;
        const __m128i shift_;
        const int64_t steps_;  // of a chunk
    };

    static bool is_small(const EntryBytes &entries, const Weight &w) {
        return entries.small && w.format->kind != FormatKind::kS8;
    }

    // Rows of x to tiles.
    class TileRows {
      public:
        explicit TileRows(const Weight &w) {
            const bool table = w.format->kind == FormatKind::kLut4;
            const EntryBytes entries(Int8Entries(w), table);
            small_ = is_small(entries, w);
            zero_ = table ? entries.offset : zero_of_all(w);
        }

        // A chunk of x as row j of a tile.
        void put(const float *x, int64_t blocks, float unit, int64_t j, XTile *to) const {
            int8_t q[128];
            const int64_t size = 128 / blocks;
            for (int64_t b = 0; b < blocks; ++b) {
                const Int8Scale s = int8_block(x + b * size, size, unit, q + b * size);
                to->scale[b][j] = s.scale;
                to->minus[b][j] = -zero_ * s.sum;
            }
            for (int i = 0; i < 32; ++i) {
                if (small_) {
                    memcpy(&to->x[i][j], q + 4 * i, 4);
                } else {
                    const int16_t words[4] = {q[4 * i], q[4 * i + 2], q[4 * i + 1], q[4 * i + 3]};
                    memcpy(&to->x[2 * i][j], words, 4);
                    memcpy(&to->x[2 * i + 1][j], words + 2, 4);
                }
            }
        }

      private:
        bool small_;
        int32_t zero_;  // that all sums of x are multiplied by
    };
};

// Of rows of bytes, which are wide entries as they are.
struct Avx2Int8Bytes : Avx2Int8 {
    using Strip = StripOfBytes;

    class TileKernel : public Avx2Int8::TileKernel {
      public:
        using Avx2Int8::TileKernel::TileKernel;

        void decode(const StripOfBytes::Chunk &codes, const TileFactors *, int64_t) {
            if (codes.columns == 128) return turn(codes);
            turn(StripOfBytes::LastChunk(codes).whole());
        }

      private:
        // 8 rows, 16 bytes of each at a time: a row meets the one four below it where it is loaded.
        QK_NOINLINE void turn(const StripOfBytes::Chunk &codes) {
            for (int64_t block = 0; block < kTaskRows / 8; ++block) {
                const uint8_t *row[8];
                for (int64_t i = 0; i < 8; ++i) {
                    row[i] = codes.row(8 * block + i);
                    prefetch_stream(row[i] + kScaleChunks * 128);
                    prefetch_stream(row[i] + kScaleChunks * 128 + 64);
                }
                __m256i(*to)[4] = w_;
                for (int64_t at = 0; at < 128; at += 16, to += 8) {
                    __m256i v[4];
                    QK_UNROLL
                    for (int i = 0; i < 4; ++i) v[i] = load_two(row[i] + at, row[i + 4] + at);
                    const __m256i t[4] = {
                        _mm256_unpacklo_epi32(v[0], v[1]), _mm256_unpackhi_epi32(v[0], v[1]),
                        _mm256_unpacklo_epi32(v[2], v[3]), _mm256_unpackhi_epi32(v[2], v[3])};
                    put_wide(_mm256_unpacklo_epi64(t[0], t[2]), to, block);
                    put_wide(_mm256_unpackhi_epi64(t[0], t[2]), to + 2, block);
                    put_wide(_mm256_unpacklo_epi64(t[1], t[3]), to + 4, block);
                    put_wide(_mm256_unpackhi_epi64(t[1], t[3]), to + 6, block);
                }
            }
        }
        QK_INLINE static __m256i load_two(const uint8_t *low, const uint8_t *high) {
            const auto load = [](const uint8_t *from) QK_INLINE {
                return _mm_loadu_si128(reinterpret_cast<const __m128i *>(from));
            };
            return _mm256_inserti128_si256(_mm256_castsi128_si256(load(low)), load(high), 1);
        }
    };
};

}  // namespace
}  // namespace qk::cpu
