// The GRU on NEON but for the dot products: 16 int32 as four registers.
#pragma once
#include <string.h>

#include "cpu/arm_neon/gru_dots.hpp"
#include "cpu/arm_neon/half_to_even.hpp"

namespace qk::cpu {
namespace {

struct GruNeonBase : GruNeonDots {
    static constexpr int kRows = 2;  // 24 sums in 32 registers

    struct Ints {
        int32x4_t v[4];

        QK_INLINE static Ints splat(int32_t value) {
            Ints r;
            QK_QUARTERS r.v[q] = vdupq_n_s32(value);
            return r;
        }
        QK_INLINE static Ints load(const int32_t *from) {
            Ints r;
            QK_QUARTERS r.v[q] = vld1q_s32(from + 4 * q);
            return r;
        }
        QK_INLINE void store(int32_t *to) const { QK_QUARTERS vst1q_s32(to + 4 * q, v[q]); }

#define QK_EACH(name, operation)                               \
    QK_INLINE friend Ints name(const Ints &a, const Ints &b) { \
        Ints r;                                                \
        QK_QUARTERS r.v[q] = operation;                        \
        return r;                                              \
    }
        QK_EACH(operator+, vaddq_s32(a.v[q], b.v[q]))
        QK_EACH(operator-, vsubq_s32(a.v[q], b.v[q]))
        QK_EACH(operator*, vmulq_s32(a.v[q], b.v[q]))
        QK_EACH(operator&, vandq_s32(a.v[q], b.v[q]))
        QK_EACH(operator<<, vshlq_s32(a.v[q], b.v[q]))
        QK_EACH(operator>>, vshlq_s32(a.v[q], vnegq_s32(b.v[q])))
        QK_EACH(operator>=, vreinterpretq_s32_u32(vcgeq_s32(a.v[q], b.v[q])))
        QK_EACH(max, vmaxq_s32(a.v[q], b.v[q]))
        QK_EACH(min, vminq_s32(a.v[q], b.v[q]))
#undef QK_EACH
    };
    struct Longs {
        int64x2_t low[4], high[4];

        QK_INLINE friend Longs operator+(const Longs &a, const Longs &b) {
            Longs r;
            QK_QUARTERS {
                r.low[q] = vaddq_s64(a.low[q], b.low[q]);
                r.high[q] = vaddq_s64(a.high[q], b.high[q]);
            }
            return r;
        }
    };

    QK_INLINE static Ints from_words(int16x8_t low, int16x8_t high) {
        return {{vmovl_s16(vget_low_s16(low)), vmovl_high_s16(low), vmovl_s16(vget_low_s16(high)),
                 vmovl_high_s16(high)}};
    }
    QK_INLINE static Ints from_bytes(int8x16_t bytes) {
        return from_words(vmovl_s8(vget_low_s8(bytes)), vmovl_high_s8(bytes));
    }
    QK_INLINE static Ints from_bytes(uint8x16_t bytes) {
        return from_words(vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(bytes))),
                          vreinterpretq_s16_u16(vmovl_high_u8(bytes)));
    }
    QK_INLINE static Ints load_bytes(const uint8_t *from) { return from_bytes(vld1q_u8(from)); }
    // The low bytes, the low words of the lanes.
    QK_INLINE static int8x16_t to_bytes(const Ints &a) {
        const int16x8_t low = vmovn_high_s32(vmovn_s32(a.v[0]), a.v[1]);
        const int16x8_t high = vmovn_high_s32(vmovn_s32(a.v[2]), a.v[3]);
        return vmovn_high_s16(vmovn_s16(low), high);
    }

    QK_INLINE static Longs products(const Ints &a, const Ints &b) {
        Longs r;
        QK_QUARTERS {
            r.low[q] = vmull_s32(vget_low_s32(a.v[q]), vget_low_s32(b.v[q]));
            r.high[q] = vmull_high_s32(a.v[q], b.v[q]);
        }
        return r;
    }
    struct Shift {
        int32x4_t by, one;

        Shift(int32_t left, int32_t right)
            : by(vdupq_n_s32(left - right)), one(vdupq_n_s32(right != 0)) {}
        Ints operator()(const Ints &x) const {
            Ints r;
            QK_QUARTERS r.v[q] = half_to_even(x.v[q], by, one);
            return r;
        }
    };
    QK_INLINE static Ints round_each(const Ints &x, const Ints &shift) {
        Ints r;
        QK_QUARTERS r.v[q] = half_to_even(x.v[q], vnegq_s32(shift.v[q]), vdupq_n_s32(1));
        return r;
    }
    struct LongShift {  // the result fits 32 bits
        int64x2_t by, one;

