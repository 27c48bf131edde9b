// y = x . transpose(w) + bias for one row of x where no other kernel takes it: checkpoint layouts,
// 8-bit codes, unusual groups. The sum has the generic kernel's order, so the bits are the same.
#pragma once
#include "cpu/features.hpp"
#include "cpu/lists.hpp"
#include "cpu/split.hpp"
#include "cpu/linear/decode.hpp"
#include "cpu/linear/row_of_x.hpp"

namespace qk::cpu {
namespace {

// A block of 8 rows after the other, in panels of 512 columns.
template <class Isa>
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

    QK_NOINLINE void store(int64_t first, const Lanes<Isa> *sums) const {
        const int64_t rows = min64(8, args_.w.geometry.n - first);
        float y[8];
        Isa::fold_rows(sums, y);
        for (int64_t row = 0; row < rows && args_.bias != nullptr; ++row) {
            y[row] += load_float(args_.bias->format->id, args_.bias->data, first + row);
        }
        store_floats(args_.y.format->id, args_.y.data, first, rows, y);
    }

    const LinearArgs &args_;
    bool packed_;
    ScalePanel<Isa> scales_;      // packed
    ScaleBlock<Isa> any_scales_;  // every other layout
    Decoder<Isa> decoder_;
    alignas(64) float weights_[kPanelSteps][8][16];
};

template <class Isa>
class SingleFloats : SingleRow<Isa> {
  public:
    SingleFloats(const LinearArgs &args, const Device &device)
        : SingleRow<Isa>(args, device), x_(args.x) {}

    void run(int64_t first) {
        Lanes<Isa> sums[8];
        for (Lanes<Isa> &sum : sums) sum = Isa::zero_lanes();
        for (int64_t column = 0; column < args_.w.geometry.k; column += kColumns) {
            if (column % kPanelOfX == 0) x_panel_ = x_.panel(column);
            add(panel(first, column), x_panel_ + column % kPanelOfX * 4, sums);
        }
        store(first, sums);
    }

  private:
    using Row = SingleRow<Isa>;
    using Row::args_;
    using Row::decoder_;
    using Row::kColumns;
    using Row::panel;
    using Row::store;
    using Row::weights_;
    using typename Row::Panel;

    QK_NOINLINE void add(const Panel &p, const char *x, Lanes<Isa> *sums) {
        decoder_.decode(p.row, p.column, p.end, p.scales, weights_);
        for (int64_t row = 0; row < 8; ++row) {
            Lanes<Isa> sum = sums[row];
            const float *w = weights_[0][row];
            int64_t at = 0;
            for (const int64_t count = p.end - p.column; at + 16 <= count; at += 16, w += 128) {
                sum = Isa::fma(Isa::load_f32(x + at * 4), Isa::load_f32(w), sum);
            }
            const Mask<Isa> mask = Isa::first_lanes(p.end - p.column - at);
            if (at < p.end - p.column) {
                sum = Isa::fma_where(mask, Isa::load_f32(x + at * 4, mask), Isa::load_f32(w), sum);
            }
            sums[row] = sum;
        }
    }

    RowOfX<Isa> x_;
    const char *x_panel_ = nullptr;
};

template <class Isa>
class SingleIntegers : SingleRow<Isa> {
  public:
    SingleIntegers(const LinearArgs &args, const Device &device)
        : SingleRow<Isa>(args, device), x_(args.x) {
        for (auto &group : ones_) {
            for (float &one : group) one = 1;
        }
    }

    void run(int64_t first) {
        Lanes<Isa> sums[8];
        for (Lanes<Isa> &sum : sums) sum = Isa::zero_lanes();
        for (int64_t column = 0; column < args_.w.geometry.k; column += kColumns) {
            if (column % kPanelOfX == 0) x_panel_ = x_.panel(column);
            add(panel(first, column), x_panel_ + column % kPanelOfX / kBlock, sums);
        }
        store(first, sums);
    }

  private:
    using Row = SingleRow<Isa>;
    using Row::args_;
    using Row::decoder_;
    using Row::kColumns;
    using Row::panel;
    using Row::store;
    using Row::weights_;
    using typename Row::Panel;

    // The entries alone are decoded, padding past the last column too: x is 0 there.
    QK_NOINLINE void add(const Panel &p, const XHalves *x, Lanes<Isa> *sums) {
        const int64_t size = args_.w.geometry.group_size, first_group = p.column / size;
        const int64_t count = p.end - p.column;
        decoder_.decode(p.row, p.column, p.end, reinterpret_cast<const char *>(ones_), weights_);
        for (int64_t at = 0; at < count; at += kBlock, ++x) {
            const int64_t group = (p.column + at) / size - first_group;
            for (int64_t row = 0; row < 8; ++row) {
                Lanes<Isa> high = Isa::zero_lanes(), low = Isa::zero_lanes();
                for (int64_t c = 0; c < min64(kBlock, count - at); c += 16) {
                    const Lanes<Isa> w = Isa::load_f32(weights_[(at + c) / 16][row]);
                    high = Isa::fma(Isa::load_f32(x->high + c), w, high);
                    low = Isa::fma(Isa::load_f32(x->low + c), w, low);
                }
                const Lanes<Isa> dot = Isa::fma(high, Isa::splat(4096), low);
                const float factor = x->unit * load_as<float>(p.scales, group * 8 + row);
                sums[row] = Isa::fma(dot, Isa::splat(factor), sums[row]);
            }
        }
    }

    BlocksOfX<Isa, XHalves> x_;
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

template <class Isa>
Status run_single(const LinearArgs &args, const Launch &launch) {
    sums_integers<Isa>(args) ? run_single_rows<SingleIntegers<Isa>>(args, launch)
                             : run_single_rows<SingleFloats<Isa>>(args, launch);
    return QK_OK;
}

template <class Isa>
bool can_run_single(const LinearArgs &args, const Device &device) {
    const Geometry &s = args.w.geometry;
    if (!has(device, Isa::kFeature) || args.x.rows != 1) return false;
    if (args.w.layout == nullptr || s.flat) return false;
    return s.group_size >= s.k || s.group_size % 16 == 0;
}

}  // namespace
}  // namespace qk::cpu
