// From nibbles to stored values, NEON. `stream` has no instruction here worth its name.
#pragma once
#include "cpu/arm_neon/lanes.hpp"

namespace qk::cpu {
namespace {

inline void stream_64(const char *from, char *to) { memcpy(to, from, 64); }
inline void end_stream() {}

// 16 lanes as bits of the output type.
inline void narrow_f16(Lanes a, uint16_t *to) {
    QK_QUARTERS vst1_u16(to + 4 * q, vreinterpret_u16_f16(vcvt_f16_f32(a.v[q])));
}
inline void narrow_bf16(Lanes a, uint16_t *to) {
    QK_QUARTERS {
        const uint32x4_t bits = vreinterpretq_u32_f32(a.v[q]);
        const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
        const uint32x4_t round = vaddq_u32(odd, vdupq_n_u32(0x7fff));
        const uint32x4_t number = vceqq_f32(a.v[q], a.v[q]);
        const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x7fc00000));
        vst1_u16(to + 4 * q, vshrn_n_u32(vbslq_u32(number, vaddq_u32(bits, round), quiet), 16));
    }
}

inline void put_lanes(char *to, const Lanes &lanes) {
    uint8_t *const bytes = reinterpret_cast<uint8_t *>(to);
    QK_QUARTERS vst1q_u8(bytes + 16 * q, vreinterpretq_u8_f32(lanes.v[q]));
}
// 8 bytes, 16 codes in order -> 16 floats.
template <bool high_first, bool stream>
inline void emit_floats(const uint8_t *codes, const Table &table, char *to) {
    const int32_t low[8] = {0, -4, -8, -12, -16, -20, -24, -28};
    const int32_t high[8] = {-4, 0, -12, -8, -20, -16, -28, -24};
    uint32_t word[2];
    memcpy(word, codes, 8);
    Words words;
    QK_QUARTERS {
        const int32x4_t shift = vld1q_s32((high_first ? high : low) + q % 2 * 4);
        words.v[q] = vshlq_u32(vdupq_n_u32(word[q / 2]), shift);
    }
    put_lanes(to, look_up<0>(table, words));
}
template <int step, bool stream>
inline void emit_step(const Words &words, const Table &table, char *to) {
    put_lanes(to, look_up<step>(table, words));
}

struct HalfTable {  // 16 16-bit values as low and high bytes
    uint8x16_t low, high;
};
inline HalfTable load_halves_table(const uint16_t *values) {
    const uint8x16x2_t parts = vld2q_u8(reinterpret_cast<const uint8_t *>(values));
    return {parts.val[0], parts.val[1]};
}
// 16 codes, one a byte.
inline void put_halves(char *to, uint8x16_t codes, const HalfTable &table) {
    const uint8x16x2_t halves = {{vqtbl1q_u8(table.low, codes), vqtbl1q_u8(table.high, codes)}};
    vst2q_u8(reinterpret_cast<uint8_t *>(to), halves);
}
// 16 bytes, 32 codes in order -> 32 halves.
template <bool high_first, bool stream>
inline void emit_halves(const uint8_t *codes, const HalfTable &table, char *to) {
    const uint8x16_t bytes = vld1q_u8(codes);
    const uint8x16_t low = vandq_u8(bytes, vdupq_n_u8(15)), high = vshrq_n_u8(bytes, 4);
    const uint8x16_t even = high_first ? high : low, odd = high_first ? low : high;
    put_halves(to, vzip1q_u8(even, odd), table);
    put_halves(to + 32, vzip2q_u8(even, odd), table);
}
template <int step>
inline uint8x16_t step_codes(const Words &words) {  // nibble `step` of 16 words, one a byte
    uint16x4_t half[4];
    QK_QUARTERS {
        const uint32x4_t code = vshlq_u32(words.v[q], vdupq_n_s32(-4 * step));
        half[q] = vmovn_u32(vandq_u32(code, vdupq_n_u32(15)));
    }
    return vcombine_u8(vmovn_u16(vcombine_u16(half[0], half[1])),
                       vmovn_u16(vcombine_u16(half[2], half[3])));
}
// Nibbles `step` and `step` + 1 of 16 words -> 32 halves.
template <int step, bool stream>
inline void emit_step_halves(const Words &words, const HalfTable &table, char *to) {
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

}  // namespace
}  // namespace qk::cpu
