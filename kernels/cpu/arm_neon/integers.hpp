// Sums by lanes of codes times one row of x as integers (linear/gemv_integers.hpp): SDOT of three
// signed bytes where the file is built for it, else 16-bit products of two halves.
//
//     128 columns of a row        SDOT    16 bits
//     codes from nibbles             8     8 + 16
//     products                      24         64
//     one integer of the parts       8          4
//     the zero's, as floats, scaled 12         12
#pragma once
#include "cpu/arm_neon/neon.hpp"
#include "cpu/linear/gemv_integers.hpp"

namespace qk::cpu {
namespace {

#if defined(__ARM_FEATURE_DOTPROD)
// A dword's columns are those of its lane. 32 bits hold 8 products: 8 * 15 * 2^23 < 2^30.
struct IntegerDots {
    using X = XBytes;

    QK_INLINE static void dots(const uint8_t *codes, const X &x, int32x4_t (&to)[4]) {
        uint8x16_t even[4], odd[4];
        QK_QUARTERS {
            const uint8x16_t bytes = vld1q_u8(codes + 16 * q);
            even[q] = vandq_u8(bytes, vdupq_n_u8(15));
            odd[q] = vshrq_n_u8(bytes, 4);
            to[q] = vdupq_n_s32(0);
        }
        _Pragma("GCC unroll 3") for (int part = 2; part >= 0; --part) {
            QK_QUARTERS {
                const int32x4_t sum = part == 2 ? to[q] : vshlq_n_s32(to[q], 8);
                const int32x4_t low =
                    vdotq_s32(sum, vreinterpretq_s8_u8(even[q]), load_bytes(x.low[part] + 4 * q));
                to[q] =
                    vdotq_s32(low, vreinterpretq_s8_u8(odd[q]), load_bytes(x.high[part] + 4 * q));
            }
        }
    }

  private:
    static int8x16_t load_bytes(const uint32_t *from) {
        return vreinterpretq_s8_u32(vld1q_u32(from));
    }
};
#else
// x as 4096 * high + low: 12 bits by 4, 8 of them, are far from 32.
struct XWords {
    alignas(64) int16_t high[kBlock], low[kBlock];
    uint32_t sum[16];  // of a lane
    float unit;

    void place(const int32_t *q) {
        memset(sum, 0, sizeof(sum));
        for (int64_t i = 0; i < kBlock; ++i) {
            const int32_t upper = (q[i] + 2048) >> 12;
            high[i] = int16_t(upper);
            low[i] = int16_t(q[i] - upper * 4096);
            sum[i % 16] += uint32_t(q[i]);
        }
    }
};

struct IntegerDots {
    using X = XWords;

    QK_INLINE static void dots(const uint8_t *codes, const X &x, int32x4_t (&to)[4]) {
        const Words<Neon> words = Neon::load_words(codes);
        int32x4_t high[4], low[4];
        QK_QUARTERS high[q] = low[q] = vdupq_n_s32(0);
        const auto add = [&]<int step>() QK_INLINE {
            const uint8x16_t code = Neon::step_codes<step>(words);
            const int16x8_t first = vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(code)));
            const int16x8_t last = vreinterpretq_s16_u16(vmovl_high_u8(code));
            add_16(first, last, x.high + 16 * step, high);
            add_16(first, last, x.low + 16 * step, low);
        };
        for_each_step(add);
        QK_QUARTERS to[q] = vmlaq_n_s32(low[q], high[q], 4096);
    }

  private:
    QK_INLINE static void add_16(int16x8_t first, int16x8_t last, const int16_t *x,
                                 int32x4_t (&to)[4]) {
        const int16x8_t a = vld1q_s16(x), b = vld1q_s16(x + 8);
        to[0] = vmlal_s16(to[0], vget_low_s16(first), vget_low_s16(a));
        to[1] = vmlal_high_s16(to[1], first, a);
        to[2] = vmlal_s16(to[2], vget_low_s16(last), vget_low_s16(b));
        to[3] = vmlal_high_s16(to[3], last, b);
    }
};
#endif

class IntegerProducts {
  public:
    using X = IntegerDots::X;

    explicit IntegerProducts(const Weight &) {}

    QK_INLINE void add(const uint8_t *codes, const X &x, const char *scales, const uint8_t *zeros,
                       Sums<Neon> &sums) const {
        add_by_rows<Neon>(*this, codes, x, scales, zeros, sums);
    }
    QK_INLINE Lanes<Neon> dot(const uint8_t *codes, const X &x, const uint8_t *zeros,
                              int row) const {
        const int32_t zero = zeros[row >> 1] >> (row & 1) * 4 & 15;
        int32x4_t dots[4];
        IntegerDots::dots(codes, x, dots);
        QK_QUARTERS {
            const int32x4_t sum = vreinterpretq_s32_u32(vld1q_u32(x.sum + 4 * q));
            dots[q] = vmlsq_n_s32(dots[q], sum, zero);
        }
        return Neon::from_integers(dots);
    }
};

using NeonIntegerRows = RowsOfIntegers<Neon, IntegerProducts>;

}  // namespace
}  // namespace qk::cpu
