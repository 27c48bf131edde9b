// How the transposed product of packed tiles (linear/transposed.cu) cuts a weight: a function of
// its shape and the device, not of the rows of x.
#pragma once
#include "base/checked.hpp"

namespace qk::cuda {

constexpr int32_t kTransposedWarps = 8;
constexpr int64_t kTransposedRows = 16;  // of x, that a block takes at most

// Blocks that share a strip of 64 columns: each has a run of the rows of w, so that there are some
// for every multiprocessor. A warp has four rows of tiles at least.
constexpr int32_t transposed_parts(int64_t n, int64_t k, int32_t multiprocessors) {
    const int64_t strips = ceil_div(k, 64), row_tiles = ceil_div(n, 16);
    const int64_t wanted = ceil_div(int64_t{multiprocessors} * 3, strips);
    return int32_t(max64(1, min64(wanted, row_tiles / (4 * kTransposedWarps))));
}

// Bytes of the sums of m rows of x, part by part.
constexpr int64_t transposed_workspace(int64_t m, int64_t n, int64_t k, int32_t multiprocessors) {
    const int32_t parts = transposed_parts(n, k, multiprocessors);
    return parts == 1 ? 0 : parts * m * round_up(k, 64) * 4;
}

}  // namespace qk::cuda
