// Tiles of a batch in int8 mode by AMX where groups have 64, 32 or 16 columns. As in int8_tile.hpp,
// but most of the work is that of vectors, the same for each group, and a product takes 16 cycles
// however few columns it has. So two groups are added to sums of y together, and most sums become
// floats by additions, which beside products have a port of their own:
//
//     registers    0, 1    sums of a group, [16 rows of x][16 rows of w]
//                  2, 3    a group's columns of w, rows 0..15 and 16..31, for all rows of x
//                  4, 5    those of the next group
//                  6, 7    the same columns of x
#pragma once
#include "cpu/int8/batch.hpp"
#include "cpu/x86_amx/int8_tile.hpp"

namespace qk::cpu {
namespace {

// `Tiles`: AmxTiles, or a stand-in of a test.
template <class Tiles, int kColumns>
struct AmxInt8Groups : AmxInt8Operands<128 / kColumns> {
    using Operands = AmxInt8Operands<128 / kColumns>;
    using typename Operands::XTile;
    using Session = typename Tiles::template SessionOf<kColumns>;

    class TileKernel : public Operands::Chunks {
      public:
        using Operands::Chunks::Chunks;

        void add(const XTile *x, int64_t rows, const TileFactors *factors, int64_t count, int64_t,
                 float (*acc)[kTaskRows], int64_t place) {
            const WChunk &w = this->chunks_[place];
            int64_t b = 0;
            for (; b + 2 <= count; b += 2) multiply<2>(x, rows, w, factors + b, b, acc);
            if (b == count) return;
            finish();  // what waits are two groups
            multiply<1>(x, rows, w, factors + b, b, acc);
            finish<1>();
        }

        void finish() { finish<2>(); }

      private:
        using typename Operands::Chunks::WChunk;
        typedef int32_t Sums[kTileRows16][2][16];

        template <int groups>
        void finish() {
            if (waiting_.acc == nullptr) return;
            store_sums<0>();
            store_sums<1>();
            finish_rows<0, kTileRows16, groups>();
            waiting_.acc = nullptr;
        }

        // |sums| < 2^22. One in four is converted, which keeps both ports busy.
        QK_INLINE static __m512 to_floats(const int32_t (&sums)[16], bool converts) {
            const __m512i v = _mm512_load_si512(sums);
            if (converts) return _mm512_cvtepi32_ps(v);
            const __m512 base = _mm512_set1_ps(0x1.8p23f);  // whose last bit is 1
            const __m512i bits = _mm512_add_epi32(_mm512_castps_si512(base), v);
            return _mm512_sub_ps(_mm512_castsi512_ps(bits), base);
        }

        // The sums of the last products, rows `first` up to `end`, times scales of their groups.
        template <int first, int end, int groups>
        QK_INLINE void finish_rows() {
            if (waiting_.acc == nullptr) return;
            const auto [x, factors, acc, sums] = waiting_;
            __m512 scale[groups][2];
            QK_UNROLL
            for (int g = 0; g < groups; ++g) {
                scale[g][0] = _mm512_load_ps(factors[g].scale);
                scale[g][1] = _mm512_load_ps(factors[g].scale + 16);
            }
            for (int64_t j = first; j < end; ++j) {
                __m512 total[2] = {_mm512_load_ps(acc[j]), _mm512_load_ps(acc[j] + 16)};
                QK_UNROLL
                for (int g = 0; g < groups; ++g) {
                    const __m512 x_scale = _mm512_set1_ps(x[g * XTile::kRows + j]);
                    QK_UNROLL
                    for (int half = 0; half < 2; ++half) {
                        const __m512 sum = to_floats(sums[g][j][half], g + half == 2);
                        const __m512 factor = _mm512_mul_ps(x_scale, scale[g][half]);
                        total[half] = _mm512_fmadd_ps(sum, factor, total[half]);
                    }
                }
                _mm512_store_ps(acc[j], total[0]);
                _mm512_store_ps(acc[j] + 16, total[1]);
            }
        }

