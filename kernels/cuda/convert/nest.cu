// Nested scales of the quantizer (docs/formats.md, rule 6): the CPU's bytes. The mean of all scales
// is an f32 sum in one fixed order, 32 columns of numbers each added up by a cascade of 4 levels:
//
//     group numbers       column 0    1    2  ...  31
//     row 0                      0    1    2  ...  31
//     row 1                     32   33   34  ...  63
//     ...                                                 a chunk: 2^power rows, 16 or more
//
// A sum of any level restarts after 2^power sums of the level below, so sums of one level are
// computed side by side: a warp a sum, a lane a column, first of chunks, by many blocks, then of
// the two levels above by one block. A chunk's 512 groups or more have as many bytes of the SCALE
// plane, which hold 128 bytes of sums until the codes come: nothing allocated. A sum of a higher
// level takes the place of the first one that it adds up.
//
// Then a block takes a second group: deviations from the mean in shared memory, the largest, codes.
#include "backend/quantize_rule.hpp"
#include "cuda/convert/nest.hpp"
#include "cuda/convert/parts.cuh"
#include "cuda/kernels.hpp"

namespace qk::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kMeanThreads = 1024;
constexpr int kColumns = 32;
constexpr int kLanes = 8;  // of PyTorch's vectors: columns are 4 streams of 8 lanes
constexpr int kLevels = 4;
constexpr int kLargestSecondGroup = 4096;

struct NestProblem {
    WeightView w;
    QuantizeRule rule;
    const void *from;
    const float *scales;  // of all groups; may be null
};

NestProblem problem_of(const QuantizeArgs &args, const float *scales) {
    return {view_of(args.to), rule_of(args), args.from.data, scales};
}

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

__device__ float computed_scale(const NestProblem &p, int64_t number) {
    const Span span = elements_of(p.w.geometry, group_from_number(p.w.geometry, number));
    GroupRange range;
    for (int64_t i = span.first; i < span.last; ++i) {
        range.add(load_float(p.rule.from_format, p.from, i));
    }
    return scale_of_range(p.rule, range, span.last - span.first, 1).scale;
}

__device__ float first_scale(const NestProblem &p, int64_t number) {
    return p.scales != nullptr ? p.scales[number] : computed_scale(p, number);
}

__global__ void store_scales(const __grid_constant__ NestProblem p, float *scales) {
    const int64_t step = int64_t(gridDim.x) * blockDim.x;
    for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < p.w.geometry.group_count;
         i += step) {
        scales[i] = computed_scale(p, i);
    }
}

// ---- The mean

