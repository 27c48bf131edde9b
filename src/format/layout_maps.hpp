// The closed forms of every layout, for host and device. Each struct maps (row, column) and
// (row, group) to places; docs/formats.md draws them with worked examples and names the sources.
#pragma once
#include "format/geometry.hpp"
#include "format/layouts.hpp"

namespace qk {
namespace {  // internal linkage: files built for one instruction set may not lend theirs to others

// Groups stored row after row, or as one sequence where they are flat: most layouts' scales.
struct ScalesByRow {
    QK_HD static constexpr int64_t scale_count(const Geometry &s) { return s.group_count; }
    QK_HD static constexpr int64_t scale_at(const Geometry &s, GroupIndex i) {
        return group_number(s, i);
    }
};

// Groups stored [group][row]: the k-major checkpoints.
struct ScalesByGroup {
    QK_HD static constexpr int64_t scale_count(const Geometry &s) { return s.group_count; }
    QK_HD static constexpr int64_t scale_at(const Geometry &s, GroupIndex i) {
        return i.group * s.n + i.row;
    }
};

struct MapRow : ScalesByRow {
    QK_HD static constexpr int64_t code_count(const Geometry &s) { return s.n * round_up(s.k, 2); }
    QK_HD static constexpr int64_t code_at(const Geometry &s, int64_t r, int64_t c) {
        return r * round_up(s.k, 2) + c;
    }
    QK_HD static constexpr int64_t zero_count(const Geometry &s) {
        return s.flat ? s.group_count : s.n * round_up(s.groups_per_row, 2);
    }
    QK_HD static constexpr int64_t zero_at(const Geometry &s, GroupIndex i) {
        return i.row * round_up(s.groups_per_row, 2) + i.group;  // row is 0 where flat
    }
};

struct MapRowHigh : ScalesByRow {
    QK_HD static constexpr int64_t code_count(const Geometry &s) { return s.n * s.k; }
    QK_HD static constexpr int64_t code_at(const Geometry &s, int64_t r, int64_t c) {
        return (r * s.k + c) ^ 1;  // the even element sits in the high nibble
    }
    QK_HD static constexpr int64_t zero_count(const Geometry &s) { return s.group_count; }
    QK_HD static constexpr int64_t zero_at(const Geometry &s, GroupIndex i) {
        return group_number(s, i) ^ 1;
    }
};

// Column 8w + j of a word is in nibble [0,4,1,5,2,6,3,7][j]: even columns low, odd ones high.
QK_HD static constexpr int64_t awq_nibble(int64_t column) {
    return (column & ~int64_t{7}) + ((column & 1) << 2 | (column & 7) >> 1);
}

struct MapAwqGemm : ScalesByGroup {
    QK_HD static constexpr int64_t code_count(const Geometry &s) { return s.k * round_up(s.n, 8); }
    QK_HD static constexpr int64_t code_at(const Geometry &s, int64_t r, int64_t c) {
        return c * round_up(s.n, 8) + awq_nibble(r);
    }
    QK_HD static constexpr int64_t zero_count(const Geometry &s) {
        return s.groups_per_row * round_up(s.n, 8);
    }
    QK_HD static constexpr int64_t zero_at(const Geometry &s, GroupIndex i) {
        return i.group * round_up(s.n, 8) + awq_nibble(i.row);
    }
};

struct MapAwqGemv {
    // Words of zeros a row: ceil(groups / 8), padded so that a kernel may read whole vectors.
    QK_HD static constexpr int64_t zero_words(const Geometry &s) {
        const int64_t size = s.group_size;
        const int64_t multiple = size >= 128 ? 1 : size >= 64 ? 2 : size >= 32 ? 4 : 8;
        return round_up(ceil_div(s.groups_per_row, 8), multiple);
    }
    QK_HD static constexpr int64_t code_count(const Geometry &s) { return s.n * round_up(s.k, 8); }
    QK_HD static constexpr int64_t code_at(const Geometry &s, int64_t r, int64_t c) {
        return r * round_up(s.k, 8) + c;
    }
    QK_HD static constexpr int64_t scale_count(const Geometry &s) {
        return s.n * 8 * zero_words(s);
    }
    QK_HD static constexpr int64_t scale_at(const Geometry &s, GroupIndex i) {
        return i.row * 8 * zero_words(s) + i.group;
    }
    QK_HD static constexpr int64_t zero_count(const Geometry &s) { return scale_count(s); }
    QK_HD static constexpr int64_t zero_at(const Geometry &s, GroupIndex i) {
        return scale_at(s, i);
    }
};

struct MapGptq : ScalesByGroup {
    QK_HD static constexpr int64_t code_count(const Geometry &s) { return round_up(s.k, 8) * s.n; }
    QK_HD static constexpr int64_t code_at(const Geometry &s, int64_t r, int64_t c) {
        return ((c >> 3) * s.n + r) * 8 + (c & 7);
    }
    QK_HD static constexpr int64_t zero_count(const Geometry &s) {
        return s.groups_per_row * round_up(s.n, 8);
    }
    QK_HD static constexpr int64_t zero_at(const Geometry &s, GroupIndex i) {
        return i.group * round_up(s.n, 8) + i.row;
    }
};

struct MapWord : ScalesByRow {
    QK_HD static constexpr int64_t code_count(const Geometry &s) { return s.n * round_up(s.k, 8); }
    QK_HD static constexpr int64_t code_at(const Geometry &s, int64_t r, int64_t c) {
        return r * round_up(s.k, 8) + c;
    }
    QK_HD static constexpr int64_t zero_count(const Geometry &s) {
        return round_up(s.n, 8) * s.groups_per_row;
    }
    QK_HD static constexpr int64_t zero_at(const Geometry &s, GroupIndex i) {
        return ((i.row >> 3) * s.groups_per_row + i.group) * 8 + (i.row & 7);
    }
};

// The CPU's packed layout: 8 rows alternate in one stream, 64 bytes (128 columns) at a time.
// Dword j of a chunk holds columns j, 16 + j, 32 + j, ... in its nibbles 0, 1, 2, ...: one
// 16-lane look-up of nibble i yields 16 neighbouring columns. Rows and columns are padded.
struct MapRows8 {
    QK_HD static constexpr int64_t code_count(const Geometry &s) {
        return round_up(s.n, 8) * round_up(s.k, 128);
    }
    QK_HD static constexpr int64_t code_at(const Geometry &s, int64_t r, int64_t c) {
        const int64_t chunk = ((r >> 3) * ceil_div(s.k, 128) + (c >> 7)) * 8 + (r & 7);
        return chunk * 128 + (c & 15) * 8 + (c >> 4 & 7);
    }
    QK_HD static constexpr int64_t scale_count(const Geometry &s) {
        return s.flat ? s.group_count : round_up(s.n, 8) * s.groups_per_row;
    }
    QK_HD static constexpr int64_t scale_at(const Geometry &s, GroupIndex i) {
        if (s.flat) return i.group;
        return ((i.row >> 3) * s.groups_per_row + i.group) * 8 + (i.row & 7);
    }
    QK_HD static constexpr int64_t zero_count(const Geometry &s) { return scale_count(s); }
    QK_HD static constexpr int64_t zero_at(const Geometry &s, GroupIndex i) {
        return scale_at(s, i);
    }
};

// The GPU's packed layout: 16 rows x 64 columns a tile of 512 bytes, tiles of 16 rows in sequence
// along k. Lane 4 (r mod 8) + c / 16 of a warp loads its 16 bytes of a tile at once and holds, in
// word s, the codes of rows r and r + 8, columns 16 (lane mod 4) + 4 s + 0..3: its share of the
// matrix operand of mma.m16n8k16. Pairs: neighbours in k share a byte, for a look-up by bytes;
// else they sit 16 bits apart, where one mask isolates both. Scales and zeros: the rows of a tile
// side by side, r and r + 8 adjacent. Rows and columns are padded.
template <bool pairs>
struct MapTiles {
    QK_HD static constexpr int64_t code_count(const Geometry &s) {
        return round_up(s.n, 16) * round_up(s.k, 64);
    }
    QK_HD static constexpr int64_t code_at(const Geometry &s, int64_t r, int64_t c) {
        const int64_t tile = (r >> 4) * ceil_div(s.k, 64) + (c >> 6);
        const int64_t word = ((r & 7) * 4 + (c >> 4 & 3)) * 4 + (c >> 2 & 3);
        const int64_t quarter = (c & 2) + (r >> 3 & 1);
        const int64_t nibble = pairs ? quarter * 2 + (c & 1) : quarter + (c & 1) * 4;
        return (tile * 128 + word) * 8 + nibble;
    }
    QK_HD static constexpr int64_t scale_count(const Geometry &s) {
        return s.flat ? s.group_count : round_up(s.n, 16) * s.groups_per_row;
    }
    QK_HD static constexpr int64_t scale_at(const Geometry &s, GroupIndex i) {
        if (s.flat) return i.group;
        const int64_t tile = (i.row >> 4) * s.groups_per_row + i.group;
        return tile * 16 + (i.row & 7) * 2 + (i.row >> 3 & 1);
    }
    QK_HD static constexpr int64_t zero_count(const Geometry &s) {
        return round_up(scale_count(s), 32);  // whole 16-byte copies
    }
    QK_HD static constexpr int64_t zero_at(const Geometry &s, GroupIndex i) {
        return scale_at(s, i);
    }
};

// 8-bit codes, one byte each. They have no zeros.
struct MapRowBytes : ScalesByRow {
    QK_HD static constexpr int64_t code_count(const Geometry &s) { return s.n * s.k; }
    QK_HD static constexpr int64_t code_at(const Geometry &s, int64_t r, int64_t c) {
        return r * s.k + c;
    }
    QK_HD static constexpr int64_t zero_count(const Geometry &) { return 0; }
    QK_HD static constexpr int64_t zero_at(const Geometry &, GroupIndex) { return 0; }
};

}  // namespace
}  // namespace qk
