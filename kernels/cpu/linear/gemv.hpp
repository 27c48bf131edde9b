// y = x . transpose(w) + bias for one or two rows of x, over blocks of the packed layout (rows8),
// any 4-bit format; other layouts are gathered to such blocks, a panel at a time
// (shared/row_blocks.hpp). The sum has the generic kernel's order, so the bits are the same.
//
// A chunk is one 64-byte vector: 128 columns of one row. Nibble i of dword j is column 16 i + j, so
// that step i of a chunk shifts the vector right by 4 i, looks up 16 entries with one permute
// (which ignores the higher bits) and adds 16 products to the 16 lanes of the row's sum:
//
//     stream of a row block:  [row 0: columns 0..127][row 1]...[row 7][row 0: columns 128..255]...
//     registers:              x of the chunk (8), sums of the 8 rows (8), the 16 entries (1)
//
// Weights are read once, front to back, in one stream; scales of the 8 rows are side by side. Each
// row of x has the sums that it would have alone; what is looked up is multiplied by both.
#pragma once
#include "cpu/kernels.hpp"
#include "cpu/linear/minima.hpp"
#include "cpu/shared/row_blocks.hpp"
#include "cpu/traits.hpp"

namespace qk::cpu {
namespace {

constexpr int64_t kAhead = 12288;  // bytes of weights fetched ahead of use

template <class Isa>
struct Sums {
    Lanes<Isa> row[8];
};
template <class Isa, int kCount>
using SumsOf = Sums<Isa>[kCount];  // one a row of x

// What a chunk of 8 rows is added with: at most 128 columns a group here, wider ones are taken
// 128 at a time.
struct Chunk {
    const uint8_t *codes;      // row 0's
    const char *scales;        // f32 [group of the chunk][8 rows]
    const uint8_t *zeros;      // 4 bytes a group: a nibble a row; of LoweredCodes 32: an f32 a row
    const char *x[kLaneRows];  // f32, one a row of x
};

// The 16 weights that the codes of a row stand for in group `group` of the chunk.
template <class Isa, class Codes>
QK_INLINE inline Table<Isa> weights_of(const Chunk &chunk, const Codes &codes, int64_t group,
                                       int row) {
    const float scale = load_as<float>(chunk.scales, group * 8 + row);
    const Table<Isa> table = Isa::scale_table(codes.table(chunk.zeros, group, row), scale);
    if constexpr (!kLowers<Codes>) return table;
    return Isa::lower_table(table, load_as<float>(chunk.zeros, group * 8 + row));
}

// Loads have ports of their own and shifts few: where a vector holds a chunk, byte b of its words
// is loaded in place, up to three bytes past the chunk, and one shift by 4 is left for a byte.
// Three of four loads reach into the next line: while that is on its way from the second cache,
// they hold up what could go on, so lines come to the first cache a little ahead.
template <class Isa>
constexpr bool loads_bytes = Isa::kVectorBytes == 64;
constexpr int64_t kNear = 1024;

// Rows go kRowsTogether at a time, step by step: their sums are independent, and a processor's
// window is shorter than the chain of eight additions of one row.
template <class Isa, int kSteps, int kRows, int kCount, bool paged, class Codes>
QK_INLINE inline void add_rows(const Chunk &chunk, int first_row, const Codes &codes,
                               SumsOf<Isa, kCount> &sums) {
    Words<Isa> words[kRows];
    Table<Isa> table[kRows];
    QK_UNROLL
    for (int i = 0; i < kRows; ++i) {
        const uint8_t *const row = chunk.codes + 64 * (first_row + i);
        if (!paged) prefetch_stream(row + kAhead);
        if (!paged && loads_bytes<Isa>) prefetch(row + kNear);
        if (!loads_bytes<Isa>) words[i] = Isa::load_words(row);
    }
    const auto add = [&]<int step>() QK_INLINE {
        if (paged && step % (8 / kRows) == 0) {
            fetch_line<paged, kAhead>(chunk.codes + 64 * (first_row + step * kRows / 8));
        }
        if (first_row == 0 && step == 7) fetch_page<paged>(chunk.codes + kAhead);
        Lanes<Isa> x[kCount];
        QK_UNROLL
        for (int j = 0; j < kCount; ++j) x[j] = Isa::load_f32(chunk.x[j] + 64 * step);
        constexpr int shifts = loads_bytes<Isa> ? step % 2 : step;
        QK_UNROLL
        for (int i = 0; i < kRows; ++i) {
            const int row = first_row + i;
            if (loads_bytes<Isa> && shifts == 0) {
                words[i] = Isa::load_words(chunk.codes + 64 * row + step / 2);
            }
            if (step % kSteps == 0) table[i] = weights_of<Isa>(chunk, codes, step / kSteps, row);
            const Lanes<Isa> weight = Isa::template look_up<shifts>(table[i], words[i]);
            QK_UNROLL
            for (int j = 0; j < kCount; ++j) {
                sums[j].row[row] = Isa::fma(weight, x[j], sums[j].row[row]);
            }
        }
    };
    for_each_step(add);
}

template <class Isa, int kSteps, int kCount, bool paged, class Codes>
QK_INLINE inline void add_chunk(const Chunk &chunk, const Codes &codes, SumsOf<Isa, kCount> &sums) {
    constexpr int kRows = Isa::kRowsTogether > kCount ? Isa::kRowsTogether / kCount : 1;
    if (Isa::kRowsTogether == 1) {  // the sums are in memory anyway
        _Pragma("GCC unroll 1") for (int row = 0; row < 8; ++row) {
            if constexpr (requires { codes.planes(); }) {
                const uint8_t *const from = chunk.codes + 64 * row;
                prefetch_stream(from + kAhead);
                const float *const scales = reinterpret_cast<const float *>(chunk.scales) + row;
                const float *x[kCount];
                Lanes<Isa> *sum[kCount];
                for (int j = 0; j < kCount; ++j) {
                    x[j] = reinterpret_cast<const float *>(chunk.x[j]);
                    sum[j] = &sums[j].row[row];
                }
                Isa::template add_products<kSteps, kCount>(codes.planes(), from, scales, x, sum);
            } else {
                add_rows<Isa, kSteps, 1, kCount, paged>(chunk, row, codes, sums);
            }
        }
        return;
    }
    QK_UNROLL
    for (int row = 0; row < 8; row += kRows) {
        add_rows<Isa, kSteps, kRows, kCount, paged>(chunk, row, codes, sums);
    }
}

// The first `count` steps of a chunk.
template <class Isa, int step>
inline void look_up_steps(const Words<Isa> &words, const Table<Isa> *tables, int64_t count,
                          float (*weights)[16]) {
    if constexpr (step < 8) {
        if (step >= count) return;
        Isa::store_f32(weights[step], Isa::template look_up<step>(tables[step], words));
        look_up_steps<Isa, step + 1>(words, tables, count, weights);
    }
}

// The last chunk of a row, which ends `columns` after its start; a group has `steps` steps.
template <class Isa, class Codes>
QK_NOINLINE void add_tail(const Chunk &chunk, const Codes &codes, int64_t steps, int64_t columns,
                          int64_t x_rows, Sums<Isa> *sums) {
    const int64_t count = ceil_div(columns, 16);
    for (int row = 0; row < 8; ++row) {
        Table<Isa> tables[8];
        float weights[8][16];
        for (int64_t step = 0; step < count; ++step) {
            tables[step] = weights_of<Isa>(chunk, codes, step / steps, row);
        }
        look_up_steps<Isa, 0>(Isa::load_words(chunk.codes + 64 * row), tables, count, weights);
        for (int64_t step = 0; step < count; ++step) {
            const Mask<Isa> mask = Isa::first_lanes(columns - 16 * step);
            for (int64_t j = 0; j < x_rows; ++j) {
                const Lanes<Isa> x = Isa::load_f32(chunk.x[j] + 64 * step, mask);
                Lanes<Isa> &sum = sums[j].row[row];
                sum = Isa::fma_where(mask, x, Isa::load_f32(weights[step]), sum);
            }
        }
    }
}

template <class Isa>
inline void store_rows(const LinearArgs &args, int64_t x_row, int64_t row_block,
                       const Sums<Isa> &sums, MinimaOfGroups<Isa> *minima = nullptr) {
    float y[8];
    Isa::fold_rows(sums.row, y);
    if (minima != nullptr) minima->take_off(x_row, row_block * 8, y);
    store_8(args, x_row, row_block, y);
}

// A run of chunks whose groups fill the scale panel, at most. Divisions take time, so the first
// panel, which is the only one of most rows, is worked out once for all row blocks.
struct Panel {
    int64_t first, last;    // chunks
    int64_t full;           // of them, those that k fills
    int64_t group, groups;  // that the chunks have
    int64_t left;           // columns of the first group
};
inline Panel panel_from(const Geometry &s, int64_t first, int64_t most) {
    const int64_t width = min64(min64(s.group_size, s.k) >= 128 ? 128 : s.group_size, most);
    const int64_t chunks = ceil_div(s.k, 128), last = min64(first + width, chunks);
    const int64_t column = first * 128, group = column / s.group_size;
    return {first,
            last,
            min64(last, s.k / 128) - first,
            group,
            ceil_div(min64(last * 128, s.k), s.group_size) - group,
            (group + 1) * s.group_size - column};
}

// y of 8 rows: add_panel(panel, sums) adds the panels up in order, sums of each row of x. `s`: the
// geometry that `first` was cut from.
template <class Isa, class AddPanel>
QK_INLINE inline void sum_panels(const LinearArgs &args, const Geometry &s, const Panel &first,
                                 int64_t row_block, const AddPanel &add_panel,
                                 MinimaOfGroups<Isa> *minima = nullptr) {
    const int64_t chunks = ceil_div(s.k, 128);
    SumsOf<Isa, kLaneRows> sums;
    for (int64_t j = 0; j < args.x.rows; ++j) {
        for (Lanes<Isa> &lanes : sums[j].row) lanes = Isa::zero_lanes();
    }
    add_panel(first, sums);
    for (int64_t at = first.last; at < chunks; at += first.last) {
        add_panel(panel_from(s, at, first.last), sums);
    }
    for (int64_t j = 0; j < args.x.rows; ++j) {
        store_rows<Isa>(args, j, row_block, sums[j], minima);
    }
}

template <class Isa, class Codes>
class RowBlocks {
  public:
    RowBlocks(const LinearArgs &args, const Device &device)
        : args_(args), s_(geometry_of_blocks(args.w.geometry)), x_(args.x), scales_(args.w, device),
          minima_(args.w, args.w.minimum, device), codes_(args.w), blocks_(args.w),
          first_(panel_from(s_, 0, blocks_.most())),
          paged_(loads_bytes<Isa> && (traits() & kPagedStreams) != 0) {}