        LongShift(int32_t left, int32_t right)
            : by(vdupq_n_s64(left - right)), one(vdupq_n_s64(right != 0)) {}
        Ints operator()(const Longs &x) const {
            Ints r;
            QK_QUARTERS r.v[q] = vmovn_high_s64(vmovn_s64(half_to_even(x.low[q], by, one)),
                                                half_to_even(x.high[q], by, one));
            return r;
        }
    };

    // Each lane by its own shift of 1..62, then clamped. What saturates to 32 bits before is
    // clamped to the same.
    QK_INLINE static Ints round_lanes(const Longs &x, const Ints &shift, int32_t low,
                                      int32_t high) {
        Ints r;
        QK_QUARTERS {
            const int32x4_t by = vnegq_s32(shift.v[q]);
            const int64x2_t one = vdupq_n_s64(1);
            const int32x2_t first =
                vqmovn_s64(half_to_even(x.low[q], vmovl_s32(vget_low_s32(by)), one));
            r.v[q] = vqmovn_high_s64(first, half_to_even(x.high[q], vmovl_high_s32(by), one));
        }
        return min(max(r, Ints::splat(low)), Ints::splat(high));
    }

    struct ByteTable {  // 64 bytes a look-up; what is beyond leaves the lane alone
        const uint8_t *bytes;

        explicit ByteTable(const uint8_t *from) : bytes(from) {}
        Ints look_up(const Ints &index) const {
            const uint8x16_t at = vreinterpretq_u8_s8(to_bytes(index));
            uint8x16_t r = vqtbl4q_u8(vld1q_u8_x4(bytes), at);
            for (int part = 1; part < 4; ++part) {
                const uint8x16_t within = vsubq_u8(at, vdupq_n_u8(uint8_t(64 * part)));
                r = vqtbx4q_u8(r, vld1q_u8_x4(bytes + 64 * part), within);
            }
            return from_bytes(r);
        }
    };
    QK_INLINE static void gather_pairs(const int32_t *pairs, const Ints &index, Ints *first,
                                       Ints *second) {
        int32_t at[16], one[16], two[16];
        index.store(at);
        for (int lane = 0; lane < 16; ++lane) {
            one[lane] = pairs[2 * at[lane]];
            two[lane] = pairs[2 * at[lane] + 1];
        }
        *first = Ints::load(one);
        *second = Ints::load(two);
    }
    QK_INLINE static Ints look_up_16(const int32_t *table, const Ints &index) {
        int32_t at[16], r[16];
        index.store(at);
        for (int lane = 0; lane < 16; ++lane) r[lane] = table[at[lane]];
        return Ints::load(r);
    }

