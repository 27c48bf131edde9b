// The host side of the kernel for small batches (linear/sm90/few_rows/kernel.cuh): which cases it
// takes.
#include "cuda/kernels.hpp"
#include "cuda/linear/sm90/few_rows/plan.hpp"
#include "cuda/linear/sm90/few_rows/ring.cuh"

namespace qk::cuda {
namespace {

Status run(const LinearArgs &args, const Launch &launch) {
    return instance_for<FewRows>(codes_of(args.w), args.x.format->id)(args, launch);
}

// Room for the sums of one stage beside the largest of all maps.
using Largest = FewRowsMap<RingLut4<F16>, ScaleKind::kF32, 0, 2>;
static_assert(kFewRowsShared == Largest::kSums + 1024 + Largest::kStageSums);

}  // namespace

const Kernel<LinearArgs> kLinearSm90FewRows = linear_kernel<LinearKernel::kSm90FewRows>(run);

}  // namespace qk::cuda
