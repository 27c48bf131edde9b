// Some rows of a weight as a weight of their own, where they are stored one after another.
#pragma once
#include "backend/backend.hpp"

namespace qk::cpu {
namespace {

// Moves the scales' planes past `groups` groups, stored at `at`.
inline bool skip_scales(ScalePlane *plane, int64_t groups, int64_t at) {
    plane->data = static_cast<char *>(plane->data) + at * (plane->format->bits / 8);
    if (!has_coded_scales(*plane) || plane->second_group == kOneSecond) return true;
    plane->second = static_cast<float *>(plane->second) + groups / plane->second_group;
    return groups % plane->second_group == 0;
}

// What is stored before row `first` is what a weight of `first` rows has; every layout that keeps
// rows in sequence does so in eights. False: the rows are not to be had so.
inline bool take_rows(Weight *w, int64_t first, int64_t rows) {
    Geometry above = w->geometry;
    const int64_t size = w->format->bits / 8;
    char *const data = static_cast<char *>(w->data);
    w->geometry.n = rows;
    w->geometry.group_count = rows * above.groups_per_row;
    if (w->layout == nullptr) {
        w->data = data + first * above.k * size;
        return true;
    }
    above.n = first;
    above.group_count = first * above.groups_per_row;
    const qk_layout id = w->layout->id;
    const bool by_columns =
        id == QK_LAYOUT_AWQ_GEMM || id == QK_LAYOUT_GPTQ || id == QK_LAYOUT_GPTQ_V1;
    if (by_columns || above.flat) return false;
    w->data = data + w->layout->data_bytes(above);
    if (is_records(*w)) return true;
    const int64_t at = w->layout->scale_count(above);
    if (w->zero != nullptr) w->zero = static_cast<char *>(w->zero) + w->layout->zero_bytes(above);
    return first % 8 == 0 && skip_scales(&w->scale, above.group_count, at) &&
           (!has_minimum(*w) || skip_scales(&w->minimum, above.group_count, at));
}

}  // namespace
}  // namespace qk::cpu
