// y = x . transpose(w) + bias for one or two rows of x over 4-bit codes stored by columns: gptq,
// gptq_v1 (a line has a word of 8 columns for each row of w) and awq_gemm (a line is a column, a
// word 8 rows). Vectors run across the rows of w, so memory is read sequentially:
//
//     for strips of up to kStripRows rows of w:
//         16 sums of every row, one for each lane of the order of sums    64 KB, second cache
//         for blocks of 128 columns (16 lines of gptq, 128 of awq_gemm):
//             scales and zeros of the block's groups as they are multiplied
//             integers: for units of a few lines: tiles of kWide words, up to kTogether of them
//             floats: for tiles of kWide words: lines of the block, each a vector of words
//
// Two rows of x have sums of their own and share what is transposed and looked up. A word is read
// once and a sum once a block, so a row of w costs its codes, scales and zeros of memory. 64 bytes
// of codes take 17 vector instructions as integers (2 to transpose bytes, 3 for nibbles, 12 as in
// integers.hpp), 33 to 41 as floats. The sums have the generic kernel's order, so the bits are the
// same.
#pragma once
#include "cpu/kernels.hpp"
#include "cpu/linear/columns_groups.hpp"

namespace qk::cpu {
namespace {

// kRows: of x. kLowered: w may have minima, whose sums need room.
template <class Isa, class Layout, int64_t kRows, bool kLowered = false>
class ColumnStrip {
  public:
    static constexpr int64_t kTileRows = Isa::kWide * Layout::kRows, kLines = 8 * Layout::kUnits;
    static constexpr int64_t kSums = 16 * kTileRows;  // of a tile
    static constexpr int64_t kRowsOfX = kRows;

    // `integers`: x is added as such.
    ColumnStrip(const LinearArgs &args, const Device &device, bool integers)
        : args_(args), integers_(integers), groups_(args.w, device, integers), minima_(args),
          entries_(args.w), pitch_(ceil_div(args.w.geometry.n, Layout::kRows)),
          lines_(Layout::quads ? ceil_div(args.w.geometry.k, 8) : args.w.geometry.k) {}

    // Rows first .. last of w, first a multiple of 128. add(column, end): of a block.
    template <class Add>
    void run(int64_t first, int64_t last, const Add &add) {
        const Geometry &s = args_.w.geometry;
        first_word_ = first / Layout::kRows;
        tiles_ = ceil_div(last - first, kTileRows);
        for (int64_t j = 0; j < kRows; ++j) {
            memset(sums_of(j, 0), 0, sizeof(float) * size_t(tiles_ * kSums));
        }
        groups_.start(first, last - first);
        if constexpr (kLowered) minima_.start(first);
        for (int64_t column = 0; column < s.k; column += kBlock) {
            const int64_t end = min64(column + kBlock, s.k);
            start_fetching(end == s.k ? 0 : end, end == s.k ? last : first, last - first);
            groups_.load(column, end);
            if constexpr (kLowered) minima_.add(groups_, column, end, last - first);
            add(column, end);
        }
        for (int64_t j = 0; j < kRows; ++j) {
            for (int64_t tile = 0; tile < tiles_; ++tile) {
                store(j, first + tile * kTileRows, last, sums_of(j, tile), pitch_of(tile));
            }
        }
    }

    // x: a block of each row of x.
    template <class Block>
    void add_block(int64_t column, int64_t end, const Block *const *x) {
        for (int64_t tile = 0; tile < tiles_; tile += kTogether) {
            for_each_run(column, tile, min64(tile + kTogether, tiles_),
                         [&](const WordTile &words, int64_t first, int64_t count)
                             QK_INLINE { add_tiles(words, first, count, end - column, x); });
        }
    }
    template <bool cut, class Entries>
    void add_float_block(int64_t column, const ColumnFloats<Layout::quads> &x,
                         const Entries &entries) {
        for (int64_t tile = 0; tile < tiles_; ++tile) {
            for_each_run(column, tile, tile + 1,
                         [&](const WordTile &words, int64_t, int64_t) QK_INLINE {
                add_floats<Isa, Layout, cut>(words, x, groups_.prepare_floats(tile),
                                             groups_.of_step(), entries, &ahead_, sums_of(0, tile),
                                             pitch_of(tile));
            });
        }
    }

