// y = x . transpose(w) + bias for few rows of x over the packed layout, in the order of several
// rows (docs/formats.md). What batch.hpp stores as f32 for all tiles of a batch to read, few rows
// of x use at once: a weight lives in a register from look-up to product. How is an instruction
// set's:
//
//     Products(weight, x rows)
//     Products::kTakesRows              rows of nibbles as they are stored, not packed only
//     Products::rows(x rows)            of w, a task; at most kFewRowsOfW
//     add(chunk, totals)                a chunk of 128 columns, a FewChunk
#pragma once
#include "cpu/linear/batch.hpp"
#include "cpu/shared/row_blocks.hpp"

namespace qk::cpu {

constexpr int64_t kFewRowsOfW = 64, kMostFewRows = 6;  // of w, of x
constexpr int64_t kFewAhead = 1024;  // bytes of codes fetched ahead of use: 2 chunks

// What is added to an entry: minus the group's zero before it is scaled, minus its minimum after.
enum class Less { kNothing, kZeros, kMinima };

struct FewChunk {
    const uint8_t *codes[kFewRowsOfW / 8];  // of a block of 8 rows; past the last the first repeats
    int64_t pitch;                          // bytes from row to row of a block
    StepsOf<kFewRowsOfW> steps;
    const float (*x)[kSlabColumns];
    int64_t rows, columns;
};
using FewTotals = float[kMostFewRows][kFewRowsOfW];

inline Less less_of(const Weight &w) {
    if (has_minimum(w)) return Less::kMinima;
    return w.zero != nullptr ? Less::kZeros : Less::kNothing;
}

template <class Isa, class Products>
class FewRows {
  public:
    FewRows(const LinearArgs &args, const Device &device)
        : args_(args), s_(args.w.geometry), rows_(Products::rows(args.x.rows)),
          scale_chunks_(chunks_of_groups(s_)), less_(less_of(args.w)),
          products_(args.w, args.x.rows), codes_(args.w), scales_(args.w, device),
          minima_(args.w, has_minimum(args.w) ? args.w.minimum : args.w.scale, device) {
        memset(x_, 0, sizeof(x_));
        memset(scale_, 0, sizeof(scale_));
        memset(minus_, 0, sizeof(minus_));
        for (int32_t &end : ends_) end = INT32_MAX;
    }

    void run(int64_t first) {
        const Geometry &s = args_.w.geometry;
        const int64_t rows = min64(rows_, s.n - first);
        const int64_t chunks = ceil_div(s.k, kSlabColumns);
        first_block_ = first / 8;
        blocks_ = ceil_div(rows, 8);
        memset(totals_, 0, sizeof(totals_));
        for (int64_t chunk = 0; chunk < chunks; ++chunk) {
            if (chunk % scale_chunks_ == 0) {
                load_scales(chunk, min64(chunk + scale_chunks_, chunks));
            }
            run_chunk(chunk);
        }
        for (int64_t j = 0; j < args_.x.rows; ++j) store_run(args_, j, first, rows, totals_[j]);
    }

  private:
    static constexpr int64_t kGroups = 32;  // whose scales are widened at once

    // Chunks that have as many groups at most, wherever they start; one more, where groups straddle
    // rows.
    static int64_t chunks_of_groups(const Geometry &s) {
        const bool whole = s.flat || kSlabColumns % s.group_size == 0;
        return max64(1, (whole ? kGroups : kGroups - 2) * s.group_size / kSlabColumns);
    }

