// One row of x as integers over packed U4 codes in groups of a multiple of 128 (docs/formats.md,
// "Order of sums"), in floats that are exact: 4096 * high + low. For machines without integer dot
// products of their own.
#pragma once
#include "cpu/vector/gemv_floats.hpp"

namespace qk::cpu {
namespace {

class IntegerRowBlocks {
  public:
    explicit IntegerRowBlocks(const LinearArgs &args)
        : args_(args), x_(args.x), scales_(args.w), codes_(args.w) {}

    void run(int64_t row_block) {
        const Geometry &s = args_.w.geometry;
        const int64_t chunks = ceil_div(s.k, kBlock), panel = chunks_of_panel(s);
        Sums sums;
        for (Lanes &lanes : sums.row) lanes = zero_lanes();
        for (int64_t first = 0; first < chunks; first += panel) {
            run_panel(row_block, first, min64(first + panel, chunks), sums);
        }
        store_rows(args_, row_block, sums);
    }

  private:
    QK_NOINLINE void run_panel(int64_t row_block, int64_t first, int64_t last, Sums &sums) {
        const Geometry &s = args_.w.geometry;
        const int64_t chunks = ceil_div(s.k, kBlock), size = s.group_size;
        const int64_t group = first * kBlock / size;
        const int64_t groups = ceil_div(min64(last * kBlock, s.k), size) - group;
        Chunk chunk = {};
        chunk.codes =
            static_cast<const uint8_t *>(args_.w.data) + (row_block * chunks + first) * 512;
        chunk.scales = scales_.load(row_block, group, groups);
        chunk.zeros = no_zeros_;
        if (args_.w.zero != nullptr) {
            chunk.zeros = static_cast<const uint8_t *>(args_.w.zero) +
                          (row_block * s.groups_per_row + group) * 4;
        }
        const IntegersOfX::Block *x = x_.panel(first * kBlock);
        for (int64_t i = first; i < last; ++i, chunk.codes += 512, ++x) {
            const int64_t at = i * kBlock / size - group;
            for (int row = 0; row < 8; ++row) add_row(chunk, *x, at, row, sums.row[row]);
        }
    }

    QK_INLINE void add_row(const Chunk &chunk, const IntegersOfX::Block &x, int64_t group, int row,
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
                                    const IntegersOfX::Block &x, Lanes &high, Lanes &low) {
        if constexpr (step < 8) {
            const Lanes entry = look_up<step>(table, words);
            high = fma(entry, load_f32(x.high + 16 * step), high);
            low = fma(entry, load_f32(x.low + 16 * step), low);
            add_steps<step + 1>(words, table, x, high, low);
        }
    }

    const LinearArgs &args_;
    IntegersOfX x_;
    ScalePanel scales_;
    AffineCodes codes_;
    uint8_t no_zeros_[kPanelGroups * 4] = {};
};

}  // namespace
}  // namespace qk::cpu
