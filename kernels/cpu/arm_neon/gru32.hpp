// The GRU on 32-bit NEON but for the dot products: 8 int32 as two of the 16 registers.
#pragma once
#include <string.h>

#include "cpu/arm_neon/gru_dots.hpp"

#define QK_HALVES _Pragma("GCC unroll 2") for (int q = 0; q < 2; ++q)

namespace qk::cpu {
namespace {

struct GruNeonBase : GruNeonDots {
    static constexpr int kRows = 1;
    static constexpr int64_t kLanes = 8;

    struct Ints {
        int32x4_t v[2];

        QK_INLINE static Ints splat(int32_t value) {
            return {vdupq_n_s32(value), vdupq_n_s32(value)};
        }
        QK_INLINE static Ints load(const int32_t *from) {
            return {vld1q_s32(from), vld1q_s32(from + 4)};
        }
        QK_INLINE void store(int32_t *to) const { QK_HALVES vst1q_s32(to + 4 * q, v[q]); }

#define QK_EACH(name, operation)                               \
    QK_INLINE friend Ints name(const Ints &a, const Ints &b) { \
        Ints r;                                                \
        QK_HALVES r.v[q] = operation;                          \
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
        int64x2_t low[2], high[2];

        QK_INLINE friend Longs operator+(const Longs &a, const Longs &b) {
            Longs r;
            QK_HALVES {
                r.low[q] = vaddq_s64(a.low[q], b.low[q]);
                r.high[q] = vaddq_s64(a.high[q], b.high[q]);
            }
            return r;
        }
    };

    QK_INLINE static Ints load_bytes(const uint8_t *from) {
        return from_words(vreinterpretq_s16_u16(vmovl_u8(vld1_u8(from))));
    }

    QK_INLINE static Longs products(const Ints &a, const Ints &b) {
        Longs r;
        QK_HALVES {
            r.low[q] = vmull_s32(vget_low_s32(a.v[q]), vget_low_s32(b.v[q]));
            r.high[q] = vmull_s32(vget_high_s32(a.v[q]), vget_high_s32(b.v[q]));
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
            QK_HALVES r.v[q] =
                vcombine_s32(vmovn_s64(shift(x.low[q])), vmovn_s64(shift(x.high[q])));
            return r;
        }
    };

    // Each lane by its own shift of 1..62, half to even, then clamped. What saturates to 32 bits
    // before is clamped to the same.
    QK_INLINE static Ints round_lanes(const Longs &x, const Ints &shift, int32_t low,
                                      int32_t high) {
        const int64x2_t one = vdupq_n_s64(1);
        const auto round = [&](int64x2_t v, int64x2_t right) QK_INLINE {
            const int64x2_t less_one = vsubq_s64(vdupq_n_s64(-1), right);
            const int64x2_t half = vsubq_s64(vshlq_s64(one, less_one), one);
            const int64x2_t odd = vandq_s64(vshlq_s64(v, right), one);
            return vqmovn_s64(vshlq_s64(vaddq_s64(vaddq_s64(v, half), odd), right));
        };
        Ints r;
        QK_HALVES {
            const int32x4_t right = vnegq_s32(shift.v[q]);
            r.v[q] = vcombine_s32(round(x.low[q], vmovl_s32(vget_low_s32(right))),
                                  round(x.high[q], vmovl_s32(vget_high_s32(right))));
        }
        return min(max(r, Ints::splat(low)), Ints::splat(high));
    }

    struct ByteTable {
        const uint8_t *bytes;

        explicit ByteTable(const uint8_t *from) : bytes(from) {}
        QK_INLINE Ints look_up(const Ints &index) const {
            return from_lanes(index, [&](int32_t at) QK_INLINE { return int32_t(bytes[at]); });
        }
    };
    QK_INLINE static void gather_pairs(const int32_t *pairs, const Ints &index, Ints *first,
                                       Ints *second) {
        QK_HALVES {
            const int32_t *const at[4] = {pairs + 2 * index.v[q][0], pairs + 2 * index.v[q][1],
                                          pairs + 2 * index.v[q][2], pairs + 2 * index.v[q][3]};
            const int32x4x2_t both = vuzpq_s32(vcombine_s32(vld1_s32(at[0]), vld1_s32(at[1])),
                                               vcombine_s32(vld1_s32(at[2]), vld1_s32(at[3])));
            first->v[q] = both.val[0];
            second->v[q] = both.val[1];
        }
    }
    QK_INLINE static Ints look_up_16(const int32_t *table, const Ints &index) {
        return from_lanes(index, [&](int32_t at) QK_INLINE { return table[at]; });
    }

