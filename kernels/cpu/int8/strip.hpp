// Codes of a task's 32 rows of w for batches in int8 mode, 128 columns at a time: four blocks of
// nibbles as the packed layout has them, or 32 rows of bytes (S8).
#pragma once
#include "cpu/int8/x.hpp"
#include "cpu/shared/row_blocks.hpp"

namespace qk::cpu {
namespace {

// Chunks whose scales are widened at once; how far ahead codes are fetched.
constexpr int64_t kScaleChunks = 4;

template <class Isa>
class StripOfBlocks {
  public:
    static constexpr int64_t kLines = kTaskRows;  // of 64 bytes, a chunk
    static constexpr int32_t kZeroOfMinima = 0;
    using Chunk = const uint8_t * [kTaskRows / 8];

    explicit StripOfBlocks(const Weight &w) : codes_(w) {}

    // Of `count` blocks from `block` on; the first stands for those past the last row.
    void load(int64_t block, int64_t count, int64_t chunk, Chunk &to) {
        codes_.load_chunk(block, count, chunk, false, to);
        for (int64_t b = count; b < kTaskRows / 8; ++b) to[b] = to[0];
    }
    static const uint8_t *line_ahead(const Chunk &codes, int64_t line) {
        return codes[line / 8] + line % 8 * 64 + kScaleChunks * 512;
    }
    const uint8_t *zeros(int64_t block, int64_t group, int64_t count) {
        return codes_.zeros(block, group, count);
    }

  private:
    CodesOfBlocks<Isa> codes_;
};

class StripOfBytes {
  public:
    static constexpr int64_t kLines = 2 * kTaskRows;
    static constexpr int32_t kZeroOfMinima = kZeroOfBytes;

    // Rows past the last one are the last one.
    struct Chunk {
        const uint8_t *first;
        int64_t stride, last_row, columns;

        const uint8_t *row(int64_t i) const { return first + min64(i, last_row) * stride; }
    };
    // The last columns of 32 rows, and zeros: what follows them need not be readable.
    struct LastChunk {
        alignas(64) uint8_t row[kTaskRows][128] = {};

        explicit LastChunk(const Chunk &codes) {
            for (int64_t i = 0; i < kTaskRows; ++i) {
                memcpy(row[i], codes.row(i), size_t(codes.columns));
            }
        }
        Chunk whole() const { return {row[0], 128, kTaskRows - 1, 128}; }
    };

    explicit StripOfBytes(const Weight &w) : w_(w) {}

    void load(int64_t block, int64_t, int64_t chunk, Chunk &to) const {
        const Geometry &s = w_.geometry;
        const int64_t row = block * 8, column = chunk * 128;
        to = {static_cast<const uint8_t *>(w_.data) + row * s.k + column, s.k,
              min64(kTaskRows, s.n - row) - 1, min64(128, s.k - column)};
    }
    static const uint8_t *line_ahead(const Chunk &codes, int64_t line) {
        return codes.row(line / 2) + line % 2 * 64 + kScaleChunks * 128;
    }
    static const uint8_t *zeros(int64_t, int64_t, int64_t) { return nullptr; }

  private:
    const Weight &w_;
};

}  // namespace
}  // namespace qk::cpu
