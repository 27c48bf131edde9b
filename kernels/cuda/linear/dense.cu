// y = x . transpose(w) + bias for large batches of any format and layout: dequantize a slab of rows
// of w to x's type, multiply with cuBLASLt, next slab. The workspace holds one slab, not a dense
// copy of w. Weights that are dense in x's type already are multiplied in place.
//
// Each weight is rounded once to x's type, as qk_dequantize does it, and the bias to y's type; sums
// are f32. Transposed products, those that accumulate and those with f32 y from 16-bit x are summed
// in the workspace, in f32, and a last kernel makes y of the sums. The order of the sums is the
// library's, and so is what y's bits depend on: the batch.
#include "backend/registry.hpp"
#include "cuda/kernels.hpp"
#include "cuda/linear/cublaslt.hpp"
#include "cuda/linear/slabs.hpp"
#include "cuda/runtime.hpp"
#include "cuda/view.cuh"

namespace qk::cuda {
namespace {

constexpr int32_t kThreads = 256;

__global__ void convert(qk_format from, const void *in, qk_format to, void *out, int64_t count) {
    const int64_t stride = int64_t(gridDim.x) * blockDim.x;
    for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) {
        store_float(to, out, i, load_float(from, in, i));
    }
}

int64_t value_bytes(const LinearArgs &args) { return args.x.format->bits / 8; }

DensePlan plan_of(const LinearArgs &args) {
    const Geometry &s = args.w.geometry;
    DensePlan plan = plan_dense(s.n, s.k, value_bytes(args));
    if (is_dense(*args.w.format)) plan.slab_rows = s.n, plan.slab_bytes = 0;
    return plan;
}

// The bias in y's type, where the library can read it; null without one.
Status prepare_bias(const LinearArgs &args, const Launch &launch, void *room, const void **bias) {
    *bias = nullptr;
    if (args.bias == nullptr) return QK_OK;
    *bias = args.bias->data;
    if (args.bias->format == args.y.format && aligned(args.bias->data)) return QK_OK;
    *bias = room;
    const int64_t n = args.w.geometry.n;
    return launch_kernel(launch, "linear", convert, {dim3(blocks_for(n, kThreads)), kThreads},
                         args.bias->format->id, args.bias->data, args.y.format->id, room, n);
}

// Rows [first, first + rows) of w as [rows, k] of x's type.
Status slab_of(const LinearArgs &args, const Launch &launch, int64_t first, int64_t rows,
               void *room, const void **slab) {
    const Geometry &s = args.w.geometry;
    *slab = args.w.data;
    if (is_dense(*args.w.format)) return QK_OK;
    *slab = room;
    const DequantizeArgs dequantize = {args.w, {args.x.format, rows, s.k, room}, first};
    const KernelList<DequantizeArgs> list = dequantizers(kCudaBackend, dequantize);
    return pick(list, dequantize, launch.device)->run(dequantize, launch);
}

// The library has no algorithm for the case: whatever else runs it.
Status run_without_library(const LinearArgs &args, const Launch &launch) {
    Launch without = launch;
    without.device.lacks_library = true;
    const LinearPlan plan = plan_linear(args, without.device, {0, launch.workspace_bytes}, nullptr);
    return plan.kernel->run(args, without);
}

// y of f32 sums [m, columns]: plus the bias, plus what y held if it accumulates, one rounding.
__global__ void finish(const __grid_constant__ LinearView o, const float *sums, int64_t columns) {
    const int64_t count = o.m * columns, stride = int64_t(gridDim.x) * blockDim.x;
    for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) {
        store_any(o, i / columns, i % columns, sums[i]);
    }
}

// What the library does not write as y is: it sums all slabs in f32 first.
Status run_through_sums(const LinearArgs &args, const Launch &launch) {
    const Geometry &s = args.w.geometry;
    const DensePlan plan = plan_of(args);
    uint8_t *const room = static_cast<uint8_t *>(launch.workspace);
    uint8_t *const library = room + plan.slab_bytes + plan.bias_bytes;
    float *const sums = reinterpret_cast<float *>(library + kLtWorkspaceBytes);
    const int64_t columns = args.transposed ? s.k : s.n;
    for (int64_t first = 0; first < s.n; first += plan.slab_rows) {
        const int64_t rows = min64(plan.slab_rows, s.n - first);
        const void *slab = nullptr;
        QK_TRY(slab_of(args, launch, first, rows, room, &slab));
        const uint8_t *const x = static_cast<const uint8_t *>(args.x.data);
        LtProduct product = {args.x.format->id,
                             QK_FORMAT_F32,
                             args.transposed,
                             false,
                             args.x.rows,
                             rows,
                             s.k,
                             row_stride(args.x),
                             columns,
                             x,
                             slab,
                             nullptr,
                             sums + first,
                             library};
        if (args.transposed) {
            product.adds = first > 0;
            product.n = s.k, product.k = rows;
            product.x = x + first * value_bytes(args);
            product.d = sums;
        }
        const Status status = lt_multiply(launch.session, product, launch);
        if (status == QK_ERROR_UNSUPPORTED) return run_without_library(args, launch);
        QK_TRY(status);
    }
    const int64_t count = args.x.rows * columns;
    return launch_kernel(launch, "linear", finish, {dim3(blocks_for(count, kThreads)), kThreads},
                         view_of(args), sums, columns);
}

Status run_slabs(const LinearArgs &args, const Launch &launch) {
    const Geometry &s = args.w.geometry;
    const DensePlan plan = plan_of(args);
    uint8_t *const room = static_cast<uint8_t *>(launch.workspace);
    const int64_t bytes = value_bytes(args);
    const void *bias = nullptr;
    QK_TRY(prepare_bias(args, launch, room + plan.slab_bytes, &bias));
    for (int64_t first = 0; first < s.n; first += plan.slab_rows) {
        const int64_t rows = min64(plan.slab_rows, s.n - first);
        LtProduct product = {
            args.x.format->id,
            args.y.format->id,
            false,
            false,
            args.x.rows,
            rows,
            s.k,
            row_stride(args.x),
            row_stride(args.y),
            args.x.data,
            nullptr,
            bias == nullptr ? nullptr : static_cast<const uint8_t *>(bias) + first * bytes,
            static_cast<uint8_t *>(args.y.data) + first * bytes,
            room + plan.slab_bytes + plan.bias_bytes};
        QK_TRY(slab_of(args, launch, first, rows, room, &product.w));
        const Status status = lt_multiply(launch.session, product, launch);
        if (status == QK_ERROR_UNSUPPORTED) return run_without_library(args, launch);
        QK_TRY(status);
    }
    return QK_OK;
}

Status run(const LinearArgs &args, const Launch &launch) {
    if (launch.session == nullptr) return run_without_library(args, launch);
    const DeviceGuard device(launch.device.index);
    QK_TRY(check(device.error(), launch.error, "linear"));
    const bool sums = args.transposed || args.accumulate || args.y.format != args.x.format;
    return sums ? run_through_sums(args, launch) : run_slabs(args, launch);
}

}  // namespace

const Kernel<LinearArgs> kLinearDense = linear_kernel<LinearKernel::kDense>(run);

}  // namespace qk::cuda
