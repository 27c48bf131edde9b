// Products with experts by the matrix kernel (experts.cuh), and its instances.
#pragma once
#include "cuda/linear/sm90/gemm/experts_plan.hpp"
#include "cuda/linear/sm90/gemm/problem.hpp"

namespace qk::cuda {

struct GemmExpertsProblem {
    GemmProblem gemm;  // of x by expert, and of all experts' rows of w
    ExpertsView e;
    ExpertsList list;
    int32_t of_expert;                // rows of tiles
    int32_t first_block, row_blocks;  // blocks of rows of w, of an expert
    int32_t first_row, last_row;      // of the list: where the items begin that are multiplied
    bool whole;                       // y leaves 16 bytes at a time
    bool listed_early;                // the list was made before the kernel in front began
    uint16_t *next;                   // ListedExperts::next; there, y is whole, of 16 bits
};

// An instance, compiled on its own.
template <Codes codes, qk_format x>
struct GemmExperts {
    static Status run(const LinearArgs &args, const ListedExperts &listed, const Launch &launch);
};

}  // namespace qk::cuda
