// 32-bit NEON: 16 lanes of f32, one by one. Its vectors of floats take subnormal numbers for zeros
// and forget which NaN it was; the scalar unit beside them (VFPv4, which fuses a product and a sum)
// does neither. Vectors look codes up, and compute integers.
#pragma once
#include <stdint.h>
#include <string.h>

#include "base/half.hpp"
#include "cpu/arm_neon/intrinsics.hpp"
#include "cpu/isa.hpp"
#include "cpu/kernels.hpp"
#include "cpu/shared/fallbacks.hpp"

namespace qk::cpu {
namespace {

struct NeonBase {
    static constexpr uint32_t kFeature = kNeon;
    static constexpr int kVectorBytes = 16;
    static constexpr int kRowsTogether = 1;
    static constexpr int kTileVectors = 1, kTileBatch = 1;  // sums that fit the registers

#define QK_QUARTERS _Pragma("GCC unroll 4") for (int q = 0; q < 4; ++q)
#define QK_LANES _Pragma("GCC unroll 16") for (int i = 0; i < 16; ++i)

    struct Lanes {
        float v[16];
    };
    struct Words {  // 16 32-bit words, a chunk of packed codes: byte b of each
        uint8x16_t v[4];
    };
    struct Mask {
        int64_t count;  // of lanes that are on, from the first; may be more or less than there are
    };

    static Lanes splat(float value) {
        Lanes r;
        QK_LANES r.v[i] = value;
        return r;
    }
    static Lanes splat_two(const float *two) {
        Lanes r;
        QK_LANES r.v[i] = two[i / 8];
        return r;
    }
    static Lanes zero_lanes() { return splat(0); }
    static Lanes add(const Lanes &a, const Lanes &b) {
        Lanes r;
        QK_LANES r.v[i] = a.v[i] + b.v[i];
        return r;
    }
    static Lanes mul(const Lanes &a, const Lanes &b) {
        Lanes r;
        QK_LANES r.v[i] = a.v[i] * b.v[i];
        return r;
    }
    static Lanes fma(const Lanes &a, const Lanes &b, const Lanes &c) {
        Lanes r;
        QK_LANES r.v[i] = __builtin_fmaf(a.v[i], b.v[i], c.v[i]);
        return r;
    }
    static Mask first_lanes(int64_t count) { return {count}; }
    static Lanes where(Mask mask, const Lanes &a, const Lanes &b) {
        Lanes r = b;
        const int count = lanes_on(mask);
        for (int i = 0; i < count; ++i) r.v[i] = a.v[i];
        return r;
    }
    static Lanes where_past(const int32_t *ends, int32_t column, const Lanes &a, const Lanes &b) {
        Lanes r;
        QK_LANES r.v[i] = ends[i] <= column ? a.v[i] : b.v[i];
        return r;
    }
    static Lanes fma_where(Mask mask, const Lanes &a, const Lanes &b, const Lanes &c) {
        Lanes r = c;
        const int count = lanes_on(mask);
        for (int i = 0; i < count; ++i) r.v[i] = __builtin_fmaf(a.v[i], b.v[i], c.v[i]);
        return r;
    }

    // The same of four.
    static float32x4_t mul4(float32x4_t a, float32x4_t b) {
        QK_QUARTERS a[q] *= b[q];
        return a;
    }
    static float32x4_t sub4(float32x4_t a, float32x4_t b) {
        QK_QUARTERS a[q] -= b[q];
        return a;
    }
    static float32x4_t fma4(float32x4_t a, float32x4_t b, float32x4_t c) {
        QK_QUARTERS c[q] = __builtin_fmaf(a[q], b[q], c[q]);
        return c;
    }

    // Products of floats that are integers, lanes 0 to 7 to to[0], 8 to 15 to to[8]: no number is
    // subnormal, and no sum rounded.
    QK_INLINE static void add_integers(const float *a, const float *b, float *to) {
        float32x4_t product[4];
        QK_QUARTERS product[q] = vmulq_f32(vld1q_f32(a + 4 * q), vld1q_f32(b + 4 * q));
        const float32x4_t first = vaddq_f32(product[0], product[1]);
        const float32x4_t last = vaddq_f32(product[2], product[3]);
        const float32x2_t sums = vpadd_f32(vpadd_f32(vget_low_f32(first), vget_high_f32(first)),
                                           vpadd_f32(vget_low_f32(last), vget_high_f32(last)));
        to[0] += vget_lane_f32(sums, 0);
        to[8] += vget_lane_f32(sums, 1);
    }

    static Lanes from_integers(const int32x4_t (&a)[4]) {
        Lanes r;
        QK_QUARTERS vst1q_f32(r.v + 4 * q, vcvtq_f32_s32(a[q]));
        return r;
    }

