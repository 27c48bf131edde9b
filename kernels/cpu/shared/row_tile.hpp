// A tile of codes as runs of nibbles, a row each, low nibble first, out of layouts that store
// columns one after the other (awq_gemm, gptq, gptq_v1) and into them. Blocks of
// 16 x 16 words are transposed; for awq_gemm the nibbles of 8 x 8 words too.
#pragma once
#include "base/checked.hpp"
#include "cpu/access.hpp"
#include "cpu/zero_words.hpp"

namespace qk::cpu {
namespace {

inline bool stores_columns(const Weight &w) {
    const qk_layout id = w.layout->id;
    return id == QK_LAYOUT_AWQ_GEMM || id == QK_LAYOUT_GPTQ || id == QK_LAYOUT_GPTQ_V1;
}

// Words of a native register.
template <int kBytes>
struct Native {
    typedef uint32_t Words __attribute__((vector_size(kBytes)));
};

// awq_gemm's row of a word's nibble.
constexpr int64_t awq_row(int64_t nibble) { return nibble < 4 ? 2 * nibble : 2 * nibble - 7; }

template <class Isa>
using NativeWordsOf = typename Native<Isa::kVectorBytes>::Words;

template <class Isa>
class RowTile {
  public:
    static constexpr int64_t kRows = 128, kColumns = 512;

    // `ahead`: prefetches the codes after those that it loads.
    explicit RowTile(bool ahead) : ahead_(ahead) {}

    // Rows and columns first .. last, kRows and kColumns at most; the first row a multiple of 16
    // (awq_gemm: kRows), the first column of 128. What follows the last is undefined.
    QK_NOINLINE void load(const Weight &w, int64_t row, int64_t row_end, int64_t column,
                          int64_t column_end) {
        w.layout->id == QK_LAYOUT_AWQ_GEMM ? load_awq(w, row, row_end, column, column_end)
                                           : load_gptq(w, row, row_end, column, column_end);
    }
    static constexpr int64_t kPitch = kColumns / 8 + 16;  // words: an odd number of cache lines
    static constexpr int64_t kBytes = kPitch * 4;         // from row to row

    uint8_t *row(int64_t index) { return reinterpret_cast<uint8_t *>(words_[index]); }

    QK_NOINLINE void store(const Weight &w, int64_t row, int64_t row_end, int64_t column,
                           int64_t column_end) const {
        w.layout->id == QK_LAYOUT_AWQ_GEMM ? store_awq(w, row, row_end, column, column_end)
                                           : store_gptq(w, row, row_end, column, column_end);
    }

  private:
    using NativeWords = NativeWordsOf<Isa>;

    // A word is 8 columns of a row; a line has a word of each row.
    void load_gptq(const Weight &w, int64_t row, int64_t row_end, int64_t column,
                   int64_t column_end) {
        const int64_t first = column / 8, lines = ceil_div(column_end, 8) - first;
        const int64_t stride = w.geometry.n * 4;
        const char *const data = static_cast<const char *>(w.data);
        for (int64_t line = 0; line < lines; line += 16) {
            const char *from = data + (first + line) * stride + row * 4;
            for (int64_t r = 0; r < row_end - row; r += 16, from += 64) {
                const int64_t rows = min64(16, row_end - row - r), some = min64(16, lines - line);
                if (ahead_) fetch(from + 16 * stride, stride, 16);
                if (rows == 16 && some == 16) {
                    Isa::transpose_block(from, stride, words_[r] + line, kBytes);
                    continue;
                }
                uint32_t corner[16][16] = {};
                for (int64_t i = 0; i < some; ++i) {
                    memcpy(corner[i], from + i * stride, size_t(rows) * 4);
                }
                Isa::transpose_block(corner, 64, words_[r] + line, kBytes);
            }
        }
    }

    void store_gptq(const Weight &w, int64_t row, int64_t row_end, int64_t column,
                    int64_t column_end) const {
        const int64_t first = column / 8, lines = ceil_div(column_end, 8) - first;
        const int64_t stride = w.geometry.n * 4;
        char *const data = static_cast<char *>(w.data);
        for (int64_t line = 0; line < lines; line += 16) {
            char *to = data + (first + line) * stride + row * 4;
            for (int64_t r = 0; r < row_end - row; r += 16, to += 64) {
                const int64_t rows = min64(16, row_end - row - r), some = min64(16, lines - line);
                if (rows == 16 && some == 16) {
                    Isa::transpose_block(words_[r] + line, kBytes, to, stride);
                    continue;
                }
                uint32_t corner[16][16];
                Isa::transpose_block(words_[r] + line, kBytes, corner, 64);
                for (int64_t i = 0; i < some; ++i) {
                    memcpy(to + i * stride, corner[i], size_t(rows) * 4);
                }
            }
        }
    }