    QK_INLINE static Ints load_codes(const char *from, int32_t bytes, int64_t count) {
        uint8_t some[16] = {};
        if (count < kLanes) {
            memcpy(some, from, size_t(count * bytes));
            from = reinterpret_cast<const char *>(some);
        }
        const uint8_t *const at = reinterpret_cast<const uint8_t *>(from);
        if (bytes == 1) return from_words(vmovl_s8(vreinterpret_s8_u8(vld1_u8(at))));
        return from_words(vreinterpretq_s16_u8(vld1q_u8(at)));
    }
    QK_INLINE static void store_codes(char *to, int32_t bytes, int64_t count, const Ints &a) {
        uint8_t *const at = reinterpret_cast<uint8_t *>(to);
        const uint8x16_t words = vreinterpretq_u8_s16(to_words(a));
        const uint8x16_t codes = bytes == 1 ? vcombine_u8(to_bytes(a), to_bytes(a)) : words;
        uint8_t some[16];
        if (count == kLanes) return bytes == 1 ? vst1_u8(at, to_bytes(a)) : vst1q_u8(at, words);
        vst1q_u8(some, codes);
        memcpy(to, some, size_t(count * bytes));
    }
    // gru::real_to_code without the zero point. What vectors take for zeros, subnormal numbers,
    // gives the code of zero anyway, unless the factor is enormous.
    QK_INLINE static Ints load_reals(const char *from, int64_t count, float factor, float low,
                                     float high) {
        float some[kLanes] = {};
        memcpy(some, from, count == kLanes ? sizeof(some) : size_t(count) * 4);
        Ints r;
        if (factor > 0x1p100f) {
            for (int64_t i = 0; i < kLanes; ++i) {
                r.v[i / 4][i % 4] =
                    gru::real_to_code(some[i], factor, 0, int32_t(low), int32_t(high));
            }
            return r;
        }
        QK_HALVES {
            float32x4_t x = vmulq_n_f32(vld1q_f32(some + 4 * q), factor);
            const uint32x4_t is_number = vceqq_f32(x, x);
            x = vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(x), is_number));
            x = vminq_f32(vmaxq_f32(x, vdupq_n_f32(low)), vdupq_n_f32(high));
            // f32 of this magnitude are integers, in the low bits.
            const int32x4_t sum = vreinterpretq_s32_f32(vaddq_f32(x, vdupq_n_f32(0x1.8p23f)));
            r.v[q] = vsubq_s32(sum, vdupq_n_s32(0x4b400000));
        }
        return r;
    }
    // Normal numbers: the least factor is one.
    QK_INLINE static void store_reals(char *to, int64_t count, const Ints &a, float factor) {
        float some[kLanes];
        QK_HALVES vst1q_f32(some + 4 * q, vmulq_n_f32(vcvtq_f32_s32(a.v[q]), factor));
        memcpy(to, some, count == kLanes ? sizeof(some) : size_t(count) * 4);
    }

    // Codes as signed bytes: one plane, or code >> 8 and (code & 255) - 128.
    QK_INLINE static int code_planes(int32_t code_bytes) { return code_bytes; }
    static constexpr bool kInPlanes = true;
    QK_INLINE static void store_operands(uint8_t *row, int64_t plane_stride, int64_t index,
                                         const Ints &code, int planes) {
        const uint8x8_t low = to_bytes(code);
        if (planes == 1) return vst1_u8(row + index, low);
        vst1_u8(row + index, vreinterpret_u8_s8(vshrn_n_s16(to_words(code), 8)));
        vst1_u8(row + plane_stride + index, veor_u8(low, vdup_n_u8(128)));
    }

  private:
    QK_INLINE static Ints from_words(int16x8_t words) {
        return {vmovl_s16(vget_low_s16(words)), vmovl_s16(vget_high_s16(words))};
    }
    // The low words, the low bytes of the lanes.
    QK_INLINE static int16x8_t to_words(const Ints &a) {
        return vcombine_s16(vmovn_s32(a.v[0]), vmovn_s32(a.v[1]));
    }
    QK_INLINE static uint8x8_t to_bytes(const Ints &a) {
        return vreinterpret_u8_s8(vmovn_s16(to_words(a)));
    }
    template <class Entry>
    QK_INLINE static Ints from_lanes(const Ints &index, const Entry &entry) {
        Ints r;
        QK_HALVES r.v[q] = int32x4_t{entry(index.v[q][0]), entry(index.v[q][1]),
                                     entry(index.v[q][2]), entry(index.v[q][3])};
        return r;
    }
};

}  // namespace
}  // namespace qk::cpu
