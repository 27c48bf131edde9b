// All steps of a recurrence in one launch. R stays in the registers of a cluster's blocks as matrix
// operands; a block owns kHidden / kBlocks units, gets every block's part of h into its shared
// memory at each step, and sends its own part of the next h to all.
#pragma once
#include "cuda/gru/cluster_many.cuh"
#include "cuda/gru/cluster_one.cuh"

namespace qk::cuda {
namespace {

template <class S, class Rules>
using Shared = std::conditional_t<S::kOne, SharedOne<S, Rules>, SharedMany<S, Rules>>;

template <class S, class Rules>
__global__ void __launch_bounds__(S::kThreads, 1) advance(const __grid_constant__ Recurrence r) {
    extern __shared__ __align__(128) char memory[];
    Shared<S, Rules> &shared = *reinterpret_cast<Shared<S, Rules> *>(memory);
    if constexpr (std::is_same_v<Rules, AnyRules>) {
        run_steps<S, Rules>(r, shared, Rules(r.v.cell));
    } else {
        shared.tables.fill(r.v.cell);
        run_steps<S, Rules>(r, shared, Rules{r.plain, shared.tables});
    }
}

}  // namespace
}  // namespace qk::cuda
