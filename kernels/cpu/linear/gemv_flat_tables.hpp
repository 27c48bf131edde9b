// The same as gemv_flat.hpp in groups of 32, 64 and multiples of 128. Pieces of a group end at the
// same places of every chunk of a row, at columns `end`, `end` + piece and so on. So entries are
// scaled where pieces start, as they are where rows have whole groups; of pieces of 64 columns:
//
//     steps      0 .. end / 16 - 1    the piece that a chunk starts in       scales[row][0]
//                to end / 16 + 3      the next one                                      [1]
//                to 7                 the one after                                     [2]
//
// Where end is no multiple of 16 the first lanes of steps end / 16 and end / 16 + 4 are the piece's
// before. A chunk of a row has one of a piece's steps as many instances of the loop, by the step of
// its first end. Bytes of words are loaded in place, as gemv.hpp does where a vector holds a chunk;
// where half of a vector does, what was looked up is scaled instead (Isa::add_pieces).
#pragma once
#include "cpu/linear/gemv_flat.hpp"

namespace qk::cpu {
namespace {

template <class Isa>
constexpr bool takes_pieces = requires {
    typename Isa::PieceEnds;
};

// A chunk of a row.
template <class Isa>
struct RowOfPieces {
    const uint8_t *codes;
    const char *scales;  // f32
    Mask<Isa> before;    // lanes of the steps with ends that have the scale before
};

// kSteps: of a piece.
template <class Isa, int kSteps, int kStep, bool kCut, int kCount>
QK_INLINE inline void add_pieces(const RowOfPieces<Isa> &row, const Table<Isa> &entries,
                                 const Lanes<Isa> (&x)[8][kCount], Lanes<Isa> (&sums)[kCount]) {
    Table<Isa> table[8 / kSteps + 1];
    QK_UNROLL
    for (int i = kStep == 0 && !kCut ? 1 : 0; i <= 8 / kSteps; ++i) {
        table[i] = Isa::scale_table(entries, load_as<float>(row.scales, i));
    }
    prefetch_stream(row.codes + kAhead);
    prefetch(row.codes + kNear);
    Words<Isa> words;
    for_each_step([&]<int step>() QK_INLINE {
        constexpr int piece = (step - kStep + kSteps) / kSteps;
        constexpr int shifts = step % 2;
        if (shifts == 0) words = Isa::load_words(row.codes + step / 2);
        Lanes<Isa> weight = Isa::template look_up<shifts>(table[piece], words);
        if constexpr (kCut && step % kSteps == kStep) {
            weight = Isa::where(row.before, Isa::template look_up<shifts>(table[piece - 1], words),
                                weight);
        }
        QK_UNROLL
        for (int j = 0; j < kCount; ++j) sums[j] = Isa::fma(weight, x[step][j], sums[j]);
    });
}

template <class Isa, class Codes, int64_t kPiece>
class PieceRowBlocks {
  public:
    PieceRowBlocks(const LinearArgs &args, const Device &device)
        : args_(args), s_(pieces_of_rows(args.w.geometry)),
          of_group_(args.w.geometry.group_size / kPiece),
          of_8_rows_(s_.k * 8 / args.w.geometry.group_size), group_of_code_(args.w.geometry),
          x_(args.x), scales_(args.w, device), codes_(args.w), blocks_(args.w),
          first_(panel_from(s_, 0, blocks_.most())), cuts_(args.w.geometry.k % 16 != 0) {}

    void run(int64_t row_block) {
        for (int64_t row = 0; row < 8; ++row) {
            end_[row] = -(row_block * 8 + row) * s_.k & (kPiece - 1);
            ends_[row] = Isa::piece_ends(end_[row]);
        }
        sum_panels<Isa>(args_, s_, first_, row_block,
                        [&](const Panel &panel, Sums<Isa> *sums)
                            QK_INLINE { run_panel(row_block, panel, sums); });
    }

  private:
    static constexpr int64_t kPieces = 128 / kPiece;  // of a chunk
    // Chunks that are gathered at once: a panel costs as much as several of them.
    static constexpr int64_t kMost = 64;
    // Of a panel, the one before and the one after, in whole runs of 16.
    static constexpr int64_t kPitch = kPanelGroups + 32;
    static Geometry pieces_of_rows(const Geometry &s) {
        const int64_t pieces = ceil_div(s.k, kPiece);
        return {s.n, s.k, kPiece, pieces, s.n * pieces, false};
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
        const int64_t full = panel.full - (loads_bytes<Isa> && blocks_.in_place() && ends);
        rows > 1 ? run_chunks<2>(codes, x, full, sums) : run_chunks<1>(codes, x, full, sums);
        if (panel.first + full == panel.last) return;
        for (int64_t j = 0; j < rows; ++j) {
            add_tail(codes + full * 512, kPieces * full, x[j] + full * 512,
                     s_.k - (panel.first + full) * 128, sums[j]);
        }
    }

