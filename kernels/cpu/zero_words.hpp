// Zeros of 8 rows at a time, as a word: nibble i is row 8 * block + i. Most layouts store such
// words, in one order or another.
#pragma once
#include "cpu/access.hpp"
#include "cpu/shared/transpose.hpp"

namespace qk::cpu {
namespace {

// Nibbles 0, 2, 4, 6, 1, 3, 5, 7 in order (awq_gemm's rows), and back.
inline uint32_t spread_nibbles(uint32_t x) {
    x = (x | x << 8) & 0x00ff00ffu;
    return (x | x << 4) & 0x0f0f0f0fu;
}
inline uint32_t gather_nibbles(uint32_t x) {
    x = (x | x >> 4) & 0x00ff00ffu;
    return (x | x >> 8) & 0x0000ffffu;
}
inline uint32_t from_awq_order(uint32_t x) {
    return spread_nibbles(x & 0xffffu) | spread_nibbles(x >> 16) << 4;
}
inline uint32_t to_awq_order(uint32_t x) {
    return gather_nibbles(x & 0x0f0f0f0fu) | gather_nibbles(x >> 4 & 0x0f0f0f0fu) << 16;
}
// Every nibble plus or minus 1, modulo 16.
inline uint32_t nibbles_plus_one(uint32_t x) {
    return ((x & 0x77777777u) + 0x11111111u) ^ (x & 0x88888888u);
}
inline uint32_t nibbles_minus_one(uint32_t x) {
    return ((x | 0x88888888u) - 0x11111111u) ^ (~x & 0x88888888u);
}

// Nibble j of word i becomes nibble i of word j; words may be vectors of them.
template <class Word>
QK_INLINE inline void transpose_nibbles(Word (&v)[8]) {
    const auto swap = [](Word &a, Word &b, int bits, uint32_t low) QK_INLINE {
        const Word t = ((a >> bits) ^ b) & low;
        b ^= t;
        a ^= t << bits;
    };
    QK_UNROLL for (int i = 0; i < 8; i += 2) swap(v[i], v[i + 1], 4, 0x0f0f0f0f);
    QK_UNROLL for (int i = 0; i < 8; i += 4) swap(v[i], v[i + 2], 8, 0x00ff00ff);
    QK_UNROLL for (int i = 1; i < 8; i += 4) swap(v[i], v[i + 2], 8, 0x00ff00ff);
    QK_UNROLL for (int i = 0; i < 4; ++i) swap(v[i], v[i + 4], 16, 0x0000ffff);
}

// A nibble a byte, in order.
inline uint64_t bytes_of_nibbles(uint32_t word) {
    uint64_t x = word;
    x = (x | x << 16) & 0x0000ffff0000ffffu;
    x = (x | x << 8) & 0x00ff00ff00ff00ffu;
    return (x | x << 4) & 0x0f0f0f0f0f0f0f0fu;
}

class ZeroWords {
  public:
    explicit ZeroWords(const Weight &w) : w_(w) {
        const int64_t groups = w.geometry.groups_per_row, words = ceil_div(w.geometry.n, 8);
        switch (w.layout->id) {
            case QK_LAYOUT_AWQ_GEMM:
            case QK_LAYOUT_GPTQ:
            case QK_LAYOUT_GPTQ_V1: block_stride_ = 1, group_stride_ = words; break;
            case QK_LAYOUT_WORD:
            case kLayoutRows8: block_stride_ = groups, group_stride_ = 1; break;
            default: break;  // a nibble at a time
        }
    }

    // Whether eight rows have a word.
    bool in_words() const { return group_stride_ != 0; }

