// 16 lanes as four NEON registers. What the shared kernels (kernels/cpu/vector) are written in.
#pragma once
#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

namespace qk::cpu {
namespace {

constexpr uint32_t kLanesFeature = 1u << 16;  // kNeon
constexpr int kVectorBytes = 16;
constexpr int kRowsTogether = 1;
constexpr int kTileVectors = 1, kTileBatch = 6;  // sums that fit the registers

#define QK_QUARTERS _Pragma("GCC unroll 4") for (int q = 0; q < 4; ++q)

struct Lanes {  // 16 floats
    float32x4_t v[4];
};
struct Words {  // 16 32-bit words: a chunk of packed codes
    uint32x4_t v[4];
};
struct Mask {
    int64_t count;  // of lanes that are on, from the first; may be more or less than there are
};

inline Lanes splat(float value) {
    Lanes r;
    QK_QUARTERS r.v[q] = vdupq_n_f32(value);
    return r;
}
inline Lanes zero_lanes() { return splat(0); }
inline Lanes add(const Lanes &a, const Lanes &b) {
    Lanes r;
    QK_QUARTERS r.v[q] = vaddq_f32(a.v[q], b.v[q]);
    return r;
}
inline Lanes mul(const Lanes &a, const Lanes &b) {
    Lanes r;
    QK_QUARTERS r.v[q] = vmulq_f32(a.v[q], b.v[q]);
    return r;
}
inline Lanes fma(const Lanes &a, const Lanes &b, const Lanes &c) {
    Lanes r;
    QK_QUARTERS r.v[q] = vfmaq_f32(c.v[q], a.v[q], b.v[q]);
    return r;
}

inline Mask first_lanes(int64_t count) { return {count}; }

// c where the mask is off.
inline Lanes fma_where(Mask mask, const Lanes &a, const Lanes &b, const Lanes &c) {
    const int32_t iota[4] = {0, 1, 2, 3};
    const int32_t count = int32_t(mask.count > 16 ? 16 : mask.count < 0 ? 0 : mask.count);
    Lanes r = fma(a, b, c);
    QK_QUARTERS {
        const uint32x4_t on = vcltq_s32(vld1q_s32(iota), vdupq_n_s32(count - 4 * q));
        r.v[q] = vbslq_f32(on, r.v[q], c.v[q]);
    }
    return r;
}

// Lanes that are masked off read as zero and touch no memory.
inline Lanes load_f32(const void *from) {
    Lanes r;
    const uint8_t *const at = static_cast<const uint8_t *>(from);
    QK_QUARTERS r.v[q] = vreinterpretq_f32_u8(vld1q_u8(at + 16 * q));
    return r;
}
inline Lanes load_f32(const void *from, Mask mask) {
    float some[16] = {};
    if (mask.count >= 16) return load_f32(from);
    if (mask.count > 0) memcpy(some, from, size_t(mask.count) * 4);
    return load_f32(some);
}

inline float32x4_t f16_to_f32(const uint8_t *from) {
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(from)));
}
inline float32x4_t bf16_to_f32(const uint8_t *from) {
    return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(from)), 16));
}
template <float32x4_t (*widen)(const uint8_t *)>
inline Lanes load_halves(const void *from, Mask mask) {
    uint16_t some[16] = {};
    if (mask.count < 16) {
        if (mask.count > 0) memcpy(some, from, size_t(mask.count) * 2);
        from = some;
    }
    Lanes r;
    QK_QUARTERS r.v[q] = widen(static_cast<const uint8_t *>(from) + 8 * q);
    return r;
}
inline Lanes load_f16(const void *from, Mask mask) { return load_halves<f16_to_f32>(from, mask); }
inline Lanes load_bf16(const void *from, Mask mask) { return load_halves<bf16_to_f32>(from, mask); }
inline Lanes load_signed(const uint8_t *from) {  // 16 bytes
    const int8x16_t bytes = vreinterpretq_s8_u8(vld1q_u8(from));
    const int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_s8(vget_high_s8(bytes));
    return {{vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))),
             vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))),
             vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))),
             vcvtq_f32_s32(vmovl_s16(vget_high_s16(high)))}};
}
inline void store_f32(float *to, const Lanes &a) { QK_QUARTERS vst1q_f32(to + 4 * q, a.v[q]); }

inline void prefetch(const uint8_t *address) { __builtin_prefetch(address, 0, 3); }

inline Words load_words(const uint8_t *from) {
    Words r;
    QK_QUARTERS r.v[q] = vreinterpretq_u32_u8(vld1q_u8(from + 16 * q));
    return r;
}

struct Table {  // 16 floats as 64 bytes, which one instruction looks up
    uint8x16x4_t bytes;
};
inline Table load_table(const float *entries) {
    Table r;
    QK_QUARTERS r.bytes.val[q] = vreinterpretq_u8_f32(vld1q_f32(entries + 4 * q));
    return r;
}
inline Table scale_table(const Table &table, float scale) {
    Table r;
    QK_QUARTERS {
        const float32x4_t entries = vreinterpretq_f32_u8(table.bytes.val[q]);
        r.bytes.val[q] = vreinterpretq_u8_f32(vmulq_n_f32(entries, scale));
    }
    return r;
}
// Nibble `step` of each word: entry c is bytes 4 c .. 4 c + 3.
template <int step>
inline Lanes look_up(const Table &table, const Words &words) {
    Lanes r;
    QK_QUARTERS {
        const uint32x4_t word = words.v[q];
        const uint32x4_t shifted = step == 0 ? word : vshrq_n_u32(word, step * 4 | !step);
        const uint32x4_t code = vandq_u32(shifted, vdupq_n_u32(15));
        const uint32x4_t index =
            vmlaq_u32(vdupq_n_u32(0x03020100), code, vdupq_n_u32(0x04040404));
        r.v[q] = vreinterpretq_f32_u8(vqtbl4q_u8(table.bytes, vreinterpretq_u8_u32(index)));
    }
    return r;
}
// Every word's next nibble becomes its lowest.
inline Words next_nibbles(const Words &words) {
    Words r;
    QK_QUARTERS r.v[q] = vshrq_n_u32(words.v[q], 4);
    return r;
}

// 16 -> 8 -> 4 -> 2 -> 1, lane i with lane i + half.
inline float fold_lanes(const Lanes &lanes) {
    const float32x4_t four = vaddq_f32(vaddq_f32(lanes.v[0], lanes.v[2]),
                                       vaddq_f32(lanes.v[1], lanes.v[3]));
    const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}

inline void fold_rows(const Lanes *rows, float *to) {
    for (int row = 0; row < 8; ++row) to[row] = fold_lanes(rows[row]);
}

// 8 scales, one a row.
template <float32x4_t (*widen)(const uint8_t *)>
inline void widen_8(const char *from, float *to) {
    const uint8_t *const at = reinterpret_cast<const uint8_t *>(from);
    vst1q_f32(to, widen(at));
    vst1q_f32(to + 4, widen(at + 8));
}
inline void widen_f16(const char *from, float *to) { widen_8<f16_to_f32>(from, to); }
inline void widen_bf16(const char *from, float *to) { widen_8<bf16_to_f32>(from, to); }
// 8 scales from 8 codes: code * second + bias.
inline void widen_nested(const char *from, const float *code, const float *second, float bias,
                         float *to) {
    for (int row = 0; row < 8; ++row) {
        const float product = code[uint8_t(from[row])] * second[row];
        to[row] = product + bias;
    }
}

}  // namespace
}  // namespace qk::cpu
