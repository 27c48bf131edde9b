// x of int8 mode in chunks of 128 columns, laid out as a chunk of packed codes is (rows8: a row in
// 64 bytes). Bytes 4 j .. 4 j + 3 of a chunk of codes hold columns 32 b + j in the low and
// 32 b + 16 + j in the high nibble of byte b:
//
//     one block    dword j: columns j, 32 + j, 64 + j, 96 + j       as codes are stored
//     else         dword 4 t + b: columns 32 b + 4 t + 0..3         after the bytes of four dwords
//                  changed places, so that dwords belong to one group of 32
#pragma once
#include "cpu/int8/integers.hpp"

namespace qk::cpu {
namespace {

struct PlainChunk {
    int8_t low[64], high[64];  // for the low and the high nibbles
    float scale[8];            // a block; the unit of entries is in it
    int32_t sum[8];            // of a block's integers
};

inline void transpose_bytes_of_x(int8_t *at) {
    typedef int8_t Bytes __attribute__((vector_size(16)));
    Bytes b;
    memcpy(&b, at, 16);
    b = __builtin_shufflevector(b, b, 0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    memcpy(at, &b, 16);
}

inline void quantize_plain(const float *x, int64_t blocks, float unit, PlainChunk *to) {
    alignas(64) int8_t q[128];
    const int64_t size = 128 / blocks;
    for (int64_t b = 0; b < blocks; ++b) {
        const Int8Scale s = int8_block(x + b * size, size, unit, q + b * size);
        to->scale[b] = s.scale;
        to->sum[b] = s.sum;
    }
    for (int t = 0; t < 4; ++t) {
        for (int b = 0; b < 4; ++b) {
            memcpy(to->low + 16 * t + 4 * b, q + 32 * b + 4 * t, 4);
            memcpy(to->high + 16 * t + 4 * b, q + 32 * b + 16 + 4 * t, 4);
        }
    }
    if (blocks > 1) return;
    for (int i = 0; i < 64; i += 16) {  // transposing 4 x 4 is its own inverse
        transpose_bytes_of_x(to->low + i);
        transpose_bytes_of_x(to->high + i);
    }
}

}  // namespace
}  // namespace qk::cpu
