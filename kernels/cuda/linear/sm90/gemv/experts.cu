// The host side of products with experts by the kernel for one row of x (experts.cuh).
#include "cuda/kernels.hpp"
#include "cuda/linear/sm90/gemv/experts_plan.hpp"
#include "cuda/runtime.hpp"

namespace qk::cuda {

namespace {

Status run(const LinearArgs &args, const Launch &launch) {
    const Weight &w = args.w;
    const Geometry &s = w.geometry;
    const ExpertsView e = experts_view(args);
    const ExpertsCut cut = cut_experts(e.rows, e.slots, e.summed, e.halves());
    const bool by_row = !power_of_two(w.scale.second_group);
    GemvExpertsProblem p = {gemv_problem(args, launch.device, plan_gemv(16, s.k, 1)),
                            e,
                            cut,
                            {},
                            row_stride(args.x),
                            by_row,
                            args.experts->routed_early && !launch.in_order};
    p.gemv.bias = nullptr;
    return instance_for<GemvExperts>(codes_of(w), args.x.format->id)(p, w.scale.format->id, launch);
}

}  // namespace

const Kernel<LinearArgs> kLinearSm90Experts = linear_kernel<LinearKernel::kSm90Experts>(run);

}  // namespace qk::cuda