    void run(int64_t row_block) {
        sum_panels<Isa>(args_, s_, first_, row_block,
                        [&](const Panel &panel, Sums<Isa> *sums)
                            QK_INLINE { run_panel(row_block, panel, sums); });
    }

  private:
    int64_t zero_bytes() const { return kLowers<Codes> ? 32 : args_.w.zero != nullptr ? 4 : 0; }
    const uint8_t *zeros_of(int64_t row_block, const Panel &panel) {
        if constexpr (kLowers<Codes>) {
            return reinterpret_cast<const uint8_t *>(
                minima_.load(row_block, panel.group, panel.groups));
        } else {
            return blocks_.zeros(row_block, panel.group, panel.groups);
        }
    }

    // The plane's last chunk, behind which nothing may be read, is added as a tail is.
    bool ends_plane(int64_t row_block, const Panel &panel) const {
        const Geometry &s = args_.w.geometry;
        return blocks_.in_place() && panel.last * 128 == s.k && (row_block + 1) * 8 >= s.n;
    }

    void run_panel(int64_t row_block, const Panel &panel, Sums<Isa> *sums) {
        const Geometry &s = s_;
        const uint8_t *const codes = blocks_.load(row_block, panel.first, panel.last);
        const char *const scales = scales_.load(row_block, panel.group, panel.groups);
        const int64_t rows = args_.x.rows, column = panel.first * 128;
        const char *const x = x_[0].panel(column);
        const char *const second = rows > 1 ? x_[1].panel(column) : x;
        const uint8_t *const zeros = zeros_of(row_block, panel);
        const int64_t full = panel.full - (loads_bytes<Isa> && ends_plane(row_block, panel));
        const int64_t steps = s.group_size < s.k ? min64(s.group_size, 128) / 16 : 8;
        rows > 1 ? run_steps<2>(steps, codes, scales, zeros, x, second, panel.left, full, sums)
                 : run_steps<1>(steps, codes, scales, zeros, x, second, panel.left, full, sums);
        if (panel.first + full == panel.last) return;
        const int64_t groups = (panel.first + full) * 128 / s.group_size - panel.group;
        const Chunk chunk = {codes + full * 512,
                             scales + groups * 32,
                             zeros != nullptr ? zeros + groups * zero_bytes() : zeros,
                             {x + full * 512, second + full * 512}};
        add_tail<Isa>(chunk, codes_, steps, s.k - (panel.first + full) * 128, rows, sums);
    }

