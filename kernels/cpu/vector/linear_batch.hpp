// y = x . transpose(w) + bias for several rows of x over any quantized layout, and for one row
// where no other kernel takes it (checkpoint layouts, unusual groups).
// Each sum has the generic kernel's order, so a row of y does not depend on how many others are
// computed with it.
//
// A task takes up to kBatch rows of x and as many blocks of 8 rows of w as it has room for sums (16
// lanes each), which it keeps while it walks k in panels of 512 columns:
//
//     x of the panel, packed in tiles of kTileBatch rows as f32        at most 96 KB, second cache
//     for 8 rows of w at a time: their weights as f32                  16 KB, first cache
//         for tiles of kTileRows rows of w and kTileBatch rows of x:   sums in registers
#pragma once
#include "cpu/features.hpp"
#include "cpu/lists.hpp"
#include "cpu/split.hpp"
#include "cpu/vector/decode.hpp"
#include "cpu/vector/panel.hpp"

namespace qk::cpu {
namespace {

constexpr int64_t kBatch = 48;         // rows of x, at most
constexpr int64_t kSums = kBatch * 4;  // rows of x times blocks of 8 rows of w
constexpr int64_t kPanelColumns = kPanelSteps * 16;

// One tile over the full steps of a panel: w [step][8 rows], x [step][kCount rows], sums
// [kCount rows of x][8 rows of w]. `ahead`: a line a step that is wanted soon.
template <int kCount>
QK_NOINLINE void add_tile(const float *w, const float *x, int64_t steps, const uint8_t *ahead,
                          Lanes *sums) {
    Lanes sum[kTileRows][kCount];
    QK_UNROLL
    for (int j = 0; j < kCount; ++j) {
        QK_UNROLL
        for (int i = 0; i < kTileRows; ++i) sum[i][j] = sums[j * 8 + i];
    }
    for (int64_t step = 0; step < steps; ++step, w += 8 * 16, x += kCount * 16) {
        prefetch(ahead + 64 * step);
        Lanes weight[kTileRows];
        QK_UNROLL
        for (int i = 0; i < kTileRows; ++i) weight[i] = load_f32(w + 16 * i);
        QK_UNROLL
        for (int j = 0; j < kCount; ++j) {
            const Lanes value = load_f32(x + 16 * j);
            QK_UNROLL
            for (int i = 0; i < kTileRows; ++i) sum[i][j] = fma(weight[i], value, sum[i][j]);
        }
    }
    QK_UNROLL
    for (int j = 0; j < kCount; ++j) {
        QK_UNROLL
        for (int i = 0; i < kTileRows; ++i) sums[j * 8 + i] = sum[i][j];
    }
}

// The last columns of a row, fewer than 16, for `count` rows of x and 8 of w.
QK_NOINLINE void add_last(const float *w, const float *x, int64_t columns, int64_t count,
                          Lanes *sums) {
    const Mask mask = first_lanes(columns);
    for (int64_t j = 0; j < count; ++j) {
        const Lanes value = load_f32(x + 16 * j);
        for (int64_t i = 0; i < 8; ++i) {
            Lanes &sum = sums[j * 8 + i];
            sum = fma_where(mask, value, load_f32(w + 16 * i), sum);
        }
    }
}

void add_tiles(const float *w, const float *x, int64_t steps, int64_t count,
               const uint8_t *ahead, Lanes *sums) {
    const int64_t line = count * 8 * int64_t(sizeof(Lanes)) / (8 / kTileRows);
    for (int row = 0; row < 8; row += kTileRows, w += kTileRows * 16, sums += kTileRows) {
        switch (count) {
            case 1: add_tile<1>(w, x, steps, ahead, sums); break;
            case 2: add_tile<2>(w, x, steps, ahead, sums); break;
            case 3: add_tile<3>(w, x, steps, ahead, sums); break;
            case 4: add_tile<4>(w, x, steps, ahead, sums); break;
            case 5: add_tile<5>(w, x, steps, ahead, sums); break;
            default: add_tile<6>(w, x, steps, ahead, sums);
        }
        ahead += line;
    }
}

class BatchBlocks {
  public:
    explicit BatchBlocks(const LinearArgs &args)
        : args_(args), packed_(args.w.layout->id == kLayoutRows8), scales_(args.w),
          any_scales_(args.w), decoder_(args.w) {}

