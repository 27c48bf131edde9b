// Tiles of a batch in int8 mode by AMX (int8/batch.hpp): 32 rows of x times 32 rows of w, a group
// at a time. A chunk's entries, as AVX-512 decodes them, are what the products ask for: a row has
// four columns of 16 rows of w. Zeros are taken off here, once for all rows of x:
//
//     registers    0..3    sums, [16 rows of x][16 rows of w]
//                  4, 5    64 columns of x, rows 0..15 and 16..31
//                  6, 7    the same columns of w, rows 0..15 and 16..31
//
// Integer sums are exact, so bits are those of AVX-512 VNNI. What is left to vectors is to convert
// sums and to multiply them by scales, 3 instructions for 16 of them: while the products of a tile
// run, those of the one before.
#pragma once
#include "cpu/x86_amx/tiles.hpp"
#include "cpu/x86_avx512/int8_tile.hpp"

namespace qk::cpu {
namespace {

// `Tiles`: AmxTiles, or a stand-in of a test.
template <class Tiles>
struct AmxInt8 : Avx512Int8 {
    using Session = typename Tiles::Session;

    // 128 columns of a tile's rows of x, in groups of 64 or more.
    struct XTile {
        static constexpr int kRows = 2 * kTileRows16;
        static constexpr int64_t kBatch = 256, kStrips = 2;
        alignas(64) int8_t x[kRows][128];
        float scale[2][kRows];    // by block; the unit of entries is in it
        int32_t minus[2][kRows];  // minus a block's sum, as minima are multiplied by
    };

    class TileKernel : Avx512Int8::TileKernel {
        using Base = Avx512Int8::TileKernel;

      public:
        explicit TileKernel(const Weight &w)
            : Base(w), groups_(groups_of_chunk(w.geometry)), has_zeros_(w.zero != nullptr),
              same_(this->is_table_ ? kTableOffset
                    : has_zeros_    ? 0
                                    : common_zero(w)) {}

        void decode(const uint8_t *const (&codes)[4], const TileFactors *factors) {
            Base::decode(codes, factors);
            if (has_zeros_ || same_ != 0) take_zeros(factors);
        }

        void add(const XTile &x, int64_t rows, const TileFactors *factors, int64_t count,
                 int64_t groups, float (*acc)[kTaskRows]) {
            const int64_t tiles = rows > kTileRows16 ? 2 : 1;
            for (int64_t b = 0; b < count; ++b) {
                tiles == 2 ? multiply<2>(x, b, 2 / groups) : multiply<1>(x, b, 2 / groups);
                finish();
                store(tiles);
                waiting_ = {&x, factors + b, acc, b, tiles * kTileRows16};
            }
        }

        // The sums of the last products, times scales of a group.
        void finish() {
            if (waiting_.rows == 0) return;
            const auto [x, factors, acc, b, rows] = waiting_;
            waiting_.rows = 0;
            const __m512 scale[2] = {_mm512_load_ps(factors->scale),
                                     _mm512_load_ps(factors->scale + 16)};
            const uint8_t *next = reinterpret_cast<const uint8_t *>(x + 2);
            for (int64_t j = 0; j < rows; ++j, next += sizeof(XTile) / XTile::kRows) {
                prefetch(next);
                prefetch(next + 64);
                const __m512 x_scale = _mm512_set1_ps(x->scale[b][j]);
                QK_UNROLL
                for (int half = 0; half < 2; ++half) {
                    float *const to = acc[j] + 16 * half;
                    const __m512 sum = _mm512_cvtepi32_ps(_mm512_load_si512(sums_[j][half]));
                    const __m512 factor = _mm512_mul_ps(x_scale, scale[half]);
                    _mm512_store_ps(to, _mm512_fmadd_ps(sum, factor, _mm512_load_ps(to)));
                }
            }
        }

      private:
        struct Product {
            template <int sum, int w, int x>
            QK_INLINE static void add(Tiles &tiles) {
                tiles.template add_products<sum, x, w>();
            }
        };
        // 64 columns a step, from a group's first on.
        template <int kTiles>
        QK_INLINE void multiply(const XTile &x, int64_t b, int64_t steps) {
            zero_sums<kTiles>(tiles_);
            multiply_step<kTiles, 0>(x, b);
            if (steps == 2) multiply_step<kTiles, 1>(x, b + 1);
        }
        template <int kTiles, int odd>
        QK_INLINE void multiply_step(const XTile &x, int64_t step) {
            multiply_pairs<kTiles, odd, Product>(tiles_, {this->entries_[16 * step], 128, 64},
                                                 {x.x[0] + 64 * step, 128, kTileRows16 * 128});
        }
        QK_INLINE void store(int64_t tiles) {
            tiles_.template store<0>(sums_[0][0], 128);
            tiles_.template store<2>(sums_[0][1], 128);
            if (tiles == 1) return;
            tiles_.template store<1>(sums_[16][0], 128);
            tiles_.template store<3>(sums_[16][1], 128);
        }

        // Entries are unsigned bytes; now they are signed ones.
        QK_NOINLINE void take_zeros(const TileFactors *factors) {
            const int64_t columns = 32 / groups_;
            for (int64_t b = 0; b < groups_; ++b) {
                __m512i zero[2];
                for (int half = 0; half < 2; ++half) {
                    const __m512i own = _mm512_load_si512(factors[b].zero + 16 * half);
                    zero[half] = has_zeros_ ? _mm512_mullo_epi32(own, _mm512_set1_epi32(0x01010101))
                                            : _mm512_set1_epi8(char(same_));
                }
                for (int64_t d = b * columns; d < (b + 1) * columns; ++d) {
                    for (int half = 0; half < 2; ++half) {
                        __m512i &entries = this->entries_[d][half];
                        entries = _mm512_sub_epi8(entries, zero[half]);
                    }
                }
            }
        }

        struct Waiting {  // for the products' sums
            const XTile *x;
            const TileFactors *factors;
            float (*acc)[kTaskRows];
            int64_t b, rows;
        };

        const int64_t groups_;
        const bool has_zeros_;
        const int32_t same_;  // what all entries have too much
        Tiles tiles_;
        Waiting waiting_ = {};
        alignas(64) int32_t sums_[XTile::kRows][2][16];
    };

    // Rows of x to tiles.
    class TileRows : Avx512Int8::TileRows {
      public:
        using Avx512Int8::TileRows::TileRows;

        // A chunk of x as row j of a tile.
        void put(const float *x, int64_t blocks, float unit, int64_t j, XTile *to) const {
            this->quantize(x, blocks, unit, j, to, to->x[j]);
        }
    };
};

}  // namespace
}  // namespace qk::cpu
