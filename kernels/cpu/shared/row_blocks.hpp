// Codes and zeros of blocks of 8 rows as the packed layout stores them, for kernels over it: in
// place where w is packed; out of every other layout of nibbles in planes gathered in working
// memory, kMost chunks at a time: 16 leave the first cache room for x, more cost less a chunk.
#pragma once
#include "cpu/shared/panel.hpp"
#include "cpu/shared/row_tile.hpp"
#include "cpu/zero_words.hpp"

namespace qk::cpu {
namespace {

// kMost: chunks at once.
template <class Isa, int64_t kMost = 16>
class CodesOfBlocks {
  public:
    explicit CodesOfBlocks(const Weight &w)
        : in_place_(w.layout->id == kLayoutRows8), w_(w), columns_(stores_columns(w)),
          high_first_(w.layout->id == QK_LAYOUT_ROW_HIGH), chunks_(chunk_count(w.geometry)),
          nibbles_(in_place_ || columns_ ? 0 : round_up(w.geometry.k, run_pad(w))),
          whole_bytes_(nibbles_ % 2 == 0), zeros_(w) {}

    bool in_place() const { return in_place_; }
    // Chunks of a panel.
    int64_t most() const { return in_place_ ? kPanelGroups : kMost; }

    // Chunks first .. last of a block, which is a panel at most.
    const uint8_t *load(int64_t block, int64_t first, int64_t last) {
        if (in_place_) return packed_chunk(w_, block * chunks_ + first);
        for (int64_t i = first; i < last; ++i) {
            // What the next block of rows has in this chunk's turn: one stream.
            const uint8_t *const next = at(block + 1) + i * 512;
            gather(block, i, {next, 64}, codes_[i - first]);
        }
        return codes_[0];
    }
    // A chunk of `count` blocks, at most a panel's chunks, or `as_stored`, the bytes that rows have
    // in its place. Returns how many bytes rows of a block are apart.
    int64_t load_chunk(int64_t block, int64_t count, int64_t chunk, bool as_stored,
                       const uint8_t **to) {
        const Geometry &s = w_.geometry;
        const bool whole = whole_bytes_ && (block + count) * 8 <= s.n && (chunk + 1) * 128 <= s.k;
        for (int64_t i = 0; i < count; ++i) {
            to[i] = codes_[i];
            if (in_place_) {
                to[i] = packed_chunk(w_, (block + i) * chunks_ + chunk);
            } else if (!as_stored) {
                gather(block + i, chunk, {at(block + i) + (chunk + 4) * 64, nibbles_ / 2},
                       codes_[i]);
            } else if (whole) {
                to[i] = at(block + i) + chunk * 64;
            } else {
                copy_rows(block + i, chunk, codes_[i]);
            }
        }
        return as_stored && whole && !in_place_ ? nibbles_ / 2 : 64;
    }

    // A chunk as rows have it: how many bytes they are apart. The next block of rows, which follows
    // this one, is fetched in its turn: one stream.
    int64_t load_stored(int64_t block, int64_t chunk, const uint8_t **to) {
        const int64_t pitch = load_chunk(block, 1, chunk, true, to);
        const uint8_t *const next = *to + 8 * pitch + chunk * (512 - 64);
        for (int64_t i = 0; i < 512; i += 64) prefetch_stream(next + i);
        return pitch;
    }

    // 4 bytes a group, a nibble a row; null where there are no zeros.
    const uint8_t *zeros(int64_t block, int64_t group, int64_t count) {
        if (w_.zero == nullptr) return nullptr;
        if (w_.geometry.flat) return zeros_of_steps(block, group, count);
        if (in_place_) return packed_zeros(w_, block, group);
        zeros_.read(block, group, count, words_);
        return reinterpret_cast<const uint8_t *>(words_);
    }

  private:
    // Of steps of 16 columns, where groups straddle rows.
    QK_NOINLINE const uint8_t *zeros_of_steps(int64_t block, int64_t first, int64_t count) {
        const Geometry &s = w_.geometry;
        for (int64_t i = 0; i < count; ++i) words_[i] = 0;
        for (int64_t r = 0; r < min64(8, s.n - block * 8); ++r) {
            int64_t group = group_of(s, block * 8 + r, first * 16).group;
            int64_t end = (group + 1) * s.group_size - ((block * 8 + r) * s.k + first * 16);
            uint32_t zero = uint32_t(zero_of(w_, {0, group}));
            for (int64_t i = 0; i < count; ++i) {
                if (i * 16 >= end) {
                    zero = uint32_t(zero_of(w_, {0, ++group}));
                    end += s.group_size;
                }
                words_[i] |= zero << 4 * r;
            }
        }
        return reinterpret_cast<const uint8_t *>(words_);
    }

    // Where what is wanted next is stored, 64 bytes at a time.
    struct Ahead {
        const uint8_t *from;
        int64_t step;
    };
    // Of layouts that store rows.
    const uint8_t *at(int64_t block) const {
        return static_cast<const uint8_t *>(w_.data) + block * 4 * nibbles_;
    }