  private:
    static constexpr int64_t kTiles = kStripRows / kTileRows;
    static constexpr int64_t kTogether = StripGroups<Isa, Layout, kRows>::kTilesTogether;
    using Rows = RowsOfTiles<Isa, Layout, kRows>;

    // Of tiles that are taken together, sums of a unit are side by side. Floats take one by one.
    int64_t units() const { return in_eights_ ? 16 : Layout::kUnits; }
    float *sums_of(int64_t x_row, int64_t tile) {
        if (!integers_) return sums_[x_row] + tile * kSums;
        return sums_[x_row] + tile / kTogether * kTogether * kSums +
               tile % kTogether * (kSums / units());
    }
    int64_t pitch_of(int64_t tile) const {
        if (!integers_) return kSums / Layout::kUnits;
        return min64(kTogether, tiles_ - tile / kTogether * kTogether) * (kSums / units());
    }

    template <class Block>
    Rows rows_of_tiles(int64_t tile, int64_t count, const Block *const *x,
                       float (&of_units)[kRows]) {
        Rows rows = {};
        for (int64_t j = 0; j < kRows; ++j) {
            rows.x[j] = x[j];
            rows.sums[j] = sums_of(j, tile);
            of_units[j] = x[j]->unit / integer_steps(*args_.w.format);
        }
        rows.tiles = count;
        rows.pitch = pitch_of(tile);
        return rows;
    }

    void add_tiles(const WordTile &words, int64_t tile, int64_t count, int64_t,
                   const ColumnBytes<Isa, Layout::quads> *const *x) {
        float units[kRows];
        Rows rows = rows_of_tiles(tile, count, x, units);
        rows.groups = groups_.template prepare<true>(0, tile, count, units);
        with_fills([&]<Fills fills>() { add_integers<fills>(words, rows, &ahead_); });
    }
    void add_tiles(const WordTile &words, int64_t tile, int64_t count, int64_t columns,
                   const EightsOfColumns<Isa> *const *x) {
        const int64_t size = args_.w.geometry.group_size;
        const int64_t steps = min64(kBlock, round_up(columns, size)) / 16;  // of its groups
        in_eights_ = true;
        float units[kRows];
        Rows rows = rows_of_tiles(tile, count, x, units);
        const bool table = args_.w.format->kind == FormatKind::kLut4;
        for (int64_t first = 0, group = 0; first < steps; first += size / 16, ++group) {
            if constexpr (Layout::quads) {
                rows.groups = groups_.prepare_rows(group, tile, count, units);
            } else {
                rows.groups = groups_.template prepare<true>(group, tile, count, units);
            }
            with_fills([&]<Fills fills>() {
                const auto add = table ? add_eights<fills, Isa, Layout, kRows, true>
                                       : add_eights<fills, Isa, Layout, kRows, false>;
                add(words, rows, first, first + size / 16, entries_, &ahead_);
            });
        }
    }

    template <class Body>
    QK_INLINE void with_fills(const Body &body) const {
        if constexpr (!Isa::kFillsKnown) {
            body.template operator()<Fills::kAsked>();
        } else if (ahead_.few_fills) {
            body.template operator()<Fills::kFew>();
        } else {
            body.template operator()<Fills::kMany>();
        }
    }

    const uint8_t *words_at(int64_t line, int64_t word) const {
        return static_cast<const uint8_t *>(args_.w.data) + (line * pitch_ + word) * 4;
    }

