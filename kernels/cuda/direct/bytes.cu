// The host side of direct/bytes.cuh.
#include "cuda/direct/bytes.cuh"

#include "cuda/conditions.hpp"
#include "cuda/lists.hpp"
#include "cuda/runtime.hpp"

namespace qk::cuda {
namespace {

constexpr int64_t kMost = int64_t{1} << 30;

template <class T, int kBatches, bool kFine>
Status launch_bytes(const BytesProblem &p, const Launch &launch) {
    Shape3 shape = {dim3(uint32_t(p.plan.blocks), uint32_t(ceil_div(p.m, 8 * kBatches))),
                    kBytesThreads};
    shape.shared_bytes = BytesMap<kBatches, kFine>::kEnd;
    shape.overlaps = compute_capability(launch.device_index) >= 90;
    return launch_kernel(launch, "linear", multiply_bytes<T, SignedBytes<T>, kBatches, kFine>,
                         shape, p);
}

template <class T>
Status run_type(const BytesProblem &p, const Launch &launch) {
    const bool fine = p.w.geometry.groups_per_row > 1 && p.group % kBytesColumns != 0;
    if (p.m <= 8) {
        return fine ? launch_bytes<T, 1, true>(p, launch) : launch_bytes<T, 1, false>(p, launch);
    }
    return fine ? launch_bytes<T, 2, true>(p, launch) : launch_bytes<T, 2, false>(p, launch);
}

Status run(const LinearArgs &args, const Launch &launch) {
    const Geometry &s = args.w.geometry;
    const BytesProblem p = {view_of(args),
                            plan_bytes(s.n, s.k, multiprocessors(launch.device_index)),
                            uint32_t(s.groups_per_row == 1 ? s.k : s.group_size),
                            log2_of(args.w.scale.second_group)};
    return p.type == QK_FORMAT_F16 ? run_type<F16>(p, launch) : run_type<BF16>(p, launch);
}

// Rows of whole 16 bytes, parts of 16 columns in one group, copies of 16 bytes.
bool can_run(const LinearArgs &args, int32_t device_index) {
    const Weight &w = args.w;
    if (w.format->kind != FormatKind::kSigned || w.format->bits != 8) return false;
    const Geometry &s = w.geometry;
    const bool groups = s.groups_per_row == 1 || s.group_size % 16 == 0;
    return w.layout->id == QK_LAYOUT_ROW && !s.flat && groups && s.k % 16 == 0 && s.k < kMost &&
           s.n < kMost && args.x.format->id != QK_FORMAT_F32 && args.x.rows <= 65535 * 8 &&
           power_of_two(w.scale.second_group) && aligned(w.data) && aligned(args.x.data, 8) &&
           aligned(args.y.data, 2) && aligned(w.scale.data, 4) && aligned(w.scale.second, 4) &&
           aligned(w.scale.code, 4) && aligned(w.scale.bias, 4) &&
           compute_capability(device_index) >= 80 && multiprocessors(device_index) > 0 &&
           shared_memory(device_index) >= int32_t(BytesMap<2, true>::kEnd);
}

}  // namespace

const Kernel<LinearArgs> kLinearBytes = {"bytes", can_run, nullptr, run};

}  // namespace qk::cuda
