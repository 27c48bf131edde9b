// All steps of a recurrence in one launch. R stays in the registers of a cluster's blocks as matrix
// operands; a block owns kHidden / kBlocks units, gets every block's part of h into its shared
// memory at each step, and sends its own part of the next h to all.
#include "cuda/gru/cluster_many.cuh"
#include "cuda/gru/cluster_one.cuh"
#include "cuda/kernels.hpp"
#include "cuda/runtime.hpp"

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

template <class S, class Rules>
Status launch_rules(const Recurrence &r, const Launch &launch) {
    Shape3 shape = {dim3(uint32_t(ceil_div(r.v.batch, r.sequences) * S::kBlocks)), S::kThreads,
                    sizeof(Shared<S, Rules>)};
    shape.cluster = S::kBlocks;
    return launch_kernel(launch, "gru", advance<S, Rules>, shape, r);
}

template <class S>
Status launch_shape(const Recurrence &r, const Launch &launch) {
    switch (plain_kind(r.v.cell)) {
        case PlainKind::kDirect:
            return launch_rules<S, PlainRules<int32_t, ValueTables>>(r, launch);
        case PlainKind::kLines: return launch_rules<S, PlainRules<int64_t, LineTables>>(r, launch);
        default: return launch_rules<S, AnyRules>(r, launch);
    }
}

template <int kHidden, int kBlocks, int kSlices>
Status launch_tiles(const GruPlan &plan, const Recurrence &r, const Launch &launch) {
    return plan.tiles == 1 ? launch_shape<Shape<kHidden, kBlocks, kSlices, 1>>(r, launch)
                           : launch_shape<Shape<kHidden, kBlocks, kSlices, 2>>(r, launch);
}

Status launch_recurrence(const GruPlan &plan, const Recurrence &r, const Launch &launch) {
    const bool one = plan.tiles == 0;
    switch (plan.hidden) {
        case 256:
            return one ? launch_shape<Shape<256, 16, 2, 0>>(r, launch)
                       : launch_tiles<256, 8, 4>(plan, r, launch);
        case 512:
            return one ? launch_shape<Shape<512, 16, 2, 0>>(r, launch)
                       : launch_tiles<512, 8, 4>(plan, r, launch);
        default:
            return one ? launch_shape<Shape<1024, 16, 2, 0>>(r, launch)
                       : launch_tiles<1024, 16, 2>(plan, r, launch);
    }
}

bool can_run(const GruArgs &args, const Device &device) {
    GruPlan plan;
    return plan_gru(args, device.capability, &plan);
}

size_t workspace_of(const GruArgs &args, const Device &device) {
    GruPlan plan;
    return plan_gru(args, device.capability, &plan) ? size_t(pieces_of(plan, args).bytes) : 0;
}

Status run(const GruArgs &args, const Launch &launch) {
    GruPlan plan;
    if (!plan_gru(args, launch.device.capability, &plan)) return QK_ERROR_INTERNAL;
    const GruPieces pieces = pieces_of(plan, args);
    char *const workspace = static_cast<char *>(launch.workspace);
    const auto piece = [&](int64_t at) { return static_cast<void *>(workspace + at); };
    GruView v = view_of(args);
    const PlainKind kind = plain_kind(v.cell);
    PlainCell plain = {};
    if (kind == PlainKind::kDirect) plain = plain_cell(v.cell, TableForm::kValues);
    if (kind == PlainKind::kLines) plain = plain_cell(v.cell, TableForm::kLines);
    const int64_t x_row = args.batch * args.cell->input_size * (v.x_is_float ? 4 : plan.limbs);
    const int64_t y_row =
        args.batch * args.cell->hidden_size * (v.y_is_float ? 4 : int64_t{args.cell->h_bytes});
    for (int64_t first = 0; first < args.steps; first += plan.chunk) {
        v.steps = min64(plan.chunk, args.steps - first);
        v.x = static_cast<const char *>(args.x) + first * x_row;
        v.y = static_cast<char *>(args.y) + first * y_row;
        const InputRun input = {v,
                                plan,
                                v.steps * args.batch,
                                static_cast<int8_t *>(piece(pieces.w)),
                                static_cast<int32_t *>(piece(pieces.w_sum)),
                                static_cast<int8_t *>(piece(pieces.x)),
                                static_cast<InputCodes *>(piece(pieces.ih))};
        QK_TRY(run_input(input, first == 0, launch));
        QK_TRY(launch_recurrence(plan, recurrence_of(v, plain, input.ih, plan.tile, plan.sequences),
                                 launch));
    }
    return QK_OK;
}

}  // namespace

const Kernel<GruArgs> kGruCluster = {"cluster", can_run, workspace_of, run};

}  // namespace qk::cuda
