// Tiles of a batch in int8 mode, AVX2 and AVX-VNNI (int8/batch.hpp): a lane is a row of w. Forms,
// by how many bits an entry needs and what multiplies (Dots):
//
//     small    affine codes and both FP4: at most 5 bits, unsigned. vpmaddubsw, a lane's dword 4
//              columns; 8 products are added in 16 bits, then widened: 9 instructions, 5 of them on
//              the two ports that multiply, for 4 x 32 products
//     wide     NF4 and bytes (S8): 16-bit entries and x. vpmaddwd, a lane's dword 2 columns: a
//              product and an addition for 16 products. No form with bytes multiplies less: a pair
//              of 8-bit products fills 16 bits
//     bytes    all of AVX-VNNI's: unsigned after an offset. vpdpbusd, one instruction for 32
//              products; stored as small ones are
//
// A tile is 16 rows of w (two vectors) and 4 rows of x, broadcast; of the small form 2, whose sums
// of 16 and of 32 bits share the registers. To decode takes 25 or 40 instructions a row and chunk.
#pragma once
#include "cpu/int8/strip.hpp"
#include "cpu/x86_avx2/int8_products.hpp"

namespace qk::cpu {
namespace {

template <class Products>
struct YmmInt8 : Products {
    using Session = NoSession;
    using Strip = StripOfBlocks<YmmInt8>;
    using Narrow = typename Products::Narrow;
    using Wide = typename Products::Wide;  // the same where all entries are narrow
    using XTile = YmmXTile<Wide::kSteps>;
    using EntryBytes = typename Products::EntryBytes;
    using Products::load_256;

    class TileKernel {
      public:
        explicit TileKernel(const Weight &w)
            : zeros_(w.zero != nullptr || has_minimum(w)),
              entries_(Int8Entries(w), w.format->kind == FormatKind::kLut4),
              narrow_(Products::is_narrow(entries_, w)), shift_(_mm_cvtsi32_si128(entries_.shift)) {
        }

        void decode(const uint8_t *const (&codes)[4], const TileFactors *, int64_t) {
            for (int block = 0; block < 4; ++block) {
                if (narrow_) {
                    decode_block<Narrow>(codes[block], block);
                    continue;
                }
                decode_block<Wide>(codes[block], block);
            }
        }

        // Up to `rows` rows of a tile of x; `count` of the chunk's `groups` have columns.
        void add(const XTile *x, int64_t rows, const TileFactors *factors, int64_t count,
                 int64_t groups, float (*acc)[kTaskRows], int64_t) const {
            const int64_t most = min64(rows, kTile);
            for (int64_t b = 0; b < count; ++b) {
                if (narrow_) {
                    add_group<Narrow>(*x, b, most, factors[b], groups, acc);
                    continue;
                }
                add_group<Wide>(*x, b, most, factors[b], groups, acc);
            }
        }

        void finish() {}

      protected:
        __m256i w_[Wide::kSteps][4];  // narrow: [4 columns][8 rows]; wide: [2 columns][8 rows]

      private:
        using Group = TileGroup<XTile>;

        // 8 rows, 16 bytes of each at a time; 128 bits of a vector hold 4 rows.
        template <class Form>
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
                    put<Form>(by_byte[b], 8 * b + quarter, block);
                    put<Form>(_mm256_srli_epi16(by_byte[b], 4), 8 * b + 4 + quarter, block);
                }
            }
        }
        template <class Form>
        QK_INLINE void put(__m256i codes, int four, int block) {
            codes = _mm256_and_si256(codes, _mm256_set1_epi8(15));
            Form::put(_mm256_shuffle_epi8(entries_.table, codes), w_, four, block);
        }

        // `rows` rows of group b.
        template <class Form>
        QK_INLINE void add_group(const XTile &x, int64_t b, int64_t rows,
                                 const TileFactors &factors, int64_t groups,
                                 float (*acc)[kTaskRows]) const {
            const int64_t steps = Form::kSteps / groups;
            for (int64_t j = 0; j < rows; j += Form::kRows) {
                const Group group = {x.x[steps * b] + j, steps * b, steps, x.scale[b] + j,
                                     x.minus[b] + j};
                for (int64_t v = 0; v < 4; v += 2) add_rows<Form>(group, factors, v, acc + j);
            }
        }

