// What the host side of the kernels derives from the sizes and addresses of a problem.
#pragma once
#include <stdint.h>

#include "format/geometry.hpp"

namespace qk::cuda {

inline bool aligned(const void *pointer, uintptr_t bytes = 16) {
    return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

inline bool power_of_two(int64_t value) { return (value & (value - 1)) == 0; }

// Of a power of two; 0 of 0, which second_group is where scales are not nested.
inline int32_t log2_of(int64_t value) { return value > 0 ? __builtin_ctzll(uint64_t(value)) : 0; }

// log2 of the tiles of 64 columns a group; a row of one group is as good as 2^31.
inline int32_t group_tiles_shift(const Geometry &s) {
    return s.groups_per_row == 1 ? 31 : log2_of(s.group_size) - 6;
}

}  // namespace qk::cuda
