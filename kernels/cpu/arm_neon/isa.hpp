// NEON: 16 lanes of f32 are four registers.
#pragma once
#include <stdint.h>
#include <string.h>

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
    static constexpr int kTileVectors = 1, kTileBatch = 6;  // sums that fit the registers

#define QK_QUARTERS _Pragma("GCC unroll 4") for (int q = 0; q < 4; ++q)

    struct Lanes {  // 16 floats
        float32x4_t v[4];
    };
    struct Words {  // 16 32-bit words, a chunk of packed codes: byte b of each
        uint8x16_t v[4];
    };
    struct Mask {
        int64_t count;  // of lanes that are on, from the first; may be more or less than there are
    };

    static Lanes splat(float value) {
        Lanes r;
        QK_QUARTERS r.v[q] = vdupq_n_f32(value);
        return r;
    }
    static Lanes splat_two(const float *two) {
        Lanes r;
        QK_QUARTERS r.v[q] = vdupq_n_f32(two[q / 2]);
        return r;
    }
    static Lanes zero_lanes() { return splat(0); }
    static Lanes add(const Lanes &a, const Lanes &b) {
        Lanes r;
        QK_QUARTERS r.v[q] = vaddq_f32(a.v[q], b.v[q]);
        return r;
    }
    static Lanes mul(const Lanes &a, const Lanes &b) {
        Lanes r;
        QK_QUARTERS r.v[q] = vmulq_f32(a.v[q], b.v[q]);
        return r;
    }
    static Lanes fma(const Lanes &a, const Lanes &b, const Lanes &c) {
        Lanes r;
        QK_QUARTERS r.v[q] = vfmaq_f32(c.v[q], a.v[q], b.v[q]);
        return r;
    }

    // The same of four.
    static float32x4_t mul4(float32x4_t a, float32x4_t b) { return vmulq_f32(a, b); }
    static float32x4_t sub4(float32x4_t a, float32x4_t b) { return vsubq_f32(a, b); }
    static float32x4_t fma4(float32x4_t a, float32x4_t b, float32x4_t c) {
        return vfmaq_f32(c, a, b);
    }

    static Lanes from_integers(const int32x4_t (&a)[4]) {
        Lanes r;
        QK_QUARTERS r.v[q] = vcvtq_f32_s32(a[q]);
        return r;
    }

    static Mask first_lanes(int64_t count) { return {count}; }

    // c where the mask is off.
    static Lanes fma_where(Mask mask, const Lanes &a, const Lanes &b, const Lanes &c) {
        const int32_t iota[4] = {0, 1, 2, 3};
        const int32_t count = int32_t(mask.count > 16 ? 16 : mask.count < 0 ? 0 : mask.count);
        Lanes r = fma(a, b, c);
        QK_QUARTERS {
            const uint32x4_t on = vcltq_s32(vld1q_s32(iota), vdupq_n_s32(count - 4 * q));
            r.v[q] = vbslq_f32(on, r.v[q], c.v[q]);
        }
        return r;
    }

    // b where the mask is off.
    static Lanes where(Mask mask, const Lanes &a, const Lanes &b) {
        const int32_t iota[4] = {0, 1, 2, 3};
        const int32_t count = int32_t(mask.count > 16 ? 16 : mask.count < 0 ? 0 : mask.count);
        Lanes r;
        QK_QUARTERS {
            const uint32x4_t on = vcltq_s32(vld1q_s32(iota), vdupq_n_s32(count - 4 * q));
            r.v[q] = vbslq_f32(on, a.v[q], b.v[q]);
        }
        return r;
    }

    // a where a lane's end is at or before `column`, else b.
    static Lanes where_past(const int32_t *ends, int32_t column, const Lanes &a, const Lanes &b) {
        Lanes r;
        QK_QUARTERS {
            const uint32x4_t past = vcleq_s32(vld1q_s32(ends + 4 * q), vdupq_n_s32(column));
            r.v[q] = vbslq_f32(past, a.v[q], b.v[q]);
        }
        return r;
    }

    // Lanes that are masked off read as zero and touch no memory.
    static Lanes load_f32(const void *from) {
        Lanes r;
        const uint8_t *const at = static_cast<const uint8_t *>(from);
        QK_QUARTERS r.v[q] = vreinterpretq_f32_u8(vld1q_u8(at + 16 * q));
        return r;
    }
    static Lanes load_f32(const void *from, Mask mask) {
        float some[16] = {};
        if (mask.count >= 16) return load_f32(from);
        if (mask.count > 0) memcpy(some, from, size_t(mask.count) * 4);
        return load_f32(some);
    }

    static float32x4_t f16_to_f32(const uint8_t *from) {
        return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(from)));
    }
    static float32x4_t bf16_to_f32(const uint8_t *from) {
        return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(from)), 16));
    }
    template <float32x4_t (*widen)(const uint8_t *)>
    static Lanes load_halves(const void *from, Mask mask) {
        uint16_t some[16] = {};
        if (mask.count < 16) {
            if (mask.count > 0) memcpy(some, from, size_t(mask.count) * 2);
            from = some;
        }
        Lanes r;
        QK_QUARTERS r.v[q] = widen(static_cast<const uint8_t *>(from) + 8 * q);
        return r;
    }
    static Lanes load_f16(const void *from, Mask mask) {
        return load_halves<f16_to_f32>(from, mask);
    }
    static Lanes load_bf16(const void *from, Mask mask) {
        return load_halves<bf16_to_f32>(from, mask);
    }
    static Lanes load_s8(const uint8_t *from) {  // 16 bytes
        const int8x16_t bytes = vreinterpretq_s8_u8(vld1q_u8(from));
        const int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_s8(vget_high_s8(bytes));
        return {{vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))),
                 vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))),
                 vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))),
                 vcvtq_f32_s32(vmovl_s16(vget_high_s16(high)))}};
    }
    static void store_f32(float *to, const Lanes &a) { QK_QUARTERS vst1q_f32(to + 4 * q, a.v[q]); }

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

    struct Table {  // 16 floats
        float32x4_t v[4];
    };
    static Table load_table(const float *entries) {
        Table r;
        QK_QUARTERS r.v[q] = vld1q_f32(entries + 4 * q);
        return r;
    }
    static Table scale_table(const Table &table, float scale) {
        Table r;
        QK_QUARTERS r.v[q] = vmulq_n_f32(table.v[q], scale);
        return r;
    }
    static Table lower_table(const Table &table, float by) {
        Table r;
        QK_QUARTERS r.v[q] = vsubq_f32(table.v[q], vdupq_n_f32(by));
        return r;
    }
    // Byte p of each entry. Compilers part a table once where it stays.
    struct TableBytes {
        uint8x16_t v[4];
    };
    static TableBytes part_table(const Table &table) {
        uint16x8_t v[4];
        QK_QUARTERS v[q] = vreinterpretq_u16_f32(table.v[q]);
        const uint8x16_t low[2] = {vreinterpretq_u8_u16(vuzp1q_u16(v[0], v[1])),
                                   vreinterpretq_u8_u16(vuzp1q_u16(v[2], v[3]))};
        const uint8x16_t high[2] = {vreinterpretq_u8_u16(vuzp2q_u16(v[0], v[1])),
                                    vreinterpretq_u8_u16(vuzp2q_u16(v[2], v[3]))};
        return {{vuzp1q_u8(low[0], low[1]), vuzp2q_u8(low[0], low[1]), vuzp1q_u8(high[0], high[1]),
                 vuzp2q_u8(high[0], high[1])}};
    }
    // 16 codes, one a byte, to 16 floats: a byte of each at a time, 12 instructions. One table of
    // 64 bytes wants an index of every byte, 16 instructions, and most processors look up in pieces
    // there.
    QK_INLINE static Lanes look_up_codes(const TableBytes &table, uint8x16_t codes) {
        uint8x16_t part[4];
        QK_QUARTERS part[q] = vqtbl1q_u8(table.v[q], codes);
        const uint16x8_t low[2] = {vreinterpretq_u16_u8(vzip1q_u8(part[0], part[1])),
                                   vreinterpretq_u16_u8(vzip2q_u8(part[0], part[1]))};
        const uint16x8_t high[2] = {vreinterpretq_u16_u8(vzip1q_u8(part[2], part[3])),
                                    vreinterpretq_u16_u8(vzip2q_u8(part[2], part[3]))};
        return {{vreinterpretq_f32_u16(vzip1q_u16(low[0], high[0])),
                 vreinterpretq_f32_u16(vzip2q_u16(low[0], high[0])),
                 vreinterpretq_f32_u16(vzip1q_u16(low[1], high[1])),
                 vreinterpretq_f32_u16(vzip2q_u16(low[1], high[1]))}};
    }
    template <int step>
    QK_INLINE static Lanes look_up(const Table &table, const Words &words) {
        return look_up_codes(part_table(table), step_codes<step>(words));
    }

    // 16 -> 8 -> 4 -> 2 -> 1, lane i with lane i + half.
    static float fold_lanes(const Lanes &lanes) {
        const float32x4_t four =
            vaddq_f32(vaddq_f32(lanes.v[0], lanes.v[2]), vaddq_f32(lanes.v[1], lanes.v[3]));
        const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
        return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
    }

    static void fold_rows(const Lanes *rows, float *to) {
        for (int row = 0; row < 8; ++row) to[row] = fold_lanes(rows[row]);
    }

    // 8 scales, one a row.
    template <float32x4_t (*widen)(const uint8_t *)>
    static void widen_8(const char *from, float *to) {
        const uint8_t *const at = reinterpret_cast<const uint8_t *>(from);
        vst1q_f32(to, widen(at));
        vst1q_f32(to + 4, widen(at + 8));
    }
    static void widen_f16(const char *from, float *to) { widen_8<f16_to_f32>(from, to); }
    static void widen_bf16(const char *from, float *to) { widen_8<bf16_to_f32>(from, to); }
    // 8 scales from 8 codes: code * second + bias.
    static void widen_nested(const char *from, const float *code, const float *second, float bias,
                             float *to) {
        for (int row = 0; row < 8; ++row) {
            const float product = code[uint8_t(from[row])] * second[row];
            to[row] = product + bias;
        }
    }

    static void stream_64(const char *from, char *to) { memcpy(to, from, 64); }
    static void end_stream() {}

    // 16 lanes as bits of the output type.
    static void narrow_f16(Lanes a, uint16_t *to) {
        QK_QUARTERS vst1_u16(to + 4 * q, vreinterpret_u16_f16(vcvt_f16_f32(a.v[q])));
    }
    static void narrow_bf16(Lanes a, uint16_t *to) {
        QK_QUARTERS {
            const uint32x4_t bits = vreinterpretq_u32_f32(a.v[q]);
            const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
            const uint32x4_t round = vaddq_u32(odd, vdupq_n_u32(0x7fff));
            const uint32x4_t number = vceqq_f32(a.v[q], a.v[q]);
            const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x7fc00000));
            vst1_u16(to + 4 * q, vshrn_n_u32(vbslq_u32(number, vaddq_u32(bits, round), quiet), 16));
        }
    }

    static void put_lanes(char *to, const Lanes &lanes) {
        uint8_t *const bytes = reinterpret_cast<uint8_t *>(to);
        QK_QUARTERS vst1q_u8(bytes + 16 * q, vreinterpretq_u8_f32(lanes.v[q]));
    }
    using FloatTable = TableBytes;
    static FloatTable load_floats_table(const float *values) {
        const uint8x16x4_t part = vld4q_u8(reinterpret_cast<const uint8_t *>(values));
        return {{part.val[0], part.val[1], part.val[2], part.val[3]}};
    }
    // 8 bytes, 16 codes in order -> 16 floats.
    template <bool high_first, bool stream>
    static void emit_floats(const uint8_t *codes, const FloatTable &table, char *to) {
        const uint8x8_t bytes = vld1_u8(codes), low = vand_u8(bytes, vdup_n_u8(15));
        const uint8x8_t high = vshr_n_u8(bytes, 4);
        const uint8x8x2_t both = high_first ? vzip_u8(high, low) : vzip_u8(low, high);
        put_lanes(to, look_up_codes(table, vcombine_u8(both.val[0], both.val[1])));
    }
    template <bool high_first, bool stream>
    static void emit_floats(const uint8_t *codes, const Table &table, char *to) {
        emit_floats<high_first, stream>(codes, part_table(table), to);
    }
    template <int step, bool stream>
    static void emit_step(const Words &words, const FloatTable &table, char *to) {
        put_lanes(to, look_up_codes(table, step_codes<step>(words)));
    }

    struct HalfTable {  // 16 16-bit values as low and high bytes
        uint8x16_t low, high;
    };
    static HalfTable load_halves_table(const uint16_t *values) {
        const uint8x16x2_t parts = vld2q_u8(reinterpret_cast<const uint8_t *>(values));
        return {parts.val[0], parts.val[1]};
    }
    // 16 codes, one a byte.
    static void put_halves(char *to, uint8x16_t codes, const HalfTable &table) {
        const uint8x16_t low = vqtbl1q_u8(table.low, codes), high = vqtbl1q_u8(table.high, codes);
        vst1q_u8(reinterpret_cast<uint8_t *>(to), vzip1q_u8(low, high));
        vst1q_u8(reinterpret_cast<uint8_t *>(to) + 16, vzip2q_u8(low, high));
    }
    // 16 bytes, 32 codes in order -> 32 halves.
    template <bool high_first, bool stream>
    static void emit_halves(const uint8_t *codes, const HalfTable &table, char *to) {
        const uint8x16_t bytes = vld1q_u8(codes);
        const uint8x16_t low = vandq_u8(bytes, vdupq_n_u8(15)), high = vshrq_n_u8(bytes, 4);
        const uint8x16_t even = high_first ? high : low, odd = high_first ? low : high;
        put_halves(to, vzip1q_u8(even, odd), table);
        put_halves(to + 32, vzip2q_u8(even, odd), table);
    }
    // Nibbles `step` and `step` + 1 of 16 words -> 32 halves.
    template <int step, bool stream>
    static void emit_step_halves(const Words &words, const HalfTable &table, char *to) {
        put_halves(to, step_codes<step>(words), table);
        put_halves(to + 32, step_codes<step + 1>(words), table);
    }
};

// Internal linkage, and with it that of every template over it: files with more instructions
// (dotprod, i8mm) never lend their code to this one.
struct Neon : Fallbacks<NeonBase> {};

static_assert(InstructionSet<Neon>);

}  // namespace
}  // namespace qk::cpu
