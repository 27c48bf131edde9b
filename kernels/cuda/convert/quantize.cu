// Quantize, any dtype -> any format x layout x scale kind, by docs/formats.md's rules: the bytes
// are the CPU's. Nested scales come first; codes do not depend on them.
//
// A warp takes a group: it reads it for its range, agrees on the scale, and reads it again for the
// codes. Two codes share a byte and may belong to different groups, so codes and zeros go in two
// launches: low nibbles store their byte whole, high ones are added.
#include "backend/quantize_rule.hpp"
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

struct Span {
    int64_t first, last;  // elements, row-major
};

__device__ inline Span elements_of(const Geometry &s, GroupIndex group) {
    const int64_t first =
        s.flat ? group.group * s.group_size : group.row * s.k + group.group * s.group_size;
    const int64_t limit = s.flat ? s.n * s.k : (group.row + 1) * s.k;
    return {first, min64(first + s.group_size, limit)};
}

// ---- Nested scales

// Nested scales of the quantizer (docs/formats.md, rule 6): the CPU's bytes. The mean of all scales
// is an f32 sum in one fixed order, 32 columns of numbers each added up by a cascade of 4 levels:
//
//     group numbers       column 0    1    2  ...  31
//     row 0                      0    1    2  ...  31
//     row 1                     32   33   34  ...  63
//     ...                                                 a chunk: `step` rows, 16 or more
//
// The first level restarts in every chunk, so chunks are summed side by side (a warp a chunk, a
// lane a column, a scale computed where it is added). Only 32 sums a chunk are left for
// the three levels above, which one warp walks in order. A chunk's 512 groups or more have as many
// bytes of the SCALE plane, which hold 128 bytes of sums until the codes come: nothing allocated.
//
// Then a block takes a second group: deviations from the mean in shared memory, the largest, codes.
// The numbers are read three times in all (with the codes); a lane reads its group alone, so that
// a warp's 32 groups are lines that stay in the L1 until they are used up.

constexpr int kColumns = 32;
constexpr int kLanes = 8;  // of PyTorch's vectors: columns are 4 streams of 8 lanes
constexpr int kLevels = 4;
constexpr int kLargestSecondGroup = 4096;

// src/base/torch_sum.hpp's numbers, for `count` of 8 or more.
struct Order {
    int64_t count, vectors, rows, chunks;
    int power;

    explicit Order(int64_t groups) : count(groups), vectors(groups / kLanes) {
        rows = vectors / (kColumns / kLanes);
        int64_t log2 = 0;
        while (log2 < 62 && (int64_t{1} << log2) < rows) ++log2;
        power = log2 / kLevels > 4 ? int(log2 / kLevels) : 4;
        chunks = rows >> power;
    }
};

__device__ float first_scale(const QuantizeProblem &p, int64_t number) {
    const Span span = elements_of(p.w.geometry, group_from_number(p.w.geometry, number));
    GroupRange range;
    for (int64_t i = span.first; i < span.last; ++i) {
        range.add(load_float(p.from_format, p.from, i));
    }
    return scale_of_range(p.rule, range, span.last - span.first, 1).scale;
}