    // Rows past the last are 0.
    uint32_t read(int64_t block, int64_t group) const {
        const int64_t rows = min64(8, w_.geometry.n - block * 8);
        const uint32_t real = uint32_t((uint64_t{1} << rows * 4) - 1);
        if (w_.zero == nullptr) return 0x88888888u & real;
        if (group_stride_ == 0) {
            uint32_t word = 0;
            for (int64_t r = 0; r < rows; ++r) {
                word |= uint32_t(zero_of(w_, {block * 8 + r, group})) << 4 * r;
            }
            return word;
        }
        uint32_t word = load_as<uint32_t>(w_.zero, place(block, group));
        if (w_.layout->id == QK_LAYOUT_AWQ_GEMM) word = from_awq_order(word);
        if (w_.layout->zero_offset != 0) word = nibbles_plus_one(word);
        return word & real;
    }
    // Into a plane that is 0.
    void write(int64_t block, int64_t group, uint32_t word) const {
        const int64_t rows = min64(8, w_.geometry.n - block * 8);
        if (group_stride_ == 0) {
            for (int64_t r = 0; r < rows; ++r) {
                store_zero(w_, {block * 8 + r, group}, int(word >> 4 * r & 15));
            }
            return;
        }
        if (w_.layout->zero_offset != 0) word = nibbles_minus_one(word);
        word &= uint32_t((uint64_t{1} << rows * 4) - 1);
        if (w_.layout->id == QK_LAYOUT_AWQ_GEMM) word = to_awq_order(word);
        store_as(w_.zero, place(block, group), word);
    }

  private:
    int64_t place(int64_t block, int64_t group) const {
        return block * block_stride_ + group * group_stride_;
    }

    const Weight &w_;
    int64_t block_stride_ = 0, group_stride_ = 0;
};

// The same of a run of groups. Where zeros are stored row by row, 32 or eight of each of eight rows
// are transposed at once.
class ZerosOfBlocks {
  public:
    explicit ZerosOfBlocks(const Weight &w)
        : w_(w), words_(w), high_(w.layout->id == QK_LAYOUT_ROW_HIGH),
          pitch_(w.geometry.flat ? 0 : nibble_of(1) - nibble_of(0)) {}

    // Into whole runs of 8.
    QK_NOINLINE void read(int64_t block, int64_t first, int64_t count, uint32_t *to) const {
        if (words_.in_words() || w_.geometry.flat) {
            for (int64_t g = 0; g < count; ++g) to[g] = words_.read(block, first + g);
            return;
        }
        const int64_t rows = min64(8, w_.geometry.n - block * 8);
        const int64_t start = block * 8 * pitch_ + first;  // nibbles
        if (start % 2 != 0 || pitch_ % 2 != 0) {
            for (int64_t g = 0; g < count; ++g) to[g] = words_.read(block, first + g);
            return;
        }
        const char *from = static_cast<const char *>(w_.zero) + start / 2;
        int64_t g = 0;
        for (; g + 32 <= count; g += 32, from += 16) {
            Quad turned[8] = {};
            turn(from, rows, 16, turned);
            transpose_4x4(&turned[0], 16, to + g, 32);
            transpose_4x4(&turned[4], 16, to + g + 4, 32);
        }
        for (; g < count; g += 8, from += 4) {
            uint32_t turned[8] = {};
            turn(from, rows, min64(4, ceil_div(count - g, 2)), turned);
            memcpy(to + g, turned, sizeof(turned));
        }
    }

  private:
    // Eight groups a word, `bytes` of each row, to words of eight rows.
    template <class Words>
    QK_INLINE void turn(const char *from, int64_t rows, int64_t bytes, Words (&to)[8]) const {
        constexpr int64_t kWhole = sizeof(Words);
        for (int64_t r = 0; r < rows; ++r) {
            const char *const at = from + r * pitch_ / 2;
            bytes == kWhole ? memcpy(&to[r], at, kWhole) : memcpy(&to[r], at, size_t(bytes));
            const Words x = to[r];
            if (high_) to[r] = (x >> 4 & 0x0f0f0f0fu) | (x & 0x0f0f0f0fu) << 4;
        }
        transpose_nibbles(to);
    }
    // Of a row's first zero, where a row has them in sequence.
    int64_t nibble_of(int64_t row) const {
        return w_.layout->zero_at(w_.geometry, {row, 0}) ^ (high_ ? 1 : 0);
    }

    const Weight &w_;
    const ZeroWords words_;
    const bool high_;
    const int64_t pitch_;  // nibbles from row to row
};

}  // namespace
}  // namespace qk::cpu
