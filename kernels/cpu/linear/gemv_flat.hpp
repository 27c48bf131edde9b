// y = x . transpose(w) + bias for one or two rows of x over blocks of packed rows whose groups
// straddle them: every row has its own columns where a group ends.
//
// Groups are multiples of 16 columns, so all groups of a row end at one lane of a step, its cut:
//
//     scales[row][s]    of the group where step s starts; lanes from the cut on have scales[s + 1]
//
// A step has one scale a lane: what the codes stand for is looked up and then scaled, which rounds
// as entries that are scaled first. Where rows are whole steps no group ends within one.
#pragma once
#include "cpu/linear/gemv.hpp"

namespace qk::cpu {
namespace {

// Of up to a panel's steps, and the one after.
struct StepScales {
    static constexpr int64_t kPitch = kPanelGroups + 8;  // the last are written and do not count
    float row[8][kPitch];
};

template <class Isa>
struct FlatChunk {
    const uint8_t *codes;     // row 0's
    const float *scales;      // of row 0's first step, kPitch apart
    const Mask<Isa> *before;  // lanes of a row that have the scale of where their step starts
    const char *x[kLaneRows];
};

template <class Isa, bool kCut, int kCount>
QK_INLINE inline void add_flat_rows(const FlatChunk<Isa> &chunk, int first_row,
                                    const Table<Isa> &table, SumsOf<Isa, kCount> &sums) {
    constexpr int kRows = Isa::kRowsTogether < 4 ? 1 : 4;
    Words<Isa> words[kRows];
    Lanes<Isa> scale[kRows];
    Mask<Isa> before[kRows];
    QK_UNROLL
    for (int i = 0; i < kRows; ++i) {
        const int row = first_row + i;
        prefetch_stream(chunk.codes + 64 * row + kAhead);
        words[i] = Isa::load_words(chunk.codes + 64 * row);
        scale[i] = Isa::splat(chunk.scales[row * StepScales::kPitch]);
        if (kCut) before[i] = chunk.before[row];
    }
    for_each_step([&]<int step>() QK_INLINE {
        Lanes<Isa> x[kCount];
        QK_UNROLL
        for (int j = 0; j < kCount; ++j) x[j] = Isa::load_f32(chunk.x[j] + 64 * step);
        QK_UNROLL
        for (int i = 0; i < kRows; ++i) {
            const int row = first_row + i;
            const Lanes<Isa> next = Isa::splat(chunk.scales[row * StepScales::kPitch + step + 1]);
            const Lanes<Isa> of_step = kCut ? Isa::where(before[i], scale[i], next) : scale[i];
            const Lanes<Isa> weight =
                Isa::mul(Isa::template look_up<step>(table, words[i]), of_step);
            QK_UNROLL
            for (int j = 0; j < kCount; ++j) {
                sums[j].row[row] = Isa::fma(weight, x[j], sums[j].row[row]);
            }
            scale[i] = next;
        }
    });
}

template <class Isa, bool kCut, int kCount, class Codes>
QK_INLINE inline void add_flat_chunk(const FlatChunk<Isa> &chunk, const Codes &codes,
                                     SumsOf<Isa, kCount> &sums) {
    constexpr int kRows = Isa::kRowsTogether < 4 ? 1 : 4;
    const Table<Isa> table = codes.table(nullptr, 0, 0);
    QK_UNROLL
    for (int row = 0; row < 8; row += kRows) {
        add_flat_rows<Isa, kCut, kCount>(chunk, row, table, sums);
    }
}

// 16 columns of a row's last chunk, or those of them that are left: lanes of `before` have the
// scale `first`, the others `second`.
template <class Isa>
QK_INLINE inline void add_step_of_tail(const float *entries, Mask<Isa> before, float first,
                                       float second, const char *x, int64_t left, Lanes<Isa> &sum) {
    const Lanes<Isa> scale = Isa::where(before, Isa::splat(first), Isa::splat(second));
    const Lanes<Isa> weight = Isa::mul(Isa::load_f32(entries), scale);
    const Mask<Isa> mask = Isa::first_lanes(left);
    sum = Isa::fma_where(mask, Isa::load_f32(x, mask), weight, sum);
}

template <class Isa, class Codes>
class FlatRowBlocks {
  public:
    FlatRowBlocks(const LinearArgs &args, const Device &device)
        : args_(args), s_(geometry_of_blocks(args.w.geometry)), x_(args.x), scales_(args.w, device),
          codes_(args.w), blocks_(args.w), first_(panel_from(s_, 0, blocks_.most())),
          cuts_(args.w.geometry.k % 16 != 0) {}