    void start_fetching(int64_t column, int64_t row, int64_t rows) {
        const uint8_t *const at = words_at(column / kBlock * kLines, row / Layout::kRows);
        const int64_t width = ceil_div(rows, Layout::kRows) * 4;
        ahead_ = {at, at + width, width, pitch_ * 4, (traits() & kFewFills) != 0};
    }

    // Tiles first .. last: those in place at once, others one by one.
    template <class Body>
    QK_INLINE void for_each_run(int64_t column, int64_t first, int64_t last, const Body &body) {
        const int64_t line = column / kBlock * kLines, word = first_word_ + first * Isa::kWide;
        const int64_t there = line + kLines <= lines_ ? (pitch_ - word) / Isa::kWide : 0;
        const int64_t whole = min64(last - first, there);
        if (whole > 0) body({words_at(line, word), pitch_ * 4}, first, whole);
        for (int64_t tile = first + whole; tile < last; ++tile) {
            body(copy_corner(line, first_word_ + tile * Isa::kWide), tile, 1);
        }
    }
    QK_NOINLINE WordTile copy_corner(int64_t line, int64_t word) {
        const int64_t lines = min64(kLines, lines_ - line),
                      words = min64(Isa::kWide, pitch_ - word);
        memset(corner_, 0, sizeof(corner_));
        for (int64_t i = 0; i < lines; ++i) {
            memcpy(corner_[i], words_at(line + i, word), size_t(words) * 4);
        }
        return {reinterpret_cast<const uint8_t *>(corner_), Isa::kWide * 4};
    }

    QK_NOINLINE void store(int64_t x_row, int64_t row, int64_t last, float *sums,
                           int64_t pitch) const {
        alignas(64) float y[kTileRows];
        if (!Layout::quads) {
            fold_rows(sums, pitch, y);
        } else if (in_eights_) {
            fold_lanes(sums, pitch);
            memcpy(y, sums, sizeof(y));
        } else {
            fold_columns(sums, pitch, y);
        }
        const int64_t rows = min64(kTileRows, last - row);
        if constexpr (kLowered) minima_.take_off(row, rows, y);
        store_run(args_, x_row, row, rows, y);
    }

    // A lane of every row after the other, into the first one's sums.
    void fold_lanes(float *sums, int64_t pitch) const {
        const auto lane = [=, this](int64_t i) {
            return sums + (in_eights_ ? place_of_lane(i) : i) * pitch;
        };
        for (int64_t half = 8; half > 0; half /= 2) {
            for (int64_t i = 0; i < half; ++i) {
                add_sums(lane(half + i), Layout::kRows * Isa::kWide, lane(i));
            }
        }
    }
    static void add_sums(const float *__restrict from, int64_t count, float *__restrict to) {
        for (int64_t i = 0; i < count; ++i) to[i] += from[i];
    }

    // A unit has a lane of every row.
    void fold_rows(float *sums, int64_t pitch, float *y) const {
        fold_lanes(sums, pitch);
        for (int64_t word = 0; word < Isa::kWide; ++word) {
            const float *const from = sums + word % 4 * 2 * Isa::kWide + word / 4 * 4;
            Quad low, high, a, b;
            memcpy(&low, from, 16);
            memcpy(&high, from + Isa::kWide, 16);
            from_awq_quads(low, high, &a, &b);
            memcpy(y + 8 * word, &a, 16);
            memcpy(y + 8 * word + 4, &b, 16);
        }
    }

    // A quad has 4 lanes of a row: lanes 2 b + half of a unit's 8.
    static void fold_columns(float *sums, int64_t pitch, float *y) {
        add_sums(sums + pitch, 8 * Isa::kWide, sums);
        for (int64_t row = 0; row < Isa::kWide; row += 4) {
            alignas(16) float lane[2][4][4];  // [half][lane][row]
            for (int64_t half = 0; half < 2; ++half) {
                transpose_4x4(sums + half * Isa::kWide + row, 8 * Isa::kWide, lane[half], 16);
            }
            for (int64_t i = 0; i < 4; ++i) {
                float sum[2];
                for (int64_t half = 0; half < 2; ++half) {
                    sum[half] = (lane[half][0][i] + lane[half][2][i]) +
                                (lane[half][1][i] + lane[half][3][i]);
                }
                y[row + i] = sum[0] + sum[1];
            }
        }
    }

