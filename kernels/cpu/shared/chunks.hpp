// The packed layout's chunks of 128 columns, for kernels that fold sums a chunk at a time.
#pragma once
#include "base/checked.hpp"
#include "cpu/access.hpp"

namespace qk::cpu {
namespace {

inline int64_t chunk_count(const Geometry &s) { return ceil_div(s.k, 128); }

// Workspace for `bytes` a chunk of `rows` rows of x, aligned to 64. Rows may be as many as
// qk_linear_workspace is asked about; where no memory could hold them, no context has enough.
inline size_t chunk_workspace(const Geometry &s, int64_t rows, size_t bytes) {
    const Checked total = Checked(rows) * chunk_count(s) * int64_t(bytes) + 64;
    return total.ok && uint64_t(total.value) <= SIZE_MAX ? size_t(total.value) : SIZE_MAX;
}

// Groups that a chunk has: 8, 4, 2, or 1 where groups are whole chunks.
inline int64_t groups_of_chunk(const Geometry &s) {
    return s.group_size >= s.k || s.group_size >= 128 ? 1 : 128 / s.group_size;
}

// The groups of chunks first .. last. Divisions are slow, so the usual cases have none.
struct GroupRun {
    int64_t first, count;
};
template <int kGroups>
inline GroupRun groups_of_run(const Geometry &s, int64_t first, int64_t last) {
    if (kGroups > 1) {
        const int64_t group = first * kGroups;
        return {group, min64(last * kGroups, s.groups_per_row) - group};
    }
    const int64_t group = first == 0 ? 0 : first * 128 / s.group_size;
    const int64_t end = last * 128 >= s.k ? s.groups_per_row : ceil_div(last * 128, s.group_size);
    return {group, end - group};
}

}  // namespace
}  // namespace qk::cpu
