// A tile of codes stored by columns, and the sums of its rows of w: the two inner loops of
// columns.hpp.
//
// Words of 4 lines (8 columns apart for gptq, 32 for awq_gemm) are transposed into dwords of 4
// bytes of one row, so that a dword has 4 columns of one lane in its low nibbles and 4 of one lane
// in its high ones: 2 instructions for each vector of words.
#pragma once
#include "cpu/linear/row_of_x.hpp"
#include "cpu/traits.hpp"

namespace qk::cpu {
namespace {

// Where a word of codes has columns side by side, x is permuted as they are once words are
// transposed into bytes. Of 16 columns: 0 2 4 6, 1 3 5 7, 8 10 12 14, 9 11 13 15.
template <bool quads, class T>
inline void place_columns(const T *from, T *to) {
    for (int i = 0; i < 16; ++i) to[i] = from[quads ? (i & 8) + 2 * (i & 3) + (i >> 2 & 1) : i];
}

// A block as integers, and sums of lanes as the instruction set multiplies them.
template <class Isa, bool quads>
struct ColumnBytes : XBytes {
    void place(const int32_t *q) {
        XBytes natural;
        natural.place(q);
        for (int i = 0; i < 3; ++i) {
            place_columns<quads>(natural.low[i], low[i]);
            place_columns<quads>(natural.high[i], high[i]);
        }
        for (uint32_t &lane : natural.sum) lane = Isa::sum_operand(lane);
        place_columns<quads>(natural.sum, sum);
    }
};

// A block in small groups: columns 8 w .. 8 w + 7 are a lane, which stands where the sums have it;
// the bytes of even ones go to `low`.
template <class Isa>
struct EightsOfColumns : XBytes {
    void place(const int32_t *q) {
        int32_t by_lanes[kBlock];
        for (int64_t lane = 0; lane < 16; ++lane) {
            for (int64_t i = 0; i < 8; ++i) by_lanes[16 * i + lane] = q[eight_of_lane(lane) + i];
        }
        XBytes::place(by_lanes);
        for (uint32_t &each : sum) each = Isa::sum_operand(each);
    }
};

// A block as floats.
template <bool quads>
struct ColumnFloats {
    alignas(64) float x[kBlock];
    alignas(64) uint32_t mask[16];  // columns of the last step, where it is cut
    int64_t steps, cut;             // of 16 columns; the one that is cut, or none

    void place(const char *from, int64_t count) {
        alignas(64) float natural[kBlock] = {};
        uint32_t there[16];
        memcpy(natural, from, size_t(count) * 4);
        for (int64_t i = 0; i < kBlock; i += 16) place_columns<quads>(natural + i, x + i);
        steps = ceil_div(count, 16);
        cut = count % 16 == 0 ? -1 : steps - 1;
        for (int64_t i = 0; i < 16; ++i) there[i] = i < count % 16 ? ~0u : 0u;
        place_columns<quads>(there, mask);
    }
};

// gptq: a word has 8 columns of a row. Dword b of a quad has lanes 2 b and 2 b + 1 of its row; a
// unit is every other line, 8 of the 16 lanes.
struct WordsOfColumns {
    static constexpr bool quads = true;  // lanes side by side
    static constexpr int64_t kUnits = 2, kRows = 1;
    static constexpr int vectors = 4;  // of rows that differ: kWide / 4 rows each
};
// awq_gemm: a word has 8 rows, 0 2 4 6 1 3 5 7. Dword b of a quad has rows order[2 b] and
// order[2 b + 1] of its word; a unit is a lane.
struct WordsOfRows {
    static constexpr bool quads = false;
    static constexpr int64_t kUnits = 16, kRows = 8;
    static constexpr int vectors = 8;
};

// The address of a tile of words.
struct WordTile {
    const uint8_t *from;
    int64_t stride;  // bytes from line to line
};

// What a loop knows of kFewFills: the question costs AVX-512's up to a sixth of their speed.
enum class Fills { kAsked, kFew, kMany };

// Fetches the next block of a strip line after line, each a long run, while tiles take this one
// across the lines: no processor expects an order like theirs, and one at a time misses come in at
// half of memory's speed.
template <class Isa>
struct Ahead {
    const uint8_t *at, *end;  // of the line
    int64_t width, pitch;     // bytes of a line, and from line to line
    bool few_fills;