    // At most kBatch rows of x and, times blocks, kSums.
    void run(int64_t first_block, int64_t blocks, int64_t x_first, int64_t x_rows) {
        const int64_t k = args_.w.geometry.k;
        x_first_ = x_first;
        x_rows_ = x_rows;
        for (int64_t i = 0; i < blocks * x_rows * 8; ++i) sums_[i] = zero_lanes();
        for (int64_t column = 0; column < k; column += kPanelColumns) {
            const int64_t end = min64(column + kPanelColumns, k);
            pack_x(column, end);
            for (int64_t i = 0; i < blocks; ++i) {
                add_panel(first_block + i, column, end, sums_ + i * x_rows * 8);
            }
        }
        for (int64_t i = 0; i < blocks; ++i) store(first_block + i, sums_ + i * x_rows * 8);
    }

  private:
    int64_t tile_rows(int64_t first) const { return min64(kTileBatch, x_rows_ - first); }

    // [tile][step][row]; every step but the last of k is full.
    void pack_x(int64_t column, int64_t end) {
        const int64_t steps = ceil_div(end - column, 16);
        for (int64_t first = 0; first < x_rows_; first += kTileBatch) {
            const int64_t count = tile_rows(first);
            float *const tile = x_ + first * steps * 16;
            for (int64_t j = 0; j < count; ++j) {
                const int64_t at = (x_first_ + first + j) * args_.x.columns + column;
                widen_x(args_.x, at, end - column, tile + j * 16, count * 16);
            }
        }
    }

    void add_panel(int64_t block, int64_t column, int64_t end, Lanes *sums) {
        const int64_t size = args_.w.geometry.group_size, group = column / size;
        const int64_t groups = ceil_div(end, size) - group;
        const char *const scales = packed_ ? scales_.load(block, group, groups)
                                           : any_scales_.load(block * 8, group, groups);
        decoder_.decode(block * 8, column, end, scales, weights_);
        const int64_t full = (end - column) / 16, steps = ceil_div(end - column, 16);
        for (int64_t first = 0; first < x_rows_; first += kTileBatch) {
            const int64_t count = tile_rows(first);
            const float *const x = x_ + first * steps * 16;
            // The next block's sums: they have gone to the second cache.
            Lanes *const here = sums + first * 8;
            const uint8_t *const ahead =
                reinterpret_cast<const uint8_t *>(here + x_rows_ * 8);
            add_tiles(weights_[0][0], x, full, count, ahead, here);
            if (full == steps) continue;
            add_last(weights_[full][0], x + full * count * 16, end - column - full * 16, count,
                     here);
        }
    }

    void store(int64_t block, const Lanes *sums) const {
        const int64_t first = block * 8, rows = min64(8, args_.w.geometry.n - first);
        float bias[8] = {}, y[8];
        if (args_.bias != nullptr) {
            load_floats(args_.bias->format->id, args_.bias->data, first, rows, bias);
        }
        for (int64_t j = 0; j < x_rows_; ++j) {
            fold_rows(sums + j * 8, y);
            for (int64_t row = 0; row < rows && args_.bias != nullptr; ++row) y[row] += bias[row];
            const int64_t at = (x_first_ + j) * args_.y.columns + first;
            store_floats(args_.y.format->id, args_.y.data, at, rows, y);
        }
    }

    const LinearArgs &args_;
    bool packed_;
    ScalePanel scales_;      // packed
    ScaleBlock any_scales_;  // every other layout
    Decoder decoder_;
    int64_t x_first_ = 0, x_rows_ = 0;
    alignas(64) float weights_[kPanelSteps][8][16];
    alignas(64) float x_[kBatch * kPanelColumns];
    Lanes sums_[kSums * 8];  // [block][row of x][row of w]
};

Status run_batch(const LinearArgs &args, const Launch &launch) {
    const int64_t blocks = ceil_div(args.w.geometry.n, 8);
    parallel_ranges(launch.parallel, blocks, 1, [&](int64_t first, int64_t last) {
        BatchBlocks task(args);
        const int64_t together = kSums / min64(kBatch, args.x.rows);
        for (int64_t i = first; i < last; i += together) {
            for (int64_t m = 0; m < args.x.rows; m += kBatch) {
                task.run(i, min64(together, last - i), m, min64(kBatch, args.x.rows - m));
            }
        }
    });
    return QK_OK;
}

bool can_run_batch(const LinearArgs &args, int32_t) {
    const Geometry &s = args.w.geometry;
    if ((features() & kLanesFeature) == 0) return false;
    if (args.w.layout == nullptr || s.flat) return false;
    return s.group_size >= s.k || s.group_size % 16 == 0;
}

}  // namespace
}  // namespace qk::cpu
