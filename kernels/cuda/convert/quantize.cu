// Quantize, any dtype -> any format x layout x scale kind, by docs/formats.md's rules: the bytes
// are the CPU's. Nested scales come first (quantize_nested.cu); codes do not depend on them.
//
// A warp takes a group: it reads it for its range, agrees on the scale, and reads it again for the
// codes. Two codes share a byte and may belong to different groups, so codes and zeros go in two
// launches: low nibbles store their byte whole, high ones are added.
#include "cuda/convert/quantize.cuh"
#include "cuda/lists.hpp"

namespace qk::cuda {
namespace {

constexpr int32_t kThreads = 256;

__device__ float larger(float a, float b) { return a > b ? a : b; }

__device__ GroupRange range_of(const QuantizeProblem &p, Span span) {
    GroupRange range;
    for (int64_t i = span.first + threadIdx.x % 32; i < span.last; i += 32) {
        range.add(load_float(p.from_format, p.from, i));
    }
    for (unsigned lanes = 16; lanes > 0; lanes /= 2) {
        range.low = -larger(-range.low, -__shfl_xor_sync(~0u, range.low, lanes));
        range.high = larger(range.high, __shfl_xor_sync(~0u, range.high, lanes));
        range.absmax = larger(range.absmax, __shfl_xor_sync(~0u, range.absmax, lanes));
        range.nan |= __shfl_xor_sync(~0u, int(range.nan), lanes) != 0;
    }
    return range;
}

__device__ void store_nibble(uint8_t *plane, int64_t at, int value, int half) {
    if ((at & 1) != half) return;
    plane[at >> 1] = half == 0 ? uint8_t(value) : uint8_t(plane[at >> 1] | value << 4);
}

__global__ void quantize_groups(const __grid_constant__ QuantizeProblem p) {
    __shared__ float entries[256];
    fill_entries(p.w, entries);
    const Geometry &s = p.w.geometry;
    const int64_t warps = int64_t(gridDim.x) * (blockDim.x / 32);
    for (int64_t number = int64_t(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
         number < s.group_count; number += warps) {
        const GroupIndex index = group_from_number(s, number);
        const Span span = elements_of(s, index);
        const GroupScale group = scale_of_range(p.rule, range_of(p, span), span.last - span.first);
        if (threadIdx.x % 32 == 0) {
            if (p.half == 0 && p.w.scale_format != QK_FORMAT_LUT8) {
                store_float(p.w.scale_format, p.w.scale, scale_at(p.w, index), group.scale);
            }
            if (p.w.zero != nullptr) {
                const int stored = (group.zero - p.w.zero_offset) & 15;
                store_nibble(p.w.zero, zero_at(p.w, index), stored, p.half);
            }
        }
        for (int64_t i = span.first + threadIdx.x % 32; i < span.last; i += 32) {
            const int64_t at = code_at(p.w, i / s.k, i % s.k);
            const bool mine = p.w.bits == 8 ? p.half == 0 : (at & 1) == p.half;
            if (!mine) continue;
            const float x = load_float(p.from_format, p.from, i);
            const uint8_t code = code_of_value(p.rule, x, group, entries);
            if (p.w.bits == 8) {
                p.w.data[at] = code;
            } else {
                store_nibble(p.w.data, at, code, p.half);
            }
        }
    }
}

// bitsandbytes fills the spare nibble of an odd run with the code of 0.
__global__ void store_pad(const __grid_constant__ QuantizeProblem p) {
    const int64_t count = p.w.geometry.n * p.w.geometry.k;
    if (threadIdx.x == 0) p.w.data[count / 2] |= table_code(p.w.format, 0.0f);
}

Status fill_zero(const Launch &launch, void *plane, int64_t bytes) {
    return check(cudaMemsetAsync(plane, 0, size_t(bytes), stream_of(launch)), launch.error,
                 "quantize");
}

Status clear_planes(const Weight &w, const Launch &launch) {
    const DeviceGuard device(launch.device.index);
    QK_TRY(check(device.error(), launch.error, "quantize"));
    const Geometry &s = w.geometry;
    QK_TRY(fill_zero(launch, w.data, w.layout->data_bytes(s)));
    QK_TRY(fill_zero(launch, w.scale.data, w.layout->scale_count(s) * (w.scale.format->bits / 8)));
    return w.zero == nullptr ? QK_OK : fill_zero(launch, w.zero, w.layout->zero_bytes(s));
}

Status run(const QuantizeArgs &args, const Launch &launch) {
    const Weight &w = args.to;
    const Geometry &s = w.geometry;
    QK_TRY(clear_planes(w, launch));
    if (is_nested(w)) QK_TRY(nest_scales(args, launch));
    QuantizeProblem problem = problem_of(args);
    const Shape3 shape = {dim3(blocks_for(s.group_count, kThreads / 32)), kThreads};
    for (problem.half = 0; problem.half < (w.format->bits == 8 ? 1 : 2); ++problem.half) {
        QK_TRY(launch_kernel(launch, "quantize", quantize_groups, shape, problem));
    }
    const bool pads = w.layout->id == QK_LAYOUT_ROW_HIGH && s.n * s.k % 2 != 0 &&
                      w.format->kind == FormatKind::kLut4;
    return pads ? launch_kernel(launch, "quantize", store_pad, {dim3(1), 32}, problem) : QK_OK;
}

bool can_run(const QuantizeArgs &, const Device &) { return true; }

}  // namespace

const Kernel<QuantizeArgs> kQuantizeGeneric = {"generic", can_run, nullptr, run};

}  // namespace qk::cuda
