// Dequantize layouts that store columns (awq_gemm, gptq, gptq_v1). Their codes are transposed a
// small tile at a time (1 KB of gptq's, 8 KB of awq_gemm's), hidden behind the stores of the tile
// before, and a line of the next columns is prefetched for each row that is written, so that memory
// reads and writes all the time. Reads are 128 bytes long (awq_gemm, 256 rows) or 512 (gptq, 128
// rows): memory takes as long for 64 bytes as for 128.
#pragma once
#include "cpu/convert/dequantize_emit.hpp"
#include "cpu/shared/row_tile.hpp"
#include "cpu/zero_words.hpp"

namespace qk::cpu {
namespace {

constexpr int64_t kTileRows = 256, kTileColumns = 128;

template <class Isa>
class TileWriter {
  public:
    explicit TileWriter(const Writing &writing)
        : writing_(writing), values_(writing.args.from, writing.args.to.format->id),
          scales_(writing.args.from), zeros_(writing.args.from),
          awq_(writing.args.from.layout->id == QK_LAYOUT_AWQ_GEMM), rows_(awq_ ? 256 : 128),
          tile_(false) {
        memset(zero_, 8, sizeof(zero_));
    }

    // Rows first .. last, the first a multiple of kTileRows.
    void write(int64_t first, int64_t last) {
        for (int64_t row = first; row < last; row += rows_) {
            write_tiles(row, min64(row + rows_, last), last);
        }
    }

  private:
    static constexpr int64_t kGroups = kTileColumns / 16 + 1;

    QK_NOINLINE void write_tiles(int64_t row, int64_t row_end, int64_t last) {
        const Geometry &s = writing_.args.from.geometry;
        for (int64_t column = 0; column < s.k; column += kTileColumns) {
            const int64_t end = min64(column + kTileColumns, s.k);
            const bool next_rows = end == s.k;
            LineFetch ahead = fetch_codes(next_rows ? row_end : row, next_rows ? last : row_end,
                                          next_rows ? 0 : end);
            load_groups(row, row_end - row, column, end);
            if (!next_rows) {
                fetch_groups(row, row_end - row, end);
            } else if (row_end < last) {
                fetch_groups(row_end, min64(last - row_end, rows_), 0);
            }
            const int64_t rows = awq_ ? RowTile<Isa>::kRows : kBlockRows;
            for (int64_t r = row; r < row_end; r += rows) {
                const int64_t r_end = min64(r + rows, row_end);
                tile_.load(writing_.args.from, r, r_end, column, end);
                whole_ ? write_blocks(row, r, r_end, column, end, &ahead)
                       : write_runs(row, r, r_end, column, end);
            }
        }
    }

    LineFetch fetch_codes(int64_t row, int64_t last, int64_t column) const {
        const Weight &w = writing_.args.from;
        const Geometry &s = w.geometry;
        const int64_t columns = awq_ ? 1 : 8, rows = awq_ ? 8 : 1;
        const int64_t stride = ceil_div(s.n, rows) * 4;
        const char *const from =
            static_cast<const char *>(w.data) + column / columns * stride + row / rows * 4;
        const int64_t across = ceil_div(min64(last - row, rows_), rows * 16);
        const int64_t lines = ceil_div(min64(s.k - column, kTileColumns), columns);
        return {from, stride, across, row < last ? lines : 0};
    }

    // Scales and zeros of the tile that starts at `column`, long before they are needed.
    void fetch_groups(int64_t row, int64_t rows, int64_t column) const {
        const Weight &w = writing_.args.from;
        const Geometry &s = w.geometry;
        const int64_t size = w.scale.format->bits / 8;
        const int64_t end = ceil_div(min64(column + kTileColumns, s.k), s.group_size);
        for (int64_t g = column / s.group_size; g < end; ++g) {
            const int64_t at = w.layout->scale_at(s, {row, g}) * size;
            LineFetch scales(static_cast<const char *>(w.scale.data) + at, 0,
                             ceil_div(rows * size, 64) + 1, 1);
            scales.fetch_all();
            if (w.zero == nullptr) continue;
            LineFetch zeros(static_cast<const char *>(w.zero) + w.layout->zero_at(s, {row, g}) / 2,
                            0, ceil_div(rows, 128), 1);
            zeros.fetch_all();
        }
    }

