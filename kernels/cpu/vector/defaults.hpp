// What instruction sets other than AVX-512 have no better way for. Included after codes.hpp.
#pragma once
#include "cpu/vector/chunk_bytes.hpp"
#include "cpu/vector/look_up_bytes.hpp"
#include "cpu/vector/nested.hpp"
#include "cpu/vector/turn.hpp"

namespace qk::cpu {
namespace {

inline WidenNested nested_widener() { return widen_gathering; }
inline LookUpBytes byte_looker() { return look_up_wide; }

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

inline void turn_words(const uint8_t *low, const uint8_t *high, Words (&words)[16]) {
    turn_words_in_memory(low, high, words);
}

// to[i * to_stride][j] = from[j * from_stride][i] for 16 x 16 dwords, strides in bytes.
inline void turn_block(const void *from, int64_t from_stride, void *to, int64_t to_stride) {
    turn_in_memory(from, from_stride, to, to_stride);
}

}  // namespace
}  // namespace qk::cpu
