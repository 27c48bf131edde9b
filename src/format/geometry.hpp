// The sizes every layout works from: a weight of n rows and k columns, cut into groups of codes
// that share a scale.
#pragma once
#include <stdint.h>

#include "base/checked.hpp"

namespace qk {

struct Geometry {
    int64_t n, k;            // rows, columns
    int64_t group_size;      // codes per scale; k for one group a row
    int64_t groups_per_row;  // ceil(k / group_size); used when groups run along k
    int64_t group_count;     // of the whole weight
    bool flat;               // groups run over r * k + c and may straddle rows
};

// A group by its place: (row, index in the row), or (0, running index) where groups are flat.
struct GroupIndex {
    int64_t row, group;
};

// The groups are numbered row after row; nested scales and flat groups count in this order.
QK_HD static constexpr int64_t group_number(const Geometry &geometry, GroupIndex index) {
    return index.row * geometry.groups_per_row + index.group;
}

QK_HD static constexpr GroupIndex group_of(const Geometry &geometry, int64_t row, int64_t column) {
    if (geometry.flat) return {0, (row * geometry.k + column) / geometry.group_size};
    return {row, column / geometry.group_size};
}

QK_HD static constexpr GroupIndex group_from_number(const Geometry &geometry, int64_t number) {
    if (geometry.flat) return {0, number};
    return {number / geometry.groups_per_row, number % geometry.groups_per_row};
}

// First column after `column` where another group (or the row's end) begins.
QK_HD static constexpr int64_t group_end(const Geometry &geometry, int64_t row, int64_t column) {
    const int64_t base = geometry.flat ? row * geometry.k : 0;
    const int64_t next = ((base + column) / geometry.group_size + 1) * geometry.group_size - base;
    return min64(next, geometry.k);
}

// Fills `geometry`; false where n, k >= 1 are too large for any layout's byte counts in int64.
static constexpr bool make_geometry(int64_t n, int64_t k, int64_t group_size, bool flat,
                                    Geometry *geometry) {
    // Layouts pad n and k by less than 512 and store at most 8 bytes a code or scale.
    const Checked bytes = (Checked(n) + 512) * (Checked(k) + 512) * 8;
    if (!bytes.ok) return false;
    const int64_t size = group_size < 0 ? k : group_size;
    const int64_t per_row = ceil_div(k, size);
    // Where k is a multiple of the group, flat groups are groups along k.
    const bool straddles = flat && k % size != 0;
    *geometry = {n, k, size, per_row, straddles ? ceil_div(n * k, size) : n * per_row, straddles};
    return true;
}

}  // namespace qk