    static Lanes load_f32(const void *from) {
        Lanes r;
        memcpy(r.v, from, sizeof(r.v));
        return r;
    }
    static Lanes load_f32(const void *from, Mask mask) {
        Lanes r = zero_lanes();
        memcpy(r.v, from, size_t(lanes_on(mask)) * 4);
        return r;
    }
    static Lanes load_f16(const void *from, Mask mask) {
        return load_halves<f32_from_f16>(from, mask);
    }
    static Lanes load_bf16(const void *from, Mask mask) {
        return load_halves<f32_from_bf16>(from, mask);
    }
    static Lanes load_s8(const uint8_t *from) {  // 16 bytes
        const int8x16_t bytes = vreinterpretq_s8_u8(vld1q_u8(from));
        const int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_high_s8(bytes);
        return from_integers({vmovl_s16(vget_low_s16(low)), vmovl_high_s16(low),
                              vmovl_s16(vget_low_s16(high)), vmovl_high_s16(high)});
    }
    static void store_f32(float *to, const Lanes &a) { memcpy(to, a.v, sizeof(a.v)); }

    static Words load_words(const uint8_t *from) {
        const uint8x16x4_t bytes = vld4q_u8(from);
        return {{bytes.val[0], bytes.val[1], bytes.val[2], bytes.val[3]}};
    }
    // Nibble `step` of each word, a byte each.
    template <int step>
    static uint8x16_t step_codes(const Words &words) {
        const uint8x16_t bytes = words.v[step / 2];
        return step % 2 == 0 ? vandq_u8(bytes, vdupq_n_u8(15)) : vshrq_n_u8(bytes, 4);
    }

    using Table = Lanes;
    static Table load_table(const float *entries) { return load_f32(entries); }
    static Table scale_table(const Table &table, float scale) { return mul(table, splat(scale)); }
    static Table lower_table(const Table &table, float by) { return add(table, splat(-by)); }

    // 16 codes, one a byte, to 16 floats: a byte of each at a time.
    QK_INLINE static Lanes look_up_codes(const Table &table, uint8x16_t codes) {
        uint8x16x4_t part = vld4q_u8(reinterpret_cast<const uint8_t *>(table.v));
        QK_QUARTERS part.val[q] = vqtbl1q_u8(part.val[q], codes);
        Lanes r;
        vst4q_u8(reinterpret_cast<uint8_t *>(r.v), part);
        return r;
    }
    template <int step>
    QK_INLINE static Lanes look_up(const Table &table, const Words &words) {
        return look_up_codes(table, step_codes<step>(words));
    }
    // 8 bytes, 16 codes in order -> 16 floats.
    template <bool high_first, bool stream>
    static void emit_floats(const uint8_t *codes, const Table &table, char *to) {
        const uint8x8_t bytes = vld1_u8(codes), low = vand_u8(bytes, vdup_n_u8(15));
        const uint8x8_t high = vshr_n_u8(bytes, 4);
        const uint8x8x2_t both = high_first ? vzip_u8(high, low) : vzip_u8(low, high);
        const Lanes lanes = look_up_codes(table, vcombine_u8(both.val[0], both.val[1]));
        memcpy(to, lanes.v, sizeof(lanes.v));
    }

    // 16 -> 8 -> 4 -> 2 -> 1, lane i with lane i + half.
    static float fold_lanes(const Lanes &lanes) {
        float four[4];
        QK_QUARTERS four[q] = (lanes.v[q] + lanes.v[q + 8]) + (lanes.v[q + 4] + lanes.v[q + 12]);
        return (four[0] + four[2]) + (four[1] + four[3]);
    }
    static void fold_rows(const Lanes *rows, float *to) {
        for (int row = 0; row < 8; ++row) to[row] = fold_lanes(rows[row]);
    }

    // 8 scales, one a row.
    static void widen_f16(const char *from, float *to) { widen_8<f32_from_f16>(from, to); }
    static void widen_bf16(const char *from, float *to) { widen_8<f32_from_bf16>(from, to); }
    // 8 scales from 8 codes: code * second + bias.
    static void widen_nested(const char *from, const float *code, const float *second, float bias,
                             float *to) {
        for (int row = 0; row < 8; ++row) {
            const float product = code[uint8_t(from[row])] * second[row];
            to[row] = product + bias;
        }
    }

  private:
    static int lanes_on(Mask mask) {
        return int(mask.count > 16 ? 16 : mask.count < 0 ? 0 : mask.count);
    }
    template <float (*widen)(uint16_t)>
    static Lanes load_halves(const void *from, Mask mask) {
        uint16_t some[16] = {};
        memcpy(some, from, size_t(lanes_on(mask)) * 2);
        Lanes r;
        for (int i = 0; i < 16; ++i) r.v[i] = widen(some[i]);
        return r;
    }
    template <float (*widen)(uint16_t)>
    static void widen_8(const char *from, float *to) {
        uint16_t some[8];
        memcpy(some, from, sizeof(some));
        for (int row = 0; row < 8; ++row) to[row] = widen(some[row]);
    }
};

struct Neon : Fallbacks<NeonBase> {};

static_assert(Shape<Neon> && Arithmetic<Neon> && LookUps<Neon> && Scales<Neon>);

}  // namespace
}  // namespace qk::cpu
