// y = x . w + bias, over any quantized layout and any number of rows of x, in the order of sums
// that docs/formats.md gives transposed products. A task has columns of y, so it reads the same
// columns of every row of w, once for up to 64 rows of x.
//
//     for panels of up to 512 columns (128 where rows of x are many), blocks of 128 rows of w:
//         x of these rows as f32                                       up to 32 KB
//         for 8 rows of w: their weights as f32                        up to 16 KB, first cache
//             for tiles of 16 or 32 columns and up to 4 rows of x:     weights in registers,
//                                                                      sums from and to the cache
//         sums of the block are added to the totals
#pragma once
#include "cpu/kernels.hpp"
#include "cpu/linear/decode.hpp"

namespace qk::cpu {
namespace {

template <class Isa>
class TransposedPanel {
  public:
    static constexpr int64_t kMost = 64;  // rows of x

    QK_NOINLINE TransposedPanel(const LinearArgs &args, const Device &device)
        : args_(args), packed_(args.w.layout->id == kLayoutRows8), scales_(args.w, device),
          any_scales_(args.w), decoder_(args.w) {
        memset(weights_, 0, sizeof(weights_));
    }

    // Columns of a panel for so many rows of x.
    static constexpr int64_t columns(int64_t x_rows) { return x_rows <= kMost / 4 ? 512 : 128; }

    void run(int64_t column, int64_t end, int64_t x_first, int64_t x_rows) {
        column_ = column, end_ = end, x_first_ = x_first, x_rows_ = x_rows;
        stride_ = columns(x_rows);
        const int64_t n = args_.w.geometry.n;
        const size_t bytes = size_t(x_rows * stride_) * sizeof(float);
        memset(totals_, 0, bytes);
        for (int64_t row = 0; row < n; row += kRows) {
            const int64_t last = min64(row + kRows, n);
            load_x(row, last - row);
            memset(sums_, 0, bytes);
            for (int64_t at = row; at < last; at += 8) add_rows(at, x_[0] + (at - row));
            add_sums();
        }
        for (int64_t j = 0; j < x_rows_; ++j) store(x_first_ + j, totals_ + j * stride_);
    }

  private:
    static constexpr int64_t kRows = 128;           // of w, that are summed on their own
    static constexpr int64_t kStride = kRows + 16;  // no two rows of x at the same place of a page
    static constexpr int kHeld = Isa::kVectorBytes >= 64 ? 8 : 4;  // rows of w in registers
    static constexpr int kVectors = Isa::kTileVectors;             // of columns

    QK_NOINLINE void load_x(int64_t row, int64_t rows) {
        const int64_t stride = row_stride(args_.x);
        for (int64_t j = 0; j < x_rows_; ++j) {
            widen_x<Isa>(args_.x, (x_first_ + j) * stride + row, rows, x_[j]);
        }
    }

    // 8 rows of w, or those that are left: what is past them has no weight.
    void add_rows(int64_t row, const float *x) {
        const Geometry &s = args_.w.geometry;
        const int64_t group = column_ / s.group_size;
        const int64_t groups = ceil_div(end_, s.group_size) - group;
        const char *const scales =
            packed_ ? scales_.load(row / 8, group, groups) : any_scales_.load(row, group, groups);
        if (packed_) fetch(row);
        decoder_.decode(row, column_, end_, scales, weights_);
        decoder_.lower(row, column_, end_, weights_);
        const int64_t steps = ceil_div(end_ - column_, 16);
        for (int64_t i = s.n - row; i < 8; ++i) {
            for (int64_t step = 0; step < steps; ++step) memset(weights_[step][i], 0, 64);
        }
        for (int64_t j = 0; j < x_rows_;) j += add_tiles(steps, j, x);
    }

    // The same columns of the next 8 rows.
    void fetch(int64_t row) const {
        const int64_t chunks = ceil_div(args_.w.geometry.k, 128);
        const uint8_t *const next = packed_chunk(args_.w, (row / 8 + 1) * chunks + column_ / 128);
        for (int64_t i = 0; i < (end_ - column_) * 4; i += 64) prefetch(next + i);
    }

