// The GRU on 32-bit NEON but for the dot products: 8 int32 as two of the 16 registers.
#pragma once
#include <string.h>

#include "cpu/arm_neon/gru_dots.hpp"
#include "cpu/arm_neon/half_to_even.hpp"

#define QK_HALVES _Pragma("GCC unroll 2") for (int q = 0; q < 2; ++q)
#define QK_TWELVE _Pragma("GCC unroll 12") for (int q = 0; q < 12; ++q)

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
    struct Shift {
        int32x4_t by, one;

        Shift(int32_t left, int32_t right)
            : by(vdupq_n_s32(left - right)), one(vdupq_n_s32(right != 0)) {}
        QK_INLINE Ints operator()(const Ints &x) const {
            return {half_to_even(x.v[0], by, one), half_to_even(x.v[1], by, one)};
        }
    };
    QK_INLINE static Ints round_each(const Ints &x, const Ints &shift) {
        Ints r;
        QK_HALVES r.v[q] = half_to_even(x.v[q], vnegq_s32(shift.v[q]), vdupq_n_s32(1));
        return r;
    }
    struct LongShift {  // the result fits 32 bits
        int64x2_t by, one;

        LongShift(int32_t left, int32_t right)
            : by(vdupq_n_s64(left - right)), one(vdupq_n_s64(right != 0)) {}
        QK_INLINE Ints operator()(const Longs &x) const {
            Ints r;
            QK_HALVES r.v[q] = vcombine_s32(vmovn_s64(half_to_even(x.low[q], by, one)),
                                            vmovn_s64(half_to_even(x.high[q], by, one)));
            return r;
        }
    };

    // Each lane by its own shift of 1..62, then clamped. What saturates to 32 bits before is
    // clamped to the same.
    QK_INLINE static Ints round_lanes(const Longs &x, const Ints &shift, int32_t low,
                                      int32_t high) {
        const auto round = [](int64x2_t v, int32x2_t by) QK_INLINE {
            return vqmovn_s64(half_to_even(v, vmovl_s32(by), vdupq_n_s64(1)));
        };
        Ints r;
        QK_HALVES {
            const int32x4_t by = vnegq_s32(shift.v[q]);
            r.v[q] = vcombine_s32(round(x.low[q], vget_low_s32(by)),
                                  round(x.high[q], vget_high_s32(by)));
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
        float *const at = count == kLanes ? reinterpret_cast<float *>(to) : some;
        QK_HALVES vst1q_f32(at + 4 * q, vmulq_n_f32(vcvtq_f32_s32(a.v[q]), factor));
        if (at == some) memcpy(to, some, size_t(count) * 4);
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

    // Of bytes, two columns at a time: their products are added in 16 bits. A load parts even
    // columns from odd ones.
    template <int rows>
    QK_NOINLINE static void dot_pairs(const int8_t *weights, int64_t groups,
                                      const uint8_t *const *codes, GruSums sums) {
        static_assert(rows == 1);
        int32x4_t sum[12];
        QK_TWELVE sum[q] = vdupq_n_s32(0);
        const int8_t *const end = weights + groups * kGroupBytes;
        int32_t group = 0;
        for (const int8_t *at = weights; at != end; ++group) {
            const int8x8_t four = vget_low_s8(load_group(codes[0], group));
            const int8x8x2_t x = vuzp_s8(four, four);
            int8x16x2_t w;
            QK_TWELVE {
                if (q % 2 == 0) {
                    w = vld2q_s8(at);
                    step<32>(at);
                }
                const int16x8_t even = vmull_s8(half(w.val[0], q), x.val[0]);
                sum[q] = vpadalq_s16(sum[q], vmlal_s8(even, half(w.val[1], q), x.val[1]));
            }
        }
        QK_TWELVE vst1q_s32(sums[0][0] + 4 * q, sum[q]);
    }

    // Products of words in 32 bits, two of them at a time added to 64.
    QK_NOINLINE static void dot_longs(const int8_t *weights, int64_t groups, const uint8_t *codes,
                                      Longs (*sums)[2]) {
        for (int gate = 0; gate < 3; ++gate) {
            int64x2_t low[4], high[4];
            QK_QUARTERS low[q] = high[q] = vdupq_n_s64(0);
            const int8_t *at = weights + gate * kGateBytes;
            const int8_t *const end = at + groups * kGroupBytes;
            for (int32_t group = 0; at != end; at += kGroupBytes - kGateBytes, ++group) {
                const int16x8_t x = vreinterpretq_s16_s8(load_group(codes, group));
                QK_QUARTERS {
                    const int16x8_t w = vreinterpretq_s16_s8(load_signed(at));
                    low[q] = vpadalq_s32(low[q], vmull_s16(vget_low_s16(w), vget_low_s16(x)));
                    high[q] = vpadalq_s32(high[q], vmull_s16(vget_high_s16(w), vget_high_s16(x)));
                    step<16>(at);
                }
            }
            sums[gate][0] = {{low[0], low[1]}, {high[0], high[1]}};
            sums[gate][1] = {{low[2], low[3]}, {high[2], high[3]}};
        }
    }

  private:
    QK_INLINE static int8x8_t half(int8x16_t a, int q) {
        return q % 2 == 0 ? vget_low_s8(a) : vget_high_s8(a);
    }
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