    // As much as a unit reads, its last line first if `backwards`.
    template <Fills fills = Fills::kAsked, bool backwards = false>
    QK_INLINE void fetch() {
        constexpr int64_t bytes = Isa::kWide * 32;
        const bool few = fills == Fills::kAsked ? few_fills : fills == Fills::kFew;
        QK_UNROLL for (int64_t i = 0; i < bytes; i += 64) {
            fetch_later(at + (backwards ? bytes - 64 - i : i), few);
        }
        at += bytes;
        if (at < end) return;
        end += pitch;
        at = end - width;
    }
};

// Scales, those of each row of x, and zeros of a tile, one group: vector v is multiplied by [v].
template <class Isa, class Layout, int64_t kRows>
struct TileGroup {
    alignas(64) float scale[kRows][Layout::vectors][Isa::kWide];
    alignas(64) float zero[Layout::vectors][Isa::kWide];  // integers: bits
};

// 8 lines: even ones to transposed[0], odd ones to transposed[1].
template <Fills fills, bool backwards, class Isa>
QK_INLINE inline void load_lines(const uint8_t *from, int64_t step, Ahead<Isa> &ahead,
                                 typename Isa::Bits (&transposed)[2][4]) {
    typename Isa::Bits words[2][4];
    QK_UNROLL for (int i = 0; i < 8; ++i, from += step) words[i % 2][i / 2] = Isa::load_bits(from);
    ahead.template fetch<fills, backwards>();
    Isa::bytes_to_dwords(words[0], transposed[0]);
    Isa::bytes_to_dwords(words[1], transposed[1]);
}

// Lines unit, unit + units, ... Of awq_gemm, AVX-512 fetches at one speed backwards; forwards it
// depends on where in its page the loop is.
template <Fills fills, class Isa, class Layout>
QK_INLINE inline void load_unit(const WordTile &tile, int64_t unit, Ahead<Isa> &ahead,
                                typename Isa::Bits (&transposed)[2][4]) {
    constexpr bool backwards = !Layout::quads && Isa::kFetchesBackwards;
    load_lines<fills, backwards>(tile.from + unit * tile.stride, Layout::kUnits * tile.stride,
                                 ahead, transposed);
}

template <class Isa, bool quads>
QK_INLINE inline void load_x(const XBytes &x, int64_t place, typename Isa::Bits (&to)[7]) {
    QK_UNROLL for (int i = 0; i < 3; ++i) {
        to[i] = Isa::template spread_bits<quads>(x.low[i] + place);
        to[i + 3] = Isa::template spread_bits<quads>(x.high[i] + place);
    }
    to[6] = Isa::template spread_bits<quads>(x.sum + place);
}

// What rows of x meet tiles with that are side by side: units' sums are `pitch` floats apart.
template <class Isa, class Layout, int64_t kRows>
struct RowsOfTiles {
    const XBytes *x[kRows];
    float *sums[kRows];
    const TileGroup<Isa, Layout, kRows> *groups;  // one a tile
    int64_t tiles, pitch;
};

// sums[unit][tile][2 i + half] of a block of integers: unit after unit, because a unit's 8 lines
// meet in few sets of the first cache as it is. Dots of two rows of x advance kDotsTogether at a
// time and share their nibbles; those of one row reuse x instead, which stays in registers.
template <Fills fills, class Isa, class Layout, int64_t kRows>
QK_NOINLINE void add_integers(const WordTile &words, const RowsOfTiles<Isa, Layout, kRows> &given,
                              Ahead<Isa> *fetched) {
    constexpr bool quads = Layout::quads;
    constexpr int together = kRows == 1 ? 1 : Isa::kDotsTogether;
    Ahead<Isa> ahead = *fetched;  // copies that nothing points to
    const RowsOfTiles<Isa, Layout, kRows> rows = given;
    const auto add_tile = [&](int64_t unit, int64_t tile) QK_INLINE {
        typename Isa::Bits transposed[2][4];
        load_unit<fills, Isa, Layout>({words.from + tile * Isa::kWide * 4, words.stride}, unit,
                                      ahead, transposed);
        const TileGroup<Isa, Layout, kRows> &group = rows.groups[tile];
        const int64_t at = unit * rows.pitch + tile * 8 * Isa::kWide;
        typename Isa::Bits operands[7];
        const auto load_row = [&]<int half>(int64_t j) QK_INLINE {
            load_x<Isa, quads>(*rows.x[j], quads ? 8 * unit + 4 * half : unit, operands);
        };
        const auto add_some = [&]<int half, int first>() QK_INLINE {
            typename Isa::Bits even[together], odd[together], zero[together];
            QK_UNROLL for (int i = 0; i < together; ++i) {
                even[i] = Isa::template nibbles<half>(transposed[0][first + i]);
                odd[i] = Isa::template nibbles<half>(transposed[1][first + i]);
            }
            QK_UNROLL for (int64_t j = 0; j < kRows; ++j) {
                if (kRows > 1) load_row.template operator()<half>(j);
                const auto vector = [&](int i) {
                    return quads ? first + i : 2 * (first + i) + half;
                };
                QK_UNROLL for (int i = 0; i < together; ++i) {
                    zero[i] = Isa::load_bits(group.zero[vector(i)]);
                }
                typename Isa::Floats dot[together];
                Isa::dot_integers(even, odd, operands, zero, dot);
                QK_UNROLL for (int i = 0; i < together; ++i) {
                    float *const sum = rows.sums[j] + at + ((first + i) * 2 + half) * Isa::kWide;
                    const float *const scale = group.scale[j][vector(i)];
                    Isa::store_wide(
                        sum, Isa::multiply_add(dot[i], Isa::load_wide(scale), Isa::load_wide(sum)));
                }
            }
        };
        const auto add_half = [&]<int half>() QK_INLINE {
            if (kRows == 1) load_row.template operator()<half>(0);
            add_some.template operator()<half, 0>();
            if constexpr (together <= 2) add_some.template operator()<half, 2>();
            if constexpr (together == 1) {
                add_some.template operator()<half, 1>();
                add_some.template operator()<half, 3>();
            }
        };
        add_half.template operator()<0>();
        add_half.template operator()<1>();
    };
    for (int64_t unit = 0; unit < Layout::kUnits; ++unit) {
        for (int64_t tile = 0; tile < rows.tiles; ++tile) add_tile(unit, tile);
    }
    *fetched = ahead;
}

// The integers that codes of FP4_E2M1 stand for, raised to be unsigned: a zero takes that off.
struct RaisedEntries {
    static constexpr int kRaise = 12;  // the largest of them
    alignas(16) uint8_t entry[16] = {};

