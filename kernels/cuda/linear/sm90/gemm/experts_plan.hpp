// How the matrix kernel for experts (experts.cuh) cuts a product: a pure function of the problem.
#pragma once
#include "cuda/linear/experts_list.hpp"

namespace qk::cuda {

// Whether the producers make the scales: those of groups of 16 and 32, and coded ones.
static constexpr bool makes_expert_scales(int64_t group_size, int64_t groups_per_row, bool coded) {
    return coded || (groups_per_row > 1 && group_size < 64);
}

// Rows of x that a block has sums for: of an item, at most. By the rows that an expert has if the
// routing is even; made scales leave room for fewer.
static constexpr int32_t gemm_item_rows(int64_t tokens, int64_t slots, int64_t count, bool made) {
    if (tokens * slots <= 24 * count) return 32;
    return made ? 128 : 160;
}

static constexpr ExpertsListPlan plan_gemm_list(int64_t tokens, int64_t slots, int64_t count,
                                                int64_t columns, bool summed, int64_t k,
                                                bool made) {
    return plan_list({tokens, slots, count, columns, summed,
                      gemm_item_rows(tokens, slots, count, made), 128, k * 2});
}

}  // namespace qk::cuda