    const LinearArgs &args_;
    const bool integers_;
    StripGroups<Isa, Layout, kRows> groups_;
    std::conditional_t<kLowered, StripMinima<Isa>, NoStripMinima> minima_;
    const RaisedEntries entries_;  // of tables of integers
    const int64_t pitch_, lines_;  // words in a line
    int64_t first_word_ = 0, tiles_ = 0;
    bool in_eights_ = false;  // the sums' lanes
    Ahead<Isa> ahead_;
    alignas(64) uint32_t corner_[kLines][Isa::kWide];
    alignas(64) float sums_[kRows][kTiles * kSums];
};

// Strips of a range of rows.
template <class Body>
QK_INLINE inline void for_each_strip(int64_t first, int64_t last, const Body &body) {
    for (; first < last; first += kStripRows) body(first, min64(first + kStripRows, last));
}

// Rows: a BlocksOfX each.
template <class Block, class Strip, class Rows>
QK_NOINLINE void run_integer_strips(Strip &strip, Rows &x, int64_t first, int64_t last) {
    constexpr int64_t kRows = Strip::kRowsOfX;
    for_each_strip(first, last, [&](int64_t from, int64_t to) {
        const Block *blocks[kRows] = {};
        strip.run(from, to, [&](int64_t column, int64_t end) {
            for (int64_t j = 0; j < kRows; ++j) {
                blocks[j] = column % Rows::Row::kColumns == 0 ? x[j].panel(column) : blocks[j] + 1;
            }
            strip.add_block(column, end, blocks);
        });
    });
}

// Strips and the rows of x that they read.
template <class Strip, class X>
struct StripsOfX {
    StripsOfX(const LinearArgs &args, const Device &device, bool integers)
        : strip(args, device, integers), x(args.x) {}

