// The host side that the repacking kernels share: planes that every layout has alike.
#pragma once
#include "cuda/runtime.hpp"
#include "cuda/view.cuh"

namespace qk::cuda {
namespace {

inline Status copy_plane(const Launch &launch, void *to, const void *from, int64_t bytes) {
    return check(
        cudaMemcpyAsync(to, from, size_t(bytes), cudaMemcpyDeviceToDevice, stream_of(launch)),
        launch.error, "repack");
}

// What belongs to nested scales, and the table of 8-bit look-ups.
inline Status copy_shared_planes(const RepackArgs &args, const Launch &launch) {
    const DeviceGuard device(launch.device.index);
    QK_TRY(check(device.error(), launch.error, "repack"));
    const Weight &from = args.from, &to = args.to;
    if (is_nested(from)) {
        const int64_t seconds = ceil_div(from.geometry.group_count, from.scale.second_group);
        QK_TRY(copy_plane(launch, to.scale.second, from.scale.second, seconds * 4));
        QK_TRY(copy_plane(launch, to.scale.code, from.scale.code, 256 * 4));
        QK_TRY(copy_plane(launch, to.scale.bias, from.scale.bias, 4));
    }
    return from.table == nullptr ? QK_OK : copy_plane(launch, to.table, from.table, 256 * 4);
}

}  // namespace
}  // namespace qk::cuda
