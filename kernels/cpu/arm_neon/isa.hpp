// NEON: from codes to stored values. It has no stores past the caches: `stream` changes nothing.
#pragma once
#include "cpu/arm_neon/lanes.hpp"
#include "cpu/shared/fallbacks.hpp"

namespace qk::cpu {
namespace {

struct NeonCodes : NeonLanes {
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

    // 256 floats in memory, to be indexed by bytes.
    struct WideTable {
        const float *entries;

        explicit WideTable(const float *from) : entries(from) {}
        Lanes look_up(const uint8_t *codes) const {
            float values[16];
            for (int i = 0; i < 16; ++i) values[i] = entries[codes[i]];
            return load_f32(values);
        }
    };
};

// Internal linkage, and with it that of every template over it: files with more instructions
// (dotprod, i8mm) never lend their code to this one.
struct Neon : Fallbacks<NeonCodes> {};

static_assert(InstructionSet<Neon>);

}  // namespace
}  // namespace qk::cpu
