// y = x . transpose(w) + bias for several rows of x over any quantized layout, and for one row
// where no other kernel takes it (checkpoint layouts, unusual groups).
// Each sum has the generic kernel's order, so a row of y does not depend on how many others are
// computed with it.
//
// A task owns blocks of 8 rows of w. For a block and up to kBatch rows of x it walks k in panels
// of 512 columns: decodes the panel's entries once (16 KB, the first cache), then multiplies them
// in register tiles of kTileRows rows of w and kTileBatch rows of x:
//
//     for each group in the panel      part[row][x] += entry[row] * x     16 lanes each
//                                      acc[row][x]  += part[row][x] * scale[row]
#pragma once
#include "cpu/features.hpp"
#include "cpu/lists.hpp"
#include "cpu/split.hpp"
#include "cpu/vector/decode.hpp"
#include "cpu/vector/panel.hpp"

namespace qk::cpu {
namespace {

constexpr int64_t kBatch = 24;       // rows of x whose sums a task keeps

// Columns of a panel that lie in one group.
struct Segment {
    int64_t first, last;   // full steps
    int64_t partial;       // columns of the step `last` before k ends, 0: none
    int64_t group;         // counted from the panel's first
    bool starts, ends;     // the group
};

class BatchBlock {
  public:
    explicit BatchBlock(const LinearArgs &args)
        : args_(args), wide_(args.x.format->id == QK_FORMAT_F32),
          packed_(args.w.layout->id == kLayoutRows8), scales_(args.w),
          any_scales_(args.w), decoder_(args.w) {}

    void run(int64_t row_block) {
        row_block_ = row_block;
        for (int64_t first = 0; first < args_.x.rows; first += kBatch) {
            x_first_ = first;
            x_rows_ = min64(kBatch, args_.x.rows - first);
            for (auto &row : acc_) {
                for (Lanes &lanes : row) lanes = zero_lanes();
            }
            const int64_t columns = kPanelSteps * 16;
            for (int64_t column = 0; column < args_.w.geometry.k; column += columns) {
                run_panel(column, min64(column + columns, args_.w.geometry.k));
            }
            store();
        }
    }

  private:
    void run_panel(int64_t column, int64_t end) {
        const Geometry &s = args_.w.geometry;
        column_ = column;
        const int64_t group = column / s.group_size;
        const int64_t groups = ceil_div(end, s.group_size) - group;
        row_scales_ = packed_ ? scales_.load(row_block_, group, groups)
                              : any_scales_.load(row_block_ * 8, group, groups);
        cut(column, end);
        decoder_.decode(row_block_ * 8, column, end, entries_);
        load_x(column, end);
        int64_t first = 0;
        for (; first + kTileBatch <= x_rows_; first += kTileBatch) add_rows<kTileBatch>(first);
        switch (x_rows_ - first) {
            case 5: return add_rows<5>(first);
            case 4: return add_rows<4>(first);
            case 3: return add_rows<3>(first);
            case 2: return add_rows<2>(first);
            case 1: return add_rows<1>(first);
            default: return;
        }
    }

    // f32 is read where it lies.
    void load_x(int64_t column, int64_t end) {
        for (int64_t i = 0; i < x_rows_; ++i) {
            const int64_t at = (x_first_ + i) * args_.x.columns + column;
            x_[i] = static_cast<const char *>(args_.x.data) + at * 4;
            if (wide_) continue;
            widen_x(args_.x, at, end - column, widened_[i]);
            x_[i] = reinterpret_cast<const char *>(widened_[i]);
        }
    }

    void cut(int64_t column, int64_t end) {
        const Geometry &s = args_.w.geometry;
        segment_count_ = 0;
        for (int64_t at = column; at < end;) {
            const int64_t group = at / s.group_size;
            const int64_t group_end = min64((group + 1) * s.group_size, s.k);
            const int64_t last = min64(group_end, end);
            segments_[segment_count_++] = {(at - column) / 16,
                                           (last - column) / 16,
                                           (last - column) % 16,
                                           group - column / s.group_size,
                                           at == group * s.group_size,
                                           last == group_end};
            at = last;
        }
    }

