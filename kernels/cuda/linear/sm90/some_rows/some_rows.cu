// The host side of the kernel for small batches (linear/sm90/some_rows/kernel.cuh): which cases it
// takes.
#include "cuda/conditions.hpp"
#include "cuda/linear/sm90/some_rows/ring.cuh"
#include "cuda/linear/sm90/some_rows/instances.hpp"
#include "cuda/lists.hpp"

namespace qk::cuda {
namespace {

Status run(const LinearArgs &args, const Launch &launch) {
    const Codes codes = codes_of(args.w);
    if (args.x.format->id != QK_FORMAT_F32) {
        return instance_for<SomeRows>(codes, args.x.format->id)(args, launch);
    }
    return codes == Codes::kU4 ? SomeRows<Codes::kU4, QK_FORMAT_F32>::run(args, launch)
                               : SomeRows<Codes::kLut4, QK_FORMAT_F32>::run(args, launch);
}

Status run_24(const LinearArgs &args, const Launch &launch) {
    return instance_for<Rows24>(codes_of(args.w), args.x.format->id)(args, launch);
}

// `most`: rows of x of a launch.
bool takes(const LinearArgs &args, const Device &device, int32_t most) {
    const Weight &w = args.w;
    const Geometry &s = w.geometry;
    const bool packed = w.layout->id == kLayoutTiles || w.layout->id == kLayoutTilesPairs;
    const bool groups =
        s.groups_per_row == 1 || (s.group_size % 16 == 0 && power_of_two(s.group_size));
    const bool fits = packed && !s.flat && groups && s.k % 16 == 0 && s.k < (int64_t{1} << 24) &&
                      s.group_count < (int64_t{1} << 32) && ceil_div(s.n, 16) <= 2147483647 / 32 &&
                      power_of_two(w.scale.second_group);
    const bool whole = aligned(args.x.data) && aligned(w.data) && aligned(w.scale.data) &&
                       aligned(w.zero) && aligned(w.scale.second, 4) && aligned(w.scale.code, 4) &&
                       aligned(w.scale.bias, 4) &&
                       aligned(args.y.data, args.x.format->id == QK_FORMAT_F32 ? 4 : 2);
    if (!fits || !whole || device.capability < 90) return false;
    const SlicesCut cut = cut_slices(args, device, most);
    return slices_stage(cut.plan.pairs, cut.plan.slices, most, cut.sizes).slots >= 2;
}

bool can_run(const LinearArgs &args, const Device &device) {
    return args.x.rows <= 65535 * 8 && !is_dense(*args.w.format) &&
           takes(args, device, slices_most(args));
}

// Where gemm/ runs but leaves it the case (linear/sm90/gemm/gemm.cpp); elsewhere there are passes
// of 16 rows.
#if defined(QK_CUDA_SM90A)
constexpr bool kMany = true;
#else
constexpr bool kMany = false;
#endif

bool can_run_many(const LinearArgs &args, const Device &device) {
    const Geometry &s = args.w.geometry;
    return kMany && args.x.rows > kSlicesMost && args.x.rows <= kSlicesMany &&
           device.capability == 90 && !is_dense(*args.w.format) &&
           args.x.format->id != QK_FORMAT_F32 && (s.groups_per_row == 1 || s.group_size >= 64) &&
           takes(args, device, kSlicesMany);
}

}  // namespace

const Kernel<LinearArgs> kLinearSlices = {"sm90 some rows", can_run, nullptr, run};
const Kernel<LinearArgs> kLinearManySlices = {"sm90 24 rows", can_run_many, nullptr, run_24};

}  // namespace qk::cuda
