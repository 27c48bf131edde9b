// y = x . transpose(w) + bias for one row of x, over the packed layout (rows8), any 4-bit format.
// The sum has the generic kernel's order, so the bits are the same.
//
// A chunk is one 64-byte vector: 128 columns of one row. Nibble i of dword j is column 16 i + j, so
// that step i of a chunk shifts the vector right by 4 i, looks 16 entries up with one permute
// (which ignores the higher bits) and adds 16 products to the 16 lanes of the row's sum:
//
//     stream of a row block:  [row 0: columns 0..127][row 1]...[row 7][row 0: columns 128..255]...
//     registers:              x of the chunk (8), sums of the 8 rows (8), the 16 entries (1)
//
// Weights are read once, front to back, in one stream; scales of the 8 rows lie side by side.
#pragma once
#include "cpu/features.hpp"
#include "cpu/lists.hpp"
#include "cpu/split.hpp"
#include "cpu/vector/panel.hpp"

namespace qk::cpu {
namespace {

constexpr int64_t kAhead = 8192;  // bytes of weights fetched ahead of use

struct Sums {
    Lanes acc[8], part[8];
};

// One step, 16 columns; `first` of its group.
template <int step, bool first, bool tail>
QK_INLINE inline Lanes add_step(const Words &codes, const Table &table, const Lanes (&x)[8],
                      const Mask (&mask)[8], Lanes part) {
    const Lanes entry = look_up<step>(table, codes);
    const Lanes sum = first ? zero_lanes() : part;
    return tail ? fma_where(mask[step], x[step], entry, sum) : fma(entry, x[step], sum);
}

// What a chunk of 8 rows is added with. Groups of at most 128 columns start with the chunk; wider
// ones (kSteps 0) begin and end with some chunk.
struct Chunk {
    const uint8_t *codes;  // row 0's
    const char *scales;    // f32 [group of the chunk][8 rows]
    const uint8_t *zeros;  // 4 bytes a group: a nibble a row
    int64_t groups;        // that have a column
    bool starts, ends;     // a wide group
};

// Rows go kRowsTogether at a time, step by step: their sums are independent, and a processor's
// window is shorter than the chain of eight additions of one row.
template <int kSteps, class Codes, bool tail>
QK_INLINE inline void add_rows(const Chunk &chunk, int first_row, const Codes &codes,
                               const Lanes (&x)[8], const Mask (&mask)[8], Sums &sums) {
    constexpr int steps = kSteps == 0 ? 8 : kSteps;
    Words words[kRowsTogether];
    Lanes part[kRowsTogether];
    Table table[kRowsTogether];
    QK_UNROLL
    for (int i = 0; i < kRowsTogether; ++i) {
        const uint8_t *const row = chunk.codes + 64 * (first_row + i);
        prefetch(row + kAhead);
        words[i] = load_words(row);
        part[i] = kSteps == 0 && !chunk.starts ? sums.part[first_row + i] : zero_lanes();
    }
    const auto add = [&]<int step>() QK_INLINE {
        constexpr int group = step / steps;
        constexpr bool first = kSteps != 0 && step % steps == 0;
        constexpr bool last = step % steps == steps - 1;
        if (tail && kSteps != 0 && group >= chunk.groups) return;  // neither zeros nor scales
        QK_UNROLL
        for (int i = 0; i < kRowsTogether; ++i) {
            if (step % steps == 0) table[i] = codes.table(chunk.zeros + 4 * group, first_row + i);
            part[i] = add_step<step, first, tail>(words[i], table[i], x, mask, part[i]);
        }
        if (!last || (kSteps == 0 && !chunk.ends)) return;
        QK_UNROLL
        for (int i = 0; i < kRowsTogether; ++i) {
            const int row = first_row + i;
            const Lanes scale = splat(load_as<float>(chunk.scales, group * 8 + row));
            sums.acc[row] = fma(part[i], scale, sums.acc[row]);
        }
    };
    add.template operator()<0>();
    add.template operator()<1>();
    add.template operator()<2>();
    add.template operator()<3>();
    add.template operator()<4>();
    add.template operator()<5>();
    add.template operator()<6>();
    add.template operator()<7>();
    if (kSteps != 0) return;
    QK_UNROLL
    for (int i = 0; i < kRowsTogether; ++i) sums.part[first_row + i] = part[i];
}

template <int kSteps, class Codes, bool tail>
QK_INLINE inline void add_chunk(const Chunk &chunk, const Codes &codes, const Lanes (&x)[8],
                      const Mask (&mask)[8], Sums &sums) {
    QK_UNROLL
    for (int row = 0; row < 8; row += kRowsTogether) {
        add_rows<kSteps, Codes, tail>(chunk, row, codes, x, mask, sums);
    }
}

void store_rows(const LinearArgs &args, int64_t row_block, const Sums &sums) {
    const int64_t first = row_block * 8, rows = min64(8, args.w.geometry.n - first);
    for (int64_t row = 0; row < rows; ++row) {
        float y = fold_lanes(sums.acc[row]);
        if (args.bias != nullptr) {
            y += load_float(args.bias->format->id, args.bias->data, first + row);
        }
        store_float(args.y.format->id, args.y.data, first + row, y);
    }
}

template <int kSteps, class Codes, class X>
class RowBlocks {
  public:
    explicit RowBlocks(const LinearArgs &args) : args_(args), scales_(args.w), codes_(args.w) {}