    void run(int64_t row_block) {
        for (int64_t row = 0; row < 8; ++row) {
            const int64_t past = (row_block * 8 + row) * s_.k % 16;
            before_[row] = Isa::first_lanes(16 - past);
        }
        sum_panels<Isa>(args_, s_, first_, row_block,
                        [&](const Panel &panel, Sums<Isa> *sums)
                            QK_INLINE { run_panel(row_block, panel, sums); });
    }

  private:
    void run_panel(int64_t row_block, const Panel &panel, Sums<Isa> *sums) {
        const uint8_t *const codes = blocks_.load(row_block, panel.first, panel.last);
        scales_.load_steps(row_block, panel.group, panel.groups + 1, StepScales::kPitch,
                           steps_.row[0]);
        FlatChunk<Isa> chunk = {codes, steps_.row[0], before_, {}};
        const int64_t rows = args_.x.rows;
        for (int64_t j = 0; j < rows; ++j) chunk.x[j] = x_[j].panel(panel.first * 128);
        rows > 1 ? run_chunks<2>(chunk, panel.full, sums) : run_chunks<1>(chunk, panel.full, sums);
        if (panel.first + panel.full == panel.last) return;
        for (int64_t j = 0; j < rows; ++j) {
            add_tail(codes + panel.full * 512, panel.full * 8, chunk.x[j] + panel.full * 512,
                     s_.k - (panel.first + panel.full) * 128, sums[j]);
        }
    }

    template <int kCount>
    void run_chunks(const FlatChunk<Isa> &first, int64_t full, Sums<Isa> *total) const {
        cuts_ ? run_chunks<true, kCount>(first, full, total)
              : run_chunks<false, kCount>(first, full, total);
    }
    template <bool kCut, int kCount>
    QK_NOINLINE void run_chunks(FlatChunk<Isa> at, int64_t full, Sums<Isa> *total) const {
        SumsOf<Isa, kCount> sums;  // a copy that nothing points to stays in registers
        for (int j = 0; j < kCount; ++j) sums[j] = total[j];
        for (int64_t i = 0; i < full; ++i) {
            add_flat_chunk<Isa, kCut, kCount>(at, codes_, sums);
            at.codes += 512;
            at.scales += 8;
            for (const char *&of_row : at.x) of_row += 512;
        }
        for (int j = 0; j < kCount; ++j) total[j] = sums[j];
    }

    // The last chunk of a row, `columns` of it.
    QK_NOINLINE void add_tail(const uint8_t *codes, int64_t step, const char *x, int64_t columns,
                              Sums<Isa> &sums) const {
        const Table<Isa> tables[8] = {codes_.table(nullptr, 0, 0), codes_.table(nullptr, 0, 0),
                                      codes_.table(nullptr, 0, 0), codes_.table(nullptr, 0, 0),
                                      codes_.table(nullptr, 0, 0), codes_.table(nullptr, 0, 0),
                                      codes_.table(nullptr, 0, 0), codes_.table(nullptr, 0, 0)};
        for (int row = 0; row < 8; ++row) {
            float entries[8][16];
            look_up_steps<Isa, 0>(Isa::load_words(codes + 64 * row), tables, ceil_div(columns, 16),
                                  entries);
            const float *scale = steps_.row[row] + step;
            for (int64_t at = 0; at < columns; at += 16, ++scale) {
                add_step_of_tail<Isa>(entries[at / 16], before_[row], scale[0], scale[1],
                                      x + at * 4, columns - at, sums.row[row]);
            }
        }
    }

    const LinearArgs &args_;
    const Geometry s_;  // of steps
    EachRow<RowOfX<Isa>> x_;
    ScalePanel<Isa> scales_;
    Codes codes_;
    CodesOfBlocks<Isa> blocks_;
    const Panel first_;
    const bool cuts_;
    Mask<Isa> before_[8];
    StepScales steps_;
};

}  // namespace
}  // namespace qk::cpu
