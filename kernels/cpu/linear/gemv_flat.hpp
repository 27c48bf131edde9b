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
    const char *x;
};

template <class Isa, bool kCut>
QK_INLINE inline void add_flat_rows(const FlatChunk<Isa> &chunk, int first_row,
                                    const Table<Isa> &table, Sums<Isa> &sums) {
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
        const Lanes<Isa> x = Isa::load_f32(chunk.x + 64 * step);
        QK_UNROLL
        for (int i = 0; i < kRows; ++i) {
            const int row = first_row + i;
            const Lanes<Isa> next = Isa::splat(chunk.scales[row * StepScales::kPitch + step + 1]);
            const Lanes<Isa> of_step = kCut ? Isa::where(before[i], scale[i], next) : scale[i];
            const Lanes<Isa> weight =
                Isa::mul(Isa::template look_up<step>(table, words[i]), of_step);
            sums.row[row] = Isa::fma(weight, x, sums.row[row]);
            scale[i] = next;
        }
    });
}

template <class Isa, bool kCut, class Codes>
QK_INLINE inline void add_flat_chunk(const FlatChunk<Isa> &chunk, const Codes &codes,
                                     Sums<Isa> &sums) {
    if constexpr (requires {
                      codes.planes();
                      Isa::template add_steps<kCut>;
                  }) {
        _Pragma("GCC unroll 1") for (int row = 0; row < 8; ++row) {
            const uint8_t *const from = chunk.codes + 64 * row;
            prefetch_stream(from + kAhead);
            Isa::template add_steps<kCut>(
                codes.planes(), from, chunk.scales + row * StepScales::kPitch, chunk.before[row],
                reinterpret_cast<const float *>(chunk.x), sums.row[row]);
        }
    } else {
        constexpr int kRows = Isa::kRowsTogether < 4 ? 1 : 4;
        const Table<Isa> table = codes.table(nullptr, 0, 0);
        QK_UNROLL
        for (int row = 0; row < 8; row += kRows) {
            add_flat_rows<Isa, kCut>(chunk, row, table, sums);
        }
    }
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
        sum_panels<Isa>(args_, first_, row_block,
                        [&](const Panel &panel, Sums<Isa> *sums)
                            QK_INLINE { run_panel(row_block, panel, sums); });
    }

  private:
    void run_panel(int64_t row_block, const Panel &panel, Sums<Isa> *sums) {
        const uint8_t *const codes = blocks_.load(row_block, panel.first, panel.last);
        scales_.load_steps(row_block, panel.group, panel.groups + 1, StepScales::kPitch,
                           steps_.row[0]);
        for (int64_t j = 0; j < args_.x.rows; ++j) {
            const FlatChunk<Isa> chunk = {codes, steps_.row[0], before_,
                                          x_[j].panel(panel.first * 128)};
            cuts_ ? run_chunks<true>(chunk, panel.full, sums[j])
                  : run_chunks<false>(chunk, panel.full, sums[j]);
            if (panel.first + panel.full == panel.last) continue;
            add_tail(codes + panel.full * 512, panel.full * 8, chunk.x + panel.full * 512,
                     s_.k - (panel.first + panel.full) * 128, sums[j]);
        }
    }

    template <bool kCut>
    QK_NOINLINE void run_chunks(FlatChunk<Isa> at, int64_t full, Sums<Isa> &total) const {
        Sums<Isa> sums = total;  // a copy that nothing points to stays in registers
        for (int64_t i = 0; i < full; ++i) {
            add_flat_chunk<Isa, kCut>(at, codes_, sums);
            at.codes += 512;
            at.scales += 8;
            at.x += 512;
        }
        total = sums;
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
            look_up_steps<Isa, 0>(Isa::load_words(codes + 64 * row), tables, entries);
            const Mask<Isa> before = before_[row];
            const float *scale = steps_.row[row] + step;
            for (int64_t at = 0; at < columns; at += 16, ++scale) {
                const Mask<Isa> mask = Isa::first_lanes(columns - at);
                const Lanes<Isa> of_step =
                    Isa::where(before, Isa::splat(scale[0]), Isa::splat(scale[1]));
                const Lanes<Isa> weight = Isa::mul(Isa::load_f32(entries[at / 16]), of_step);
                sums.row[row] =
                    Isa::fma_where(mask, Isa::load_f32(x + at * 4, mask), weight, sums.row[row]);
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
