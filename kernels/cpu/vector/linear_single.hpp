// y = x . transpose(w) + bias for one row of x where no other kernel takes it: checkpoint layouts,
// 8-bit codes, unusual groups. The sum has the generic kernel's order, so the bits are the same.
#pragma once
#include "cpu/features.hpp"
#include "cpu/lists.hpp"
#include "cpu/split.hpp"
#include "cpu/vector/decode.hpp"
#include "cpu/vector/row_of_x.hpp"

namespace qk::cpu {
namespace {

// A block of 8 rows after the other, in panels of 512 columns.
class SingleRow {
  public:
    QK_NOINLINE SingleRow(const LinearArgs &args, const Device &device)
        : args_(args), packed_(args.w.layout->id == kLayoutRows8), scales_(args.w, device),
          any_scales_(args.w), decoder_(args.w) {}

  protected:
    static constexpr int64_t kColumns = kPanelSteps * 16;

    struct Panel {
        int64_t row, column, end;
        const char *scales;  // f32 [group][row]
    };
    QK_NOINLINE Panel panel(int64_t row, int64_t column) {
        const int64_t size = args_.w.geometry.group_size, group = column / size;
        const int64_t end = min64(column + kColumns, args_.w.geometry.k);
        const int64_t groups = ceil_div(end, size) - group;
        return {
            row, column, end,
            packed_ ? scales_.load(row / 8, group, groups) : any_scales_.load(row, group, groups)};
    }

    QK_NOINLINE void store(int64_t first, const Lanes *sums) const {
        const int64_t rows = min64(8, args_.w.geometry.n - first);
        float y[8];
        fold_rows(sums, y);
        for (int64_t row = 0; row < rows && args_.bias != nullptr; ++row) {
            y[row] += load_float(args_.bias->format->id, args_.bias->data, first + row);
        }
        store_floats(args_.y.format->id, args_.y.data, first, rows, y);
    }

    const LinearArgs &args_;
    bool packed_;
    ScalePanel scales_;      // packed
    ScaleBlock any_scales_;  // every other layout
    Decoder decoder_;
    alignas(64) float weights_[kPanelSteps][8][16];
};

class SingleFloats : SingleRow {
  public:
    SingleFloats(const LinearArgs &args, const Device &device)
        : SingleRow(args, device), x_(args.x) {}

    void run(int64_t first) {
        Lanes sums[8];
        for (Lanes &sum : sums) sum = zero_lanes();
        for (int64_t column = 0; column < args_.w.geometry.k; column += kColumns) {
            if (column % kPanelOfX == 0) x_panel_ = x_.panel(column);
            add(panel(first, column), x_panel_ + column % kPanelOfX * 4, sums);
        }
        store(first, sums);
    }

  private:
    QK_NOINLINE void add(const Panel &p, const char *x, Lanes *sums) {
        decoder_.decode(p.row, p.column, p.end, p.scales, weights_);
        for (int64_t row = 0; row < 8; ++row) {
            Lanes sum = sums[row];
            const float *w = weights_[0][row];
            int64_t at = 0;
            for (const int64_t count = p.end - p.column; at + 16 <= count; at += 16, w += 128) {
                sum = fma(load_f32(x + at * 4), load_f32(w), sum);
            }
            const Mask mask = first_lanes(p.end - p.column - at);
            if (at < p.end - p.column) {
                sum = fma_where(mask, load_f32(x + at * 4, mask), load_f32(w), sum);
            }
            sums[row] = sum;
        }
    }

    RowOfX x_;
    const char *x_panel_ = nullptr;
};

class SingleIntegers : SingleRow {
  public:
    SingleIntegers(const LinearArgs &args, const Device &device)
        : SingleRow(args, device), x_(args.x) {
        for (auto &group : ones_) {
            for (float &one : group) one = 1;
        }
    }

    void run(int64_t first) {
        Lanes sums[8];
        for (Lanes &sum : sums) sum = zero_lanes();
        for (int64_t column = 0; column < args_.w.geometry.k; column += kColumns) {
            if (column % kPanelOfX == 0) x_panel_ = x_.panel(column);
            add(panel(first, column), x_panel_ + column % kPanelOfX / kBlock, sums);
        }
        store(first, sums);
    }

  private:
    // The entries alone are decoded, padding past the last column too: x is 0 there.
    QK_NOINLINE void add(const Panel &p, const XHalves *x, Lanes *sums) {
        const int64_t size = args_.w.geometry.group_size, first_group = p.column / size;
        const int64_t count = p.end - p.column;
        decoder_.decode(p.row, p.column, p.end, reinterpret_cast<const char *>(ones_), weights_);
        for (int64_t at = 0; at < count; at += kBlock, ++x) {
            const int64_t group = (p.column + at) / size - first_group;
            for (int64_t row = 0; row < 8; ++row) {
                Lanes high = zero_lanes(), low = zero_lanes();
                for (int64_t c = 0; c < min64(kBlock, count - at); c += 16) {
                    const Lanes w = load_f32(weights_[(at + c) / 16][row]);
                    high = fma(load_f32(x->high + c), w, high);
                    low = fma(load_f32(x->low + c), w, low);
                }
                const Lanes dot = fma(high, splat(4096), low);
                const float factor = x->unit * load_as<float>(p.scales, group * 8 + row);
                sums[row] = fma(dot, splat(factor), sums[row]);
            }
        }
    }

    BlocksOfX<XHalves> x_;
    const XHalves *x_panel_ = nullptr;
    float ones_[kPanelSteps + 1][8];
};

template <class Row>
void run_single_rows(const LinearArgs &args, const Launch &launch) {
    const int64_t blocks = ceil_div(args.w.geometry.n, 8);
    parallel_ranges(launch.parallel, blocks, 1, [&](int64_t first, int64_t last) {
        InScratch<Row> row(launch.scratch, args, launch.device);
        for (int64_t block = first; block < last; ++block) row->run(block * 8);
    });
}

Status run_single(const LinearArgs &args, const Launch &launch) {
    sums_integers(args) ? run_single_rows<SingleIntegers>(args, launch)
                        : run_single_rows<SingleFloats>(args, launch);
    return QK_OK;
}

bool can_run_single(const LinearArgs &args, const Device &device) {
    const Geometry &s = args.w.geometry;
    if (!has(device, kLanesFeature) || args.x.rows != 1) return false;
    if (args.w.layout == nullptr || s.flat) return false;
    return s.group_size >= s.k || s.group_size % 16 == 0;
}

}  // namespace
}  // namespace qk::cpu
