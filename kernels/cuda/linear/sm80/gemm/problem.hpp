// The problem of the matrix kernel on mma.sync, and its instances.
#pragma once
#include "backend/backend.hpp"
#include "cuda/linear/sm80/gemm/plan.hpp"
#include "cuda/tile/instance.hpp"
#include "cuda/view.cuh"

namespace qk::cuda {

struct Sm80GemmProblem : LinearView {
    int64_t y_pitch;       // elements from a row of y to the next
    int32_t row_tiles;     // of 16 rows
    int32_t tiles;         // of 64 columns
    int32_t group_shift;   // log2 of the tiles a group
    int32_t second_shift;  // nested: log2 of second_group
    int32_t x_blocks;      // that rows of x are cut into: the fastest in the grid
    int32_t split;         // parts of k, a block each
    int32_t slots;         // of the ring
    float *parts;          // split > 1: [part][m][row_tiles * 16]
};

// An instance, compiled on its own.
template <Codes codes, qk_format x>
struct Sm80Gemm {
    static Status run(const Launch &launch, Sm80GemmProblem *p);
};

}  // namespace qk::cuda
