// Quantize, any dtype -> any format x layout x scale kind, by docs/formats.md's rules: the bytes
// are the CPU's. Nested scales come first (nest.cu); codes do not depend on them.
//
// A warp takes a group: it reads it for its range, agrees on the scale, and reads it again for the
// codes. Two codes share a byte and may belong to different groups, so codes and zeros go in two
// launches: low nibbles store their byte whole, high ones are added.
#include "backend/quantize_rule.hpp"
#include "cuda/convert/nest.hpp"
#include "cuda/convert/parts.cuh"
#include "cuda/kernels.hpp"

namespace qk::cuda {
namespace {

constexpr int kThreads = 256;

struct QuantizeProblem {
    WeightView w;
    QuantizeRule rule;
    qk_format from_format;
    const void *from;
    void *global;
    int64_t globals;  // its numbers: 0, 1 or one a row
    int nibble;       // of a byte that this launch stores: 0 low, 1 high
};

inline QuantizeProblem problem_of(const QuantizeArgs &args) {
    const Weight &w = args.to;
    return {view_of(w), rule_of(args), args.from.format->id, args.from.data, w.global, w.globals,
            0};
}

// ---- The GLOBAL plane

__device__ uint32_t larger_bits(uint32_t a, uint32_t b) { return a > b ? a : b; }

__device__ uint32_t largest_of_warp(uint32_t most) {
    for (unsigned lanes = 16; lanes > 0; lanes /= 2) {
        most = larger_bits(most, __shfl_xor_sync(~0u, most, lanes));
    }
    return most;
}

// The largest magnitude of each run of `length` numbers, as bits: these order as magnitudes do,
// with NaN above all numbers. A block a run.
__global__ void store_largest(const __grid_constant__ QuantizeProblem p, void *to, int64_t runs,
                              int64_t length) {
    __shared__ uint32_t of_warp[kThreads / 32];
    for (int64_t run = blockIdx.x; run < runs; run += gridDim.x) {
        const int64_t first = run * length;
        const int64_t last = min64(first + length, p.w.geometry.n * p.w.geometry.k);
        uint32_t most = 0;
        for (int64_t i = first + threadIdx.x; i < last; i += kThreads) {
            most = larger_bits(most, f32_bits(magnitude_of(load_float(p.from_format, p.from, i))));
        }
        most = largest_of_warp(most);
        if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = most;
        __syncthreads();
        for (const uint32_t other : of_warp) most = larger_bits(most, other);
        if (threadIdx.x == 0) store_as(to, run, most);
        __syncthreads();  // before the next run's largest
    }
}

__global__ void join_largest(const void *from, int64_t count, void *to) {
    uint32_t most = 0;
    for (int64_t i = threadIdx.x; i < count; i += 32) {
        most = larger_bits(most, load_as<uint32_t>(from, i));
    }
    most = largest_of_warp(most);
    if (threadIdx.x == 0) store_as(to, 0, most);
}

__global__ void globals_of_largest(const __grid_constant__ QuantizeProblem p) {
    const int64_t step = int64_t(gridDim.x) * blockDim.x;
    for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < p.globals; i += step) {
        store_as(p.global, i, global_of(p.rule, load_as<float>(p.global, i)));
    }
}

// Before the codes come, the DATA plane holds the largest numbers of parts of the tensor.
Status store_globals(const QuantizeArgs &args, const Launch &launch) {
    constexpr int64_t kRun = 1 << 16, kMostRuns = 4096;
    const Weight &w = args.to;
    const QuantizeProblem problem = problem_of(args);
    const int64_t rows = w.geometry.n, count = rows * w.geometry.k;
    const int64_t runs = w.globals > 1 ? rows : min64(ceil_div(count, kRun), kMostRuns);
    const int64_t length = w.globals > 1 ? w.geometry.k : ceil_div(count, runs);
    const bool joins = w.globals == 1 && runs > 1;
    const Shape3 shape = {dim3(blocks_for(runs, 1)), kThreads};
    QK_TRY(launch_kernel(launch, "quantize", store_largest, shape, problem,
                         joins ? w.data : w.global, runs, length));
    if (joins) {
        QK_TRY(launch_kernel(launch, "quantize", join_largest, {dim3(1), 32},
                             static_cast<const void *>(w.data), runs, w.global));
    }
    const Shape3 each = {dim3(blocks_for(w.globals, kThreads)), kThreads};
    QK_TRY(launch_kernel(launch, "quantize", globals_of_largest, each, problem));
    if (w.scale.divides || !has_dividing_global(w)) return QK_OK;
    ScalePlane stored = w.scale;  // packed weights keep the quotients of all codes
    stored.code = const_cast<float *>(launch.device.tables->e4m3);
    stored.second = w.global;
    return fold_scale_code(stored, w.scale, launch);
}

// ---- Codes

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

// Nested ones have been stored before.
__device__ void store_scale(const QuantizeProblem &p, GroupIndex index, const GroupScale &group) {
    switch (p.rule.scale_format) {
        case QK_FORMAT_LUT8: return;
        case QK_FORMAT_E8M0:
        case QK_FORMAT_E4M3: p.w.scale[scale_at(p.w, index)] = group.code; return;
        default: store_float(p.rule.scale_format, p.w.scale, scale_at(p.w, index), group.scale);
    }
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
        const float global =
            p.globals == 0 ? 1.0f : load_as<float>(p.global, p.globals > 1 ? index.row : 0);
        const GroupScale group =
            scale_of_range(p.rule, range_of(p, span), span.last - span.first, global);
        if (threadIdx.x % 32 == 0) {
            if (p.nibble == 0) store_scale(p, index, group);
            if (p.w.zero != nullptr) {
                const int stored = (group.zero - p.w.zero_offset) & 15;
                store_nibble(p.w.zero, zero_at(p.w, index), stored, p.nibble);
            }
        }
        for (int64_t i = span.first + threadIdx.x % 32; i < span.last; i += 32) {
            const int64_t at = code_at(p.w, i / s.k, i % s.k);
            const bool mine = p.w.bits == 8 ? p.nibble == 0 : (at & 1) == p.nibble;
            if (!mine) continue;
            const float x = load_float(p.from_format, p.from, i);
            const uint8_t code = code_of_value(p.rule, x, group, entries);
            if (p.w.bits == 8) {
                p.w.data[at] = code;
            } else {
                store_nibble(p.w.data, at, code, p.nibble);
            }
        }
    }
}

