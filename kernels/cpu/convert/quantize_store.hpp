// Stores codes of a row: whole bytes or words where the layout has them for neighbours in a row.
// Planes of nibbles are zeroed first.
#pragma once
#include "cpu/access.hpp"

namespace qk::cpu {
namespace {

// Pairs of codes to bytes; the first is the low nibble unless `high_first`.
inline void join_pairs(const uint8_t *__restrict codes, int64_t count, bool high_first,
                       uint8_t *__restrict to) {
    const int first = high_first ? 4 : 0, second = 4 - first;
    for (int64_t i = 0; i < count; ++i) {
        const uint16_t pair = load_as<uint16_t>(codes, i);
        to[i] = uint8_t((pair & 0xff) << first | (pair >> 8) << second);
    }
}

inline uint32_t join_eight(const uint8_t *codes) {
    uint64_t x = load_as<uint64_t>(codes, 0);
    x = (x | x >> 4) & 0x00ff00ff00ff00ffu;
    x = (x | x >> 8) & 0x0000ffff0000ffffu;
    return uint32_t(x | x >> 16);
}

// How many of the codes were stored; the rest is for the layout's own function.
inline int64_t store_run(const Weight &w, int64_t row, int64_t column, int64_t count,
                         const uint8_t *codes) {
    const Geometry &s = w.geometry;
    uint8_t *const data = static_cast<uint8_t *>(w.data);
    if (w.layout->bits == 8) {
        memcpy(data + row * s.k + column, codes, size_t(count));
        return count;
    }
    const int64_t pad = run_pad(w), at = row * round_up(s.k, pad > 0 ? pad : 1) + column;
    if (pad > 0 && at % 2 == 0) {
        join_pairs(codes, count / 2, w.layout->id == QK_LAYOUT_ROW_HIGH, data + at / 2);
        return count / 2 * 2;
    }
    int64_t done = 0;
    if (w.layout->id == kLayoutRows8 && column % 16 == 0) {
        for (; done + 16 <= count; done += 16) {
            const int64_t c = column + done;
            uint8_t *const chunk =
                data + ((row / 8 * ceil_div(s.k, 128) + c / 128) * 8 + row % 8) * 64;
            uint32_t words[16];
            memcpy(words, chunk, 64);
            for (int i = 0; i < 16; ++i) words[i] |= uint32_t(codes[done + i]) << c / 16 % 8 * 4;
            memcpy(chunk, words, 64);
        }
    }
    return done;
}

}  // namespace
}  // namespace qk::cpu
