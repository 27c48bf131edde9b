// Rows of x as integers over packed U4 codes in groups of a multiple of 128 (docs/formats.md,
// "Order of sums"). How a block's integers are multiplied is an instruction set's:
//
//     Products(weight); Products::X, a block of x;
//     add(codes, x, scales, zeros, sums)    of 8 rows; zeros read as 8 where there are none
#pragma once
#include "cpu/linear/gemv.hpp"

namespace qk::cpu {

template <class Isa, class Products>
class RowsOfIntegers {
  public:
    static constexpr int64_t kTogether = kRowsTogether<typename Products::X>;  // rows of x

    RowsOfIntegers(const LinearArgs &args, const Device &device)
        : args_(args), x_(args.x), scales_(args.w, device), products_(args.w), blocks_(args.w),
          first_(panel_from(args.w.geometry, 0, blocks_.most())) {}

    void run(int64_t row_block) {
        sum_panels<Isa>(args_, args_.w.geometry, first_, row_block,
                        [&](const Panel &panel, Sums<Isa> *sums)
                            QK_INLINE { run_panel(row_block, panel, sums); });
    }

  private:
    void run_panel(int64_t row_block, const Panel &panel, Sums<Isa> *sums) {
        const uint8_t *const codes = blocks_.load(row_block, panel.first, panel.last);
        const char *const scales = scales_.load(row_block, panel.group, panel.groups);
        const uint8_t *const zeros = blocks_.zeros(row_block, panel.group, panel.groups);
        for (int64_t j = 0; j < args_.x.rows; ++j) {
            run_chunks(panel, codes, scales, zeros, x_[j].panel(panel.first * kBlock), sums[j]);
        }
    }

    QK_NOINLINE void run_chunks(const Panel &panel, const uint8_t *codes, const char *scales,
                                const uint8_t *zeros, const typename Products::X *x,
                                Sums<Isa> &total) const {
        const Geometry &s = args_.w.geometry;
        constexpr uint32_t eights = 0x88888888;
        const int64_t zeros_step = zeros != nullptr ? 4 : 0;
        if (zeros == nullptr) zeros = reinterpret_cast<const uint8_t *>(&eights);
        Sums<Isa> sums = total;  // a copy that nothing else points to
        int64_t left = panel.left;
        for (int64_t i = panel.first; i < panel.last; ++i, codes += 512, ++x) {
            products_.add(codes, *x, scales, zeros, sums);
            left -= kBlock;
            if (left > 0) continue;
            left = s.group_size;
            scales += 32;
            zeros += zeros_step;
        }
        total = sums;
    }

    const LinearArgs &args_;
    EachRow<BlocksOfX<Isa, typename Products::X>, kTogether> x_;
    ScalePanel<Isa> scales_;
    Products products_;
    CodesOfBlocks<Isa> blocks_;
    const Panel first_;
};

// A row at a time: dot(codes, x, zeros, row) has the lanes' sums of (code - zero) * integer of x.
template <class Isa, class Dots>
QK_INLINE inline void add_by_rows(const Dots &dots, const uint8_t *codes, const typename Dots::X &x,
                                  const char *scales, const uint8_t *zeros, Sums<Isa> &sums) {
    for (int row = 0; row < 8; ++row, codes += 64) {
        prefetch_stream(codes + kAhead);
        const Lanes<Isa> dot = dots.dot(codes, x, zeros, row);
        const float factor = x.unit * load_as<float>(scales, row);
        sums.row[row] = Isa::fma(dot, Isa::splat(factor), sums.row[row]);
    }
}

// In floats that are exact: 4096 * high + low. For machines without integer products of their own.
template <class Isa>
class FloatProducts {
  public:
    using X = XHalves;

    explicit FloatProducts(const Weight &w) : codes_(w) {}

    QK_INLINE void add(const uint8_t *codes, const X &x, const char *scales, const uint8_t *zeros,
                       Sums<Isa> &sums) const {
        add_by_rows<Isa>(*this, codes, x, scales, zeros, sums);
    }
    QK_INLINE Lanes<Isa> dot(const uint8_t *codes, const X &x, const uint8_t *zeros,
                             int row) const {
        const Words<Isa> words = Isa::load_words(codes);
        const Table<Isa> table = codes_.table(zeros, 0, row);
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
