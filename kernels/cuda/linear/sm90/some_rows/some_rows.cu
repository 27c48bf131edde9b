// The host side of the kernel for small batches (linear/sm90/some_rows/kernel.cuh): which cases it
// takes.
#include "cuda/kernels.hpp"
#include "cuda/linear/sm90/some_rows/plan.hpp"
#include "cuda/linear/sm90/some_rows/ring.cuh"
#include "cuda/view.cuh"

namespace qk::cuda {
namespace {

Status run(const LinearArgs &args, const Launch &launch) {
    return instance_for_any<SomeRows>(codes_of(args.w), args.x.format->id)(args, launch);
}

Status run_24(const LinearArgs &args, const Launch &launch) {
    return instance_for<Rows24>(codes_of(args.w), args.x.format->id)(args, launch);
}

}  // namespace

const Kernel<LinearArgs> kLinearSm90SomeRows = linear_kernel<LinearKernel::kSm90SomeRows>(run);
const Kernel<LinearArgs> kLinearSm90Rows24 = linear_kernel<LinearKernel::kSm90Rows24>(run_24);

}  // namespace qk::cuda
