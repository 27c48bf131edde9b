// One row of x as integers over packed U4 codes in groups of a multiple of 128 (docs/formats.md,
// "Order of sums"), in floats that are exact: 4096 * high + low. For machines without integer dot
// products of their own.
#pragma once
#include "cpu/vector/gemv_floats.hpp"

namespace qk::cpu {
namespace {

class IntegerRows {
  public:
    explicit IntegerRows(const LinearArgs &args)
        : args_(args), x_(args.x), scales_(args.w), codes_(args.w),
          chunks_(ceil_div(args.w.geometry.k, kBlock)), first_(panel_from(args.w.geometry, 0)) {}

    void run(int64_t row_block) {
        sum_panels(args_, first_, row_block, [&](const Panel &panel, Sums &sums) QK_INLINE {
            run_panel(row_block, panel, sums);
        });
    }

  private:
    QK_NOINLINE void run_panel(int64_t row_block, const Panel &panel, Sums &sums) {
        const Geometry &s = args_.w.geometry;
        Chunk chunk = {};
        chunk.codes = static_cast<const uint8_t *>(args_.w.data) +
                      (row_block * chunks_ + panel.first) * 512;
        chunk.scales = scales_.load(row_block, panel.group, panel.groups);
        chunk.zeros = no_zeros_;
        if (args_.w.zero != nullptr) {
            chunk.zeros = static_cast<const uint8_t *>(args_.w.zero) +
                          (row_block * s.groups_per_row + panel.group) * 4;
        }
        const XHalves *x = x_.panel(panel.first * kBlock);
        int64_t left = panel.left, group = 0;
        for (int64_t i = panel.first; i < panel.last; ++i, chunk.codes += 512, ++x) {
            for (int row = 0; row < 8; ++row) add_row(chunk, *x, group, row, sums.row[row]);
            left -= kBlock;
            if (left > 0) continue;
            left = s.group_size;
            ++group;
        }
    }

    QK_INLINE void add_row(const Chunk &chunk, const XHalves &x, int64_t group, int row,
                           Lanes &sum) const {
        prefetch(chunk.codes + 64 * row + kAhead);
        const Words words = load_words(chunk.codes + 64 * row);
        const Table table = codes_.table(chunk.zeros, group, row);
        Lanes high = zero_lanes(), low = zero_lanes();
        add_steps<0>(words, table, x, high, low);
        const float factor = x.unit * load_as<float>(chunk.scales, group * 8 + row);
        sum = fma(fma(high, splat(4096), low), splat(factor), sum);
    }
    template <int step>
    QK_INLINE static void add_steps(const Words &words, const Table &table,
                                    const XHalves &x, Lanes &high, Lanes &low) {
        if constexpr (step < 8) {
            const Lanes entry = look_up<step>(table, words);
            high = fma(entry, load_f32(x.high + 16 * step), high);
            low = fma(entry, load_f32(x.low + 16 * step), low);
            add_steps<step + 1>(words, table, x, high, low);
        }
    }

    const LinearArgs &args_;
    BlocksOfX<XHalves> x_;
    ScalePanel scales_;
    AffineCodes codes_;
    const int64_t chunks_;
    const Panel first_;
    uint8_t no_zeros_[kPanelGroups * 4] = {};
};

}  // namespace
}  // namespace qk::cpu
