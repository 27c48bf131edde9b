// The host side of the matrix kernels (linear/sm90/gemm/small.cuh, linear/sm90/gemm/large.cuh):
// which cases they take, what they tell the copy engine.
#include "cuda/choose/linear.hpp"
#include "cuda/conditions.hpp"
#include "cuda/linear/sm90/gemm/problem.hpp"
#include "cuda/linear/packed_planes.hpp"
#include "cuda/lists.hpp"
#include "cuda/prim/tensor_map.hpp"
#include "cuda/runtime.hpp"

namespace qk::cuda {
namespace {

bool takes_tiles(const LinearArgs &args) {
    const Weight &w = args.w;
    if (is_dense(*w.format)) return false;
    const Geometry &s = w.geometry;
    const int64_t limit = int64_t{1} << 30;
    return (w.layout->id == kLayoutTiles || w.layout->id == kLayoutTilesPairs) && !s.flat &&
           (s.groups_per_row == 1 || (s.group_size % 64 == 0 && power_of_two(s.group_size))) &&
           s.k % 16 == 0 && s.k < limit && s.n < limit && args.x.rows < int64_t{65535} * 64 &&
           ceil_div(s.n, 64) <= 65535 && s.group_count < (int64_t{1} << 32) &&
           power_of_two(w.scale.second_group) && args.x.format->id != QK_FORMAT_F32 &&
           aligned(args.x.data) && aligned(w.data) && aligned(w.scale.data) && aligned(w.zero) &&
           aligned(w.scale.second, 4);  // the caller's, where the rest was repacked
}

// The machine code needs sm_90a; a build without it has empty kernels.
#if defined(QK_CUDA_SM90A)
constexpr bool kBuilt = true;
#else
constexpr bool kBuilt = false;
#endif

// Whether weights of this size and kind would be repacked in one slab (linear/repacked.cpp),
// however many rows of them are here: if not, no cut may depend on where a row is.
bool one_slab(const LinearArgs &args, bool pairs) {
    const int64_t n = args.y.columns;
    return packed_slab_rows(*args.w.layout, args.w.geometry, n, args.w.scale.format->bits,
                            !pairs) == n;
}

// What is left to linear/sm90/some_rows/some_rows.cu.
bool for_slices(const LinearArgs &args, const Device &device) {
    const Geometry &s = args.w.geometry;
    const bool pairs = args.w.layout->id == kLayoutTilesPairs;
    return prefers_many_slices(s.n, s.k, pairs, is_nested(args.w), device.multiprocessors) &&
           one_slab(args, pairs) && kLinearManySlices.can_run(args, device);
}

bool can_run(const LinearArgs &args, const Device &device) {
    constexpr int32_t kShared = 200 * 1024;
    if (!kBuilt || !takes_tiles(args)) return false;
    const bool wgmma = device.capability == 90 && device.shared_bytes >= kShared;
    const LinearCase c = {args.x.rows, true, wgmma, false};
    return choose_linear(c) == LinearPath::kGemm && !for_slices(args, device);
}

Status run(const LinearArgs &args, const Launch &launch) {
    const DeviceGuard device(launch.device.index);  // the driver describes tensors in a context
    QK_TRY(check(device.error(), launch.error, "linear"));
    const bool pairs = args.w.layout->id == kLayoutTilesPairs;
    const GemmPlan plan =
        plan_gemm(codes_of(args.w), args.x.rows, args.y.columns, args.w.geometry.k,
                  launch.device.multiprocessors, one_slab(args, pairs));
    GemmProblem p = problem_of(args, plan);
    const auto run_gemm = instance_for<Sm90Gemm>(codes_of(args.w), args.x.format->id);
    return run_gemm(plan.cut, args, launch, &p);
}

}  // namespace

GemmProblem problem_of(const LinearArgs &args, const GemmPlan &plan) {
    const Geometry &s = args.w.geometry;
    GemmProblem p = {};
    static_cast<LinearView &>(p) = view_of(args);
    p.y_pitch = args.y.columns;
    p.row_tiles = int32_t(ceil_div(s.n, 16));
    p.tiles = int32_t(ceil_div(s.k, 64));
    p.group_shift = group_tiles_shift(s);
    p.second_shift = log2_of(args.w.scale.second_group);
    p.split = plan.tail > 0 ? 2 : plan.split;
    p.cut_rows = plan.tail;
    return p;
}

Status describe_planes(const LinearArgs &args, int32_t row_tiles, int32_t x_rows, ErrorText *error,
                       GemmProblem *p) {
    const EncodeTensorMap encode = find_tensor_map_encoder();
    QK_CHECK(encode != nullptr, error, UNSUPPORTED, "linear: the driver has no tensor maps");
    const cuuint32_t one[3] = {1, 1, 1};
    // Codes: the 4 lines of 128 bytes of a tile, the tiles of a row of tiles, the rows of tiles.
    const cuuint64_t tiles = cuuint64_t(p->tiles);
    const cuuint64_t code_sizes[3] = {32, tiles * 4, cuuint64_t(p->row_tiles)};
    const cuuint64_t code_strides[2] = {128, tiles * 512};
    const cuuint32_t code_box[3] = {32, 4, cuuint32_t(row_tiles)};
    const CUresult codes = encode(
        &p->code_map, CU_TENSOR_MAP_DATA_TYPE_UINT32, 3, args.w.data, code_sizes, code_strides,
        code_box, one, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    QK_CHECK(codes == CUDA_SUCCESS, error, INTERNAL,
             "linear: a tensor map was refused (driver error %d)", int(codes));
    const TensorPlane x = {args.x.data, args.x.columns, args.x.rows, 2};
    return describe_tensor(x, 64, x_rows, error, &p->x_map);
}

const Kernel<LinearArgs> kLinearGemm = {"sm90 gemm", can_run, nullptr, run};

}  // namespace qk::cuda
