// Rows out of layouts that store columns one after the other: a tile of codes of awq_gemm, gptq or
// gptq_v1 as runs of nibbles, a row each, low nibble first. Words are moved by vectors that every
// instruction set has.
#pragma once
#include "base/checked.hpp"
#include "cpu/access.hpp"

namespace qk::cpu {
namespace {

inline bool stores_columns(const Weight &w) {
    const qk_layout id = w.layout->id;
    return id == QK_LAYOUT_AWQ_GEMM || id == QK_LAYOUT_GPTQ || id == QK_LAYOUT_GPTQ_V1;
}

typedef uint32_t Words4 __attribute__((vector_size(16)));

// The first `count` of four words.
inline Words4 load_words4(const char *from, int64_t count) {
    Words4 words = {};
    if (count >= 4) {
        memcpy(&words, from, sizeof(words));
    } else {
        memcpy(&words, from, size_t(count) * 4);
    }
    return words;
}

// Dword j of vector i becomes dword i of vector j.
inline void transpose4(Words4 (&v)[4]) {
    const Words4 a = __builtin_shufflevector(v[0], v[1], 0, 4, 1, 5);
    const Words4 b = __builtin_shufflevector(v[2], v[3], 0, 4, 1, 5);
    const Words4 c = __builtin_shufflevector(v[0], v[1], 2, 6, 3, 7);
    const Words4 d = __builtin_shufflevector(v[2], v[3], 2, 6, 3, 7);
    v[0] = __builtin_shufflevector(a, b, 0, 1, 4, 5);
    v[1] = __builtin_shufflevector(a, b, 2, 3, 6, 7);
    v[2] = __builtin_shufflevector(c, d, 0, 1, 4, 5);
    v[3] = __builtin_shufflevector(c, d, 2, 3, 6, 7);
}

// Nibble j of word i becomes nibble i of word j, in four words side by side.
inline void transpose_nibbles(Words4 (&v)[8]) {
    const auto swap = [](Words4 &a, Words4 &b, int bits, uint32_t low) {
        const Words4 t = ((a >> bits) ^ b) & low;
        b ^= t;
        a ^= t << bits;
    };
    for (int i = 0; i < 8; i += 2) swap(v[i], v[i + 1], 4, 0x0f0f0f0f);
    for (int i = 0; i < 8; i += 4) swap(v[i], v[i + 2], 8, 0x00ff00ff);
    for (int i = 1; i < 8; i += 4) swap(v[i], v[i + 2], 8, 0x00ff00ff);
    for (int i = 0; i < 4; ++i) swap(v[i], v[i + 4], 16, 0x0000ffff);
}

class RowTile {
  public:
    static constexpr int64_t kRows = 128, kColumns = 512;

    // Rows and columns first .. last; the first of each a multiple of kRows and kColumns.
    void load(const Weight &w, int64_t row, int64_t row_end, int64_t column, int64_t column_end) {
        w.layout->id == QK_LAYOUT_AWQ_GEMM ? load_awq(w, row, row_end, column, column_end)
                                           : load_gptq(w, row, row_end, column, column_end);
    }
    const uint8_t *row(int64_t index) const {
        return reinterpret_cast<const uint8_t *>(words_[index]);
    }

  private:
    static constexpr int64_t kLines = kColumns / 8;  // words of a row
    static constexpr int64_t kPitch = kLines + 4;    // rows apart, so that columns share no set

    // A word is 8 columns of a row; a line has a word of each row.
    void load_gptq(const Weight &w, int64_t row, int64_t row_end, int64_t column,
                   int64_t column_end) {
        const Geometry &s = w.geometry;
        const int64_t first = column / 8, lines = ceil_div(column_end, 8) - first;
        const char *const data = static_cast<const char *>(w.data);
        for (int64_t line = 0; line < lines; line += 4) {
            const char *from = data + ((first + line) * s.n + row) * 4;
            for (int64_t r = 0; r < row_end - row; r += 4, from += 16) {
                Words4 v[4] = {};
                for (int64_t i = 0; i < min64(4, lines - line); ++i) {
                    const char *const at = from + i * s.n * 4;
                    __builtin_prefetch(at + 4 * s.n * 4, 0, 3);
                    v[i] = load_words4(at, row_end - row - r);
                }
                transpose4(v);
                for (int64_t i = 0; i < 4; ++i) memcpy(words_[r + i] + line, &v[i], 16);
            }
        }
    }

    // A word is 8 rows of a column (their order: see the layout), a line all rows of a column.
    void load_awq(const Weight &w, int64_t row, int64_t row_end, int64_t column,
                  int64_t column_end) {
        const int64_t pitch = ceil_div(w.geometry.n, 8), words = ceil_div(row_end - row, 8);
        const char *const data = static_cast<const char *>(w.data) + row / 8 * 4;
        for (int64_t c = column; c < column_end; c += 32) {
            for (int64_t word = 0; word < words; word += 4) {
                Words4 v[4][8] = {};  // of 8 columns each
                for (int64_t i = 0; i < min64(32, column_end - c); ++i) {
                    const char *const at = data + ((c + i) * pitch + word) * 4;
                    if (word == 0) __builtin_prefetch(at + 32 * pitch * 4, 0, 3);
                    v[i >> 3][i & 7] = load_words4(at, words - word);
                }
                for (Words4(&eight)[8] : v) transpose_nibbles(eight);
                for (int64_t nibble = 0; nibble < 8; ++nibble) {
                    Words4 four[4] = {v[0][nibble], v[1][nibble], v[2][nibble], v[3][nibble]};
                    transpose4(four);
                    const int64_t r = nibble < 4 ? 2 * nibble : 2 * nibble - 7;
                    for (int64_t i = 0; i < 4; ++i) {
                        memcpy(words_[(word + i) * 8 + r] + (c - column) / 8, &four[i], 16);
                    }
                }
            }
        }
    }

    alignas(64) uint32_t words_[kRows][kPitch];
};

}  // namespace
}  // namespace qk::cpu