    // Scales and zeros, and which group each 32 columns belong to, if they do to one.
    void load_groups(int64_t row, int64_t rows, int64_t column, int64_t end) {
        const Geometry &s = writing_.args.from.geometry;
        whole_ = (end - column) % 32 == 0 && (s.group_size % 32 == 0 || s.group_size >= s.k);
        const int64_t group = column / s.group_size;
        const int64_t count = ceil_div(end, s.group_size) - group;
        int64_t next = (group + 1) * s.group_size - column, at = 0;
        for (int64_t i = 0; i < kTileColumns / 32; ++i) {
            if (32 * i >= next) {
                ++at;
                next += s.group_size;
            }
            group_at_[i] = uint8_t(at);
        }
        first_next_ = (group + 1) * s.group_size - column;
        if (row == loaded_row_ && group == group_ && count == count_) return;
        loaded_row_ = row;
        group_ = group;
        count_ = count;
        load_scales(row, rows);
    }

    void load_scales(int64_t row, int64_t rows) {
        const Weight &w = writing_.args.from;
        const Dense plane = {w.scale.format, 1, 1, w.scale.data};
        if (has_coded_scales(w.scale)) {
            float some[kGroups];
            for (int64_t r = 0; r < rows; ++r) {
                scales_.start(row + r);
                scales_.read(group_, count_, some);
                for (int64_t g = 0; g < count_; ++g) scale_[g][r] = some[g];
            }
        }
        for (int64_t g = 0; g < count_; ++g) {
            const int64_t at = w.layout->scale_at(w.geometry, {row, group_ + g});
            if (!has_coded_scales(w.scale)) widen_x<Isa>(plane, at, rows, scale_[g]);
            for (int64_t r = 0; r < rows && w.zero != nullptr; r += 8) {
                const uint32_t word = zeros_.read((row + r) / 8, group_ + g);
                store_as(zero_[g], r / 8, bytes_of_nibbles(word));
            }
        }
    }

    void write_blocks(int64_t row, int64_t first, int64_t last, int64_t column, int64_t end,
                      LineFetch *ahead) {
        const int64_t k = writing_.args.from.geometry.k;
        for (int64_t r = first; r < last; r += kBlockRows) {
            const int64_t rows = min64(kBlockRows, last - r);
            for (int64_t g = 0; g < count_; ++g) {
                values_.make(reinterpret_cast<const char *>(scale_[g] + (r - row)),
                             zero_[g] + (r - row), 1, rows,
                             slots_ + g * kBlockRows * 16 * writing_.bytes);
            }
            writing_.emit.block({tile_.row(r - first), RowTile<Isa>::kBytes, rows,
                                 (end - column) / 32, slots_, group_at_, writing_.to(r, column),
                                 k * writing_.bytes, ahead});
        }
    }

    void write_runs(int64_t row, int64_t first, int64_t last, int64_t column, int64_t end) {
        const int64_t size = writing_.args.from.geometry.group_size;
        for (int64_t r = first; r < last; ++r) {
            values_.make(reinterpret_cast<const char *>(scale_[0] + (r - row)),
                         zero_[0] + (r - row), kTileRows, count_, slots_);
            writing_.emit.run({tile_.row(r - first), 0, end - column, first_next_, size, slots_,
                               writing_.to(r, column)});
        }
    }

    const Writing &writing_;
    GroupValues<Isa> values_;
    RowScales<Isa> scales_;
    ZeroWords zeros_;
    const bool awq_;
    const int64_t rows_;                                // of a tile
    bool whole_ = false;                                // each 32 columns are of one group
    int64_t loaded_row_ = -1, group_ = -1, count_ = 0;  // the groups that are loaded
    int64_t first_next_ = 0;                            // columns of the first one
    uint8_t group_at_[kTileColumns / 32];
    uint8_t zero_[kGroups][kTileRows];
    float scale_[kGroups][kTileRows];
    alignas(64) char slots_[kGroups * kBlockRows * kSlot];
    RowTile<Isa> tile_;
};

}  // namespace
}  // namespace qk::cpu
