// The host side of the kernel for small batches (decode/slices_kernel.cuh): which cases it takes.
#include "cuda/conditions.hpp"
#include "cuda/decode/slices.cuh"
#include "cuda/decode/slices_run.hpp"
#include "cuda/lists.hpp"

namespace qk::cuda {
namespace {

Status run(const LinearArgs &args, const Launch &launch) {
    const bool numbers = args.w.layout->id == kLayoutTiles;
    if (args.x.format->id == QK_FORMAT_F32) return run_slices_f32(args, launch);
    if (args.x.format->id == QK_FORMAT_F16) {
        return numbers ? run_slices_numbers_f16(args, launch) : run_slices_pairs_f16(args, launch);
    }
    return numbers ? run_slices_numbers_bf16(args, launch) : run_slices_pairs_bf16(args, launch);
}

bool can_run(const LinearArgs &args, int32_t device_index) {
    const Weight &w = args.w;
    if (args.x.rows > 65535 * 8 || is_dense(*w.format)) return false;
    const Geometry &s = w.geometry;
    const bool packed = w.layout->id == kLayoutTiles || w.layout->id == kLayoutTilesPairs;
    const bool groups =
        s.groups_per_row == 1 || (s.group_size % 16 == 0 && power_of_two(s.group_size));
    const bool fits = packed && !s.flat && groups && s.k % 16 == 0 && s.k < (int64_t{1} << 24) &&
                      s.group_count < (int64_t{1} << 32) && ceil_div(s.n, 16) <= 2147483647 / 32 &&
                      power_of_two(w.scale.second_group);
    const bool whole = aligned(args.x.data) && aligned(w.data) && aligned(w.scale.data) &&
                       aligned(w.zero) && aligned(w.scale.second) && aligned(w.scale.code) &&
                       aligned(w.scale.bias) &&
                       aligned(args.y.data, args.x.format->id == QK_FORMAT_F32 ? 4 : 2);
    if (!fits || !whole || compute_capability(device_index) < 90) return false;
    const SlicesCut cut = cut_slices(args, device_index);
    return slices_stage(cut.plan.pairs, cut.plan.slices, cut.sizes.x_rows, cut.sizes).slots >= 2;
}

}  // namespace

const Kernel<LinearArgs> kLinearSlices = {"slices", can_run, nullptr, run};

}  // namespace qk::cuda