    explicit RaisedEntries(const Weight &w) {
        if (w.format->id != QK_FORMAT_FP4_E2M1) return;
        float entries[16];
        entries_of(w, 0, entries);
        const float steps = integer_steps(*w.format);
        for (int code = 0; code < 16; ++code) {
            entry[code] = uint8_t(int(entries[code] * steps) + kRaise);
        }
    }
};

// The same in small groups: a lane is 8 columns, one line of gptq or 8 of awq_gemm, and lanes l and
// l + 8 are step l of 16 columns, of which first .. last are added: those of a group.
// sums[place_of_lane(lane)][tile], rows as TileGroup has them. `table`: codes are looked up in
// `entries`.
constexpr int64_t place_of_lane(int64_t lane) { return lane % 8 * 2 + lane / 8; }
template <Fills fills, class Isa, class Layout, int64_t kRows, bool table>
QK_NOINLINE void add_eights(const WordTile &words, const RowsOfTiles<Isa, Layout, kRows> &given,
                            int64_t first, int64_t last, const RaisedEntries &entries,
                            Ahead<Isa> *fetched) {
    constexpr int64_t lines = Layout::quads ? 1 : 8, of_lane = Layout::kRows * Isa::kWide;
    Ahead<Isa> ahead = *fetched;
    const RowsOfTiles<Isa, Layout, kRows> rows = given;
    const typename Isa::Bits of_codes = Isa::template spread_bits<true>(entries.entry);
    const auto integers = [&](typename Isa::Bits codes) QK_INLINE {
        return table ? Isa::look_up_bytes(of_codes, codes) : codes;
    };
    const auto add_lane = [&](const uint8_t *from, int64_t lane) QK_INLINE {
        typename Isa::Bits operands[kRows][7];
        QK_UNROLL for (int64_t j = 0; j < kRows; ++j) {
            load_x<Isa, false>(*rows.x[j], lane, operands[j]);
        }
        for (int64_t tile = 0; tile < rows.tiles; ++tile, from += Isa::kWide * 4) {
            const TileGroup<Isa, Layout, kRows> &of = rows.groups[tile];
            const int64_t at = place_of_lane(lane) * rows.pitch + tile * of_lane;
            const auto add = [&](typename Isa::Bits words_even, typename Isa::Bits words_odd, int v)
                                 QK_INLINE {
                const typename Isa::Bits even[1] = {integers(words_even)};
                const typename Isa::Bits odd[1] = {integers(words_odd)};
                QK_UNROLL for (int64_t j = 0; j < kRows; ++j) {
                    float *const sum = rows.sums[j] + at + v * Isa::kWide;
                    typename Isa::Floats dot[1];
                    Isa::dot_integers(even, odd, operands[j], {Isa::load_bits(of.zero[v])}, dot);
                    Isa::store_wide(sum, Isa::multiply_add(dot[0], Isa::load_wide(of.scale[j][v]),
                                                           Isa::load_wide(sum)));
                }
            };
            if constexpr (Layout::quads) {
                const typename Isa::Bits codes = Isa::load_bits(from);
                if (tile % 8 == 0) ahead.template fetch<fills>();
                add(Isa::template nibbles<0>(codes), Isa::template nibbles<1>(codes), 0);
            } else {
                typename Isa::Bits t[2][4];
                load_lines<fills, false>(from, words.stride, ahead, t);
                QK_UNROLL for (int i = 0; i < 4; ++i) {
                    add(Isa::template nibbles<0>(t[0][i]), Isa::template nibbles<0>(t[1][i]),
                        2 * i);
                    add(Isa::template nibbles<1>(t[0][i]), Isa::template nibbles<1>(t[1][i]),
                        2 * i + 1);
                }
            }
        }
    };
    const int64_t stride = lines * words.stride;
    for (int64_t step = first; step < last; ++step) {
        const uint8_t *const from = words.from + 2 * step * stride;
        add_lane(from, step);
        add_lane(from + stride, step + 8);
    }
    *fetched = ahead;
}

// The same of floats; step i of 16 columns has scales and zeros of groups[of_step[i]]. `cut`: the
// block has not all of its columns.
template <class Isa, class Layout, bool cut, class Entries>
QK_NOINLINE void add_floats(const WordTile &tile, const ColumnFloats<Layout::quads> &x,
                            const TileGroup<Isa, Layout, 1> *groups, const int64_t *of_step,
                            const Entries &entries, Ahead<Isa> *fetched, float *sums,
                            int64_t pitch) {
    constexpr bool quads = Layout::quads;
    Ahead<Isa> ahead = *fetched;
    const Entries table = entries;  // a copy that nothing points to
    for (int64_t unit = 0; unit < Layout::kUnits; ++unit) {
        typename Isa::Bits transposed[2][4];
        load_unit<Fills::kAsked, Isa, Layout>(tile, unit, ahead, transposed);
        alignas(64) uint32_t codes[2][4][Isa::kWide];
        QK_UNROLL for (int i = 0; i < 4; ++i) {
            Isa::store_bits(codes[0][i], transposed[0][i]);
            Isa::store_bits(codes[1][i], transposed[1][i]);
        }
        for (int i = 0; i < 4; ++i) {
            const typename Isa::Bits even = Isa::load_bits(codes[0][i]),
                                     odd = Isa::load_bits(codes[1][i]);
            const auto add_half = [&]<int half>() QK_INLINE {
                const int64_t place = quads ? 8 * unit + 4 * half : unit;
                const int v = quads ? i : 2 * i + half;
                float *const to = sums + unit * pitch + (i * 2 + half) * Isa::kWide;
                typename Isa::Floats sum = Isa::load_wide(to);
                for_each_step([&]<int step>() QK_INLINE {
                    if (cut && step >= x.steps) return;
                    const TileGroup<Isa, Layout, 1> &group = groups[of_step[step]];
                    const typename Isa::Floats entry =
                        table.template entry<step / 2 * 2 + half>(step % 2 == 0 ? even : odd);
                    const typename Isa::Floats weight =
                        (entry - Isa::load_wide(group.zero[v])) * Isa::load_wide(group.scale[0][v]);
                    const typename Isa::Floats next = Isa::multiply_add(
                        typename Isa::Floats(
                            Isa::template spread_bits<quads>(x.x + 16 * step + place)),
                        weight, sum);
                    const bool some = cut && step == x.cut;
                    sum = some ? Isa::where(Isa::template spread_bits<quads>(x.mask + place), next,
                                            sum)
                               : next;
                });
                Isa::store_wide(to, sum);
            };
            add_half.template operator()<0>();
            add_half.template operator()<1>();
        }
    }
    *fetched = ahead;
}

}  // namespace
}  // namespace qk::cpu
