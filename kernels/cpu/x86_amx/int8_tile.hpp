// Tiles of a batch in int8 mode by AMX (int8/batch.hpp): 16 rows of x times 32 rows of w, a chunk
// of 128 columns at a time, where these are of one group (else int8_groups.hpp). A chunk's entries,
// as AVX-512 decodes them, are what the products ask for: a row has four columns of 16 rows of w.
// Zeros are taken off here, once for all rows of x:
//
//     registers    0, 1    sums, [16 rows of x][16 rows of w]
//                  2, 3    64 columns of w, rows 0..15 and 16..31, for all rows of x
//                  4, 5    the next 64 columns of w
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

// What kernels on tiles have in common: x, and chunks of w, each of kGroups groups.
template <int kGroups>
struct AmxInt8Operands : Avx512Int8 {
    // 128 columns of a tile's rows of x.
    struct XTile {
        static constexpr int kRows = 2 * kTileRows16;
        static constexpr int64_t kBatch = 512, kStrips = 16, kChunks = 4, kAtOnce = 64;
        static constexpr int64_t kKept = kBatch;  // rows of x that all strips meet in turn
        static constexpr bool kSumsInWorkspace = true;
        alignas(64) int8_t x[2][kRows][64];  // halves of the columns, as tiles are loaded
        float scale[kGroups][kRows];         // by block; the unit of entries is in it
        float lower[kGroups][kRows];         // what minima are multiplied by

        static constexpr int64_t rows_read(int64_t rows) { return round_up(rows, kTileRows16); }
        float of_minima(int64_t b, int64_t j) const { return lower[b][j]; }
        void set_block(int64_t b, int64_t j, float of_entries, int32_t minus_sum) {
            scale[b][j] = of_entries;
            lower[b][j] = of_entries * -float(minus_sum);
        }
    };

    // Rows of x to tiles.
    class TileRows : Avx512Int8::TileRows {
      public:
        using Avx512Int8::TileRows::TileRows;

        // A chunk of x as row j of a tile.
        void put(const float *x, int64_t blocks, float unit, int64_t j, XTile *to) const {
            this->quantize(x, blocks, unit, j, to, to->x[0][j], to->x[1][j]);
        }
    };

    class Chunks {
      public:
        explicit Chunks(const Weight &w)
            : has_zeros_(w.zero != nullptr), is_table_(w.format->kind == FormatKind::kLut4),
              zero_of_all_(has_zeros_ ? 0 : common_zero(w)), table_(Int8Entries(w), false) {}

        void decode(const uint8_t *const (&codes)[4], const TileFactors *factors, int64_t place) {
            if (is_table_) {
                TileDecoder<false>::decode(codes, chunks_[place],
                                           [this](__m512i v, int, int)
                                               QK_INLINE { return table_.look_up(v); });
                return;
            }
            const __m512i mask = _mm512_set1_epi8(15);
            __m512i zeros[kGroups][2];  // [group][half of the rows of w]
            for (int g = 0; g < kGroups; ++g) {
                for (int half = 0; half < 2; ++half) zeros[g][half] = zero(factors[g], half);
            }
            TileDecoder<false>::decode(codes, chunks_[place],
                                       [&](__m512i v, int half, int sixteen) QK_INLINE {
                const __m512i off = zeros[sixteen * kGroups / 8][half];
                return _mm512_sub_epi8(_mm512_and_si512(v, mask), off);
            });
        }

      protected:
        typedef __m512i WChunk[32][2];  // [4 columns][half of the rows of w]
        WChunk chunks_[XTile::kChunks];

      private:
        // What is taken off the codes of a group, a byte each.
        __m512i zero(const TileFactors &factors, int half) const {
            if (!has_zeros_) return _mm512_set1_epi8(char(zero_of_all_));
            const __m512i own = _mm512_load_si512(factors.zero + 16 * half);
            return _mm512_mullo_epi32(own, _mm512_set1_epi32(0x01010101));
        }

        const bool has_zeros_, is_table_;
        const int32_t zero_of_all_;  // where they have the same
        const ByteTable table_;
    };
};

// `Tiles`: AmxTiles, or a stand-in of a test.
template <class Tiles>
struct AmxInt8 : AmxInt8Operands<1> {
    using Session = typename Tiles::Session;

    class TileKernel : public Chunks {
      public:
        using Chunks::Chunks;

        void add(const XTile *x, int64_t rows, const TileFactors *factors, int64_t, int64_t,
                 float (*acc)[kTaskRows], int64_t place) {
            multiply(x, rows, chunks_[place], factors, acc);
        }

        void finish() {
            store_sums<0>();
            store_sums<1>();
            finish_rows<0, kTileRows16>();
            waiting_.acc = nullptr;
        }

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

        // Products with a chunk.
        QK_NOINLINE void multiply(const XTile *x, int64_t rows, const WChunk &w,
                                  const TileFactors *factors, float (*acc)[kTaskRows]) {
            const auto *const first = w, *const second = w + kTileRows16;
            for (int64_t j = 0; j < rows; j += kTileRows16, acc += kTileRows16) {
                const XTile &tile = x[j / XTile::kRows];
                const int64_t row = j % XTile::kRows;
                tiles_.template load_passing<6>(tile.x[0][row], kTileRowBytes);
                // Each tile of w where it is first wanted: all in front would hold up the products.
                if (j == 0) tiles_.template load<2>(first[0], 128);
                start<0, 2>();
                if (j == 0) tiles_.template load<3>(first[0] + 1, 128);
                start<1, 3>();
                if (j == 0) tiles_.template load<4>(second[0], 128);
                if (j == 0) tiles_.template load<5>(second[0] + 1, 128);
                tiles_.template load_passing<7>(tile.x[1][row], kTileRowBytes);
                tiles_.template add_products<0, 7, 4>();
                finish_rows<0, kTileRows16 / 2>();
                tiles_.template add_products<1, 7, 5>();
                finish_rows<kTileRows16 / 2, kTileRows16>();
                waiting_ = {tile.scale[0] + row, factors, acc};
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

        struct Waiting {     // for the products' sums
            const float *x;  // scales of its rows
            const TileFactors *factors;
            float (*acc)[kTaskRows];
        };

        Tiles tiles_;
        Waiting waiting_ = {};
        alignas(64) int32_t sums_[kTileRows16][2][16];
    };
};

// Of rows of bytes, where `Nibbles` is the same of nibbles.
template <class Nibbles>
struct AmxInt8Bytes : Nibbles {
    using Strip = StripOfBytes;

    struct TileKernel : Nibbles::TileKernel {
        using Nibbles::TileKernel::TileKernel;

        void decode(const StripOfBytes::Chunk &codes, const TileFactors *, int64_t place) {
            Avx512Int8::turn_bytes<false>(codes, 0, this->chunks_[place]);
        }
    };
};

}  // namespace
}  // namespace qk::cpu
