// Tiles of a batch in int8 mode by AMX (int8/batch.hpp): 16 rows of x times 32 rows of w, a group
// at a time. A chunk's entries, as AVX-512 decodes them, are what the products ask for: a row has
// four columns of 16 rows of w. Zeros are taken off here, once for all rows of x:
//
//     registers    0, 1    sums, [16 rows of x][16 rows of w]
//                  2, 3    64 columns of w, rows 0..15 and 16..31, for all rows of x
//                  4, 5    the next 64 columns of w, where a group has them
//                  6, 7    the same columns of x
//
// Tiles of w stay in registers, as a load may take as long as a product (cpu-designs.md). Integer
// sums are exact, so bits are those of AVX-512 VNNI. What is left to vectors is to convert sums and
// to multiply them by scales, 3 instructions for 16 of them: between the products of a tile,
// those of the one before.
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
        static constexpr int kRows = 2 * kTileRows16, kRowsRead = kTileRows16;
        static constexpr int64_t kBatch = 512, kStrips = 16, kChunks = 4, kAtOnce = 64;
        static constexpr int64_t kKept = kBatch;  // rows of x that all strips meet in turn
        static constexpr bool kSumsInWorkspace = true;
        alignas(64) int8_t x[kRows][128];
        float scale[2][kRows];    // by block; the unit of entries is in it
        int32_t minus[2][kRows];  // minus a block's sum, as minima are multiplied by
    };

    class TileKernel {
      public:
        explicit TileKernel(const Weight &w)
            : groups_(groups_of_chunk(w.geometry)), has_zeros_(w.zero != nullptr),
              is_table_(w.format->kind == FormatKind::kLut4),
              zero_of_all_(has_zeros_ ? 0 : common_zero(w)), table_(Int8Entries(w), false) {}

        void decode(const uint8_t *const (&codes)[4], const TileFactors *factors, int64_t place) {
            if (is_table_) {
                TileDecoder<false>::decode(codes, chunks_[place],
                                           [this](__m512i v, int, int)
                                               QK_INLINE { return table_.look_up(v); });
                return;
            }
            const __m512i mask = _mm512_set1_epi8(15);
            __m512i zeros[2][2];  // [64 columns][half of the rows of w]
            for (int step = 0; step < 2; ++step) {
                for (int half = 0; half < 2; ++half) zeros[step][half] = zero(factors, step, half);
            }
            TileDecoder<false>::decode(codes, chunks_[place],
                                       [&](__m512i v, int half, int sixteen) QK_INLINE {
                return _mm512_sub_epi8(_mm512_and_si512(v, mask), zeros[sixteen / 4][half]);
            });
        }

        void add(const XTile *x, int64_t rows, const TileFactors *factors, int64_t count,
                 int64_t groups, float (*acc)[kTaskRows], int64_t place) {
            const WChunk &w = chunks_[place];
            for (int64_t b = 0; b < count; ++b) {
                groups == 1 ? multiply<2>(x, rows, w, factors + b, b, acc)
                            : multiply<1>(x, rows, w, factors + b, b, acc);
            }
        }

        void finish() {
            store_sums<0>();
            store_sums<1>();
            finish_rows<0, kTileRows16>();
            waiting_.acc = nullptr;
        }

      protected:
        typedef __m512i WChunk[32][2];  // [4 columns][half of the rows of w]
        WChunk chunks_[XTile::kChunks];

      private:
        // The sums of the last products, rows `first` up to `end`, times scales of a group.
        template <int first, int end>
        QK_INLINE void finish_rows() {
            if (waiting_.acc == nullptr) return;
            const auto [x, factors, acc] = waiting_;
            const __m512 scale[2] = {_mm512_load_ps(factors->scale),
                                     _mm512_load_ps(factors->scale + 16)};
            for (int64_t j = first; j < end; ++j) {
                const __m512 x_scale = _mm512_set1_ps(x[j]);
                QK_UNROLL
                for (int half = 0; half < 2; ++half) {
                    float *const to = acc[j] + 16 * half;
                    const __m512 sum = _mm512_cvtepi32_ps(_mm512_load_si512(sums_[j][half]));
                    const __m512 factor = _mm512_mul_ps(x_scale, scale[half]);
                    _mm512_store_ps(to, _mm512_fmadd_ps(sum, factor, _mm512_load_ps(to)));
                }
            }
        }

        // Products with group `b` of the chunk, of kSteps times 64 columns.
        template <int kSteps>
        QK_NOINLINE void multiply(const XTile *x, int64_t rows, const WChunk &w,
                                  const TileFactors *factors, int64_t b, float (*acc)[kTaskRows]) {
            const auto *const first = w + b * kTileRows16, *const second = first + kTileRows16;
            for (int64_t j = 0; j < rows; j += kTileRows16, acc += kTileRows16) {
                const XTile &tile = x[j / XTile::kRows];
                const int64_t row = j % XTile::kRows;
                const int8_t *const from = tile.x[row] + 64 * b;
                tiles_.template load_passing<6>(from, 128);
                // Each tile of w where it is first wanted: all in front would hold up the products.
                if (j == 0) tiles_.template load<2>(first[0], 128);
                start<0, 2>();
                if (j == 0) tiles_.template load<3>(first[0] + 1, 128);
                start<1, 3>();
                if (kSteps == 2 && j == 0) tiles_.template load<4>(second[0], 128);
                if (kSteps == 2 && j == 0) tiles_.template load<5>(second[0] + 1, 128);
                if (kSteps == 2) tiles_.template load_passing<7>(from + 64, 128);
                if (kSteps == 2) tiles_.template add_products<0, 7, 4>();
                finish_rows<0, kTileRows16 / 2>();
                if (kSteps == 2) tiles_.template add_products<1, 7, 5>();
                finish_rows<kTileRows16 / 2, kTileRows16>();
                waiting_ = {tile.scale[b] + row, factors, acc};
            }
        }
        // The first products of a tile, once the sums of the one before have left: a store that is
        // issued before its sums are there holds up what comes after it.
        template <int sum, int w>
        QK_INLINE void start() {
            store_sums<sum>();
            tiles_.template zero<sum>();
            tiles_.template add_products<sum, 6, w>();
        }
        template <int sum>
        QK_INLINE void store_sums() {
            tiles_.template store<sum>(sums_[0][sum], 128);
        }

        // What is taken off the codes of 64 columns, a byte each.
        __m512i zero(const TileFactors *factors, int step, int half) const {
            if (!has_zeros_) return _mm512_set1_epi8(char(zero_of_all_));
            const int32_t *const own = factors[groups_ == 2 ? step : 0].zero + 16 * half;
            return _mm512_mullo_epi32(_mm512_load_si512(own), _mm512_set1_epi32(0x01010101));
        }

        struct Waiting {     // for the products' sums
            const float *x;  // scales of its rows
            const TileFactors *factors;
            float (*acc)[kTaskRows];
        };

        const int64_t groups_;
        const bool has_zeros_, is_table_;
        const int32_t zero_of_all_;  // where they have the same
        const ByteTable table_;
        Tiles tiles_;
        Waiting waiting_ = {};
        alignas(64) int32_t sums_[kTileRows16][2][16];
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

// Of rows of bytes.
template <class Tiles>
struct AmxInt8Bytes : AmxInt8<Tiles> {
    using Strip = StripOfBytes;

    struct TileKernel : AmxInt8<Tiles>::TileKernel {
        using AmxInt8<Tiles>::TileKernel::TileKernel;

        void decode(const StripOfBytes::Chunk &codes, const TileFactors *, int64_t place) {
            Avx512Int8::turn_bytes<false>(codes, 0, this->chunks_[place]);
        }
    };
};

}  // namespace
}  // namespace qk::cpu
