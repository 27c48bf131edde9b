// Stands in for the matrix kernels on wgmma, behind the host code of linear/sm90/gemm/: it has
// their planes described, as they do, and adds in f32 along k.
#include "cuda/kernels.hpp"
#include "cuda/linear/sm90/gemm/problem.hpp"
#include "cuda/mock/mock.hpp"
#include "cuda/runtime.hpp"
#include "cuda/simulated/fake_library.hpp"

namespace qk::cuda {
namespace {

__device__ float weight_of(const WeightView &w, int64_t row, int64_t column) {
    const GroupIndex group = {row, column / w.geometry.group_size};
    const float zero = w.kind == FormatKind::kU4 ? float(zero_of(w, group)) : 0.0f;
    return (entry_of(w, code_of(w, row, column)) - zero) * scale_of(w, group);
}

__global__ void multiply(GemmProblem p, const void *x, qk_format type) {
    const Geometry &s = p.w.geometry;
    const int64_t at = int64_t(blockIdx.x) * 32 + threadIdx.x;
    if (at >= p.m * s.n) return;
    const int64_t row = at % s.n, x_row = at / s.n;
    float sum = 0;
    for (int64_t c = 0; c < s.k; ++c) {
        sum += weight_of(p.w, row, c) * load_float(type, x, x_row * s.k + c);
    }
    if (p.bias != nullptr) sum += load_float(p.bias_type, p.bias, row);
    store_float(type, p.y, x_row * p.y_pitch + row, sum);
}

// y = x . w.
__global__ void multiply_transposed(GemmProblem p, const void *x, qk_format type) {
    const Geometry &s = p.w.geometry;
    const int64_t at = int64_t(blockIdx.x) * 32 + threadIdx.x;
    if (at >= p.m * p.y_columns) return;
    const int64_t column = at % p.y_columns, x_row = at / p.y_columns;
    float sum = 0;
    for (int64_t r = 0; r < s.n; ++r) {
        sum += weight_of(p.w, r, column) * load_float(type, x, x_row * p.x_stride + r);
    }
    const int64_t to = p.order == nullptr ? column : load_as<int32_t>(p.order, column);
    if (p.bias != nullptr) sum += load_float(p.bias_type, p.bias, to);
    store_float(type, p.y, x_row * p.y_pitch + to, sum);
}

Status run_fake(GemmCut cut, const LinearArgs &args, const Launch &launch, GemmProblem *p) {
    fake_library::State &state = fake_library::state;
    const GemmCost size = cost_of(cut, Codes::kU4);
    const bool bytes = args.w.format->bits == 8;
    QK_TRY(bytes ? describe_bytes(args, 64, size.rows, size.x_rows, launch.error, p)
           : args.transposed
               ? describe_planes(args, 4, 2, size.x_rows, launch.error, p)
               : describe_planes(args, size.rows / 16, 1, size.x_rows, launch.error, p));
    ++state.tile_products;
    if (!launch.in_order) ++state.early_products;
    const int64_t blocks = ceil_div(args.x.rows * p->y_columns, 32);
    constexpr size_t kShared = 200 * 1024;  // as the real ones
    return launch_kernel(launch, "linear", args.transposed ? multiply_transposed : multiply,
                         {dim3(uint32_t(blocks)), 32, kShared, true}, *p,
                         static_cast<const void *>(args.x.data), args.x.format->id);
}

}  // namespace

template <Codes codes, qk_format x>
Status Sm90Gemm<codes, x>::run(GemmCut cut, const LinearArgs &args, const Launch &launch,
                               GemmProblem *p) {
    fake_library::state.last_codes = codes;
    fake_library::state.last_x = x;
    return run_fake(cut, args, launch, p);
}
template <Codes codes, qk_format x>
Status Sm90GemmTransposed<codes, x>::run(GemmCut cut, const LinearArgs &args, const Launch &launch,
                                         GemmProblem *p) {
    return Sm90Gemm<codes, x>::run(cut, args, launch, p);
}
template struct Sm90GemmTransposed<Codes::kU4, QK_FORMAT_F16>;
template struct Sm90GemmTransposed<Codes::kU4, QK_FORMAT_BF16>;
template struct Sm90GemmTransposed<Codes::kLut4, QK_FORMAT_F16>;
template struct Sm90GemmTransposed<Codes::kLut4, QK_FORMAT_BF16>;
template struct Sm90Gemm<Codes::kU4, QK_FORMAT_F16>;
template struct Sm90Gemm<Codes::kU4, QK_FORMAT_BF16>;
template struct Sm90Gemm<Codes::kLut4, QK_FORMAT_F16>;
template struct Sm90Gemm<Codes::kLut4, QK_FORMAT_BF16>;
template struct Sm90Gemm<Codes::kS8, QK_FORMAT_F16>;
template struct Sm90Gemm<Codes::kS8, QK_FORMAT_BF16>;
template struct Sm90Gemm<Codes::kE4m3, QK_FORMAT_F16>;
template struct Sm90Gemm<Codes::kE4m3, QK_FORMAT_BF16>;
template struct Sm90Gemm<Codes::kLut8, QK_FORMAT_F16>;
template struct Sm90Gemm<Codes::kLut8, QK_FORMAT_BF16>;

}  // namespace qk::cuda

// The driver's rules for a description.
CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank,
                                void *data, const cuuint64_t *sizes, const cuuint64_t *strides,
                                const cuuint32_t *box, const cuuint32_t *steps,
                                CUtensorMapInterleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
    if (!mock::thread_has_context()) return CUDA_ERROR_INVALID_CONTEXT;
    const uint32_t element = 1u << type;
    const uint32_t span = swizzle == CU_TENSOR_MAP_SWIZZLE_NONE  ? 1024
                          : swizzle == CU_TENSOR_MAP_SWIZZLE_64B ? 64
                                                                 : 128;
    bool right = !fake_library::state.refuses_maps && reinterpret_cast<uintptr_t>(data) % 16 == 0 &&
                 rank <= 3 && box[0] * element <= span && box[0] * element % 16 == 0;
    *map = {type, rank, data, {}, {}, {}, swizzle};
    for (uint32_t i = 0; i < rank; ++i) {
        right = right && sizes[i] >= 1 && sizes[i] <= uint64_t{1} << 32 && box[i] >= 1 &&
                box[i] <= 256 && steps[i] == 1;
        map->sizes[i] = sizes[i];
        map->box[i] = box[i];
        if (i == 0) continue;
        right = right && strides[i - 1] % 16 == 0 && strides[i - 1] < uint64_t{1} << 40;
        map->strides[i - 1] = strides[i - 1];
    }
    return right ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult *found) {
    const bool known = fake_library::state.maps && strcmp(name, "cuTensorMapEncodeTiled") == 0;
    *function = known ? reinterpret_cast<void *>(cuTensorMapEncodeTiled) : nullptr;
    *found = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}