    // A panel's groups, the first of which starts at first_column_: where groups straddle rows
    // each row's own, from the one that it has there.
    void load_scales(int64_t first, int64_t last) {
        const int64_t size = s_.group_size, column = first * kSlabColumns;
        const int64_t end = min64(last * kSlabColumns, s_.k);
        first_group_ = column / size;
        first_column_ = s_.flat ? column : first_group_ * size;
        const int64_t count =
            s_.flat ? ceil_div(end - column - 1, size) + 1 : ceil_div(end, size) - first_group_;
        for (int64_t b = 0; b < blocks_; ++b) {
            const char *const from = load_panel(scales_, b, count);
            for (int64_t g = 0; g < count; ++g) {
                memcpy(scale_[g] + 8 * b, from + 32 * g, 32);
                prefetch(reinterpret_cast<const uint8_t *>(from + 32 * (g + count)));
            }
            if (less_ != Less::kNothing) load_less(b, count);
        }
    }
    const char *load_panel(ScalePanel<Isa> &panel, int64_t b, int64_t count) {
        if (!s_.flat) return panel.load(first_block_ + b, first_group_, count);
        return panel.load_straddling(first_block_ + b, first_column_, count, ends_ + 8 * b);
    }
    void load_less(int64_t b, int64_t count) {
        if (less_ == Less::kMinima) {
            const char *const minima = load_panel(minima_, b, count);
            for (int64_t g = 0; g < count; ++g) minus_8(minima + 32 * g, minus_[g] + 8 * b);
        } else if (s_.flat) {
            for (int64_t i = 8 * b; i < min64(8 * b + 8, s_.n - first_block_ * 8); ++i) {
                const int64_t group = group_of(s_, first_block_ * 8 + i, first_column_).group;
                for (int64_t g = 0; g < min64(count, s_.group_count - group); ++g) {
                    minus_[g][i] = -float(zero_of(args_.w, {0, group + g}));
                }
            }
        } else {
            const uint8_t *const zeros = codes_.zeros(first_block_ + b, first_group_, count);
            for (int64_t g = 0; g < count; ++g) minus_zeros_8(zeros + 4 * g, minus_[g] + 8 * b);
        }
    }

    void run_chunk(int64_t chunk) {
        const Geometry &s = s_;
        const int64_t column = chunk * kSlabColumns;
        const int64_t columns = min64(kSlabColumns, s.k - column);
        for (int64_t j = 0; j < args_.x.rows; ++j) {
            widen_x<Isa>(args_.x, j * row_stride(args_.x) + column, columns, x_[j]);
        }
        chunk_.pitch =
            codes_.load_chunk(first_block_, blocks_, chunk, Products::kTakesRows, chunk_.codes);
        for (int64_t b = blocks_; b < rows_ / 8; ++b) chunk_.codes[b] = chunk_.codes[0];
        chunk_.steps.place(column - first_column_, s.group_size, scale_, minus_);
        chunk_.steps.ends = ends_;
        chunk_.x = x_;
        chunk_.rows = 8 * blocks_;
        chunk_.columns = columns;
        products_.add(chunk_, less_, totals_);
    }

    const LinearArgs &args_;
    const Geometry s_;
    const int64_t rows_;  // of w, a task
    const int64_t scale_chunks_;
    const Less less_;
    Products products_;
    CodesOfBlocks<Isa> codes_;
    ScalePanel<Isa> scales_, minima_;  // the scales where there are none
    FewChunk chunk_ = {};
    int64_t first_block_ = 0, blocks_ = 0, first_group_ = 0, first_column_ = 0;
    alignas(64) float scale_[kGroups + 1][kFewRowsOfW];
    alignas(64) float minus_[kGroups + 1][kFewRowsOfW];
    alignas(64) int32_t ends_[kFewRowsOfW];
    alignas(64) float x_[kMostFewRows][kSlabColumns];
    alignas(64) FewTotals totals_;
};

template <class Isa, class Products>
Status run_few(const LinearArgs &args, const Launch &launch) {
    const int64_t n = args.w.geometry.n, rows = Products::rows(args.x.rows);
    parallel_ranges(launch.parallel, n, rows, work_of_row(args), [&](int64_t first, int64_t last) {
        InScratch<FewRows<Isa, Products>> few(launch.scratch, args, launch.device);
        for (int64_t row = first; row < min64(last, n); row += rows) few->run(row);
    });
    return QK_OK;
}

}  // namespace qk::cpu