// bitsandbytes fills the spare nibble of an odd run with the code of 0.
__global__ void store_pad(const __grid_constant__ QuantizeProblem p) {
    const int64_t count = p.w.geometry.n * p.w.geometry.k;
    if (threadIdx.x == 0) p.w.data[count / 2] |= table_code(p.w.format, 0.0f);
}

Status clear_planes(const Weight &w, const Launch &launch) {
    const DeviceGuard device(launch.device.index);
    QK_TRY(check(device.error(), launch.error, "quantize"));
    const Geometry &s = w.geometry;
    QK_TRY(fill_zero(launch, "quantize", w.data, w.layout->data_bytes(s)));
    if (!is_nested(w)) {
        QK_TRY(fill_zero(launch, "quantize", w.scale.data,
                         w.layout->scale_count(s) * (w.scale.format->bits / 8)));
    }
    return w.zero == nullptr ? QK_OK
                             : fill_zero(launch, "quantize", w.zero, w.layout->zero_bytes(s));
}

Status run(const QuantizeArgs &args, const Launch &launch) {
    const Weight &w = args.to;
    const Geometry &s = w.geometry;
    if (w.globals > 0) QK_TRY(store_globals(args, launch));
    if (is_nested(w)) {
        const NestRoom room = room_for_scales(args, launch);
        if (room.scales != nullptr) QK_TRY(find_scales(args, room.scales, launch));
        QK_TRY(nest_scales(args, room, launch));
    }
    QK_TRY(clear_planes(w, launch));
    QuantizeProblem problem = problem_of(args);
    const Shape3 shape = {dim3(blocks_for(s.group_count, kThreads / 32)), kThreads};
    for (problem.nibble = 0; problem.nibble < (w.format->bits == 8 ? 1 : 2); ++problem.nibble) {
        QK_TRY(launch_kernel(launch, "quantize", quantize_groups, shape, problem));
    }
    const bool pads = w.layout->id == QK_LAYOUT_ROW_HIGH && s.n * s.k % 2 != 0 &&
                      w.format->kind == FormatKind::kLut4;
    return pads ? launch_kernel(launch, "quantize", store_pad, {dim3(1), 32}, problem) : QK_OK;
}

bool can_run(const QuantizeArgs &args, const Device &) { return !is_records(args.to); }

}  // namespace

const Kernel<QuantizeArgs> kQuantizeGeneric = {"generic", can_run, nullptr, run};

}  // namespace qk::cuda
