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
    const float *scale[8];                  // of a step of 16 columns, one a row
    const float *less[8];
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
        : args_(args), s_(geometry_of_blocks(args.w.geometry)), rows_(Products::rows(args.x.rows)),
          scale_chunks_(chunks_of_groups(s_.group_size)), less_(less_of(args.w)),
          products_(args.w, args.x.rows), codes_(args.w), scales_(args.w, device),
          minima_(args.w, has_minimum(args.w) ? args.w.minimum : args.w.scale, device) {
        memset(x_, 0, sizeof(x_));
        memset(scale_, 0, sizeof(scale_));
        memset(minus_, 0, sizeof(minus_));
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

    // Chunks that have as many groups at most, wherever they start.
    static int64_t chunks_of_groups(int64_t size) {
        const int64_t groups = kSlabColumns % size == 0 ? kGroups : kGroups - 2;
        return max64(1, groups * size / kSlabColumns);
    }

    void load_scales(int64_t first, int64_t last) {
        const Geometry &s = s_;
        first_group_ = first * kSlabColumns / s.group_size;
        const int64_t end = min64(last * kSlabColumns, s.k);
        const int64_t count = ceil_div(end, s.group_size) - first_group_;
        for (int64_t b = 0; b < blocks_; ++b) {
            const int64_t block = first_block_ + b;
            const char *const from = scales_.load(block, first_group_, count);
            for (int64_t g = 0; g < count; ++g) {
                memcpy(scale_[g] + 8 * b, from + 32 * g, 32);
                prefetch(reinterpret_cast<const uint8_t *>(from + 32 * (g + count)));
            }
            if (less_ != Less::kNothing) load_less(block, count, b);
        }
    }
    void load_less(int64_t block, int64_t count, int64_t place) {
        if (less_ == Less::kZeros) {
            const uint8_t *const zeros = codes_.zeros(block, first_group_, count);
            for (int64_t g = 0; g < count; ++g) {
                minus_zeros_8(zeros + 4 * g, minus_[g] + 8 * place);
            }
            return;
        }
        const char *const minima = minima_.load(block, first_group_, count);
        for (int64_t g = 0; g < count; ++g) {
            minus_8(minima + 32 * g, minus_[g] + 8 * place);
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
        int64_t group = column / s.group_size, next = (group + 1) * s.group_size;
        for (int64_t step = 0; step < 8; ++step) {
            if (column + 16 * step >= next) ++group, next += s.group_size;
            chunk_.scale[step] = scale_[group - first_group_];
            chunk_.less[step] = minus_[group - first_group_];
        }
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
    int64_t first_block_ = 0, blocks_ = 0, first_group_ = 0;
    alignas(64) float scale_[kGroups][kFewRowsOfW];
    alignas(64) float minus_[kGroups][kFewRowsOfW];
    alignas(64) float x_[kMostFewRows][kSlabColumns];
    alignas(64) FewTotals totals_;
};

template <class Isa, class Products>
Status run_few(const LinearArgs &args, const Launch &launch) {
    const int64_t n = args.w.geometry.n, rows = Products::rows(args.x.rows);
    parallel_ranges(launch.parallel, n, rows, [&](int64_t first, int64_t last) {
        InScratch<FewRows<Isa, Products>> few(launch.scratch, args, launch.device);
        for (int64_t row = first; row < min64(last, n); row += rows) few->run(row);
    });
    return QK_OK;
}

}  // namespace qk::cpu