    QK_INLINE static Ints load_codes(const char *from, int32_t bytes, int64_t count) {
        alignas(16) char some[32] = {};
        if (count < kGruUnits) {
            memcpy(some, from, size_t(count * bytes));
            from = some;
        }
        const uint8_t *const at = reinterpret_cast<const uint8_t *>(from);
        if (bytes == 1) return from_bytes(vreinterpretq_s8_u8(vld1q_u8(at)));
        return from_words(vreinterpretq_s16_u8(vld1q_u8(at)),
                          vreinterpretq_s16_u8(vld1q_u8(at + 16)));
    }
    QK_INLINE static void store_codes(char *to, int32_t bytes, int64_t count, const Ints &a) {
        alignas(16) int16_t words[16];
        if (bytes == 1) {
            vst1q_s8(reinterpret_cast<int8_t *>(words), to_bytes(a));
        } else {
            QK_QUARTERS vst1_s16(words + 4 * q, vmovn_s32(a.v[q]));
        }
        memcpy(to, words, size_t(count * bytes));
    }
    // gru::real_to_code without the zero point.
    QK_INLINE static Ints load_reals(const char *from, int64_t count, float factor, float low,
                                     float high) {
        float some[16] = {};
        memcpy(some, from, size_t(count) * 4);
        Ints r;
        QK_QUARTERS {
            float32x4_t x = vmulq_n_f32(vld1q_f32(some + 4 * q), factor);
            const uint32x4_t is_number = vceqq_f32(x, x);
            x = vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(x), is_number));
            x = vminq_f32(vmaxq_f32(x, vdupq_n_f32(low)), vdupq_n_f32(high));
            r.v[q] = vcvtnq_s32_f32(x);
        }
        return r;
    }
    QK_INLINE static void store_reals(char *to, int64_t count, const Ints &a, float factor) {
        float some[16];
        QK_QUARTERS vst1q_f32(some + 4 * q, vmulq_n_f32(vcvtq_f32_s32(a.v[q]), factor));
        memcpy(to, some, size_t(count) * 4);
    }

    // Codes as signed bytes: one plane, or code >> 8 and (code & 255) - 128.
    QK_INLINE static int code_planes(int32_t code_bytes) { return code_bytes; }
    static constexpr bool kInPlanes = true;
    QK_INLINE static void store_operands(uint8_t *row, int64_t plane_stride, int64_t index,
                                         const Ints &code, int planes) {
        const uint8x16_t low = vreinterpretq_u8_s8(to_bytes(code));
        if (planes == 1) return vst1q_u8(row + index, low);
        Ints high;
        QK_QUARTERS high.v[q] = vshrq_n_s32(code.v[q], 8);
        vst1q_u8(row + index, vreinterpretq_u8_s8(to_bytes(high)));
        vst1q_u8(row + plane_stride + index, veorq_u8(low, vdupq_n_u8(128)));
    }

    // Of bytes, two groups at a time: their products are added in 16 bits.
    template <int rows>
    QK_NOINLINE static void dot_pairs(const int8_t *weights, int64_t groups,
                                      const uint8_t *const *codes, GruSums sums) {
        for (int gate = 0; gate < 3; ++gate) {
            Halves<rows> sum;
            const int8_t *at = weights + gate * kGateBytes;
            const int8_t *const end = at + (groups & ~int64_t{1}) * kGroupBytes;
            int64_t group = 0;
            for (; at != end; at += 2 * kGroupBytes, group += 2) {
                int8x16_t x[rows][2];
                for (int row = 0; row < rows; ++row) {
                    x[row][0] = load_group(codes[row], group);
                    x[row][1] = load_group(codes[row], group + 1);
                }
                QK_QUARTERS {
                    const int8x16_t w[2] = {load_signed(at + 16 * q),
                                            load_signed(at + kGroupBytes + 16 * q)};
                    for (int row = 0; row < rows; ++row)
                        add_products(sum.low[row][q], sum.high[row][q], w, x[row]);
                }
            }
            if (groups % 2 != 0) {
                for (int row = 0; row < rows; ++row) {
                    const int8x16_t none = vdupq_n_s8(0);
                    const int8x16_t x[2] = {load_group(codes[row], group), none};
                    QK_QUARTERS {
                        const int8x16_t w[2] = {load_signed(at + 16 * q), none};
                        add_products(sum.low[row][q], sum.high[row][q], w, x);
                    }
                }
            }
            sum.store(sums, gate);
        }
    }

    template <int rows>
    QK_NOINLINE static void dot_words(const int8_t *weights, int64_t groups,
                                      const uint8_t *const *codes, GruSums sums) {
        const auto add = [](int32x4_t &low, int32x4_t &high, int8x16_t w, int8x16_t x) QK_INLINE {
            const int16x8_t w_words = vreinterpretq_s16_s8(w), x_words = vreinterpretq_s16_s8(x);
            low = vmlal_s16(low, vget_low_s16(w_words), vget_low_s16(x_words));
            high = vmlal_high_s16(high, w_words, x_words);
        };
        dot_halves<rows>(weights, groups, codes, sums, add);
    }

  private:
    QK_INLINE static void add_products(int32x4_t &low, int32x4_t &high, const int8x16_t *w,
                                       const int8x16_t *x) {
        const int16x8_t first = vmull_s8(vget_low_s8(w[0]), vget_low_s8(x[0]));
        const int16x8_t last = vmull_high_s8(w[0], x[0]);
        low = vpadalq_s16(low, vmlal_s8(first, vget_low_s8(w[1]), vget_low_s8(x[1])));
        high = vpadalq_s16(high, vmlal_high_s8(last, w[1], x[1]));
    }
};

}  // namespace
}  // namespace qk::cpu
