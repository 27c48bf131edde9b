// One value of y: its bias is added in f32, then it is rounded to y's type.
#pragma once
#include "cuda/view.cuh"

namespace qk::cuda {
namespace {

// `p`: a problem with bias, bias_type and y; `row` of w, `at` elements into y.
template <class Problem>
__device__ void store_output(const Problem &p, qk_format type, int64_t row, int64_t at, float y) {
    if (p.bias != nullptr) y = __fadd_rn(y, load_float(p.bias_type, p.bias, row));
    store_float(type, p.y, at, y);
}

}  // namespace
}  // namespace qk::cuda
