// Repack: the same codes, scales and zeros at another layout's places; nothing is decoded.
//
// Two nibbles share a byte and any layout may give them to different threads, so codes move in two
// launches: first every code whose place is a low nibble stores its byte whole, then every other
// code adds its high nibble. Within a launch each byte has one owner. Zeros go the same way.
#include "cuda/convert/parts.cuh"
#include "cuda/kernels.hpp"
#include "cuda/runtime.hpp"
#include "cuda/view.cuh"

namespace qk::cuda {
namespace {

constexpr int32_t kThreads = 256;

__global__ void move_codes(const __grid_constant__ WeightView from,
                           const __grid_constant__ WeightView to, int half) {
    const Geometry &s = from.geometry;
    const int64_t count = s.n * s.k, stride = int64_t(gridDim.x) * blockDim.x;
    for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) {
        const int64_t row = i / s.k, column = i % s.k;
        const int64_t at = code_at(to, row, column);
        if (to.bits == 8) {
            to.data[at] = uint8_t(code_of(from, row, column));
        } else if ((at & 1) == half) {
            store_nibble(to.data, at, code_of(from, row, column), half);
        }
    }
}

__device__ void move_scale(const WeightView &from, const WeightView &to, GroupIndex group) {
    const int64_t source = scale_at(from, group), target = scale_at(to, group);
    switch (from.scale_format) {
        case QK_FORMAT_LUT8: to.scale[target] = from.scale[source]; break;
        case QK_FORMAT_F32:
            store_as(to.scale, target, load_as<uint32_t>(from.scale, source));
            break;
        default: store_as(to.scale, target, load_as<uint16_t>(from.scale, source));
    }
}

__global__ void move_groups(const __grid_constant__ WeightView from,
                            const __grid_constant__ WeightView to, int half) {
    const int64_t count = from.geometry.group_count, stride = int64_t(gridDim.x) * blockDim.x;
    for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) {
        const GroupIndex group = group_from_number(from.geometry, i);
        if (half == 0) move_scale(from, to, group);
        if (to.zero == nullptr) continue;
        store_nibble(to.zero, zero_at(to, group), (zero_of(from, group) - to.zero_offset) & 15,
                     half);
    }
}

Status prepare_planes(const RepackArgs &args, const Launch &launch) {
    const DeviceGuard device(launch.device.index);
    QK_TRY(check(device.error(), launch.error, "repack"));
    const Weight &to = args.to;
    const Geometry &s = to.geometry;
    QK_TRY(fill_zero(launch, "repack", to.data, to.layout->data_bytes(s)));
    QK_TRY(fill_zero(launch, "repack", to.scale.data,
                     to.layout->scale_count(s) * (to.scale.format->bits / 8)));
    if (to.zero != nullptr) QK_TRY(fill_zero(launch, "repack", to.zero, to.layout->zero_bytes(s)));
    return copy_shared_planes(args, launch);
}

Status run(const RepackArgs &args, const Launch &launch) {
    QK_TRY(prepare_planes(args, launch));
    const WeightView from = view_of(args.from), to = view_of(args.to);
    const Geometry &s = from.geometry;
    const Shape3 codes = {dim3(blocks_for(s.n * s.k, kThreads)), kThreads};
    const Shape3 groups = {dim3(blocks_for(s.group_count, kThreads)), kThreads};
    for (int half = 0; half < 2; ++half) {
        if (half == 0 || to.bits == 4) {
            QK_TRY(launch_kernel(launch, "repack", move_codes, codes, from, to, half));
        }
        if (half == 0 || to.zero != nullptr) {
            QK_TRY(launch_kernel(launch, "repack", move_groups, groups, from, to, half));
        }
    }
    return QK_OK;
}

bool can_run(const RepackArgs &, const Device &) { return true; }

}  // namespace

const Kernel<RepackArgs> kRepackGeneric = {"generic", can_run, nullptr, run};

}  // namespace qk::cuda
