// Tiles of a batch in int8 mode, SDOT (int8/batch.hpp): a lane is a row of w, its dword 4 columns.
// A tile is 8 rows of w by 8 (or 4) rows of x, whose dwords SDOT takes from a lane: 16 products for
// 4 loads. To decode takes some 40 instructions a row and chunk.
#pragma once
#include "cpu/arm_neon/int8_dots.hpp"
#include "cpu/int8/strip.hpp"

namespace qk::cpu {
namespace {

struct DotprodInt8 : NeonInt8 {
    using Session = NoSession;
    using Strip = StripOfBlocks<DotprodInt8>;

    // 128 columns of a tile's rows of x.
    struct XTile : TileOfBlocks {
        int8_t x[32][kTile][4];  // 4 columns each
    };

    class TileKernel {
      public:
        explicit TileKernel(const Weight &w)
            : is_table_(w.format->kind == FormatKind::kLut4), zeros_(zeros_of(w)),
              table_(vld1q_s8(Int8Entries(w).value)) {}

        void decode(const uint8_t *const (&codes)[4], const TileFactors *, int64_t) {
            for (int64_t block = 0; block < 4; ++block) {
                is_table_ ? decode_block<true>(codes[block], block)
                          : decode_block<false>(codes[block], block);
            }
        }

        // Up to `rows` rows of a tile of x; `count` of the chunk's `groups` have columns.
        void add(const XTile *x, int64_t rows, const TileFactors *factors, int64_t count,
                 int64_t groups, float (*acc)[kTaskRows], int64_t) const {
            const int64_t steps = 32 / groups;
            for (int64_t b = 0; b < count; ++b) {
                for (int64_t block = 0; block < 4; ++block) {
                    rows > 4 ? add_rows<8>(*x, b, steps, factors[b], block, acc)
                             : add_rows<4>(*x, b, steps, factors[b], block, acc);
                }
            }
        }

        void finish() {}

      protected:
        // Dword d of a vector: of 4 rows.
        QK_INLINE static void transpose(const uint8x16_t (&rows)[4], int8x16_t (&to)[4]) {
            uint32x4_t v[4];
            QK_UNROLL
            for (int i = 0; i < 4; ++i) v[i] = vreinterpretq_u32_u8(rows[i]);
            const auto join = [&](uint32x4_t a, uint32x4_t b, int8x16_t &low, int8x16_t &high)
                                  QK_INLINE {
                const uint64x2_t x = vreinterpretq_u64_u32(a), y = vreinterpretq_u64_u32(b);
                low = vreinterpretq_s8_u64(vtrn1q_u64(x, y));
                high = vreinterpretq_s8_u64(vtrn2q_u64(x, y));
            };
            join(vtrn1q_u32(v[0], v[1]), vtrn1q_u32(v[2], v[3]), to[0], to[2]);
            join(vtrn2q_u32(v[0], v[1]), vtrn2q_u32(v[2], v[3]), to[1], to[3]);
        }

        int8x16_t entries_[32][8];  // [4 columns][4 rows]

      private:
        enum class Zeros { kNone, kOfAll, kOwn };
        // Signed entries need none; what minima multiply is no zero.
        static Zeros zeros_of(const Weight &w) {
            if (w.format->kind != FormatKind::kU4 || has_minimum(w)) return Zeros::kNone;
            return w.zero != nullptr ? Zeros::kOwn : Zeros::kOfAll;
        }

        // 8 rows, 16 bytes of 4 at a time: columns 32 b + 4 quarter .. + 3, and 16 further.
        template <bool table>
        QK_NOINLINE void decode_block(const uint8_t *codes, int64_t block) {
            for (int64_t quarter = 0; quarter < 4; ++quarter) {
                for (int64_t half = 0; half < 2; ++half) {
                    const uint8_t *const from = codes + 256 * half + 16 * quarter;
                    uint8x16_t rows[4];
                    QK_UNROLL
                    for (int i = 0; i < 4; ++i) {
                        if (quarter == 0) prefetch(from + 64 * i + 2048);
                        rows[i] = transpose_bytes(vld1q_u8(from + 64 * i));
                    }
                    int8x16_t by_byte[4];
                    transpose(rows, by_byte);
                    QK_UNROLL
                    for (int b = 0; b < 4; ++b) {
                        const uint8x16_t v = vreinterpretq_u8_s8(by_byte[b]);
                        int8x16_t(*const to)[8] = entries_ + 8 * b + quarter;
                        to[0][2 * block + half] = entry<table>(table_, vandq_u8(v, vdupq_n_u8(15)));
                        to[4][2 * block + half] = entry<table>(table_, vshrq_n_u8(v, 4));
                    }
                }
            }
        }

