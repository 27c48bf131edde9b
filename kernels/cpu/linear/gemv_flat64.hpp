// The same as gemv_flat.hpp in groups of 64, which end at the same two places of every chunk of a
// row, at columns `end` and `end` + 64. So entries are scaled where groups start, as they are where
// rows have whole groups:
//
//     steps      0 .. end / 16 - 1    the group that a chunk starts in       scales[row][0]
//                to end / 16 + 3      the next one                                      [1]
//                to 7                 the one after                                     [2]
//
// Where end is no multiple of 16 the first lanes of steps end / 16 and end / 16 + 4 are the group's
// before. A chunk of a row has one of four instances of the loop, by the step of its first end.
// Bytes of words are loaded in place, as gemv.hpp does where a vector holds a chunk.
#pragma once
#include "cpu/linear/gemv.hpp"

namespace qk::cpu {
namespace {

// A chunk of a row.
template <class Isa>
struct RowOfFlat64 {
    const uint8_t *codes;
    const char *scales;  // f32
    Mask<Isa> before;    // lanes of the steps with ends that have the scale before
};

template <class Isa, int kStep, bool kCut, int kCount>
QK_INLINE inline void add_flat_64(const RowOfFlat64<Isa> &row, const Table<Isa> &entries,
                                  const Lanes<Isa> (&x)[8][kCount], Lanes<Isa> (&sums)[kCount]) {
    Table<Isa> table[3];
    QK_UNROLL
    for (int i = kStep == 0 && !kCut ? 1 : 0; i < 3; ++i) {
        table[i] = Isa::scale_table(entries, load_as<float>(row.scales, i));
    }
    prefetch_stream(row.codes + kAhead);
    prefetch(row.codes + kNear);
    Words<Isa> words;
    for_each_step([&]<int step>() QK_INLINE {
        constexpr int group = step < kStep ? 0 : step < kStep + 4 ? 1 : 2;
        constexpr int shifts = step % 2;
        if (shifts == 0) words = Isa::load_words(row.codes + step / 2);
        Lanes<Isa> weight = Isa::template look_up<shifts>(table[group], words);
        if constexpr (kCut && step % 4 == kStep) {
            weight = Isa::where(row.before, Isa::template look_up<shifts>(table[group - 1], words),
                                weight);
        }
        QK_UNROLL
        for (int j = 0; j < kCount; ++j) sums[j] = Isa::fma(weight, x[step][j], sums[j]);
    });
}

template <class Isa, class Codes>
class Flat64RowBlocks {
    static_assert(loads_bytes<Isa>);

  public:
    Flat64RowBlocks(const LinearArgs &args, const Device &device)
        : args_(args), s_(groups_of_rows(args.w.geometry)), x_(args.x), scales_(args.w, device),
          codes_(args.w), blocks_(args.w), first_(panel_from(s_, 0, blocks_.most())),
          cuts_(args.w.geometry.k % 16 != 0) {}

    void run(int64_t row_block) {
        for (int64_t row = 0; row < 8; ++row) {
            end_[row] = -(row_block * 8 + row) * s_.k & 63;
            before_[row] = Isa::first_lanes(end_[row] % 16);
        }
        sum_panels<Isa>(args_, s_, first_, row_block,
                        [&](const Panel &panel, Sums<Isa> *sums)
                            QK_INLINE { run_panel(row_block, panel, sums); });
    }

  private:
    // Of a panel: two a chunk, the one before and the one after, in whole runs of 16.
    static constexpr int64_t kPitch = kPanelGroups + 32;
    static Geometry groups_of_rows(const Geometry &s) {
        return {s.n, s.k, 64, ceil_div(s.k, 64), s.n * ceil_div(s.k, 64), false};
    }

    void run_panel(int64_t row_block, const Panel &panel, Sums<Isa> *sums) {
        const uint8_t *const codes = blocks_.load(row_block, panel.first, panel.last);
        for (int64_t row = 0; row < 8; ++row) {
            scales_at_[row] = scales_of(row_block * 8 + row, end_[row] == 0, panel, of_row_[row]);
        }
        const char *x[kLaneRows] = {};
        const int64_t rows = args_.x.rows;
        for (int64_t j = 0; j < rows; ++j) x[j] = x_[j].panel(panel.first * 128);
        // As in gemv.hpp: a plane's last chunk is added as a tail is.
        const bool ends = panel.last * 128 == s_.k && (row_block + 1) * 8 >= s_.n;
        const int64_t full = panel.full - (blocks_.in_place() && ends);
        rows > 1 ? run_chunks<2>(codes, x, full, sums) : run_chunks<1>(codes, x, full, sums);
        if (panel.first + full == panel.last) return;
        for (int64_t j = 0; j < rows; ++j) {
            add_tail(codes + full * 512, 2 * full, x[j] + full * 512,
                     s_.k - (panel.first + full) * 128, sums[j]);
        }
    }