        // 16 rows of w from vector `v` on.
        template <class Form>
        QK_NOINLINE void add_rows(const Group &x, const TileFactors &factors, int64_t v,
                                  float (*acc)[kTaskRows]) const {
            __m256i sum[Form::kRows][2];
            start<Form>(x.minus, factors.zero + 8 * v, sum);
            Form::multiply(&w_[x.first][v], x, sum);
            QK_UNROLL
            for (int j = 0; j < Form::kRows; ++j) {
                const __m256 x_scale = _mm256_broadcast_ss(x.scale + j);
                for (int i = 0; i < 2; ++i) {
                    float *const to = acc[j] + 8 * (v + i);
                    __m256i whole = sum[j][i];
                    if (Form::kShifts) whole = _mm256_sll_epi32(whole, shift_);
                    const __m256 scale = _mm256_load_ps(factors.scale + 8 * (v + i));
                    const __m256 factor = _mm256_mul_ps(x_scale, scale);
                    _mm256_store_ps(
                        to, _mm256_fmadd_ps(_mm256_cvtepi32_ps(whole), factor, _mm256_load_ps(to)));
                }
            }
        }

        // What zeros take off: minus the zero times the sum of x, both of which fit 16 bits.
        template <class Form>
        QK_INLINE void start(const int32_t *minus, const int32_t *zero,
                             __m256i (&sum)[Form::kRows][2]) const {
            QK_UNROLL
            for (int j = 0; j < Form::kRows; ++j) {
                const __m256i off =
                    Form::kOffsets ? _mm256_set1_epi32(minus[j]) : _mm256_setzero_si256();
                sum[j][0] = sum[j][1] = off;
            }
            if (!Form::kOffsets || !zeros_) return;
            const __m256i low = load_256(zero), high = load_256(zero + 8);
            QK_UNROLL
            for (int j = 0; j < Form::kRows; ++j) {
                sum[j][0] = _mm256_madd_epi16(low, sum[j][0]);
                sum[j][1] = _mm256_madd_epi16(high, sum[j][1]);
            }
        }

        const bool zeros_;
        const EntryBytes entries_;
        const bool narrow_;
        const __m128i shift_;
    };

    // Rows of x to tiles.
    class TileRows {
      public:
        explicit TileRows(const Weight &w) {
            const bool table = w.format->kind == FormatKind::kLut4;
            const EntryBytes entries(Int8Entries(w), table);
            narrow_ = Products::is_narrow(entries, w);
            zero_ = table ? entries.offset : zero_of_all(w);
        }

        // A chunk of x as row j of a tile.
        void put(const float *x, int64_t blocks, float unit, int64_t j, XTile *to) const {
            int8_t q[128];
            quantize_blocks(x, blocks, unit, q, [&](int64_t b, const Int8Scale &s, int64_t) {
                to->set_block(b, j, s.scale, -zero_ * s.sum);
            });
            narrow_ ? Narrow::put_x(q, to->x, j) : Wide::put_x(q, to->x, j);
        }

      private:
        bool narrow_;
        int32_t zero_;  // that all sums of x are multiplied by
    };
};

// Of rows of bytes, which are wide entries as they are or narrow ones with a bit changed.
template <class Products>
struct YmmInt8Bytes : YmmInt8<Products> {
    using Strip = StripOfBytes;

    class TileKernel : public YmmInt8<Products>::TileKernel {
      public:
        using YmmInt8<Products>::TileKernel::TileKernel;

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
                for (int64_t at = 0; at < 128; at += 16) {
                    __m256i v[4];
                    QK_UNROLL
                    for (int i = 0; i < 4; ++i) v[i] = load_two(row[i] + at, row[i + 4] + at);
                    const __m256i t[4] = {
                        _mm256_unpacklo_epi32(v[0], v[1]), _mm256_unpackhi_epi32(v[0], v[1]),
                        _mm256_unpacklo_epi32(v[2], v[3]), _mm256_unpackhi_epi32(v[2], v[3])};
                    put(_mm256_unpacklo_epi64(t[0], t[2]), at / 4, block);
                    put(_mm256_unpackhi_epi64(t[0], t[2]), at / 4 + 1, block);
                    put(_mm256_unpacklo_epi64(t[1], t[3]), at / 4 + 2, block);
                    put(_mm256_unpackhi_epi64(t[1], t[3]), at / 4 + 3, block);
                }
            }
        }
        QK_INLINE void put(__m256i bytes, int64_t four, int64_t block) {
            Products::Wide::put(Products::flip(bytes), this->w_, four, block);
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
