// The problem of the kernel for one row of x (warp.cuh), and its instances.
#pragma once
#include "cuda/linear/sm90/gemv/plan.hpp"
#include "cuda/tile/instance.hpp"

namespace qk::cuda {

struct VectorProblem {
    const uint8_t *codes, *scale, *zero;  // zero: null where every zero is 8
    const float *second, *scale_code, *scale_bias;
    const void *x, *bias;  // bias may be null
    void *y;
    int64_t n;
    int32_t k;
    uint32_t groups;       // of a row
    int32_t group_shift;   // log2 of the tiles a group; -1: half a tile; 31: one group a row
    int32_t second_shift;  // nested: log2 of second_group
    uint32_t last_second;  // nested: of the second scales that a block has room for
    qk_format bias_type;
    VectorPlan plan;
    float entries[16];  // what codes stand for, where they are looked up
    float entry_unit;   // f32 x: of the entries
    uint32_t x_places;  // f32 x: bytes behind the sums where units of x are kept; 0: nowhere
};

// An instance, compiled on its own.
template <Codes codes, qk_format x>
struct Gemv {
    static Status run(const VectorProblem &p, qk_format scale, const Launch &launch);
};

}  // namespace qk::cuda