    // Of a row from a panel on: in place where they are f32. [0] is of the group before where the
    // first chunk starts with a group.
    const char *scales_of(int64_t row, bool starts, const Panel &panel, float *to) {
        const Geometry &s = args_.w.geometry;
        const int64_t first = (row * s.k + panel.first * 128) / 64;
        if (row >= s.n) {
            memset(to, 0, sizeof(of_row_[0]));
            return reinterpret_cast<const char *>(to);
        }
        const int64_t count = min64(2 * (panel.last - panel.first) + 1, s.group_count - first);
        return scales_.load_groups(first, starts, count, first + s.k / 8, to);
    }

    template <int kCount>
    void run_chunks(const uint8_t *codes, const char *const *x, int64_t full,
                    Sums<Isa> *total) const {
        cuts_ ? run_chunks<true, kCount>(codes, x, full, total)
              : run_chunks<false, kCount>(codes, x, full, total);
    }
    template <bool kCut, int kCount>
    QK_NOINLINE void run_chunks(const uint8_t *codes, const char *const *x, int64_t full,
                                Sums<Isa> *total) const {
        const Table<Isa> entries = codes_.table(nullptr, 0, 0);
        SumsOf<Isa, kCount> all;  // a copy that nothing points to stays in registers
        for (int j = 0; j < kCount; ++j) all[j] = total[j];
        for (int64_t i = 0; i < full; ++i) {
            Lanes<Isa> of_x[8][kCount];
            QK_UNROLL
            for (int64_t step = 0; step < 8; ++step) {
                for (int64_t j = 0; j < kCount; ++j) {
                    of_x[step][j] = Isa::load_f32(x[j] + i * 512 + 64 * step);
                }
            }
            _Pragma("GCC unroll 8") for (int64_t row = 0; row < 8; ++row, codes += 64) {
                const RowOfFlat64<Isa> of = {codes, scales_at_[row] + 8 * i, before_[row]};
                Lanes<Isa> sums[kCount];
                for (int j = 0; j < kCount; ++j) sums[j] = all[j].row[row];
                switch (end_[row] / 16) {
                    case 0: add_flat_64<Isa, 0, kCut, kCount>(of, entries, of_x, sums); break;
                    case 1: add_flat_64<Isa, 1, kCut, kCount>(of, entries, of_x, sums); break;
                    case 2: add_flat_64<Isa, 2, kCut, kCount>(of, entries, of_x, sums); break;
                    default: add_flat_64<Isa, 3, kCut, kCount>(of, entries, of_x, sums);
                }
                for (int j = 0; j < kCount; ++j) all[j].row[row] = sums[j];
            }
        }
        for (int j = 0; j < kCount; ++j) total[j] = all[j];
    }

    // The last chunk of a row, `columns` of it; its first scale is `scale` of the panel's.
    QK_NOINLINE void add_tail(const uint8_t *codes, int64_t scale, const char *x, int64_t columns,
                              Sums<Isa> &sums) const {
        const Table<Isa> entries = codes_.table(nullptr, 0, 0);
        const Table<Isa> tables[8] = {entries, entries, entries, entries,
                                      entries, entries, entries, entries};
        for (int row = 0; row < 8; ++row) {
            float weights[8][16];
            look_up_steps<Isa, 0>(Isa::load_words(codes + 64 * row), tables, weights);
            const char *const scales = scales_at_[row] + scale * 4;
            for (int64_t at = 0; at < columns; at += 16) {
                const int64_t group = (at + 64 - end_[row]) / 64;
                const int64_t next = (min64(at + 16, columns) + 63 - end_[row]) / 64;
                const Lanes<Isa> of_step =
                    Isa::where(before_[row], Isa::splat(load_as<float>(scales, group)),
                               Isa::splat(load_as<float>(scales, next)));
                const Lanes<Isa> weight = Isa::mul(Isa::load_f32(weights[at / 16]), of_step);
                const Mask<Isa> mask = Isa::first_lanes(columns - at);
                sums.row[row] =
                    Isa::fma_where(mask, Isa::load_f32(x + at * 4, mask), weight, sums.row[row]);
            }
        }
    }

    const LinearArgs &args_;
    const Geometry s_;  // as if rows had whole groups
    EachRow<RowOfX<Isa>> x_;
    ScalePanel<Isa> scales_;
    Codes codes_;
    CodesOfBlocks<Isa> blocks_;
    const Panel first_;
    const bool cuts_;
    int64_t end_[8];  // the first column of a row's chunks where a group ends, 0 to 63
    Mask<Isa> before_[8];
    const char *scales_at_[8];
    float of_row_[8][kPitch] = {};
};

}  // namespace
}  // namespace qk::cpu
