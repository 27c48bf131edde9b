// The host side of the kernel for small batches (linear/sm90/few_rows/kernel.cuh): which cases it
// takes.
#include "cuda/kernels.hpp"
#include "cuda/linear/sm90/few_rows/plan.hpp"
#include "cuda/linear/sm90/few_rows/ring.cuh"

namespace qk::cuda {
namespace {

Status run(const LinearArgs &args, const Launch &launch) {
    return instance_for_any<FewRows>(codes_of(args.w), args.x.format->id)(args, launch);
}

// Room for the sums of one stage beside the largest of all maps.
using Floats = FewRowsMap<RingLut4<F16>, ScaleKind::kF32, 0, 2>;
using Coded = FewRowsMap<WideLut4<F16>, ScaleKind::kE4M3, 0, 2>;
static_assert(Coded::kSums >= Floats::kSums);
static_assert(Coded::kSums >= FewRowsMap<RingLut4<F16>, ScaleKind::kF32, -2, 1>::kSums);  // f32 x
static_assert(kFewRowsShared == Coded::kSums + 1024 + Coded::kStageSums);

}  // namespace

const Kernel<LinearArgs> kLinearSm90FewRows = linear_kernel<LinearKernel::kSm90FewRows>(run);

}  // namespace qk::cuda
