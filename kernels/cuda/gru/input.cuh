// W x + bw for all steps at once, ahead of the recurrence: x and W as padded rows of bytes, then
// one product on the tensor cores.
#pragma once
#include "backend/backend.hpp"
#include "cuda/gru/border.cuh"
#include "cuda/gru/plan.hpp"

namespace qk::cuda {

// ih codes above ih_min of one unit: u, r, n.
struct alignas(8) InputCodes {
    uint16_t u, r, n, none;
};

struct InputRun {
    GruView v;  // x: of the first step
    GruPlan plan;
    int64_t rows;    // steps * batch of this run
    int8_t *w;       // [3][units][columns]
    int32_t *w_sum;  // [3][units]
    int8_t *x;       // [limbs][rows][columns]: high bytes, low bytes - 128
    InputCodes *ih;  // [rows][h]
};

// with_weights: pack W too; once a call is enough.
Status run_input(const InputRun &run, bool with_weights, const Launch &launch);

}  // namespace qk::cuda
