// Nested scales of the quantizer (docs/formats.md, rule 6): the CPU's bytes. The mean of all scales
// is an f32 sum in one fixed order, 32 columns of numbers each added up by a cascade of 4 levels:
//
//     group numbers       column 0    1    2  ...  31
//     row 0                      0    1    2  ...  31
//     row 1                     32   33   34  ...  63
//     ...                                                 a chunk: 2^power rows, 16 or more
//
// A sum of any level restarts after 2^power sums of the level below, so sums of one level are
// computed side by side, a warp a sum, a lane a column. A block adds up 2^power chunks, a step of
// the second level; the last block has what fills no step.
//
// Then a warp takes a second group: the largest deviation from the mean, codes. There is little to
// add up above steps (one in 8,192 numbers), so each block does it for itself, while its scales are
// on their way. Where sums have no room but the SCALE plane, whose codes would overwrite them, one
// block stores the mean first.
#include "backend/quantize_rule.hpp"
#include "cuda/convert/lut8_points.cuh"
#include "cuda/convert/nest.hpp"
#include "cuda/convert/parts.cuh"
#include "cuda/kernels.hpp"
#include "cuda/prim/mma.cuh"

namespace qk::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kSumThreads = 512, kSumWarps = kSumThreads / 32;
constexpr int kColumns = 32;
constexpr int kLanes = 8;  // of PyTorch's vectors: columns are 4 streams of 8 lanes
constexpr int kLevels = 4;

struct NestProblem {
    WeightView w;
    QuantizeRule rule;
    const void *from;
    const float *scales;  // of all groups; may be null
    float *sums;          // 32 of every step, of the chunks and of the rows that fill none
    bool has_mean;        // in the SCALE_BIAS plane
};

NestProblem problem_of(const QuantizeArgs &args, const NestRoom &room) {
    return {view_of(args.to), rule_of(args), args.from.data, room.scales, room.sums, false};
}

// src/base/torch_sum.hpp's numbers, for `count` of 8 or more.
struct Order {
    int64_t count, vectors, rows, chunks, steps;
    int power;

    explicit Order(int64_t groups) : count(groups), vectors(groups / kLanes) {
        rows = vectors / (kColumns / kLanes);
        int64_t log2 = 0;
        while (log2 < 62 && (int64_t{1} << log2) < rows) ++log2;
        power = log2 / kLevels > 4 ? int(log2 / kLevels) : 4;
        chunks = rows >> power;
        steps = chunks >> power;
    }
};

__device__ float computed_scale(const NestProblem &p, int64_t number) {
    const Span span = elements_of(p.w.geometry, group_from_number(p.w.geometry, number));
    GroupRange range;
    for (int64_t i = span.first; i < span.last; ++i) {
        range.add(load_float(p.rule.from_format, p.from, i));
    }
    return scale_of_range(p.rule, range, span.last - span.first, 1).scale;
}

template <bool kReady>
__device__ float first_scale(const NestProblem &p, int64_t number) {
    return kReady ? p.scales[number] : computed_scale(p, number);
}

__global__ void store_scales(const __grid_constant__ NestProblem p, float *scales) {
    const int64_t step = int64_t(gridDim.x) * blockDim.x;
    for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < p.w.geometry.group_count;
         i += step) {
        scales[i] = computed_scale(p, i);
    }
}

// ---- The mean

// Rows first .. last - 1 of a lane's column, in order.
template <bool kReady>
__device__ float sum_rows(const NestProblem &p, int64_t first, int64_t last) {
    float sum = 0;
#pragma unroll 16
    for (int64_t row = first; row < last; ++row) {
        sum += first_scale<kReady>(p, row * kColumns + threadIdx.x % 32);
    }
    return sum;
}

// Chunks of a step, and rows that fill none if it is the last. Every thread of the block calls it.
template <bool kReady>
__device__ void sum_step(const NestProblem &p, const Order &order, int64_t step, float *sums) {
    __shared__ float of_chunk[kSumWarps][kColumns];
    const int64_t first = step << order.power;
    const int64_t last = min64(first + (int64_t{1} << order.power), order.chunks);
    const int warp = int(threadIdx.x / 32), lane = int(threadIdx.x % 32);
    float sum = 0;
    for (int64_t chunks = first; chunks < last; chunks += kSumWarps) {
        const int64_t chunk = chunks + warp;
        if (chunk < last) {
            of_chunk[warp][lane] =
                sum_rows<kReady>(p, chunk << order.power, (chunk + 1) << order.power);
        }
        __syncthreads();
        for (int i = 0; warp == 0 && i < kSumWarps && chunks + i < last; ++i) {
            sum += of_chunk[i][lane];
        }
        __syncthreads();
    }
    if (warp == 0) sums[step * kColumns + lane] = sum;
    if (warp != 1 || step < order.steps) return;
    sums[(step + 1) * kColumns + lane] =
        sum_rows<kReady>(p, order.chunks << order.power, order.rows);
}