__global__ void sum_chunks(const __grid_constant__ NestProblem p,
                           const __grid_constant__ Order order) {
    const int64_t lane = threadIdx.x % 32, warps = int64_t(gridDim.x) * (blockDim.x / 32);
    for (int64_t chunk = int64_t(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
         chunk < order.chunks; chunk += warps) {
        float sum = 0;
#pragma unroll 16
        for (int64_t row = chunk << order.power; row < (chunk + 1) << order.power; ++row) {
            sum += first_scale(p, row * kColumns + lane);
        }
        store_as(p.w.scale, chunk * kColumns + lane, sum);
    }
}

// Sums number first .. last - 1 of a level, each of 2^width chunks, in order.
__device__ float sum_of_sums(const NestProblem &p, int64_t first, int64_t last, int width) {
    const int64_t lane = threadIdx.x % 32;
    float sum = 0;
#pragma unroll 16
    for (int64_t i = first; i < last; ++i) {
        sum += load_as<float>(p.w.scale, (i << width) * kColumns + lane);
    }
    return sum;
}

// Sums of full steps of the levels above chunks. Every thread of the block calls it.
__device__ void raise_sums(const NestProblem &p, const Order &order) {
    for (int level = 1; level + 1 < kLevels; ++level) {
        const int width = (level - 1) * order.power;
        for (int64_t i = threadIdx.x / 32; i < order.chunks >> (width + order.power);
             i += kMeanThreads / 32) {
            const float sum = sum_of_sums(p, i << order.power, (i + 1) << order.power, width);
            const int64_t place = i << (width + order.power);
            store_as(p.w.scale, place * kColumns + threadIdx.x % 32, sum);
        }
        __syncthreads();
    }
}

// One column of all rows: the rows that fill no chunk, then level by level the sums that fill no
// step of the level above.
__device__ float sum_column(const NestProblem &p, const Order &order) {
    float sum = 0;
    for (int64_t row = order.chunks << order.power; row < order.rows; ++row) {
        sum += first_scale(p, row * kColumns + threadIdx.x % 32);
    }
    for (int level = 1; level < kLevels; ++level) {
        const int width = (level - 1) * order.power;
        const int64_t count = order.chunks >> width;
        const int64_t above = level + 1 < kLevels ? count >> order.power << order.power : 0;
        sum += sum_of_sums(p, above, count, width);
    }
    return sum;
}

// The last step of the order: left-over vectors, streams, left-over numbers, lanes. One block.
__global__ void __launch_bounds__(kMeanThreads)
    store_mean(const __grid_constant__ NestProblem p, const __grid_constant__ Order order) {
    __shared__ float sums[kColumns], left[kColumns];
    raise_sums(p, order);
    const int64_t lane = threadIdx.x, first = order.rows * kColumns;
    if (lane < kColumns) {
        sums[lane] = sum_column(p, order);
        left[lane] = first + lane < order.count ? first_scale(p, first + lane) : 0;
    }
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
__global__ void store_mean_of_few(const __grid_constant__ NestProblem p) {
    if (threadIdx.x != 0) return;
    const int64_t count = p.w.geometry.group_count, rows = count / 4;
    float sums[4] = {};
    for (int64_t i = 0; i < rows * 4; ++i) sums[i] += first_scale(p, i);
    for (int64_t i = rows * 4; i < count; ++i) sums[0] += first_scale(p, i);
    for (int stream = 1; stream < 4; ++stream) sums[0] += sums[stream];
    store_as(p.w.bias, 0, sums[0] / float(count));
}

// ---- Codes of scales

// A block a second group.
__global__ void nest(const __grid_constant__ NestProblem p, int64_t blocks) {
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

Status store_mean_of_scales(const NestProblem &problem, int64_t groups, const Launch &launch) {
    if (groups < kLanes) {
        return launch_kernel(launch, "quantize", store_mean_of_few, {dim3(1), 32}, problem);
    }
    const Order order(groups);
    if (order.chunks > 0) {
        const Shape3 shape = {dim3(blocks_for(order.chunks, 4)), 4 * 32};
        QK_TRY(launch_kernel(launch, "quantize", sum_chunks, shape, problem, order));
    }
    return launch_kernel(launch, "quantize", store_mean, {dim3(1), kMeanThreads}, problem, order);
}

}  // namespace

float *room_for_scales(const QuantizeArgs &args, const Launch &launch) {
    const Weight &w = args.to;
    const int64_t bytes = w.geometry.group_count * int64_t(sizeof(float));
    if (int64_t(launch.workspace_bytes) >= bytes && aligned(launch.workspace, sizeof(float))) {
        return static_cast<float *>(launch.workspace);
    }
    const bool fits = w.layout->data_bytes(w.geometry) >= bytes;
    return fits && aligned(w.data, sizeof(float)) ? static_cast<float *>(w.data) : nullptr;
}

Status find_scales(const QuantizeArgs &args, float *scales, const Launch &launch) {
    const Shape3 shape = {dim3(blocks_for(args.to.geometry.group_count, kThreads)), kThreads};
    return launch_kernel(launch, "quantize", store_scales, shape, problem_of(args, nullptr),
                         scales);
}

Status nest_scales(const QuantizeArgs &args, const float *scales, const Launch &launch) {
    const Weight &w = args.to;
    const NestProblem problem = problem_of(args, scales);
    const int64_t groups = w.geometry.group_count, stored = w.layout->scale_count(w.geometry);
    QK_TRY(store_mean_of_scales(problem, groups, launch));
    if (stored != groups) {
        const DeviceGuard device(launch.device.index);
        QK_TRY(check(device.error(), launch.error, "quantize"));
        QK_TRY(fill_zero(launch, "quantize", w.scale.data, stored));
    }
    const int64_t blocks = ceil_div(groups, w.scale.second_group);
    const Shape3 shape = {dim3(blocks_for(blocks, 1)), kThreads};
    return launch_kernel(launch, "quantize", nest, shape, problem, blocks);
}

}  // namespace qk::cuda
