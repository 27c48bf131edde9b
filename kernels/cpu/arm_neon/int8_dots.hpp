// Integer dot products of a chunk of 8 rows on Arm: SDOT where the file is built for it, else
// multiplications of bytes that widen and add up in pairs.
#pragma once
#include "cpu/arm_neon/neon.hpp"
#include "cpu/int8/x.hpp"

namespace qk::cpu {
namespace {

struct NeonInt8 : Neon {
    template <int kBlocks>
    using Scales = PanelScales<NeonInt8, kBlocks>;

    using XChunk = PlainChunk;
    static void quantize_chunk(const float *x, int64_t blocks, float unit, XChunk *to) {
        quantize_plain(x, blocks, unit, to);
    }

    struct Sums8 {  // 8 integers, one a row
        int32x4_t v[2];
    };
    struct Floats8 {
        float32x4_t v[2];
    };
    static Floats8 zero_floats8() { return {{vdupq_n_f32(0), vdupq_n_f32(0)}}; }
    static Floats8 load_floats8(const char *from) {
        const uint8_t *const at = reinterpret_cast<const uint8_t *>(from);
        return {{vreinterpretq_f32_u8(vld1q_u8(at)), vreinterpretq_f32_u8(vld1q_u8(at + 16))}};
    }
    static void store_floats8(float *to, const Floats8 &a) {
        vst1q_f32(to, a.v[0]);
        vst1q_f32(to + 4, a.v[1]);
    }
    static Sums8 splat_sums8(int32_t value) { return {{vdupq_n_s32(value), vdupq_n_s32(value)}}; }
    // 4 bytes, a nibble a row.
    static Sums8 load_zeros8(const uint8_t *from) {
        uint32_t nibbles;
        memcpy(&nibbles, from, 4);
        const int32_t shift[8] = {0, -4, -8, -12, -16, -20, -24, -28};
        const uint32x4_t all = vdupq_n_u32(nibbles), mask = vdupq_n_u32(15);
        const uint32x4_t low = vandq_u32(vshlq_u32(all, vld1q_s32(shift)), mask);
        const uint32x4_t high = vandq_u32(vshlq_u32(all, vld1q_s32(shift + 4)), mask);
        return {{vreinterpretq_s32_u32(low), vreinterpretq_s32_u32(high)}};
    }
    static Sums8 take_zeros(const Sums8 &dots, const Sums8 &zero, int32_t sum) {
        return {{vmlsq_n_s32(dots.v[0], zero.v[0], sum), vmlsq_n_s32(dots.v[1], zero.v[1], sum)}};
    }
    static Floats8 fold8(const Sums8 &sums, float x_scale, const Floats8 &scale,
                         const Floats8 &acc) {
        Floats8 r;
        for (int i = 0; i < 2; ++i) {
            const float32x4_t factor = mul4(vdupq_n_f32(x_scale), scale.v[i]);
            r.v[i] = fma4(vcvtq_f32_s32(sums.v[i]), factor, acc.v[i]);
        }
        return r;
    }
    static Floats8 fma8(const Floats8 &a, float b, const Floats8 &acc) {
        const float32x4_t all = vdupq_n_f32(b);
        return {{fma4(a.v[0], all, acc.v[0]), fma4(a.v[1], all, acc.v[1])}};
    }
    static Floats8 subtract8(const Floats8 &a, const Floats8 &b) {
        return {{sub4(a.v[0], b.v[0]), sub4(a.v[1], b.v[1])}};
    }

// Four sums of products of bytes: lane i has bytes 4 i .. 4 i + 3 of all that was added.
#if defined(__ARM_FEATURE_DOTPROD)
    class FourDots {
      public:
        void add(int8x16_t a, int8x16_t b) { sum_ = vdotq_s32(sum_, a, b); }
        void add(int8x16_t a, int8x16_t b, int8x16_t c, int8x16_t d) {
            add(a, b);
            add(c, d);
        }
        int32x4_t get() const { return sum_; }