    void gather(int64_t block, int64_t chunk, Ahead ahead, uint8_t *to) const {
        const int64_t rows = min64(8, w_.geometry.n - block * 8);
        const int64_t columns = min64(128, w_.geometry.k - chunk * 128);
        if (columns_) return gather_columns(block, rows, chunk, columns, to);
        const uint8_t *const from = at(block) + chunk * 64;
        if (rows == 8 && columns == 128) {
            return whole_bytes_ ? pack_rows(from, nibbles_ / 2, ahead, to)
                                : pack_pairs(from, ahead, to);
        }
        alignas(64) uint8_t some[512];
        copy_rows(block, chunk, some);
        pack_rows(some, 64, ahead, to);
    }
    // Pairs of rows of an odd number of nibbles: the second starts in the middle of a byte.
    QK_NOINLINE void pack_pairs(const uint8_t *from, Ahead ahead, uint8_t *to) const {
        alignas(64) uint8_t joined[4][64];  // all first: loads wait for stores in parts
        QK_UNROLL
        for (int i = 0; i < 4; ++i) join_64(from + i * nibbles_ + nibbles_ / 2, joined[i]);
        QK_UNROLL
        for (int i = 0; i < 4; ++i, ahead.from += 2 * ahead.step) {
            prefetch_stream(ahead.from);
            prefetch_stream(ahead.from + ahead.step);
            Isa::template pack_chunk<true>(from + i * nibbles_, to + 128 * i);
            Isa::template pack_chunk<true>(joined[i], to + 128 * i + 64);
        }
    }
    // 8 rows of 64 bytes, 0 where there is nothing.
    void copy_rows(int64_t block, int64_t chunk, uint8_t *to) const {
        const int64_t rows = min64(8, w_.geometry.n - block * 8);
        const int64_t columns = min64(128, w_.geometry.k - chunk * 128);
        if (rows < 8 || columns < 128) memset(to, 0, 512);
        for (int64_t row = 0; row < rows; ++row, to += 64) {
            const int64_t start = row * nibbles_;
            const uint8_t *const from = at(block) + chunk * 64 + start / 2;
            prefetch(from + 4 * 64);
            if (start % 2 == 0) {
                memcpy(to, from, size_t(ceil_div(columns, 2)));
            } else if (columns == 128) {
                join_64(from, to);
            } else {
                for (int64_t i = 0; i < columns / 2; ++i) to[i] = joined(from[i], from[i + 1]);
                if (columns % 2 != 0) to[columns / 2] = joined(from[columns / 2], 0);
            }
        }
    }
    // Of a row that starts in the middle of a byte, which is row_high's alone: two codes that are
    // in two bytes. 64 of them are stored as they will be loaded, whole.
    static void join_64(const uint8_t *from, uint8_t *to) {
        typedef uint8_t Codes __attribute__((vector_size(64)));
        Codes bytes, next;
        memcpy(&bytes, from, 64);
        memcpy(&next, from + 1, 64);
        bytes = bytes << 4 | next >> 4;
        memcpy(to, &bytes, 64);
    }
    static uint8_t joined(uint8_t byte, uint8_t next) { return uint8_t(byte << 4 | next >> 4); }
    void pack_rows(const uint8_t *from, int64_t pitch, Ahead ahead, uint8_t *to) const {
        high_first_ ? pack_rows<true>(from, pitch, ahead, to)
                    : pack_rows<false>(from, pitch, ahead, to);
    }
    template <bool high_first>
    QK_NOINLINE static void pack_rows(const uint8_t *from, int64_t pitch, Ahead ahead,
                                      uint8_t *to) {
        QK_UNROLL
        for (int row = 0; row < 8; ++row, from += pitch, ahead.from += ahead.step) {
            prefetch_stream(ahead.from);
            Isa::template pack_chunk<high_first>(from, to + 64 * row);
        }
    }

    // Words in order of rows first: gptq has them, the nibbles of awq_gemm's are transposed.
    QK_NOINLINE void gather_columns(int64_t block, int64_t rows, int64_t chunk, int64_t columns,
                                    uint8_t *to) const {
        const Geometry &s = w_.geometry;
        alignas(64) uint32_t words[8][16] = {};
        if (w_.layout->id == QK_LAYOUT_AWQ_GEMM) {
            const int64_t stride = ceil_div(s.n, 8);
            for (int64_t c = 0; c < columns; ++c) {
                words[c % 8][c / 8] =
                    load_as<uint32_t>(w_.data, (chunk * 128 + c) * stride + block);
            }
            transpose_words(words);
            for (int64_t i = 0; i < 8; ++i) {
                Isa::pack_chunk(reinterpret_cast<const uint8_t *>(words[i]), to + 64 * awq_row(i));
            }
            return;
        }
        for (int64_t line = 0; line < ceil_div(columns, 8); ++line) {
            const int64_t at = (chunk * 16 + line) * s.n + block * 8;
            for (int64_t row = 0; row < rows; ++row) {
                words[row][line] = load_as<uint32_t>(w_.data, at + row);
            }
        }
        for (int64_t i = 0; i < 8; ++i) {
            Isa::pack_chunk(reinterpret_cast<const uint8_t *>(words[i]), to + 64 * i);
        }
    }
    static void transpose_words(uint32_t (&words)[8][16]) {
        using Native = NativeWordsOf<Isa>;
        for (size_t part = 0; part < 16; part += sizeof(Native) / 4) {
            Native v[8];
            for (int i = 0; i < 8; ++i) memcpy(&v[i], words[i] + part, sizeof(Native));
            transpose_nibbles(v);
            for (int i = 0; i < 8; ++i) memcpy(words[i] + part, &v[i], sizeof(Native));
        }
    }

    const bool in_place_;
    const Weight &w_;
    const bool columns_, high_first_;
    const int64_t chunks_;
    const int64_t nibbles_;  // from row to row
    const bool whole_bytes_;
    ZerosOfBlocks zeros_;
    uint32_t words_[kPanelGroups + 8];
    alignas(64) uint8_t codes_[kMost][512];
    uint8_t end_[64] = {};  // is read, and does not count
};

}  // namespace
}  // namespace qk::cpu