    // A word is 8 rows of a column (their order: see the layout), a line all rows of a column.
    void load_awq(const Weight &w, int64_t row, int64_t row_end, int64_t column,
                  int64_t column_end) {
        const int64_t stride = ceil_div(w.geometry.n, 8) * 4, words = ceil_div(row_end - row, 8);
        const char *const data = static_cast<const char *>(w.data) + row / 8 * 4;
        uint32_t transposed[8][16][16];  // by nibble and 8 columns
        for (int64_t c = column; c < column_end; c += 128) {
            for (int64_t i = 0; i < 16; ++i) {
                load_columns(data + (c + 8 * i) * stride, stride, words, column_end - c - 8 * i,
                             transposed[0][i]);
            }
            for (int64_t i = 0; i < 8; ++i) {
                Isa::transpose_block(transposed[i], 64, words_[awq_row(i)] + (c - column) / 8,
                                     8 * kBytes);
            }
        }
    }

    // 8 columns of 16 words, or fewer; word j's nibble i goes to to[256 * i + j].
    void load_columns(const char *from, int64_t stride, int64_t words, int64_t columns,
                      uint32_t *to) {
        constexpr int64_t kNative = Isa::kVectorBytes / 4;
        uint32_t corner[8][16] = {};
        if (ahead_) fetch(from + kAhead * stride, stride, 8);
        if (words < 16 || columns < 8) {
            for (int64_t i = 0; i < min64(columns, 8); ++i) {
                memcpy(corner[i], from + i * stride, size_t(words) * 4);
            }
            from = reinterpret_cast<const char *>(corner);
            stride = 64;
        }
        for (int64_t part = 0; part < 16; part += kNative) {
            NativeWords v[8];
            QK_UNROLL for (int i = 0; i < 8; ++i) {
                memcpy(&v[i], from + i * stride + part * 4, Isa::kVectorBytes);
            }
            transpose_nibbles(v);
            QK_UNROLL for (int i = 0; i < 8; ++i) {
                memcpy(to + 256 * i + part, &v[i], Isa::kVectorBytes);
            }
        }
    }

    void store_awq(const Weight &w, int64_t row, int64_t row_end, int64_t column,
                   int64_t column_end) const {
        const int64_t stride = ceil_div(w.geometry.n, 8) * 4, words = ceil_div(row_end - row, 8);
        char *const data = static_cast<char *>(w.data) + row / 8 * 4;
        uint32_t transposed[8][16][16];
        for (int64_t c = column; c < column_end; c += 128) {
            for (int64_t i = 0; i < 8; ++i) {
                Isa::transpose_block(words_[awq_row(i)] + (c - column) / 8, 8 * kBytes,
                                     transposed[i], 64);
            }
            for (int64_t i = 0; i < 16 && c + 8 * i < column_end; ++i) {
                store_columns(transposed[0][i], words, column_end - c - 8 * i,
                              data + (c + 8 * i) * stride, stride);
            }
        }
    }

    // The other way round.
    static void store_columns(const uint32_t *from, int64_t words, int64_t columns, char *to,
                              int64_t stride) {
        constexpr int64_t kNative = Isa::kVectorBytes / 4;
        uint32_t corner[8][16];
        const bool whole = words == 16 && columns >= 8;
        char *const out = whole ? to : reinterpret_cast<char *>(corner);
        const int64_t out_stride = whole ? stride : 64;
        for (int64_t part = 0; part < 16; part += kNative) {
            NativeWords v[8];
            QK_UNROLL for (int i = 0; i < 8; ++i) {
                memcpy(&v[i], from + 256 * i + part, Isa::kVectorBytes);
            }
            transpose_nibbles(v);
            QK_UNROLL for (int i = 0; i < 8; ++i) {
                memcpy(out + i * out_stride + part * 4, &v[i], Isa::kVectorBytes);
            }
        }
        for (int64_t i = 0; i < min64(columns, 8) && !whole; ++i) {
            memcpy(to + i * stride, corner[i], size_t(words) * 4);
        }
    }

    static constexpr int64_t kAhead = 64;  // columns

    static void fetch(const char *from, int64_t stride, int64_t count) {
        for (int64_t i = 0; i < count; ++i) __builtin_prefetch(from + i * stride, 0, 3);
    }

    const bool ahead_;
    alignas(64) uint32_t words_[kRows][kPitch];
};

}  // namespace
}  // namespace qk::cpu
