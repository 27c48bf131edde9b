// The host side of the matrix kernels (linear/sm90/gemm/small.cuh, linear/sm90/gemm/large.cuh), for
// packed tiles and for 8-bit codes stored row after row: what they tell the copy engine.
#include "cuda/kernels.hpp"
#include "cuda/linear/slabs.hpp"
#include "cuda/linear/sm90/gemm/problem.hpp"
#include "cuda/prim/tensor_map.hpp"
#include "cuda/runtime.hpp"

namespace qk::cuda {
namespace {

// Whether weights of this size and kind would be repacked in one slab (linear/repacked.cpp),
// however many rows of them are here: if not, no cut may depend on where a row is.
bool one_slab(const LinearArgs &args, bool pairs) {
    const int64_t n = args.y.columns;
    return packed_slab_rows(*args.w.layout, args.w.geometry, n, args.w.scale.format->bits,
                            !pairs) == n;
}

template <class Instance>
Status run_plan(const GemmPlan &plan, Instance *instance, const LinearArgs &args,
                const Launch &launch) {
    const DeviceGuard device(launch.device.index);  // the driver describes tensors in a context
    QK_TRY(check(device.error(), launch.error, "linear"));
    GemmProblem p = args.transposed ? transposed_of(args, plan) : problem_of(args, plan);
    p.coded = coded_scales(args.w.scale, *launch.device.tables);
    return instance(plan.cut, args, launch, &p);
}

Status run(const LinearArgs &args, const Launch &launch) {
    const Codes codes = codes_of(args.w);
    const Geometry &s = args.w.geometry;
    const bool small = s.groups_per_row > 1 && s.group_size < 64;
    const GemmKind kind = small ? GemmKind::kSmallGroups : GemmKind::kUsual;
    const GemmPlan plan =
        plan_gemm(codes, args.x.rows, args.y.columns, s.k, launch.device.multiprocessors,
                  one_slab(args, codes == Codes::kLut4), kind);
    return run_plan(plan, instance_for<Sm90Gemm>(codes, args.x.format->id), args, launch);
}

Status run_transposed(const LinearArgs &args, const Launch &launch) {
    const Codes codes = codes_of(args.w);
    const Geometry &s = args.w.geometry;
    const GemmPlan plan = plan_gemm(codes, args.x.rows, s.k, s.n, launch.device.multiprocessors,
                                    true, GemmKind::kTransposed);
    return run_plan(plan, instance_for<Sm90GemmTransposed>(codes, args.x.format->id), args, launch);
}

Status run_8bit(const LinearArgs &args, const Launch &launch) {
    const Geometry &s = args.w.geometry;
    const Codes codes = codes_of_bytes(args.w);
    const GemmPlan plan = plan_gemm(codes, args.x.rows, s.n, s.k, launch.device.multiprocessors);
    const qk_format x = args.x.format->id;
    auto *const instance = codes == Codes::kS8     ? instance_for<Sm90Gemm, Codes::kS8>(x)
                           : codes == Codes::kE4m3 ? instance_for<Sm90Gemm, Codes::kE4m3>(x)
                                                   : instance_for<Sm90Gemm, Codes::kLut8>(x);
    return run_plan(plan, instance, args, launch);
}

Status describe_x(const LinearArgs &args, int32_t x_rows, ErrorText *error, GemmProblem *p) {
    const TensorPlane x = {args.x.data, args.x.columns, args.x.rows, 2, row_stride(args.x) * 2};
    return describe_tensor(x, 64, x_rows, error, &p->x_map);
}

}  // namespace

GemmProblem problem_of(const LinearArgs &args, const GemmPlan &plan) {
    const Geometry &s = args.w.geometry;
    GemmProblem p = {};
    static_cast<LinearView &>(p) = view_of(args);
    p.y_columns = s.n;
    p.y_pitch = args.y.columns;
    p.row_tiles = int32_t(ceil_div(s.n, 16));
    p.tiles = int32_t(ceil_div(s.k, 64));
    p.group_shift = group_tiles_shift(s);
    p.parts = int32_t(ceil_div(s.k, 16));
    p.part_shift = s.groups_per_row == 1 ? 31 : log2_of(s.group_size) - 4;
    p.group_tiles = s.groups_per_row == 1 ? INT32_MAX : int32_t(s.group_size / 64);
    p.second_shift = log2_of(args.w.scale.second_group);
    p.split = plan.tail > 0 ? 2 : plan.split;
    p.cut_rows = plan.tail;
    return p;
}

GemmProblem transposed_of(const LinearArgs &args, const GemmPlan &plan) {
    const Geometry &s = args.w.geometry;
    GemmProblem p = problem_of(args, plan);
    p.y_columns = s.k;
    p.y_pitch = row_stride(args.y);
    p.row_tiles = int32_t(ceil_div(s.k, 16));
    p.tiles = int32_t(ceil_div(s.n, 64));
    return p;
}

Status describe_planes(const LinearArgs &args, int32_t row_tiles, int32_t tiles, int32_t x_rows,
                       ErrorText *error, GemmProblem *p) {
    QK_TRY(describe_tiles(args.w, row_tiles, tiles, error, &p->code_map));
    return describe_x(args, x_rows, error, p);
}

Status describe_bytes(const LinearArgs &args, int32_t columns, int32_t rows, int32_t x_rows,
                      ErrorText *error, GemmProblem *p) {
    const Geometry &s = args.w.geometry;
    const TensorPlane codes = {args.w.data, s.k, s.n, 1, s.k};
    QK_TRY(describe_tensor(codes, columns, rows, error, &p->code_map));
    return describe_x(args, x_rows, error, p);
}

const Kernel<LinearArgs> kLinearSm90Gemm = linear_kernel<LinearKernel::kSm90Gemm>(run);
const Kernel<LinearArgs> kLinearSm90Gemm8Bit = linear_kernel<LinearKernel::kSm90Gemm8Bit>(run_8bit);
const Kernel<LinearArgs> kLinearSm90GemmTransposed =
    linear_kernel<LinearKernel::kSm90GemmTransposed>(run_transposed);

}  // namespace qk::cuda