    template <int kCount>
    QK_NOINLINE void add_rows(int64_t first) {
        for (int row = 0; row < 8; row += kTileRows) {
            for (int64_t i = 0; i < segment_count_; ++i) {
                add_segment<kCount>(segments_[i], row, first);
            }
        }
    }

    template <int kCount>
    void add_segment(const Segment &segment, int row, int64_t first) {
        const char *const *const x = x_ + first;
        Lanes part[kTileRows][kCount];
        QK_UNROLL
        for (int i = 0; i < kTileRows; ++i) {
            QK_UNROLL
            for (int j = 0; j < kCount; ++j) {
                part[i][j] = segment.starts ? zero_lanes() : part_[row + i][first + j];
            }
        }
        for (int64_t step = segment.first; step < segment.last; ++step) {
            Lanes entry[kTileRows];
            QK_UNROLL
            for (int i = 0; i < kTileRows; ++i) entry[i] = load_f32(entries_[step][row + i]);
            QK_UNROLL
            for (int j = 0; j < kCount; ++j) {
                const Lanes value = load_f32(x[j] + step * 64);
                QK_UNROLL
                for (int i = 0; i < kTileRows; ++i) part[i][j] = fma(entry[i], value, part[i][j]);
            }
        }
        if (segment.partial != 0) {  // through a copy: what a pointer sees leaves the registers
            Lanes copy[kTileRows][kCount];
            memcpy(copy, part, sizeof(copy));
            add_partial(segment, row, x, kCount, copy[0]);
            memcpy(part, copy, sizeof(copy));
        }
        QK_UNROLL
        for (int i = 0; i < kTileRows; ++i) {
            const Lanes scale = splat(load_as<float>(row_scales_, segment.group * 8 + row + i));
            QK_UNROLL
            for (int j = 0; j < kCount; ++j) {
                Lanes &acc = acc_[row + i][first + j];
                if (segment.ends) {
                    acc = fma(part[i][j], scale, acc);
                } else {
                    part_[row + i][first + j] = part[i][j];
                }
            }
        }
    }

    // The last columns of a row: fewer than 16.
    QK_NOINLINE void add_partial(const Segment &segment, int row, const char *const *x, int count,
                                 Lanes *part) {
        const Mask mask = first_lanes(segment.partial);
        for (int i = 0; i < kTileRows; ++i) {
            const Lanes entry = load_f32(entries_[segment.last][row + i]);
            for (int j = 0; j < count; ++j) {
                const Lanes value = load_f32(x[j] + segment.last * 64, mask);
                part[i * count + j] = fma_where(mask, value, entry, part[i * count + j]);
            }
        }
    }

    void store() const {
        const int64_t first = row_block_ * 8, rows = min64(8, args_.w.geometry.n - first);
        for (int64_t row = 0; row < rows; ++row) {
            for (int64_t j = 0; j < x_rows_; ++j) {
                float y = fold_lanes(acc_[row][j]);
                if (args_.bias != nullptr) {
                    y += load_float(args_.bias->format->id, args_.bias->data, first + row);
                }
                const int64_t at = (x_first_ + j) * args_.y.columns + first + row;
                store_float(args_.y.format->id, args_.y.data, at, y);
            }
        }
    }

    const LinearArgs &args_;
    bool wide_, packed_;
    ScalePanel scales_;      // packed
    ScaleBlock any_scales_;  // every other layout
    Decoder decoder_;
    int64_t row_block_ = 0, x_first_ = 0, x_rows_ = 0, column_ = 0, segment_count_ = 0;
    const char *row_scales_ = nullptr;
    Segment segments_[kPanelSteps + 1];
    const char *x_[kBatch];  // f32, from the panel's first column on
    Lanes acc_[8][kBatch], part_[8][kBatch];
    float widened_[kBatch][kPanelSteps * 16];
    alignas(64) float entries_[kPanelSteps][8][16];
};

Status run_batch(const LinearArgs &args, const Launch &launch) {
    const int64_t blocks = ceil_div(args.w.geometry.n, 8);
    parallel_ranges(launch.parallel, blocks, 1, [&](int64_t first, int64_t last) {
        BatchBlock block(args);
        for (int64_t i = first; i < last; ++i) block.run(i);
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
