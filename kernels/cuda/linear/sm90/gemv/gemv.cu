// The host side of the kernel for one row of x (warp.cuh): which cases it takes.
#include "cuda/conditions.hpp"
#include "cuda/linear/sm90/gemv/launch.cuh"
#include "cuda/lists.hpp"

namespace qk::cuda {

namespace {

VectorProblem vector_problem(const LinearArgs &args, const Device &device) {
    const Weight &w = args.w;
    const Geometry &s = w.geometry;
    VectorProblem p = {tiles_problem(args),
                       group_tiles_shift(s),
                       0,
                       plan_vector(s.n, s.k, device.multiprocessors),
                       1,
                       0};
    const int64_t second = w.scale.second_group;
    if (second > 0) {
        const int64_t rows = p.plan.rows.each + (p.plan.rows.rest > 0);
        p.last_second = uint32_t(rows * 16 * s.groups_per_row / second + 1);
    }
    return p;
}

Status run(const LinearArgs &args, const Launch &launch) {
    const VectorProblem p = vector_problem(args, launch.device);
    const qk_format scale = args.w.scale.format->id;
    const Codes codes = codes_of(args.w);
    if (args.x.format->id != QK_FORMAT_F32) {
        return instance_for<Gemv>(codes, args.x.format->id)(p, scale, launch);
    }
    return codes == Codes::kU4 ? Gemv<Codes::kU4, QK_FORMAT_F32>::run(p, scale, launch)
                               : Gemv<Codes::kLut4, QK_FORMAT_F32>::run(p, scale, launch);
}

bool can_run(const LinearArgs &args, const Device &device) {
    const Weight &w = args.w;
    if (args.x.rows != 1 || is_dense(*w.format)) return false;
    const Geometry &s = w.geometry;
    const bool packed = w.layout->id == kLayoutTiles || w.layout->id == kLayoutTilesPairs;
    const bool halves = s.group_size == 32 && args.x.format->id != QK_FORMAT_F32;
    const bool groups =
        s.groups_per_row == 1 || halves || (s.group_size % 64 == 0 && power_of_two(s.group_size));
    // The instance with the most shared memory, and what nested scales need besides.
    using Largest = VectorWarp<F16, RingLut4<F16>, ScaleKind::kF32, 0>;
    constexpr uint32_t kFixed = Largest::kSums - kSharedStart + 256 * 4;
    const bool fits = packed && !s.flat && groups && s.k % 16 == 0 && s.k < (int64_t{1} << 24) &&
                      s.group_count < (int64_t{1} << 32) && ceil_div(s.n, 16) <= 2147483647;
    if (!fits || device.multiprocessors < 1) return false;
    const bool looked_up = w.layout->id == kLayoutTilesPairs;
    if (prefers_stages(s.n, s.k, looked_up) && kLinearStages.can_run(args, device)) {
        return false;
    }
    const VectorProblem p = vector_problem(args, device);
    const int64_t shared = int64_t(kFixed) + p.plan.sums_bytes + seconds_bytes(p);
    return power_of_two(w.scale.second_group) && aligned(args.x.data) && aligned(w.data) &&
           aligned(w.scale.data) && aligned(w.zero) && aligned(w.scale.second) &&
           aligned(w.scale.code) && aligned(w.scale.bias) && device.capability >= 90 &&
           shared <= device.shared_bytes;
}

}  // namespace

const Kernel<LinearArgs> kLinearVector = {"sm90 gemv", can_run, nullptr, run};

}  // namespace qk::cuda