template <bool kReady>
__global__ void __launch_bounds__(kSumThreads)
    sum_steps(const __grid_constant__ NestProblem p, const __grid_constant__ Order order) {
    wait_for_previous_kernel();
    allow_next_kernel();
    sum_step<kReady>(p, order, blockIdx.x, p.sums);
}

// Sums of steps number first .. last - 1 of a lane's column, in order.
__device__ float sum_of_steps(const float *sums, int64_t first, int64_t last) {
    float sum = 0;
#pragma unroll 16
    for (int64_t step = first; step < last; ++step) {
        sum += sums[step * kColumns + threadIdx.x % 32];
    }
    return sum;
}

// A lane's column of all rows, of one warp: the rows that fill no chunk, then level by level the
// sums that fill no step of the level above. Every thread of the block calls it.
__device__ float sum_column(const float *sums, const Order &order) {
    __shared__ float of_steps[kSumWarps][kColumns];
    const int warp = int(threadIdx.x / 32), lane = int(threadIdx.x % 32);
    const int warps = int(blockDim.x / 32);
    const int64_t count = order.steps >> order.power;
    float left[2] = {}, rest = 0, top = 0;  // asked for before what the loop waits for
    if (warp == 0) {
        for (int i = 0; i < 2; ++i) left[i] = sums[(order.steps + 1 - i) * kColumns + lane];
        rest = sum_of_steps(sums, count << order.power, order.steps);
    }
    for (int64_t steps = 0; steps < count; steps += warps) {
        const int64_t i = steps + warp;
        if (i < count) {
            of_steps[warp][lane] = sum_of_steps(sums, i << order.power, (i + 1) << order.power);
        }
        __syncthreads();
        for (int j = 0; warp == 0 && j < warps && steps + j < count; ++j) top += of_steps[j][lane];
        __syncthreads();
    }
    return 0.0f + left[0] + left[1] + rest + top;
}

// The last step of the order: left-over vectors, streams, left-over numbers, lanes. Every thread of
// the block calls it.
template <bool kReady>
__device__ float mean_of_sums(const NestProblem &p, const Order &order, const float *sums) {
    __shared__ float mean;
    const float column = sum_column(sums, order);
    const int64_t first = order.rows * kColumns, lane = threadIdx.x;
    if (lane < 32) {
        const float left = first + lane < order.count ? first_scale<kReady>(p, first + lane) : 0;
        const int vectors = int(order.vectors - order.rows * (kColumns / kLanes));
        const int in_vector = int(lane % kLanes);
        float sum = column, total = 0;
        for (int vector = 0; vector < vectors; ++vector) {
            sum += __shfl_sync(~0u, left, vector * kLanes + in_vector);
        }
        for (int stream = kLanes; stream < kColumns; stream += kLanes) {
            sum += __shfl_sync(~0u, column, stream + in_vector);
        }
        for (int64_t i = order.vectors * kLanes; i < order.count; ++i) {
            total += __shfl_sync(~0u, left, int(i - first));
        }
        for (int i = 0; i < kLanes; ++i) total += __shfl_sync(~0u, sum, i);
        if (lane == 0) mean = total / float(order.count);
    }
    __syncthreads();
    return mean;
}

// One block; sums of no step have no place but its own.
template <bool kReady>
__global__ void __launch_bounds__(kSumThreads)
    store_mean(const __grid_constant__ NestProblem p, const __grid_constant__ Order order) {
    __shared__ float own[2 * kColumns];
    if (order.steps == 0) {
        sum_step<kReady>(p, order, 0, own);
        __syncthreads();
    }
    const float mean = mean_of_sums<kReady>(p, order, order.steps == 0 ? own : p.sums);
    if (threadIdx.x == 0) store_as(p.w.bias, 0, mean);
}