    Strip strip;
    X x;
};

template <class Isa, class Layout, class Entries>
QK_NOINLINE void run_float_strips(const LinearArgs &args, const Launch &launch, int64_t first,
                                  int64_t last) {
    float values[16];
    entries_of(args.w, 0, values);
    const Entries entries(values);
    const typename Isa::Lut4Entries any(values);
    using Strip = ColumnStrip<Isa, Layout, 1>;
    const InScratch<StripsOfX<Strip, RowOfX<Isa>>> strips(launch.scratch, args, launch.device,
                                                          false);
    Strip &strip = strips->strip;
    ColumnFloats<Layout::quads> block;
    for_each_strip(first, last, [&](int64_t from, int64_t to) {
        const char *panel = nullptr;
        strip.run(from, to, [&](int64_t column, int64_t end) {
            if (column % kPanelOfX == 0) panel = strips->x.panel(column);
            block.place(panel + column % kPanelOfX * 4, end - column);
            if (end - column == kBlock) {
                strip.template add_float_block<false>(column, block, entries);
            } else {
                strip.template add_float_block<true>(column, block, any);
            }
        });
    });
}

// Every thread has work where there is enough, and strips are as wide as that leaves them.
inline int64_t rows_of_task(int64_t n, int32_t concurrency) {
    const int64_t share = ceil_div(n, int64_t(concurrency) * 2);
    return min64(kStripRows, round_up(share, 128));
}

template <int64_t kRows, class Isa, class Layout, class Block, bool kLowered = false>
QK_NOINLINE Status run_integers(const LinearArgs &args, const Launch &launch, int64_t block) {
    using Whole = EachRow<BlocksOfX<Isa, Block>, kRows>;
    // Of two rows, or beside minima, a block at a time, for a strip: sums take the room.
    constexpr int64_t part = kRows == 1 && !kLowered ? kPanelOfX : kBlock;
    using Parts = EachRow<BlocksOfX<Isa, Block, part>, kRows>;
    using Strip = ColumnStrip<Isa, Layout, kRows, kLowered>;
    const int64_t n = args.w.geometry.n;
    if (launch.parallel.concurrency > 1 && args.x.columns <= kPanelOfX) {
        const InScratch<Whole> whole(launch.scratch, args.x);  // for all tasks
        parallel_ranges(launch.parallel, n, block, work_of_row(args),
                        [&](int64_t first, int64_t last) {
            const InScratch<Strip> strip(launch.scratch, args, launch.device, true);
            run_integer_strips<Block>(*strip, *whole, first, last);
        });
        return QK_OK;
    }
    parallel_ranges(launch.parallel, n, block, work_of_row(args), [&](int64_t first, int64_t last) {
        const InScratch<StripsOfX<Strip, Parts>> strips(launch.scratch, args, launch.device, true);
        run_integer_strips<Block>(strips->strip, strips->x, first, last);
    });
    return QK_OK;
}

template <class Isa, class Layout>
QK_NOINLINE Status run_words(const LinearArgs &args, const Launch &launch) {
    const int64_t n = args.w.geometry.n, block = rows_of_task(n, launch.parallel.concurrency);
    if (sums_integers<Isa>(args)) {
        using Eights = EightsOfColumns<Isa>;
        using Bytes = ColumnBytes<Isa, Layout::quads>;
        const bool small = in_small_groups(args.w.geometry);
        if (args.x.rows == 1) {
            return small ? run_integers<1, Isa, Layout, Eights>(args, launch, block)
                         : run_integers<1, Isa, Layout, Bytes>(args, launch, block);
        }
        return small ? run_integers<2, Isa, Layout, Eights>(args, launch, block)
                     : run_integers<2, Isa, Layout, Bytes>(args, launch, block);
    }
    if (args.x.rows > 1) return row_by_row<run_words<Isa, Layout>>(args, launch);
    const bool table = args.w.format->kind == FormatKind::kLut4;
    parallel_ranges(launch.parallel, n, block, work_of_row(args), [&](int64_t first, int64_t last) {
        table ? run_float_strips<Isa, Layout, typename Isa::Lut4Entries>(args, launch, first, last)
              : run_float_strips<Isa, Layout, typename Isa::U4Entries>(args, launch, first, last);
    });
    return QK_OK;
}

// Small groups with minima, which leave no room for two rows. A row of x that is none of integers
// is multiplied by another kernel.
template <class Isa, class Layout, const Kernel<LinearArgs> &otherwise>
QK_NOINLINE Status run_lowered(const LinearArgs &args, const Launch &launch) {
    if (args.x.rows > 1) return row_by_row<run_lowered<Isa, Layout, otherwise>>(args, launch);
    if (!sums_integers<Isa>(args)) return otherwise.run(args, launch);
    const int64_t block = rows_of_task(args.w.geometry.n, launch.parallel.concurrency);
    return run_integers<1, Isa, Layout, EightsOfColumns<Isa>, true>(args, launch, block);
}

template <class Isa, const Kernel<LinearArgs> &otherwise>
Status run_lowered_columns(const LinearArgs &args, const Launch &launch) {
    return args.w.layout->id == QK_LAYOUT_AWQ_GEMM
               ? run_lowered<Isa, WordsOfRows, otherwise>(args, launch)
               : run_lowered<Isa, WordsOfColumns, otherwise>(args, launch);
}

template <class Isa>
Status run_columns(const LinearArgs &args, const Launch &launch) {
    return args.w.layout->id == QK_LAYOUT_AWQ_GEMM ? run_words<Isa, WordsOfRows>(args, launch)
                                                   : run_words<Isa, WordsOfColumns>(args, launch);
}

}  // namespace
}  // namespace qk::cpu