        // Products with `groups` of the chunk's groups, from `b` on.
        template <int groups>
        QK_NOINLINE void multiply(const XTile *x, int64_t rows, const WChunk &w,
                                  const TileFactors *factors, int64_t b, float (*acc)[kTaskRows]) {
            const auto *const from_w = w + b * (kColumns / 4);
            for (int64_t j = 0; j < rows; j += kTileRows16, acc += kTileRows16) {
                const XTile &tile = x[j / XTile::kRows];
                const int64_t row = j % XTile::kRows;
                Sums *const sums = sums_[turn_];
                step<0, groups>(x_of(tile, b, row), from_w, j == 0, sums);
                if constexpr (groups == 2) {
                    step<1, groups>(x_of(tile, b + 1, row), from_w, j == 0, sums);
                }
                waiting_ = {tile.scale[b] + row, factors, acc, sums};
                turn_ ^= 1;
            }
        }

        // Columns of group b.
        static const int8_t *x_of(const XTile &tile, int64_t b, int64_t row) {
            return tile.x[b * kColumns / 64][row] + b * kColumns % 64;
        }
        // Those with group g of them; beside them, a part of the last tile's sums is finished.
        template <int g, int groups>
        QK_INLINE void step(const int8_t *x, const __m512i (*w)[2], bool first, Sums *sums) {
            const __m512i *const from = w[g * (kColumns / 4)];
            constexpr int kX = 6 + g, kW = 2 + 2 * g, kPart = kTileRows16 / groups;
            tiles_.template load_passing<kX>(x, kTileRowBytes);
            if (first) tiles_.template load<kW>(from, 128);
            start<0, kX, kW>();
            if (first) tiles_.template load<kW + 1>(from + 1, 128);
            start<1, kX, kW + 1>();
            sums_there_ = sums[g];
            finish_rows<g * kPart, g * kPart + kPart, groups>();
        }
        // Once the sums of the products before have left, as in int8_tile.hpp.
        template <int sum, int x, int w>
        QK_INLINE void start() {
            store_sums<sum>();
            tiles_.template zero<sum>();
            tiles_.template add_products<sum, x, w>();
        }
        template <int sum>
        QK_INLINE void store_sums() {
            tiles_.template store<sum>(sums_there_[0][sum], 128);
        }

        struct Waiting {  // as in int8_tile.hpp; scales of the next group are kRows further
            const float *x;
            const TileFactors *factors;
            float (*acc)[kTaskRows];
            const Sums *sums;
        };

        Tiles tiles_;
        Waiting waiting_ = {};
        int turn_ = 0;  // products' sums are stored while the last tile's are still read
        alignas(64) Sums sums_[2][2];
        int32_t (*sums_there_)[2][16] = sums_[0][0];  // where those in registers go
    };
};

// By the columns of a group: 128 or more, 64, 32, 16.
template <class Tiles>
struct AmxNibbles {
    using Of128 = AmxInt8<Tiles>;
    using Of64 = AmxInt8Groups<Tiles, 64>;
    using Of32 = AmxInt8Groups<Tiles, 32>;
    using Of16 = AmxInt8Groups<Tiles, 16>;
};
template <class Tiles>
struct AmxBytes {
    using Of128 = AmxInt8Bytes<AmxInt8<Tiles>>;
    using Of64 = AmxInt8Bytes<AmxInt8Groups<Tiles, 64>>;
    using Of32 = AmxInt8Bytes<AmxInt8Groups<Tiles, 32>>;
    using Of16 = AmxInt8Bytes<AmxInt8Groups<Tiles, 16>>;
};

template <class Codes>
Status run_int8_tiles(const LinearArgs &args, const Launch &launch) {
    switch (groups_of_chunk(args.w.geometry)) {
        case 8: return run_int8_batch<typename Codes::Of16>(args, launch);
        case 4: return run_int8_batch<typename Codes::Of32>(args, launch);
        case 2: return run_int8_batch<typename Codes::Of64>(args, launch);
        default: return run_int8_batch<typename Codes::Of128>(args, launch);
    }
}

template <class Codes>
size_t int8_tiles_room(const LinearArgs &args, const Device &device) {
    switch (groups_of_chunk(args.w.geometry)) {
        case 8: return int8_tiles_bytes<typename Codes::Of16>(args, device);
        case 4: return int8_tiles_bytes<typename Codes::Of32>(args, device);
        case 2: return int8_tiles_bytes<typename Codes::Of64>(args, device);
        default: return int8_tiles_bytes<typename Codes::Of128>(args, device);
    }
}

}  // namespace
}  // namespace qk::cpu