// Fewer than 8 groups: vectors of one lane.
template <bool kReady>
__global__ void store_mean_of_few(const __grid_constant__ NestProblem p) {
    if (threadIdx.x != 0) return;
    const int64_t count = p.w.geometry.group_count, rows = count / 4;
    float sums[4] = {};
    for (int64_t i = 0; i < rows * 4; ++i) sums[i] += first_scale<kReady>(p, i);
    for (int64_t i = rows * 4; i < count; ++i) sums[0] += first_scale<kReady>(p, i);
    for (int stream = 1; stream < 4; ++stream) sums[0] += sums[stream];
    store_as(p.w.bias, 0, sums[0] / float(count));
}

// ---- Codes of scales

// Scales of a second group that a lane has in registers: of 256 all.
constexpr int kHeld = 8;

template <bool kReady>
__device__ void load_scales(const NestProblem &p, int64_t first, int64_t count,
                            float (&scales)[kHeld]) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
        const int64_t at = i * 32 + threadIdx.x % 32;
        scales[i] = at < count ? first_scale<kReady>(p, first + at) : 0.0f;
    }
}

// Codes of scales number first .. first + count - 1 to their places.
__device__ void store_codes(const NestProblem &p, int64_t first, int64_t count,
                            const int32_t (&codes)[kHeld]) {
    const int lane = int(threadIdx.x % 32);
    const qk_layout layout = p.w.layout;
    if (layout == QK_LAYOUT_ROW || layout == QK_LAYOUT_ROW_HIGH || layout == QK_LAYOUT_WORD) {
#pragma unroll
        for (int i = 0; i < kHeld; ++i) {
            if (i * 32 + lane < count) p.w.scale[first + i * 32 + lane] = uint8_t(codes[i]);
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
        const int64_t number = first + i * 32 + lane;
        if (i * 32 + lane >= count) continue;
        p.w.scale[scale_at(p.w, group_from_number(p.w.geometry, number))] = uint8_t(codes[i]);
    }
}

// A second group, by a warp. `held` has its first scales.
template <bool kReady>
__device__ void nest_group(const NestProblem &p, int64_t number, float mean, const int32_t *cuts,
                           float (&held)[kHeld]) {
    constexpr int kRun = kHeld * 32;
    const int64_t first = number * p.w.second_group;
    const int64_t count = min64(p.w.second_group, p.w.geometry.group_count - first);
    float absmax = 0;
    for (int64_t run = 0; run < count; run += kRun) {
        if (run > 0) load_scales<kReady>(p, first + run, count - run, held);
#pragma unroll
        for (int i = 0; i < kHeld; ++i) {
            const bool there = run + i * 32 + int(threadIdx.x % 32) < count;
            const float magnitude = there ? magnitude_of(held[i] - mean) : 0.0f;
            if (magnitude > absmax) absmax = magnitude;
        }
    }
    for (unsigned lanes = 16; lanes > 0; lanes /= 2) {
        const float other = __shfl_xor_sync(~0u, absmax, lanes);
        if (other > absmax) absmax = other;
    }
    if (threadIdx.x % 32 == 0) store_as(p.w.second, number, absmax);
    const float multiplier = 1.0f / absmax;
    for (int64_t run = 0; run < count; run += kRun) {
        if (count > kRun) load_scales<kReady>(p, first + run, count - run, held);
        int32_t points[kHeld], codes[kHeld];
#pragma unroll
        for (int i = 0; i < kHeld; ++i) {
            const float scaled = clamp_to_one((held[i] - mean) * multiplier);
            points[i] = absmax == 0 || !(scaled == scaled) ? -1 : lut8_point(scaled);
        }
        count_cuts(cuts, points, codes);  // none for -1
        store_codes(p, first + run, count - run, codes);
    }
}

template <bool kReady>
__global__ void __launch_bounds__(kThreads)
    nest(const __grid_constant__ NestProblem p, const __grid_constant__ Order order,
         int64_t seconds) {
    __shared__ int32_t cuts[kCutNodes];
    int64_t number = int64_t(blockIdx.x) * kWarps + threadIdx.x / 32;
    const auto load = [&](float(&held)[kHeld]) {
        const int64_t first = number * p.w.second_group;
        const int64_t count = min64(p.w.second_group, p.w.geometry.group_count - first);
        load_scales<kReady>(p, first, count, held);  // past the last second group: none
    };
    if (threadIdx.x < kCuts) {
        const float pair[2] = {load_as<float>(p.w.code, threadIdx.x),
                               load_as<float>(p.w.code, threadIdx.x + 1)};
        cuts[cut_node(int32_t(threadIdx.x))] = first_point_above(lut8_threshold(pair, 0));
    }
    wait_for_previous_kernel();
    float held[kHeld];
    load(held);
    const float mean =
        p.has_mean ? load_as<float>(p.w.bias, 0) : mean_of_sums<kReady>(p, order, p.sums);
    if (blockIdx.x == 0 && threadIdx.x == 0) store_as(p.w.bias, 0, mean);
    __syncthreads();
    for (; number < seconds; number += int64_t(gridDim.x) * kWarps) {
        if (number >= int64_t(gridDim.x) * kWarps) load(held);
        nest_group<kReady>(p, number, mean, cuts, held);
    }
}

template <bool kReady>
Status launch_all(const QuantizeArgs &args, NestProblem p, const Launch &launch) {
    const Weight &w = args.to;
    const int64_t groups = w.geometry.group_count, stored = w.layout->scale_count(w.geometry);
    const Order order(groups);
    const bool few = groups < kLanes, beside = p.sums != nullptr;
    if (!beside) {  // a step of 8,192 groups or more has 128 bytes of sums, and there are two more
        p.sums =
            reinterpret_cast<float *>((reinterpret_cast<uintptr_t>(p.w.scale) + sizeof(float) - 1) /
                                      sizeof(float) * sizeof(float));
    }
    if (!few && (beside || order.steps > 0)) {
        const Shape3 shape = {dim3(uint32_t(order.steps + 1)), kSumThreads, 0, true};
        QK_TRY(launch_kernel(launch, "quantize", sum_steps<kReady>, shape, p, order));
    }
    if (few || !beside) {
        p.has_mean = true;
        QK_TRY(few ? launch_kernel(launch, "quantize", store_mean_of_few<kReady>, {dim3(1), 32}, p)
                   : launch_kernel(launch, "quantize", store_mean<kReady>, {dim3(1), kSumThreads},
                                   p, order));
    }
    if (stored != groups) {
        const DeviceGuard device(launch.device.index);
        QK_TRY(check(device.error(), launch.error, "quantize"));
        QK_TRY(fill_zero(launch, "quantize", w.scale.data, stored));
    }
    const int64_t seconds = ceil_div(groups, w.scale.second_group);
    const int64_t blocks = min64(ceil_div(seconds, kWarps), 4 * launch.device.multiprocessors);
    // What a kernel before this call wrote is there once sum_steps lets this one start.
    const Shape3 shape = {dim3(uint32_t(blocks)), kThreads, 0, stored == groups};
    return launch_kernel(launch, "quantize", nest<kReady>, shape, p, order, seconds);
}

}  // namespace

