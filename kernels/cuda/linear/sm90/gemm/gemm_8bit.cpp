// The host side of the matrix kernels for 8-bit codes stored row after row
// (linear/sm90/gemm/source_8bit.cuh).
#include "cuda/conditions.hpp"
#include "cuda/linear/kernels.hpp"
#include "cuda/linear/sm90/gemm/problem.hpp"
#include "cuda/lists.hpp"
#include "cuda/prim/tensor_map.hpp"
#include "cuda/runtime.hpp"

namespace qk::cuda {
namespace {

Status run(const LinearArgs &args, const Launch &launch) {
    const DeviceGuard device(launch.device.index);  // the driver describes tensors in a context
    QK_TRY(check(device.error(), launch.error, "linear"));
    const Geometry &s = args.w.geometry;
    const bool table = args.w.format->kind == FormatKind::kLut8;
    const Codes codes = table ? Codes::kLut8 : Codes::kS8;
    const GemmPlan plan = plan_gemm(codes, args.x.rows, s.n, s.k, launch.device.multiprocessors);
    GemmProblem p = problem_of(args, plan);
    p.group_tiles = s.groups_per_row == 1 ? INT32_MAX : int32_t(s.group_size / 64);
    const qk_format x = args.x.format->id;
    const auto run_gemm =
        table ? instance_for<Sm90Gemm, Codes::kLut8>(x) : instance_for<Sm90Gemm, Codes::kS8>(x);
    return run_gemm(plan.cut, args, launch, &p);
}

}  // namespace

Status describe_bytes(const LinearArgs &args, int32_t columns, int32_t rows, int32_t x_rows,
                      ErrorText *error, GemmProblem *p) {
    const Geometry &s = args.w.geometry;
    const TensorPlane codes = {args.w.data, s.k, s.n, 1};
    const TensorPlane x = {args.x.data, args.x.columns, args.x.rows, 2};
    QK_TRY(describe_tensor(codes, columns, rows, error, &p->code_map));
    return describe_tensor(x, 64, x_rows, error, &p->x_map);
}

const Kernel<LinearArgs> kLinearSm90Gemm8Bit = linear_kernel<LinearKernel::kSm90Gemm8Bit>(run);

}  // namespace qk::cuda