    void run(int64_t row_block) {
        const Geometry &s = args_.w.geometry;
        const int64_t chunks = ceil_div(s.k, 128);
        Sums sums;
        for (Lanes &lanes : sums.acc) lanes = zero_lanes();
        for (Lanes &lanes : sums.part) lanes = zero_lanes();
        for (int64_t chunk = 0; chunk < chunks; chunk += kPanelChunks) {
            run_panel(row_block, chunk, min64(chunk + kPanelChunks, chunks), sums);
        }
        store_rows(args_, row_block, sums);
    }

  private:
    void run_panel(int64_t row_block, int64_t first, int64_t last, Sums &total) {
        const Geometry &s = args_.w.geometry;
        const int64_t chunks = ceil_div(s.k, 128), size = s.group_size;
        Sums sums = total;  // a copy that nothing points to stays in registers
        const int64_t group = first * 128 / size;
        const int64_t group_last = ceil_div(min64(last * 128, s.k), size);
        Chunk chunk = {};
        const int64_t first_chunk = row_block * chunks + first;
        chunk.codes = static_cast<const uint8_t *>(args_.w.data) + first_chunk * 512;
        chunk.scales = scales_.load(row_block, group, group_last - group);
        if (args_.w.zero != nullptr) {
            chunk.zeros = static_cast<const uint8_t *>(args_.w.zero) +
                          (row_block * s.groups_per_row + group) * 4;
        }
        const char *x = static_cast<const char *>(args_.x.data) + first * 128 * X::kBytes;
        const int64_t full = min64(last, s.k / 128);
        int64_t column = first * 128, group_start = group * size;
        for (int64_t i = first; i < full; ++i, column += 128, x += 128 * X::kBytes) {
            set_wide(chunk, column, group_start);
            add<false>(chunk, x, 128, sums);
            advance(chunk, group_start);
        }
        if (full < last) {
            chunk.groups = ceil_div(s.k - column, size);
            set_wide(chunk, column, group_start);
            add<true>(chunk, x, s.k - column, sums);
        }
        total = sums;
    }

    void set_wide(Chunk &chunk, int64_t column, int64_t group_start) const {
        if (kSteps != 0) return;
        const Geometry &s = args_.w.geometry;
        chunk.starts = column == group_start;
        chunk.ends = column + 128 >= min64(group_start + s.group_size, s.k);
    }

    void advance(Chunk &chunk, int64_t &group_start) const {
        constexpr int groups = kSteps == 0 ? 1 : 8 / kSteps;
        chunk.codes += 512;
        if (kSteps == 0 && !chunk.ends) return;
        group_start += args_.w.geometry.group_size;
        chunk.scales += groups * 8 * 4;
        chunk.zeros += args_.w.zero != nullptr ? groups * 4 : 0;
    }

    template <bool tail>
    void add(const Chunk &chunk, const char *x, int64_t columns, Sums &sums) const {
        Mask mask[8];
        Lanes values[8];
        QK_UNROLL
        for (int step = 0; step < 8; ++step) {
            mask[step] = first_lanes(tail ? columns - 16 * step : 16);
            values[step] = X::load(x + 16 * step * X::kBytes, mask[step]);
        }
        add_chunk<kSteps, Codes, tail>(chunk, codes_, values, mask, sums);
    }

    const LinearArgs &args_;
    ScalePanel scales_;
    Codes codes_;
};

template <int kSteps, class Codes, class X>
void run_all(const LinearArgs &args, const Launch &launch) {
    const int64_t blocks = ceil_div(args.w.geometry.n, 8);
    parallel_ranges(launch.parallel, blocks, 1, [&](int64_t first, int64_t last) {
        RowBlocks<kSteps, Codes, X> rows(args);
        for (int64_t block = first; block < last; ++block) rows.run(block);
    });
}

template <class Codes, class X>
void run_groups(const LinearArgs &args, const Launch &launch) {
    const Geometry &s = args.w.geometry;
    if (s.group_size >= s.k) return run_all<0, Codes, X>(args, launch);
    switch (s.group_size) {
        case 16: return run_all<1, Codes, X>(args, launch);
        case 32: return run_all<2, Codes, X>(args, launch);
        case 64: return run_all<4, Codes, X>(args, launch);
        case 128: return run_all<8, Codes, X>(args, launch);
        default: return run_all<0, Codes, X>(args, launch);
    }
}

template <class X>
void run_codes(const LinearArgs &args, const Launch &launch) {
    args.w.zero != nullptr ? run_groups<AffineCodes, X>(args, launch)
                           : run_groups<TableCodes, X>(args, launch);
}

Status run_gemv(const LinearArgs &args, const Launch &launch) {
    switch (args.x.format->id) {
        case QK_FORMAT_F16: run_codes<F16>(args, launch); break;
        case QK_FORMAT_BF16: run_codes<BF16>(args, launch); break;
        default: run_codes<F32>(args, launch);
    }
    return QK_OK;
}

bool can_run_gemv(const LinearArgs &args, int32_t) {
    const Geometry &s = args.w.geometry;
    if ((features() & kLanesFeature) == 0 || args.x.rows != 1) return false;
    if (args.w.layout == nullptr || args.w.layout->id != kLayoutRows8 || s.flat) return false;
    const int64_t size = s.group_size;
    return size >= s.k || size == 16 || size == 32 || size == 64 || size % 128 == 0;
}

}  // namespace
}  // namespace qk::cpu
