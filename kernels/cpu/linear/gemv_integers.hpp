// One row of x as integers over packed U4 codes in groups of a multiple of 128 (docs/formats.md,
// "Order of sums"). How a row's integers are multiplied is an instruction set's:
//
//     Products(weight); Products::X, a block of x;
//     Lanes dot(codes, x, zeros, group, row)    the lanes' sums of (code - zero) * integer of x
#pragma once
#include "cpu/linear/gemv.hpp"

namespace qk::cpu {

template <class Isa, class Products>
class RowsOfIntegers {
  public:
    RowsOfIntegers(const LinearArgs &args, const Device &device)
        : args_(args), x_(args.x), scales_(args.w, device), products_(args.w),
          chunks_(ceil_div(args.w.geometry.k, kBlock)), first_(panel_from(args.w.geometry, 0)) {}

    void run(int64_t row_block) {
        sum_panels<Isa>(args_, first_, row_block,
                        [&](const Panel &panel, Sums<Isa> &sums)
                            QK_INLINE { run_panel(row_block, panel, sums); });
    }

  private:
    QK_NOINLINE void run_panel(int64_t row_block, const Panel &panel, Sums<Isa> &sums) {
        const Geometry &s = args_.w.geometry;
        Chunk chunk = {};
        chunk.codes =
            static_cast<const uint8_t *>(args_.w.data) + (row_block * chunks_ + panel.first) * 512;
        chunk.scales = scales_.load(row_block, panel.group, panel.groups);
        chunk.zeros = no_zeros_;
        if (args_.w.zero != nullptr) {
            chunk.zeros = static_cast<const uint8_t *>(args_.w.zero) +
                          (row_block * s.groups_per_row + panel.group) * 4;
        }
        const typename Products::X *x = x_.panel(panel.first * kBlock);
        int64_t left = panel.left, group = 0;
        for (int64_t i = panel.first; i < panel.last; ++i, chunk.codes += 512, ++x) {
            for (int row = 0; row < 8; ++row) {
                const uint8_t *const codes = chunk.codes + 64 * row;
                prefetch(codes + kAhead);
                const Lanes<Isa> dot = products_.dot(codes, *x, chunk.zeros, group, row);
                const float factor = x->unit * load_as<float>(chunk.scales, group * 8 + row);
                sums.row[row] = Isa::fma(dot, Isa::splat(factor), sums.row[row]);
            }
            left -= kBlock;
            if (left > 0) continue;
            left = s.group_size;
            ++group;
        }
    }

    const LinearArgs &args_;
    BlocksOfX<Isa, typename Products::X> x_;
    ScalePanel<Isa> scales_;
    Products products_;
    const int64_t chunks_;
    const Panel first_;
    uint8_t no_zeros_[kPanelGroups * 4] = {};
};

// In floats that are exact: 4096 * high + low. For machines without integer products of their own.
template <class Isa>
class FloatProducts {
  public:
    using X = XHalves;

    explicit FloatProducts(const Weight &w) : codes_(w) {}

    QK_INLINE Lanes<Isa> dot(const uint8_t *codes, const X &x, const uint8_t *zeros, int64_t group,
                             int row) const {
        const Words<Isa> words = Isa::load_words(codes);
        const Table<Isa> table = codes_.table(zeros, group, row);
        Lanes<Isa> high = Isa::zero_lanes(), low = Isa::zero_lanes();
        add_steps<0>(words, table, x, high, low);
        return Isa::fma(high, Isa::splat(4096), low);
    }

  private:
    template <int step>
    QK_INLINE static void add_steps(const Words<Isa> &words, const Table<Isa> &table, const X &x,
                                    Lanes<Isa> &high, Lanes<Isa> &low) {
        if constexpr (step < 8) {
            const Lanes<Isa> entry = Isa::template look_up<step>(table, words);
            high = Isa::fma(entry, Isa::load_f32(x.high + 16 * step), high);
            low = Isa::fma(entry, Isa::load_f32(x.low + 16 * step), low);
            add_steps<step + 1>(words, table, x, high, low);
        }
    }

    AffineCodes<Isa> codes_;
};

}  // namespace qk::cpu