        // What zeros take off.
        template <int kRows>
        QK_INLINE void start(const int32_t *minus, const int32_t *zero,
                             int32x4_t (&sum)[kRows][2]) const {
            QK_UNROLL
            for (int j = 0; j < kRows; ++j) {
                const int32x4_t off = vdupq_n_s32(zeros_ == Zeros::kNone ? 0 : minus[j]);
                sum[j][0] = sum[j][1] = off;
            }
            if (zeros_ != Zeros::kOwn) return;
            const int32x4_t low = vld1q_s32(zero), high = vld1q_s32(zero + 4);
            QK_UNROLL
            for (int j = 0; j < kRows; ++j) {
                sum[j][0] = vmulq_s32(sum[j][0], low);
                sum[j][1] = vmulq_s32(sum[j][1], high);
            }
        }

        template <int kRows>
        QK_NOINLINE void add_rows(const XTile &x, int64_t b, int64_t steps,
                                  const TileFactors &factors, int64_t block,
                                  float (*acc)[kTaskRows]) const {
            int32x4_t sum[kRows][2];
            start<kRows>(x.minus[b], factors.zero + 8 * block, sum);
            for (int64_t d = b * steps; d < (b + 1) * steps; ++d) {
                const int8x16_t low = entries_[d][2 * block], high = entries_[d][2 * block + 1];
                const int8x16_t of_x[2] = {vld1q_s8(x.x[d][0]), vld1q_s8(x.x[d][kRows / 2])};
                for_each_step([&]<int j>() QK_INLINE {
                    if constexpr (j < kRows) {
                        const int8x16_t four = of_x[kRows == 8 ? j / 4 : 0];
                        sum[j][0] = vdotq_laneq_s32(sum[j][0], low, four, j % 4);
                        sum[j][1] = vdotq_laneq_s32(sum[j][1], high, four, j % 4);
                    }
                });
            }
            QK_UNROLL
            for (int half = 0; half < 2; ++half) {
                const int64_t row = 8 * block + 4 * half;
                const float32x4_t scale = vld1q_f32(factors.scale + row);
                QK_UNROLL
                for (int j = 0; j < kRows; ++j) {
                    const float32x4_t factor = mul4(vdupq_n_f32(x.scale[b][j]), scale);
                    const float32x4_t whole = vcvtq_f32_s32(sum[j][half]);
                    vst1q_f32(acc[j] + row, fma4(whole, factor, vld1q_f32(acc[j] + row)));
                }
            }
        }

        const bool is_table_;
        const Zeros zeros_;
        const int8x16_t table_;
    };

    // Rows of x to tiles.
    class TileRows {
      public:
        explicit TileRows(const Weight &w) : zero_(zero_of_all(w)) {}

        // A chunk of x as row j of a tile.
        void put(const float *x, int64_t blocks, float unit, int64_t j, XTile *to) const {
            int8_t q[128];
            quantize_blocks(x, blocks, unit, q, [&](int64_t b, const Int8Scale &s, int64_t) {
                to->set_block(b, j, s.scale, -zero_ * s.sum);
            });
            for (int i = 0; i < 32; ++i) memcpy(to->x[i][j], q + 4 * i, 4);
        }

      private:
        const int32_t zero_;  // that all sums of x are multiplied by
    };
};

// Of rows of bytes.
struct DotprodInt8Bytes : DotprodInt8 {
    using Strip = StripOfBytes;

    struct TileKernel : DotprodInt8::TileKernel {
        using DotprodInt8::TileKernel::TileKernel;

        void decode(const StripOfBytes::Chunk &codes, const TileFactors *, int64_t) {
            if (codes.columns == 128) return turn(codes);
            turn(StripOfBytes::LastChunk(codes).whole());
        }

      private:
        QK_NOINLINE void turn(const StripOfBytes::Chunk &codes) {
            for (int64_t first = 0; first < kTaskRows; first += 4) {
                const uint8_t *row[4];
                for (int64_t i = 0; i < 4; ++i) {
                    row[i] = codes.row(first + i);
                    prefetch_stream(row[i] + kScaleChunks * 128);
                    prefetch_stream(row[i] + kScaleChunks * 128 + 64);
                }
                for (int64_t at = 0; at < 128; at += 16) {
                    uint8x16_t rows[4];
                    QK_UNROLL
                    for (int i = 0; i < 4; ++i) rows[i] = vld1q_u8(row[i] + at);
                    int8x16_t by_four[4];
                    transpose(rows, by_four);
                    QK_UNROLL
                    for (int d = 0; d < 4; ++d) entries_[at / 4 + d][first / 4] = by_four[d];
                }
            }
        }
    };
};

}  // namespace
}  // namespace qk::cpu