    // Of a row's pieces from a panel on: in place where they are groups whose scales are f32. [0]
    // is of the piece before where the first chunk starts with a piece.
    const char *scales_of(int64_t row, bool starts, const Panel &panel, float *to) {
        const Geometry &s = args_.w.geometry;
        const int64_t at_code = row * s.k + panel.first * 128, first = group_of_code_(at_code);
        const int64_t pieces = kPieces * (panel.last - panel.first) + 1;
        if (row >= s.n) {
            memset(to, 0, sizeof(of_row_[0]));
            return reinterpret_cast<const char *>(to);
        }
        const int64_t last = group_of_code_(at_code + (pieces - 1) * kPiece);
        const int64_t count = min64(last + 1, s.group_count) - first;
        const int64_t next = first + of_8_rows_;
        if (of_group_ == 1) return scales_.load_groups(first, starts, count, next, to);
        alignas(64) float groups[kPitch];
        const char *const from = scales_.load_groups(first, false, count, next, groups);
        typedef float Four __attribute__((vector_size(16)));
        int64_t at = starts, end = at + (first + 1) * of_group_ - at_code / kPiece;
        for (int64_t g = 0; g < count; ++g, at = end, end += of_group_) {
            const float scale = load_as<float>(from, g);
            const Four four = {scale, scale, scale, scale};
            const int64_t last = min64(end, starts + pieces);
            for (int64_t i = at; i < last; i += 4) memcpy(to + i, &four, 16);  // or a few more
        }
        return reinterpret_cast<const char *>(to);
    }

    template <int kCount>
    void run_chunks(const uint8_t *codes, const char *const *x, int64_t full,
                    Sums<Isa> *total) const {
        if constexpr (!loads_bytes<Isa>) {
            run_halves<kCount>(codes, x, full, total);
        } else {
            cuts_ ? run_chunks<true, kCount>(codes, x, full, total)
                  : run_chunks<false, kCount>(codes, x, full, total);
        }
    }
    template <int kCount>
    QK_NOINLINE void run_halves(const uint8_t *codes, const char *const *x, int64_t full,
                                Sums<Isa> *total) const {
        for (int64_t i = 0; i < full; ++i) {
            const float *of_x[kCount];
            for (int j = 0; j < kCount; ++j) {
                of_x[j] = reinterpret_cast<const float *>(x[j]) + 128 * i;
            }
            _Pragma("GCC unroll 1") for (int64_t row = 0; row < 8; ++row, codes += 64) {
                prefetch_stream(codes + kAhead);
                const auto *const scales =
                    reinterpret_cast<const float *>(scales_at_[row]) + kPieces * i;
                Lanes<Isa> *sum[kCount];
                for (int j = 0; j < kCount; ++j) sum[j] = &total[j].row[row];
                Isa::template add_pieces<kPiece / 16, kCount>(codes_.planes(), codes, scales,
                                                              ends_[row], of_x, sum);
            }
        }
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
                const RowOfPieces<Isa> of = {codes, scales_at_[row] + 4 * kPieces * i,
                                             ends_[row].before};
                Lanes<Isa> sums[kCount];
                for (int j = 0; j < kCount; ++j) sums[j] = all[j].row[row];
                add_row<kCut, kCount>(ends_[row].step, of, entries, of_x, sums);
                for (int j = 0; j < kCount; ++j) all[j].row[row] = sums[j];
            }
        }
        for (int j = 0; j < kCount; ++j) total[j] = all[j];
    }

    template <bool kCut, int kCount, int kStep = 0>
    QK_INLINE static void add_row(int64_t step, const RowOfPieces<Isa> &row,
                                  const Table<Isa> &entries, const Lanes<Isa> (&x)[8][kCount],
                                  Lanes<Isa> (&sums)[kCount]) {
        constexpr int steps = kPiece / 16;
        if constexpr (kStep + 1 < steps) {
            if (step != kStep) return add_row<kCut, kCount, kStep + 1>(step, row, entries, x, sums);
        }
        add_pieces<Isa, steps, kStep, kCut, kCount>(row, entries, x, sums);
    }

    // The last chunk of a row, `columns` of it; its first scale is `scale` of the panel's.
    QK_NOINLINE void add_tail(const uint8_t *codes, int64_t scale, const char *x, int64_t columns,
                              Sums<Isa> &sums) const {
        const Table<Isa> entries = codes_.table(nullptr, 0, 0);
        const Table<Isa> tables[8] = {entries, entries, entries, entries,
                                      entries, entries, entries, entries};
        for (int row = 0; row < 8; ++row) {
            float weights[8][16];
            look_up_steps<Isa, 0>(Isa::load_words(codes + 64 * row), tables, ceil_div(columns, 16),
                                  weights);
            const char *const scales = scales_at_[row] + scale * 4;
            const Mask<Isa> before = Isa::first_lanes(end_[row] % 16);
            for (int64_t at = 0; at < columns; at += 16) {
                const int64_t piece = (at + kPiece - end_[row]) / kPiece;
                const int64_t next = (min64(at + 16, columns) + kPiece - 1 - end_[row]) / kPiece;
                add_step_of_tail<Isa>(weights[at / 16], before, load_as<float>(scales, piece),
                                      load_as<float>(scales, next), x + at * 4, columns - at,
                                      sums.row[row]);
            }
        }
    }

    const LinearArgs &args_;
    const Geometry s_;         // as if rows had whole pieces
    const int64_t of_group_;   // pieces
    const int64_t of_8_rows_;  // groups
    const GroupOfCode group_of_code_;
    EachRow<RowOfX<Isa>> x_;
    ScalePanel<Isa> scales_;
    Codes codes_;
    CodesOfBlocks<Isa, kMost> blocks_;
    const Panel first_;
    const bool cuts_;
    int64_t end_[8];  // the first column of a row's chunks where a piece ends
    typename Isa::PieceEnds ends_[8];
    const char *scales_at_[8];
    float of_row_[8][kPitch] = {};
};

}  // namespace
}  // namespace qk::cpu