NestRoom room_for_scales(const QuantizeArgs &args, const Launch &launch) {
    const Weight &w = args.to;
    const int64_t groups = w.geometry.group_count;
    const int64_t numbers = groups + (Order(groups).steps + 2) * kColumns;
    const int64_t bytes = numbers * int64_t(sizeof(float));
    const auto room = [&](void *plane) -> NestRoom {
        float *const scales = static_cast<float *>(plane);
        return {scales, scales + groups};
    };
    if (int64_t(launch.workspace_bytes) >= bytes && aligned(launch.workspace, sizeof(float))) {
        return room(launch.workspace);
    }
    const bool fits = w.layout->data_bytes(w.geometry) >= bytes;
    return fits && aligned(w.data, sizeof(float)) ? room(w.data) : NestRoom{nullptr, nullptr};
}

Status find_scales(const QuantizeArgs &args, float *scales, const Launch &launch) {
    const Shape3 shape = {dim3(blocks_for(args.to.geometry.group_count, kThreads)), kThreads};
    return launch_kernel(launch, "quantize", store_scales, shape,
                         problem_of(args, {nullptr, nullptr}), scales);
}

Status nest_scales(const QuantizeArgs &args, const NestRoom &room, const Launch &launch) {
    const NestProblem problem = problem_of(args, room);
    return room.scales != nullptr ? launch_all<true>(args, problem, launch)
                                  : launch_all<false>(args, problem, launch);
}

}  // namespace qk::cuda
