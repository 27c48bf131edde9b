// The GRU on NEON but for the dot products: 16 int32 as four registers.
#pragma once
#include <string.h>

#include "cpu/arm_neon/gru_dots.hpp"

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
    struct LongShift {  // rounding half to even; the result fits 32 bits
        int64x2_t left, half, one, right;

        LongShift(int32_t to_left, int32_t to_right)
            : left(vdupq_n_s64(to_left)),
              half(vdupq_n_s64(to_right == 0 ? 0 : (int64_t{1} << (to_right - 1)) - 1)),
              one(vdupq_n_s64(to_right != 0)), right(vdupq_n_s64(-to_right)) {}
        int64x2_t shift(int64x2_t x) const {
            x = vshlq_s64(x, left);
            const int64x2_t odd = vandq_s64(vshlq_s64(x, right), one);
            return vshlq_s64(vaddq_s64(vaddq_s64(x, half), odd), right);
        }
        Ints operator()(const Longs &x) const {
            Ints r;
            QK_QUARTERS r.v[q] = vmovn_high_s64(vmovn_s64(shift(x.low[q])), shift(x.high[q]));
            return r;
        }
    };

    // Each lane by its own shift of 1..62, half to even, then clamped: what is left fits 32 bits.
    QK_INLINE static Ints round_lanes(const Longs &x, const Ints &shift, int32_t min, int32_t max) {
        const int64x2_t one = vdupq_n_s64(1), low = vdupq_n_s64(min), high = vdupq_n_s64(max);
        const auto round = [&](int64x2_t v, int64x2_t n) QK_INLINE {
            const int64x2_t half = vsubq_s64(vshlq_s64(one, vsubq_s64(n, one)), one);
            const int64x2_t right = vnegq_s64(n), odd = vandq_s64(vshlq_s64(v, right), one);
            v = vshlq_s64(vaddq_s64(vaddq_s64(v, half), odd), right);
            v = vbslq_s64(vcgtq_s64(low, v), low, v);
            return vbslq_s64(vcgtq_s64(v, high), high, v);
        };
        Ints r;
        QK_QUARTERS {
            const int32x2_t first = vmovn_s64(round(x.low[q], vmovl_s32(vget_low_s32(shift.v[q]))));
            r.v[q] = vmovn_high_s64(first, round(x.high[q], vmovl_high_s32(shift.v[q])));
        }
        return r;
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
};

}  // namespace
}  // namespace qk::cpu
