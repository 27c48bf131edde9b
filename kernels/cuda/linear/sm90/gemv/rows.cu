// The host side of several rows of x an expert (rows.cuh).
#include "cuda/kernels.hpp"
#include "cuda/linear/sm90/gemv/rows_plan.hpp"

namespace qk::cuda {

namespace {

Status multiply(const LinearArgs &args, const ListedExperts &listed, const Launch &launch) {
    const Weight &w = args.w;
    const ExpertsView &e = listed.e;
    GemvRowsProblem p = {gemv_problem(args, launch.device, plan_gemv(16, w.geometry.k, 1)),
                         e,
                         cut_experts(e.rows, e.slots, false, e.halves()),
                         {},
                         int32_t(e.tokens * e.slots),
                         row_stride(args.x),
                         !power_of_two(w.scale.second_group),
                         args.experts->routed_early && !launch.in_order,
                         !args.experts->summed};
    p.gemv.bias = nullptr;
    return instance_for<GemvRows>(codes_of(w), args.x.format->id)(p, w.scale.format->id, launch);
}

Status run(const LinearArgs &args, const Launch &launch) {
    const ExpertsView e = experts_view(args);
    return run_listed(args, plan_rows_list(e.tokens, e.slots, e.count, e.columns, e.summed), launch,
                      multiply);
}

}  // namespace

const Kernel<LinearArgs> kLinearSm90ExpertRows = linear_kernel<LinearKernel::kSm90ExpertRows>(run);

}  // namespace qk::cuda