      private:
        int32x4_t sum_ = vdupq_n_s32(0);
    };
#else
    class FourDots {
      public:
        void add(int8x16_t a, int8x16_t b) {
            add_pairs(vmull_s8(vget_low_s8(a), vget_low_s8(b)), vmull_high_s8(a, b));
        }
        // Two products fit 16 bits: b and d are -127 at least.
        void add(int8x16_t a, int8x16_t b, int8x16_t c, int8x16_t d) {
            const int16x8_t low = vmull_s8(vget_low_s8(a), vget_low_s8(b));
            const int16x8_t high = vmull_high_s8(a, b);
            add_pairs(vmlal_s8(low, vget_low_s8(c), vget_low_s8(d)), vmlal_high_s8(high, c, d));
        }
        int32x4_t get() const { return vpaddq_s32(low_, high_); }

      private:
        void add_pairs(int16x8_t low, int16x8_t high) {
            low_ = vpadalq_s16(low_, low);
            high_ = vpadalq_s16(high_, high);
        }

        int32x4_t low_ = vdupq_n_s32(0), high_ = vdupq_n_s32(0);  // of bytes 0..7, 8..15
    };
#endif

    // Rows d[0..3] of four partial sums -> four sums; of two blocks; of four.
    static int32x4_t fold_1(const int32x4_t *d) {
        return vpaddq_s32(vpaddq_s32(d[0], d[1]), vpaddq_s32(d[2], d[3]));
    }
    static int32x4_t fold_2(const int32x4_t *d, int block) {
        const int32x4_t ab = vpaddq_s32(d[0], d[1]), cd = vpaddq_s32(d[2], d[3]);
        return block == 0 ? vuzp1q_s32(ab, cd) : vuzp2q_s32(ab, cd);
    }
    static int32x4_t fold_4(const int32x4_t *d, int block) {
        const int32x4_t ab = block & 1 ? vtrn2q_s32(d[0], d[1]) : vtrn1q_s32(d[0], d[1]);
        const int32x4_t cd = block & 1 ? vtrn2q_s32(d[2], d[3]) : vtrn1q_s32(d[2], d[3]);
        const int64x2_t x = vreinterpretq_s64_s32(ab), y = vreinterpretq_s64_s32(cd);
        return vreinterpretq_s32_s64(block & 2 ? vtrn2q_s64(x, y) : vtrn1q_s64(x, y));
    }

    // Dword b: the b-th bytes of the four.
    static uint8x16_t transpose_bytes(uint8x16_t words) {
        const uint8_t order[16] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
        return vqtbl1q_u8(words, vld1q_u8(order));
    }

    // Codes to integers.
    template <bool lut4>
    static int8x16_t entry(int8x16_t table, uint8x16_t code) {
        return lut4 ? vqtbl1q_s8(table, code) : vreinterpretq_s8_u8(code);
    }

    template <int kBlocks, bool table>
    class ChunkDots {
      public:
        explicit ChunkDots(const Int8Entries &entries) : table_(vld1q_s8(entries.value)) {}

        QK_INLINE void run(const uint8_t *codes, const XChunk &x, Sums8 (&to)[kBlocks]) const {
            int32x4_t d[8], e[8];
            for (int row = 0; row < 8; ++row) {
                __builtin_prefetch(codes + 64 * row + 8192, 0, 3);
                FourDots of_low, of_high;
                for (int quarter = 0; quarter < 64; quarter += 16) {
                    uint8x16_t words = vld1q_u8(codes + 64 * row + quarter);
                    if (kBlocks > 1) words = transpose_bytes(words);
                    const int8x16_t low = entry<table>(table_, vandq_u8(words, vdupq_n_u8(15)));
                    const int8x16_t high = entry<table>(table_, vshrq_n_u8(words, 4));
                    const int8x16_t x_low = vld1q_s8(x.low + quarter);
                    const int8x16_t x_high = vld1q_s8(x.high + quarter);
                    if (kBlocks == 8) {
                        of_low.add(low, x_low);
                        of_high.add(high, x_high);
                    } else {
                        of_low.add(low, x_low, high, x_high);
                    }
                }
                d[row] = of_low.get();
                e[row] = of_high.get();
            }
            for (int half = 0; half < 2; ++half) {
                for (int b = 0; b < kBlocks; ++b) {
                    const int32x4_t *const rows = (kBlocks == 8 && b % 2 == 1 ? e : d) + 4 * half;
                    to[b].v[half] = kBlocks == 1   ? fold_1(rows)
                                    : kBlocks == 2 ? fold_2(rows, b)
                                                   : fold_4(rows, kBlocks == 8 ? b / 2 : b);
                }
            }
        }

      private:
        int8x16_t table_;
    };
};

}  // namespace
}  // namespace qk::cpu
