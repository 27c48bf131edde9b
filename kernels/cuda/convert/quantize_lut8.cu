// Quantize to LUT8 where groups follow one another; the bytes are the CPU's.
//
// The rule rounds a number to one of 65,536 points of [-1, 1] and counts the thresholds below that
// point. A block counts them for every point once, into 64 KiB of shared memory, and its numbers
// look their points up. It marks the points at which thresholds are passed and adds the marks up:
// 16 points a lane by three multiplications, 512 a warp by shuffles.
//
// A block a multiprocessor takes rounds of chunks, as convert/quantize_stream.cu does. Groups with
// a NaN, an infinity or tiny numbers alone, and a last chunk with less than 8 numbers, ask the rule
// for each number.
#include "backend/quantize_rule.hpp"
#include "cuda/convert/chunks.cuh"
#include "cuda/convert/lut8_points.cuh"
#include "cuda/kernels.hpp"
#include "cuda/runtime.hpp"

namespace qk::cuda {
namespace {

// A multiprocessor's block: four times the threads that share a round, so that they share a table.
constexpr int kBlockThreads = 1024, kTeams = kBlockThreads / kThreads;
constexpr size_t kTableBytes = kLut8Points;
constexpr uint32_t kEachByte = 0x01010101u;

struct Problem {
    WeightView w;
    QuantizeRule rule;
    const void *from;
    int64_t count, rounds;
    int32_t shift;  // log2 of the group size
};

// ---- The table

// How many cuts a warp's share of the points begins with.
__device__ uint32_t cuts_before(const int32_t *cuts, int32_t point) {
    uint32_t count = 0;
    for (int i = int(threadIdx.x % 32); i < kCuts; i += 32) count += cuts[i] < point;
    for (unsigned lanes = 16; lanes > 0; lanes /= 2) count += __shfl_xor_sync(~0u, count, lanes);
    return count;
}

// The sum of the lanes up to this one.
__device__ uint32_t sum_of_lanes(uint32_t value) {
    const int lane = int(threadIdx.x % 32);
    for (int step = 1; step < 32; step *= 2) {
        const uint32_t other = __shfl_sync(~0u, value, max(lane - step, 0));
        if (lane >= step) value += other;
    }
    return value;
}

// From marks to the number of those up to each point; `before`: those of points in front.
__device__ uint4 sums_of_marks(uint4 marks, uint32_t *before) {
    marks.x *= kEachByte;
    marks.y = (marks.y + (marks.x >> 24)) * kEachByte;
    marks.z = (marks.z + (marks.y >> 24)) * kEachByte;
    marks.w = (marks.w + (marks.z >> 24)) * kEachByte;
    const uint32_t total = marks.w >> 24, up_to = sum_of_lanes(total);
    const uint32_t each = (*before + up_to - total) * kEachByte;
    *before += __shfl_sync(~0u, up_to, 31);
    return {marks.x + each, marks.y + each, marks.z + each, marks.w + each};
}

// Every thread of the block calls it.
__device__ void fill_table(const float *entries, uint4 *table) {
    constexpr int kSteps = kLut8Points / 16 / kBlockThreads;  // of 16 points a lane
    __shared__ int32_t cuts[kCuts];
    uint4 *const own = table + threadIdx.x / 32 * (kSteps * 32) + threadIdx.x % 32;
    const int32_t cut = threadIdx.x < kCuts
                            ? first_point_above(lut8_threshold(entries, int32_t(threadIdx.x)))
                            : kLut8Points;
    if (threadIdx.x < kCuts) cuts[threadIdx.x] = cut;
#pragma unroll
    for (int i = 0; i < kSteps; ++i) own[i * 32] = {};
    __syncthreads();
    if (cut < kLut8Points) atomicAdd(&table[0].x + cut / 4, 1u << cut % 4 * 8);
    __syncthreads();
    uint32_t before = cuts_before(cuts, int32_t(threadIdx.x / 32) * (kSteps * 32 * 16));
    for (int i = 0; i < kSteps; ++i) {
        const uint4 marks = own[i * 32];
        const bool none = (marks.x | marks.y | marks.z | marks.w) == 0;
        const uint32_t each = before * kEachByte;
        own[i * 32] = __any_sync(~0u, int(!none)) ? sums_of_marks(marks, &before)
                                                  : uint4{each, each, each, each};
    }
    __syncthreads();
}

// ---- Codes

// Of a usual group: x * multiplier needs no clamping, as it rounds to no point outside.
__device__ inline uint32_t point_of(float x, Multiplier by) {
    const float s = __fmul_rn(x, by.reciprocal);
    const float point = __fadd_rn(__fmul_rn(__fadd_rn(s, 1.0f), 32767.5f), 0.5f);
    return truncated(point) & (kLut8Points - 1);
}

template <qk_format from>
__device__ uint2 codes_of(const uint8_t *table, const Eight<from> &x, Multiplier by) {
    uint32_t codes[kNumbers];
#pragma unroll
    for (int i = 0; i < kNumbers; ++i) codes[i] = table[point_of(x[i], by)];
    const auto word = [&](int first) {
        const uint32_t low = byte_permute(codes[first], codes[first + 1], 0x5140);
        const uint32_t high = byte_permute(codes[first + 2], codes[first + 3], 0x5140);
        return byte_permute(low, high, 0x5410);
    };
    return {word(0), word(4)};
}

__device__ inline GroupScale scale_of(const Problem &p, uint32_t largest) {
    GroupRange range;
    range.nan = largest > kInfinity;
    range.absmax = __uint_as_float(largest);
    QuantizeRule rule = p.rule;
    rule.by = Rule::kLut8;  // known to the compiler
    return scale_of_range(rule, range, p.rule.group_size, 1.0f);
}

// The largest magnitude that is a number, as the rule has it. noinline: seldom called, and long.
__device__ __noinline__ float largest_number(const Problem &p, int64_t at) {
    GroupRange range;
    const int64_t first = at >> p.shift << p.shift;
    const int64_t last = min64(first + p.rule.group_size, p.count);
#pragma unroll 1
    for (int64_t i = first; i < last; ++i) range.add(load_float(p.rule.from_format, p.from, i));
    return range.absmax;
}

__device__ inline Multiplier divisor_of(const Problem &p, int64_t at, uint32_t largest,
                                        bool stores) {
    constexpr uint32_t kTiny = 0x01000000u;  // below it a reciprocal may be no number
    if (largest > kInfinity) largest = __float_as_uint(largest_number(p, at));
    const GroupScale group = scale_of(p, largest);
    if (stores) store_scale(p.rule.scale_format, p.w.scale, at >> p.shift, group.scale);
    const bool usual = largest < kInfinity && largest > kTiny;
    return {usual ? group.multiplier : __uint_as_float(kNone)};
}

// What the rule says of each number of a chunk. noinline: seldom called, and long.
__device__ __noinline__ void ask_for_codes(const Problem &p, int64_t at, uint32_t largest) {
    if (largest > kInfinity) largest = __float_as_uint(largest_number(p, at));
    const GroupScale group = scale_of(p, largest);
#pragma unroll 1
    for (int i = 0; i < kNumbers && at + i < p.count; ++i) {
        const float x = load_float(p.rule.from_format, p.from, at + i);
        p.w.data[at + i] =
            code_of_value(p.rule, x, group, reinterpret_cast<const float *>(p.w.table));
    }
}

template <qk_format from>
using Chunks = Eight<from>[chunks_of(from)];

// How many numbers there are from a lane's first on, of its round.
template <qk_format from>
__device__ int32_t rest_of(const Problem &p, int64_t first) {
    return int32_t(max64(min64(p.count - first, chunks_of(from) * kStep), 0));
}

template <qk_format from>
__device__ void load_round(const Problem &p, int64_t first, Chunks<from> &x) {
    load_numbers(static_cast<const uint4 *>(p.from) + first * Eight<from>::kVectors / kNumbers,
                 rest_of<from>(p, first), x);
}

template <qk_format from>
__device__ void quantize_round(const Problem &p, int64_t first, const uint8_t *table,
                               const Chunks<from> &x) {
    constexpr int kChunks = chunks_of(from);
    const int32_t rest = rest_of<from>(p, first);
    uint32_t largest[kChunks];
#pragma unroll
    for (int i = 0; i < kChunks; ++i) largest[i] = x[i].largest();
    reduce_groups(p.shift, largest, larger<from>);
    Multiplier groups[kChunks];
    share_groups(p.shift, groups, [&](int own, bool stores) {
        const int64_t at = group_start(p.shift, first + own * kStep);
        return divisor_of(p, at, largest_of<from>(picked(largest, own)), stores && at < p.count);
    });
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
        const int64_t at = first + i * kStep;
        const int32_t left = rest - i * kStep;
        const float reciprocal = groups[i].reciprocal;
        if (left >= kNumbers && reciprocal == reciprocal) {
            __stcs(reinterpret_cast<uint2 *>(p.w.data) + at / kNumbers,
                   codes_of(table, x[i], groups[i]));
        } else if (left > 0) {
            ask_for_codes(p, at, largest_of<from>(largest[i]));
        }
    }
}

template <qk_format from>
__global__ void __launch_bounds__(kBlockThreads) quantize_lut8(const __grid_constant__ Problem p) {
#if defined(QK_CUDA_SIMULATED)
    static uint4 table[kTableBytes / 16];
#else
    extern __shared__ uint4 table[];
#endif
    constexpr int64_t kRound = chunks_of(from) * kStep;
    const int64_t team = int64_t(blockIdx.x) * kTeams + threadIdx.x / kThreads;
    const int64_t step = int64_t(gridDim.x) * kTeams * kRound;
    int64_t first = team * kRound + threadIdx.x % kThreads * kNumbers;
    Chunks<from> x;
    load_round<from>(p, first, x);
    fill_table(reinterpret_cast<const float *>(p.w.table), table);
    for (int64_t round = team; round < p.rounds; round += int64_t(gridDim.x) * kTeams) {
        if (round != team) load_round<from>(p, first, x);
        quantize_round<from>(p, first, reinterpret_cast<const uint8_t *>(table), x);
        first += step;
    }
}

template <qk_format from>
Status launch_rounds(Problem p, const Launch &launch) {
    p.rounds = ceil_div(p.count, int64_t{kStep} * chunks_of(from));
    const int64_t blocks = min64(ceil_div(p.rounds, kTeams), launch.device.multiprocessors);
    const Shape3 shape = {dim3(uint32_t(blocks)), kBlockThreads, kTableBytes};
    return launch_kernel(launch, "quantize", quantize_lut8<from>, shape, p);
}

Status run(const QuantizeArgs &args, const Launch &launch) {
    const Geometry &s = args.to.geometry;
    const Problem problem = {view_of(args.to),     rule_of(args), args.from.data, s.n * s.k, 0,
                             log2_of(s.group_size)};
    switch (args.from.format->id) {
        case QK_FORMAT_F16: return launch_rounds<QK_FORMAT_F16>(problem, launch);
        case QK_FORMAT_BF16: return launch_rounds<QK_FORMAT_BF16>(problem, launch);
        default: return launch_rounds<QK_FORMAT_F32>(problem, launch);
    }
}

bool can_run(const QuantizeArgs &args, const Device &device) {
    const Weight &w = args.to;
    return rule_of(w) == Rule::kLut8 && is_float(*w.scale.format) && runs_in_order(w) &&
           groups_follow(args) && aligned(w.table, 4) &&
           device.shared_bytes >= int32_t(kTableBytes + 2048);
}

}  // namespace

const Kernel<QuantizeArgs> kQuantizeLut8 = {"lut8", can_run, nullptr, run};

}  // namespace qk::cuda
