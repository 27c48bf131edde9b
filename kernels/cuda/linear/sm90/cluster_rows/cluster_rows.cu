// The host side of the kernel for 9 to 16 rows of x (linear/sm90/cluster_rows/kernel.cuh): which
// cases it takes.
#include "cuda/kernels.hpp"
#include "cuda/linear/sm90/cluster_rows/plan.hpp"
#include "cuda/linear/sm90/cluster_rows/ring.cuh"

namespace qk::cuda {
namespace {

Status run(const LinearArgs &args, const Launch &launch) {
    return instance_for<ClusterRows>(codes_of(args.w), args.x.format->id)(args, launch);
}

// Room beside the sums for the largest of all maps.
using Largest = ClusterRowsMap<WideLut4<F16>, ScaleKind::kF32, 0>;
static_assert(kClusterRowsFixed >= Largest::kSums - kSharedStart + 512);

}  // namespace

const Kernel<LinearArgs> kLinearSm90ClusterRows =
    linear_kernel<LinearKernel::kSm90ClusterRows>(run);

}  // namespace qk::cuda
