// What instruction sets other than AVX-512 have no better way for. Included after codes.hpp.
#pragma once
#include "backend/backend.hpp"
#include "cpu/vector/chunk_bytes.hpp"
#include "cpu/vector/look_up_bytes.hpp"
#include "cpu/vector/nested_gathering.hpp"
#include "cpu/vector/steps.hpp"
#include "cpu/vector/turn.hpp"

namespace qk::cpu {
namespace {

inline LookUpBytes byte_looker(const Device &) { return look_up_wide; }
inline LookUpHalves halves_looker(const Device &) { return nullptr; }

inline void narrow_two_f16(const Lanes &a, const Lanes &b, uint16_t *to) {
    narrow_f16(a, to);
    narrow_f16(b, to + 16);
}
inline void narrow_two_bf16(const Lanes &a, const Lanes &b, uint16_t *to) {
    narrow_bf16(a, to);
    narrow_bf16(b, to + 16);
}

// 32 numbers, 64 bytes.
template <class Narrow>
inline void put_halves(const Lanes &a, const Lanes &b, char *to, bool stream,
                       const Narrow &narrow) {
    alignas(64) uint16_t half[32];
    narrow(a, half);
    narrow(b, half + 16);
    stream ? stream_64(reinterpret_cast<const char *>(half), to) : void(memcpy(to, half, 64));
}
inline void put_f16(const Lanes &a, const Lanes &b, char *to, bool stream) {
    put_halves(a, b, to, stream, narrow_f16);
}
inline void put_bf16(const Lanes &a, const Lanes &b, char *to, bool stream) {
    put_halves(a, b, to, stream, narrow_bf16);
}

// Weights of 16 rows' codes: nibble `step` of dword j of every row is column 16 * step + j, which
// goes to to[column * pitch]. `codes`: of rows 0..7 and 8..15; scales (and zeros, negated) by step.
template <bool zeros>
inline void look_up_turned(const uint8_t *const (&codes)[2], const Table &entries,
                           const float *const *scales, const float *const *minus_zeros, float *to,
                           int64_t pitch) {
    uint8_t turned[16][64];
    turn_rows(codes[0], codes[1], turned);
    const Table table = entries;  // a copy that nothing points to
    for (int64_t j = 0; j < 16; ++j, to += pitch) {
        const Words words = load_words(turned[j]);
        const auto put = [&]<int step>() __attribute__((always_inline)) {
            Lanes entry = look_up<step>(table, words);
            if (zeros) entry = add(entry, load_f32(minus_zeros[step]));
            store_f32(to + 16 * step * pitch, mul(entry, load_f32(scales[step])));
        };
        for_each_step(put);
    }
}

// to[i * to_stride][j] = from[j * from_stride][i] for 16 x 16 dwords, strides in bytes.
inline void turn_block(const void *from, int64_t from_stride, void *to, int64_t to_stride) {
    turn_in_memory(from, from_stride, to, to_stride);
}

}  // namespace
}  // namespace qk::cpu
