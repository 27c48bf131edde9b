// Tiles of a batch in int8 mode by AMX (int8/batch.hpp): 16 rows of x times 32 rows of w, a group
// at a time. A chunk's entries, as AVX-512 decodes them, are what the products ask for: a row has
// four columns of 16 rows of w. In groups of 128:
//
//     registers    0, 1    sums of rows 0..15 and 16..31 of w
//                  2, 3    x, columns 0..63 and 64..127
//                  4..7    w, [columns 0..63, 64..127][rows 0..15, 16..31]
//
// Integer sums are exact, so bits are those of AVX-512 VNNI. What is left to vectors is to convert
// sums and to multiply them by scales: 5 instructions for 16 of them, beside 4 products a chunk.
#pragma once
#include "cpu/x86_amx/tiles.hpp"
#include "cpu/x86_avx512/int8_tile.hpp"

namespace qk::cpu {
namespace {

// `Tiles`: AmxTiles, or a stand-in of a test.
template <class Tiles>
struct AmxInt8 : Avx512Int8 {
    using Session = typename Tiles::Session;

    // 128 columns of a tile's rows of x.
    struct XTile {
        static constexpr int kRows = kTileRows16;
        static constexpr int64_t kBatch = kInt8Batch;
        alignas(64) int8_t x[kRows][128];
        float scale[8][kRows];    // by block; the unit of entries is in it
        int32_t minus[8][kRows];  // minus a block's sum, times the zero where all have the same
    };

    class TileKernel : Avx512Int8::TileKernel {
        using Base = Avx512Int8::TileKernel;

      public:
        using Base::Base, Base::decode;

        void add(const XTile &x, int64_t, const TileFactors *factors, int64_t count, int64_t groups,
                 float (*acc)[kTaskRows]) {
            groups == 1 ? add_rows<1>(x, factors, count, acc) : add_rows<2>(x, factors, count, acc);
        }

      private:
        template <int kGroups>
        QK_NOINLINE void add_rows(const XTile &x, const TileFactors *factors, int64_t count,
                                  float (*acc)[kTaskRows]) {
            alignas(64) int32_t sums[2][XTile::kRows][16];
            tiles_.template load<2>(x.x[0], 128);
            tiles_.template load<3>(x.x[0] + 64, 128);
            tiles_.template load<4>(&this->entries_[0][0], 128);
            tiles_.template load<5>(&this->entries_[0][1], 128);
            tiles_.template load<6>(&this->entries_[16][0], 128);
            tiles_.template load<7>(&this->entries_[16][1], 128);
            start();
            multiply<2, 4>();
            if constexpr (kGroups == 1) multiply<3, 6>();
            store(sums);
            fold(x, 0, factors[0], sums, acc);
            if (kGroups == 1 || count < 2) return;
            start();
            multiply<3, 6>();
            store(sums);
            fold(x, 1, factors[1], sums, acc);
        }

        QK_INLINE void start() {
            tiles_.template zero<0>();
            tiles_.template zero<1>();
        }
        template <int a, int b>
        QK_INLINE void multiply() {
            tiles_.template add_products<0, a, b>();
            tiles_.template add_products<1, a, b + 1>();
        }
        QK_INLINE void store(int32_t (&sums)[2][XTile::kRows][16]) {
            tiles_.template store<0>(sums[0], 64);
            tiles_.template store<1>(sums[1], 64);
        }

        // The sums of a group, less what zeros take off, times its scales.
        QK_INLINE void fold(const XTile &x, int b, const TileFactors &factors,
                            const int32_t (&sums)[2][XTile::kRows][16],
                            float (*acc)[kTaskRows]) const {
            const __m512 scale[2] = {_mm512_load_ps(factors.scale),
                                     _mm512_load_ps(factors.scale + 16)};
            const __m512i zero[2] = {_mm512_load_si512(factors.zero),
                                     _mm512_load_si512(factors.zero + 16)};
            for (int j = 0; j < XTile::kRows; ++j) {
                const __m512 x_scale = _mm512_set1_ps(x.scale[b][j]);
                const __m512i minus = _mm512_set1_epi32(x.minus[b][j]);
                QK_UNROLL
                for (int half = 0; half < 2; ++half) {
                    const __m512i off = this->zeros_ ? _mm512_madd_epi16(zero[half], minus) : minus;
                    const __m512i sum = _mm512_add_epi32(off, _mm512_load_si512(sums[half][j]));
                    float *const to = acc[j] + 16 * half;
                    const __m512 factor = _mm512_mul_ps(x_scale, scale[half]);
                    _mm512_store_ps(
                        to, _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), factor, _mm512_load_ps(to)));
                }
            }
        }

        Tiles tiles_;
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