    // One by one, because a processor waits where a vector is loaded that was stored in parts.
    template <int kCount, class... Args>
    QK_INLINE void run_steps(int64_t steps, const Args &...args) const {
        switch (steps) {
            case 1: return run_as<1, kCount>(args...);
            case 2: return run_as<2, kCount>(args...);
            case 4: return run_as<4, kCount>(args...);
            default: return run_as<8, kCount>(args...);
        }
    }
    template <int kSteps, int kCount, class... Args>
    QK_INLINE void run_as(const Args &...args) const {
        if constexpr (loads_bytes<Isa>) {
            if (paged_) return run_chunks<kSteps, kCount, true>(args...);
        }
        run_chunks<kSteps, kCount, false>(args...);
    }
    template <int kSteps, int kCount, bool paged>
    QK_NOINLINE void run_chunks(const uint8_t *codes, const char *scales, const uint8_t *zeros,
                                const char *x, const char *second, int64_t left, int64_t full,
                                Sums<Isa> *total) const {
        constexpr int64_t groups = 8 / kSteps;
        const int64_t size = s_.group_size, stride = zero_bytes();
        SumsOf<Isa, kCount> sums;  // a copy that nothing points to stays in registers
        for (int j = 0; j < kCount; ++j) sums[j] = total[j];
        Chunk at = {codes, scales, zeros, {x, second}};
        for (int64_t i = 0; i < full; ++i) {
            add_chunk<Isa, kSteps, kCount, paged>(at, codes_, sums);
            prefetch_lines(at.scales, groups * 32, groups * 1024);
            at.codes += 512;
            for (const char *&of_row : at.x) of_row += 512;
            left -= 128;
            if (kSteps == 8 && left > 0) continue;
            left = size;
            at.scales += groups * 32;
            at.zeros += groups * stride;
        }
        for (int j = 0; j < kCount; ++j) total[j] = sums[j];
    }

    const LinearArgs &args_;
    const Geometry s_;
    EachRow<RowOfX<Isa>> x_;
    ScalePanel<Isa> scales_;
    std::conditional_t<kLowers<Codes>, ScalePanel<Isa>, NoPanel> minima_;
    Codes codes_;
    CodesOfBlocks<Isa> blocks_;
    const Panel first_;
    const bool paged_;
};

}  // namespace
}  // namespace qk::cpu
