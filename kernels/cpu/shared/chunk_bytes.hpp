// A row of 128 nibbles to a packed chunk and back, in 128-bit registers, which every instruction
// set has: bytes are permuted, and the middle nibbles of pairs of bytes exchanged.
#pragma once
#include <stdint.h>
#include <string.h>

namespace qk::cpu {
namespace {

typedef uint8_t Bytes16 __attribute__((vector_size(16)));
typedef uint16_t Pairs8 __attribute__((vector_size(16)));

inline Bytes16 swap_middle_nibbles(Bytes16 bytes) {
    const Pairs8 x = Pairs8(bytes);
    return Bytes16((x & 0xf00f) | (x >> 4 & 0x00f0) | (x << 4 & 0x0f00));
}

inline Bytes16 low_bytes(Bytes16 a, Bytes16 b) {
    return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}
inline Bytes16 high_bytes(Bytes16 a, Bytes16 b) {
    return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15,
                                   31);
}
inline Bytes16 low_pairs(Bytes16 a, Bytes16 b) {
    return Bytes16(__builtin_shufflevector(Pairs8(a), Pairs8(b), 0, 8, 1, 9, 2, 10, 3, 11));
}
inline Bytes16 high_pairs(Bytes16 a, Bytes16 b) {
    return Bytes16(__builtin_shufflevector(Pairs8(a), Pairs8(b), 4, 12, 5, 13, 6, 14, 7, 15));
}
inline Bytes16 even_bytes(Bytes16 a, Bytes16 b) {
    return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
}
inline Bytes16 odd_bytes(Bytes16 a, Bytes16 b) {
    return __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
}
inline Bytes16 even_pairs(Bytes16 a, Bytes16 b) {
    return Bytes16(__builtin_shufflevector(Pairs8(a), Pairs8(b), 0, 2, 4, 6, 8, 10, 12, 14));
}
inline Bytes16 odd_pairs(Bytes16 a, Bytes16 b) {
    return Bytes16(__builtin_shufflevector(Pairs8(a), Pairs8(b), 1, 3, 5, 7, 9, 11, 13, 15));
}

// Byte p of dword j has columns 32 p + j and 32 p + 16 + j.
inline void pack_chunk_bytes(const uint8_t *from, uint8_t *to) {
    Bytes16 v[4];
    memcpy(v, from, 64);
    for (Bytes16 &each : v) {
        each = swap_middle_nibbles(
            low_bytes(each, __builtin_shufflevector(each, each, 8, 9, 10, 11, 12, 13, 14, 15, 8, 9,
                                                    10, 11, 12, 13, 14, 15)));
    }
    const Bytes16 a = low_bytes(v[0], v[1]), b = high_bytes(v[0], v[1]);
    const Bytes16 c = low_bytes(v[2], v[3]), d = high_bytes(v[2], v[3]);
    v[0] = low_pairs(a, c);
    v[1] = high_pairs(a, c);
    v[2] = low_pairs(b, d);
    v[3] = high_pairs(b, d);
    memcpy(to, v, 64);
}

inline void unpack_chunk_bytes(const uint8_t *from, uint8_t *to) {
    Bytes16 v[4];
    memcpy(v, from, 64);
    const Bytes16 a = even_pairs(v[0], v[1]), b = even_pairs(v[2], v[3]);
    const Bytes16 c = odd_pairs(v[0], v[1]), d = odd_pairs(v[2], v[3]);
    v[0] = even_bytes(a, b);
    v[1] = odd_bytes(a, b);
    v[2] = even_bytes(c, d);
    v[3] = odd_bytes(c, d);
    for (Bytes16 &each : v) {
        each = swap_middle_nibbles(each);
        each = __builtin_shufflevector(each, each, 0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13,
                                       15);
    }
    memcpy(to, v, 64);
}

}  // namespace
}  // namespace qk::cpu
