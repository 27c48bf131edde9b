// The problem of the kernel for one row of x (warp.cuh), and its instances.
#pragma once
#include "cuda/linear/sm90/gemv/plan.hpp"
#include "cuda/tile/instance.hpp"
#include "cuda/tile/problem.hpp"

namespace qk::cuda {

struct GemvProblem : TilesProblem {
    int32_t group_shift;   // log2 of the tiles a group; -1: half a tile; 31: one group a row
    uint32_t last_second;  // nested: of the second scales that a block has room for
    GemvPlan plan;
    float entry_unit;   // f32 x: of the entries
    uint32_t x_places;  // f32 x: bytes behind the sums where units of x are kept; 0: nowhere
};

// An instance, compiled on its own.
template <Codes codes, qk_format x>
struct Gemv {
    static Status run(const GemvProblem &p, qk_format scale, const Launch &launch);
};

}  // namespace qk::cuda
