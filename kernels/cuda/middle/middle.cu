// The host side of middle/middle.cuh.
#include "cuda/choose/linear.hpp"
#include "cuda/conditions.hpp"
#include "cuda/lists.hpp"
#include "cuda/middle/middle.cuh"
#include "cuda/runtime.hpp"

namespace qk::cuda {
namespace {

template <class T, class Decode, int kRowTiles>
Status run_tiles(const Problem &p, const Launch &launch) {
    using M = Middle<T, Decode, kRowTiles>;
    Shape3 shape = {dim3(uint32_t(ceil_div(p.row_tiles, M::kBlockTiles)),
                         uint32_t(ceil_div(p.m, kXBlock))),
                    kThreads};
    shape.shared_bytes = M::kShared;
    shape.overlaps = compute_capability(launch.device_index) >= 90;
    return launch_kernel(launch, "linear", multiply_middle<T, Decode, kRowTiles>, shape, p);
}

// Small blocks where large ones would leave multiprocessors idle.
template <class T, class Decode>
Status run_decode(const Problem &p, const Launch &launch) {
    const int64_t blocks = ceil_div(p.row_tiles, 4) * ceil_div(p.m, kXBlock);
    return blocks < 2 * multiprocessors(launch.device_index)
               ? run_tiles<T, Decode, 1>(p, launch)
               : run_tiles<T, Decode, 2>(p, launch);
}

template <class T>
Status run_type(const Problem &p, const Launch &launch) {
    return p.w.layout == kLayoutTiles ? run_decode<T, Numbers<T>>(p, launch)
                                      : run_decode<T, Pairs<T>>(p, launch);
}

Status run(const LinearArgs &args, const Launch &launch) {
    const Geometry &s = args.w.geometry;
    const int64_t second_group = args.w.scale.second_group;
    const Problem p = {view_of(args),
                       int32_t(ceil_div(s.n, 16)),
                       int32_t(ceil_div(s.k, kStepColumns)),
                       group_tiles_shift(s),
                       log2_of(second_group)};
    return p.type == QK_FORMAT_F16 ? run_type<F16>(p, launch) : run_type<BF16>(p, launch);
}

bool can_run(const LinearArgs &args, int32_t device_index) {
    const Weight &w = args.w;
    if (is_dense(*w.format) || args.x.rows <= kMiddleRows) return false;
    const Geometry &s = w.geometry;
    const size_t shared = w.layout->id == kLayoutTiles ? Middle<F16, Numbers<F16>, 2>::kShared
                                                       : Middle<F16, Pairs<F16>, 2>::kShared;
    return (w.layout->id == kLayoutTiles || w.layout->id == kLayoutTilesPairs) && !s.flat &&
           (s.groups_per_row == 1 || (s.group_size % 64 == 0 && power_of_two(s.group_size))) &&
           s.k % 16 == 0 && s.k < (int64_t{1} << 30) && s.n < (int64_t{1} << 34) &&
           power_of_two(w.scale.second_group) && args.x.format->id != QK_FORMAT_F32 &&
           args.x.rows <= int64_t{65535} * kXBlock && aligned(args.x.data) && aligned(w.data) &&
           aligned(w.scale.data) && aligned(w.zero) && aligned(w.scale.second) &&
           aligned(w.scale.code) && aligned(w.scale.bias) &&
           compute_capability(device_index) >= 80 &&
           shared <= size_t(shared_memory(device_index));
}

}  // namespace

const Kernel<LinearArgs> kLinearMiddle = {"middle", can_run, nullptr, run};

}  // namespace qk::cuda
