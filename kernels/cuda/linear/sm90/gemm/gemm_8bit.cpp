// The host side of the matrix kernels for 8-bit codes stored row after row
// (linear/sm90/gemm/source_8bit.cuh).
#include "cuda/choose/linear.hpp"
#include "cuda/conditions.hpp"
#include "cuda/linear/sm90/gemm/problem.hpp"
#include "cuda/lists.hpp"
#include "cuda/prim/tensor_map.hpp"
#include "cuda/runtime.hpp"

namespace qk::cuda {
namespace {

// Rows of whole 16 bytes, tiles of 64 columns in one group, addresses that the copy engine takes.
bool takes(const LinearArgs &args) {
    const Weight &w = args.w;
    const Geometry &s = w.geometry;
    const bool table = w.format->kind == FormatKind::kStored;
    const bool codes = table || (w.format->kind == FormatKind::kSigned && w.format->bits == 8);
    return codes && w.layout->id == QK_LAYOUT_ROW && !s.flat &&
           (s.groups_per_row == 1 || s.group_size % 64 == 0) && s.k % 16 == 0 &&
           s.k < (int64_t{1} << 30) && s.n < (int64_t{1} << 30) &&
           s.group_count < (int64_t{1} << 32) && args.x.rows < int64_t{65535} * 64 &&
           ceil_div(s.n, 64) <= 65535 && power_of_two(w.scale.second_group) &&
           args.x.format->id != QK_FORMAT_F32 && aligned(args.x.data) && aligned(w.data) &&
           aligned(args.y.data, 2) && aligned(w.scale.data, 4) && aligned(w.scale.second, 4) &&
           aligned(w.scale.code, 4) && aligned(w.scale.bias, 4) && aligned(w.table, 4);
}

#if defined(QK_CUDA_SM90A)
constexpr bool kBuilt = true;
#else
constexpr bool kBuilt = false;
#endif

bool can_run(const LinearArgs &args, const Device &device) {
    return kBuilt && !is_dense(*args.w.format) && takes(args) && args.x.rows > kMatvecRows &&
           device.capability == 90 && device.shared_bytes >= int32_t(kMostShared);
}

Status run(const LinearArgs &args, const Launch &launch) {
    const DeviceGuard device(launch.device.index);  // the driver describes tensors in a context
    QK_TRY(check(device.error(), launch.error, "linear"));
    const Geometry &s = args.w.geometry;
    const bool table = args.w.format->kind == FormatKind::kStored;
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

const Kernel<LinearArgs> kLinearGemmBytes = {"sm90 gemm 8-bit", can_run, nullptr, run};

}  // namespace qk::cuda