    int64_t add_tiles(int64_t steps, int64_t j, const float *x) {
        const bool four = x_rows_ - j >= 4;
        float *const sums = sums_ + j * stride_;
        x += j * kStride;
        for (int64_t step = 0; step < steps; step += kVectors) {
            for (int i = 0; i < 8; i += kHeld) {
                four ? add_tile<4>(weights_[step] + i, x + i, sums + step * 16)
                     : add_tile<1>(weights_[step] + i, x + i, sums + step * 16);
            }
        }
        return four ? 4 : 1;
    }

    // w [step][row][16], x [row of x][kStride rows of w], sums [row of x][columns].
    template <int kCount>
    QK_INLINE void add_tile(const float (*w)[16], const float *x, float *sums) const {
        Lanes<Isa> weight[kVectors][kHeld], sum[kCount][kVectors];
        QK_UNROLL
        for (int v = 0; v < kVectors; ++v) {
            QK_UNROLL
            for (int i = 0; i < kHeld; ++i) weight[v][i] = Isa::load_f32(w[v * 8 + i]);
        }
        QK_UNROLL
        for (int j = 0; j < kCount; ++j) {
            QK_UNROLL
            for (int v = 0; v < kVectors; ++v)
                sum[j][v] = Isa::load_f32(sums + j * stride_ + 16 * v);
        }
        QK_UNROLL
        for (int i = 0; i < kHeld; ++i) {
            QK_UNROLL
            for (int j = 0; j < kCount; ++j) {
                const Lanes<Isa> value = Isa::splat(x[j * kStride + i]);
                QK_UNROLL
                for (int v = 0; v < kVectors; ++v)
                    sum[j][v] = Isa::fma(value, weight[v][i], sum[j][v]);
            }
        }
        QK_UNROLL
        for (int j = 0; j < kCount; ++j) {
            QK_UNROLL
            for (int v = 0; v < kVectors; ++v)
                Isa::store_f32(sums + j * stride_ + 16 * v, sum[j][v]);
        }
    }

    QK_NOINLINE void add_sums() {
        for (int64_t i = 0; i < x_rows_ * stride_; i += 16) {
            Isa::store_f32(totals_ + i,
                           Isa::add(Isa::load_f32(totals_ + i), Isa::load_f32(sums_ + i)));
        }
    }

    void store(int64_t x_row, float *y) const {
        const int64_t count = end_ - column_;
        if (args_.w.order == nullptr) return store_run(args_, x_row, column_, count, y);
        for (int64_t c = 0; c < count; ++c) {
            store_y(args_, x_row, column_at(args_.w, column_ + c), y[c]);
        }
    }

    const LinearArgs &args_;
    const bool packed_;
    ScalePanel<Isa> scales_;      // packed
    ScaleBlock<Isa> any_scales_;  // every other layout
    Decoder<Isa> decoder_;
    int64_t column_ = 0, end_ = 0, x_first_ = 0, x_rows_ = 0, stride_ = 0;
    alignas(64) float weights_[kPanelSteps + 1][8][16];
    alignas(64) float x_[kMost][kStride];
    alignas(64) float sums_[kMost * 128 + 16], totals_[kMost * 128 + 16];
};

template <class Isa>
Status run_transposed(const LinearArgs &args, const Launch &launch) {
    using Panel = TransposedPanel<Isa>;
    const int64_t k = args.w.geometry.k, m = args.x.rows;
    parallel_ranges(launch.parallel, k, 128, work_of_column(args),
                    [&](int64_t first, int64_t last) {
        InScratch<Panel> panel(launch.scratch, args, launch.device);
        for (int64_t i = 0; i < m; i += Panel::kMost) {
            const int64_t rows = min64(Panel::kMost, m - i), step = Panel::columns(rows);
            for (int64_t column = first; column < min64(last, k); column += step) {
                panel->run(column, min64(column + step, min64(last, k)), i, rows);
            }
        }
    });
    return QK_OK;
}

}  // namespace
}  // namespace qk::cpu