__global__ void sum_chunks(const __grid_constant__ QuantizeProblem p,
                           const __grid_constant__ Order order) {
    const int64_t lane = threadIdx.x % 32, warps = int64_t(gridDim.x) * (blockDim.x / 32);
    for (int64_t chunk = int64_t(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
         chunk < order.chunks; chunk += warps) {
        float sum = 0;
        for (int64_t row = chunk << order.power; row < (chunk + 1) << order.power; ++row) {
            sum += first_scale(p, row * kColumns + lane);
        }
        store_as(p.w.scale, chunk * kColumns + lane, sum);
    }
}

// One column's cascade over the sums of chunks and the rows that fill none.
__device__ float sum_column(const QuantizeProblem &p, const Order &order, int64_t column) {
    float level[kLevels] = {};
    const int64_t mask = (int64_t{1} << order.power) - 1;
    for (int64_t chunk = 0; chunk < order.chunks; ++chunk) {
        level[0] += load_as<float>(p.w.scale, chunk * kColumns + column);
        const int64_t rows = (chunk + 1) << order.power;
        bool goes_on = true;
#pragma unroll
        for (int at = 1; at < kLevels; ++at) {
            if (!goes_on) continue;
            level[at] += level[at - 1];
            level[at - 1] = 0;
            goes_on = (rows & mask << at * order.power) == 0;
        }
    }
    for (int64_t row = order.chunks << order.power; row < order.rows; ++row) {
        level[0] += first_scale(p, row * kColumns + column);
    }
    float sum = level[0];
#pragma unroll
    for (int at = 1; at < kLevels; ++at) sum += level[at];
    return sum;
}

// The last step of the order: left-over vectors, streams, left-over numbers, lanes. One warp.
__global__ void store_mean(const __grid_constant__ QuantizeProblem p,
                           const __grid_constant__ Order order) {
    __shared__ float sums[kColumns], left[kColumns];
    const int64_t lane = threadIdx.x, first = order.rows * kColumns;
    sums[lane] = sum_column(p, order, lane);
    left[lane] = first + lane < order.count ? first_scale(p, first + lane) : 0;
    __syncthreads();
    if (lane != 0) return;
    const int vectors = int(order.vectors - order.rows * (kColumns / kLanes));
    float total = 0;
    for (int64_t i = order.vectors * kLanes; i < order.count; ++i) total += left[i - first];
    for (int i = 0; i < kLanes; ++i) {
        float sum = sums[i];
        for (int vector = 0; vector < vectors; ++vector) sum += left[vector * kLanes + i];
        for (int stream = kLanes; stream < kColumns; stream += kLanes) sum += sums[stream + i];
        total += sum;
    }
    store_as(p.w.bias, 0, total / float(order.count));
}

// Fewer than 8 groups: vectors of one lane.
__global__ void store_mean_of_few(const __grid_constant__ QuantizeProblem p) {
    if (threadIdx.x != 0) return;
    const int64_t count = p.w.geometry.group_count, rows = count / 4;
    float sums[4] = {};
    for (int64_t i = 0; i < rows * 4; ++i) sums[i] += first_scale(p, i);
    for (int64_t i = rows * 4; i < count; ++i) sums[0] += first_scale(p, i);
    for (int stream = 1; stream < 4; ++stream) sums[0] += sums[stream];
    store_as(p.w.bias, 0, sums[0] / float(count));
}

// A block a second group.
__global__ void nest(const __grid_constant__ QuantizeProblem p, int64_t blocks) {
    __shared__ float deviations[kLargestSecondGroup], table[256], largest[kThreads / 32];
    for (int i = int(threadIdx.x); i < 256; i += kThreads) table[i] = load_as<float>(p.w.code, i);
    const float mean = load_as<float>(p.w.bias, 0);
    const Geometry &s = p.w.geometry;
    for (int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
        const int64_t first = block * p.w.second_group;
        const int64_t count = min64(p.w.second_group, s.group_count - first);
        float absmax = 0;
        for (int64_t i = threadIdx.x; i < count; i += kThreads) {
            const float deviation = first_scale(p, first + i) - mean;
            const float magnitude = magnitude_of(deviation);
            if (magnitude > absmax) absmax = magnitude;
            deviations[i] = deviation;
        }
        for (unsigned lanes = 16; lanes > 0; lanes /= 2) {
            const float other = __shfl_xor_sync(~0u, absmax, lanes);
            if (other > absmax) absmax = other;
        }
        if (threadIdx.x % 32 == 0) largest[threadIdx.x / 32] = absmax;
        __syncthreads();
        for (const float other : largest) absmax = other > absmax ? other : absmax;
        if (threadIdx.x == 0) store_as(p.w.second, block, absmax);
        const float multiplier = 1.0f / absmax;
        for (int64_t i = threadIdx.x; i < count; i += kThreads) {
            const float scaled = clamp_to_one(deviations[i] * multiplier);
            p.w.scale[scale_at(p.w, group_from_number(s, first + i))] =
                absmax == 0 ? uint8_t(0) : lut8_code(scaled, table);
        }
        __syncthreads();  // before the next second group's largest
    }
}

}  // namespace

Status nest_scales(const QuantizeArgs &args, const Launch &launch) {
    const Weight &w = args.to;
    const QuantizeProblem problem = problem_of(args);
    const int64_t groups = w.geometry.group_count;
    const int64_t blocks = ceil_div(groups, w.scale.second_group);
    if (groups < kLanes) {
        QK_TRY(launch_kernel(launch, "quantize", store_mean_of_few, {dim3(1), 32}, problem));
    } else {
        const Order order(groups);
        if (order.chunks > 0) {
            const Shape3 shape = {dim3(blocks_for(order.chunks, 4)), 4 * 32};
            QK_TRY(launch_kernel(launch, "quantize", sum_chunks, shape, problem, order));
        }
        QK_TRY(launch_kernel(launch, "quantize", store_mean, {dim3(1), 32}, problem, order));
    }
    {
        const DeviceGuard device(launch.device.index);
        QK_TRY(check(device.error(), launch.error, "quantize"));
        QK_TRY(check(cudaMemsetAsync(w.scale.data, 0, size_t(w.layout->scale_count(w.geometry)),
                                     stream_of(launch)),
                     launch.error, "quantize"));
    }
    const Shape3 shape = {dim3(blocks_for(blocks, 1)), kThreads};
    return launch_kernel(launch, "quantize", nest, shape, problem, blocks);
}

namespace {

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
    QK_TRY(fill_zero(launch, "quantize", w.scale.data,
                     w.layout->scale_count(s) * (w.scale.format->bits / 8)));
    return w.zero == nullptr ? QK_OK
                             : fill_zero(launch, "quantize", w.zero, w.layout->zero_bytes(s));
}

Status run(const QuantizeArgs &args, const Launch &launch) {
    const Weight &w = args.to;
    const Geometry &s = w.geometry;
    if (w.globals > 0) QK_TRY(store_globals(args, launch));
    QK_TRY(clear_planes(w, launch));
    if (is_nested(w)) QK_TRY(nest_scales(args, launch));
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
