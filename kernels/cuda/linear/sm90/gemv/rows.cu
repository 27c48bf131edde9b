// The host side of several rows of x an expert (rows.cuh): slots by expert, their products, and
// where y has a row a token the sums, for as many tokens at once as the workspace is made for.
#include "cuda/kernels.hpp"
#include "cuda/linear/sm90/gemv/rows_plan.hpp"
#include "cuda/runtime.hpp"

namespace qk::cuda {

namespace {

// Tokens [first, first + count) of a product.
LinearArgs tokens_of(const LinearArgs &args, int64_t first, int64_t count, Experts *experts) {
    LinearArgs part = args;
    const Experts &e = *args.experts;
    const auto moved = [](const void *from, int64_t bytes) {
        return static_cast<char *>(const_cast<void *>(from)) + bytes;
    };
    *experts = e;
    experts->tokens = count;
    experts->expert = moved(e.expert, first * e.slots * 4);
    if (e.weight != nullptr) experts->weight = moved(e.weight, first * e.slots * 4);
    const int64_t x_row = first * (e.x_by_slot ? e.slots : 1);
    const int64_t y_row = first * (e.summed ? 1 : e.slots);
    part.x.data = moved(args.x.data, x_row * row_stride(args.x) * (args.x.format->bits / 8));
    part.y.data = moved(args.y.data, y_row * row_stride(args.y) * (args.y.format->bits / 8));
    part.experts = experts;
    return part;
}

Status run_tokens(const LinearArgs &args, const ExpertsListPlan &plan, const Launch &launch) {
    const Weight &w = args.w;
    const ExpertsView e = experts_view(args);
    const ExpertsList list = list_at(launch.workspace, plan);
    auto *const z = reinterpret_cast<float *>(static_cast<char *>(launch.workspace) + plan.z);
    ExpertsView rows = e;  // what the products write
    if (e.summed) {
        rows.summed = rows.accumulate = false;
        rows.y = z;
        rows.y_type = QK_FORMAT_F32;
        rows.y_stride = e.columns;
    }
    GemvRowsProblem p = {gemv_problem(args, launch.device, plan_gemv(16, w.geometry.k, 1)),
                         rows,
                         cut_experts(e.rows, e.slots, false, e.halves()),
                         list,
                         0,
                         {},
                         row_stride(args.x),
                         !power_of_two(w.scale.second_group)};
    p.gemv.bias = nullptr;
    QK_TRY(list_experts(e, list, launch));
    QK_TRY(instance_for<GemvRows>(codes_of(w), args.x.format->id)(p, plan.items, w.scale.format->id,
                                                                  launch));
    return e.summed ? add_slots(e, z, launch) : QK_OK;
}

Status run(const LinearArgs &args, const Launch &launch) {
    const ExpertsView e = experts_view(args);
    const ExpertsListPlan plan = plan_list(e.tokens, e.slots, e.count, e.columns, e.summed);
    for (int64_t first = 0; first < e.tokens; first += plan.tokens) {
        Experts experts;
        const int64_t count = min64(plan.tokens, e.tokens - first);
        QK_TRY(run_tokens(tokens_of(args, first, count, &experts), plan, launch));
    }
    return QK_OK;
}

}  // namespace

const Kernel<LinearArgs> kLinearSm90ExpertRows = linear_kernel<LinearKernel::kSm90ExpertRows>(run);

}  // namespace qk::cuda
