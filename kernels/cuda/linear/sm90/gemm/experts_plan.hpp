// How the matrix kernel for experts (experts.cuh) cuts a product: a pure function of the problem.
#pragma once
#include "cuda/linear/experts_list.hpp"

namespace qk::cuda {

// Rows of x that a block has sums for: of an item, at most. By the rows that an expert has if the
// routing is even.
static constexpr int32_t gemm_item_rows(int64_t tokens, int64_t slots, int64_t count) {
    return tokens * slots > 24 * count ? 128 : 32;
}

static constexpr ExpertsListPlan plan_gemm_list(int64_t tokens, int64_t slots, int64_t count,
                                                int64_t columns, bool summed, int64_t k) {
    return plan_list(
        {tokens, slots, count, columns, summed, gemm_item_rows(tokens, slots, count), 128, k * 2});
}

}  // namespace qk::cuda
