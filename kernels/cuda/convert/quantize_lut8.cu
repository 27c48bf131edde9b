// Quantize to LUT8 where groups follow one another; the bytes are the CPU's.
//
// The rule rounds a number to one of 65,536 points of [-1, 1] and counts the thresholds below that
// point. A block counts them for every point once, into 64 KiB of shared memory, and its numbers
// look their points up. It marks the points at which thresholds are passed and adds the marks up:
// 16 points a lane by three multiplications, 512 a warp by shuffles.
//
// A block a multiprocessor takes rounds of chunks, as convert/quantize_stream.cu does, two of which
// are on their way to shared memory. Chunks of groups with a NaN, an infinity or tiny numbers
// alone, those that a lane has beside one, and the last round ask the rule for each number.
#include "backend/quantize_rule.hpp"
#include "cuda/convert/chunks.cuh"
#include "cuda/convert/lut8_points.cuh"
#include "cuda/kernels.hpp"
#include "cuda/prim/shared.cuh"
#include "cuda/runtime.hpp"

namespace qk::cuda {
namespace {

// A multiprocessor's block: four times the threads that share a round, so that they share a table.
constexpr int kBlockThreads = 1024, kTeams = kBlockThreads / kThreads;
constexpr size_t kTableBytes = kLut8Points + 16;  // behind the last point the first again
constexpr uint32_t kEachByte = 0x01010101u;

struct Problem {
    WeightView w;
    QuantizeRule rule;
    const void *from;
    int64_t count;
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

// From marks to the number of those up to each point; returns all of them.
__device__ uint32_t add_up(uint4 &marks) {
    marks.x *= kEachByte;
    marks.y = (marks.y + (marks.x >> 24)) * kEachByte;
    marks.z = (marks.z + (marks.y >> 24)) * kEachByte;
    marks.w = (marks.w + (marks.z >> 24)) * kEachByte;
    return marks.w >> 24;
}

// Sums of the lanes up to this one, several side by side.
template <int kSums>
__device__ void add_lanes(uint32_t (&sums)[kSums]) {
    const int lane = int(threadIdx.x % 32);
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
#pragma unroll
        for (uint32_t &sum : sums) {
            const uint32_t other = __shfl_sync(~0u, sum, max(lane - step, 0));
            if (lane >= step) sum += other;
        }
    }
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
    uint32_t before = cuts_before(cuts, int32_t(threadIdx.x / 32) * (kSteps * 32 * 16));
    __syncthreads();
    uint4 counts[kSteps];
    uint32_t up_to[kSteps];
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
        counts[i] = own[i * 32];
        up_to[i] = add_up(counts[i]);
    }
    add_lanes(up_to);
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
        uint4 &c = counts[i];
        const uint32_t each = (before + up_to[i] - (c.w >> 24)) * kEachByte;
        before += __shfl_sync(~0u, up_to[i], 31);
        own[i * 32] = {c.x + each, c.y + each, c.z + each, c.w + each};
    }
    if (threadIdx.x == 0) table[kLut8Points / 16] = own[0];
    __syncthreads();
}

// ---- Codes

// Of a usual group: x * multiplier needs no clamping, as it rounds to no number outside. The sum
// with 1/2 that the rule truncates is exact where it decides (every float from 0 to 2 has been
// compared), so the code is in the table behind the place that the point, less one, would have.
__device__ inline uint32_t code_of(const uint8_t *table, float x, Multiplier by) {
    const float s = __fmul_rn(x, by.reciprocal);
    const float point = __fmul_rn(__fadd_rn(s, 1.0f), 32767.5f);
    return table[(nearest_less_one(point) & (kLut8Points - 1)) + 1];
}

template <qk_format from>
__device__ uint2 codes_of(const uint8_t *table, const Eight<from> &x, Multiplier by) {
    uint32_t codes[kNumbers];
#pragma unroll
    for (int i = 0; i < kNumbers; ++i) codes[i] = code_of(table, x[i], by);
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
    const bool nan = largest > kInfinity;    // then the rule is asked: no point has a NaN's code
    const GroupScale group = scale_of(p, nan ? __float_as_uint(largest_number(p, at)) : largest);
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

// A lane's chunks of a round, the first from number `first` on.
template <qk_format from>
__device__ void quantize_round(const Problem &p, int64_t first, const uint8_t *table,
                               const Eight<from> (&x)[chunks_of(from)]) {
    constexpr int kChunks = chunks_of(from);
    const int32_t rest = int32_t(max64(min64(p.count - first, kChunks * kStep), 0));
    uint32_t largest[kChunks];
#pragma unroll
    for (int i = 0; i < kChunks; ++i) largest[i] = x[i].largest();
    Multiplier groups[kChunks];
    share_groups(p.shift, largest, groups, larger<from>, [&](int i, uint32_t most, bool stores) {
        const int64_t at = group_start(p.shift, first + i * kStep);
        return divisor_of(p, at, largest_of<from>(most), stores && at < p.count);
    });
    bool usual = rest >= (kChunks - 1) * kStep + kNumbers;
#pragma unroll
    for (const Multiplier &group : groups) usual &= group.reciprocal == group.reciprocal;
    if (__any_sync(~0u, !usual)) join_groups(p.shift, largest, larger<from>);
    if (!usual) {
#pragma unroll 1
        for (int i = 0; i < kChunks && i * kStep < rest; ++i) {
            ask_for_codes(p, first + i * kStep, largest_of<from>(picked(largest, i)));
        }
        return;
    }
    uint2 *const words = reinterpret_cast<uint2 *>(p.w.data) + first / kNumbers;
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
        __stcs(words + i * kThreads, codes_of(table, x[i], groups[i]));
    }
}

template <qk_format from>
struct Block {
    uint4 table[kTableBytes / 16];
    alignas(128) Ahead<from, kBlockThreads> ahead;  // a warp's vectors are whole lines of the banks
};

// `ahead`: where shared memory has room for two rounds.
template <qk_format from, bool ahead>
__global__ void __launch_bounds__(kBlockThreads) quantize_lut8(const __grid_constant__ Problem p) {
    QK_LAUNCH_SHARED_LINES(shared);
    Block<from> &block = *reinterpret_cast<Block<from> *>(shared);
    constexpr int64_t kRound = Ahead<from, kBlockThreads>::kRound;
    const int64_t step = int64_t(gridDim.x) * kTeams * kRound;
    int64_t first = (int64_t(blockIdx.x) * kTeams + threadIdx.x / kThreads) * kRound;
    const int64_t own = int64_t(threadIdx.x % kThreads) * kNumbers;
    if (ahead) block.ahead.ask(p.from, p.count, first + own, 0);
    if (ahead) block.ahead.ask(p.from, p.count, first + step + own, 1);
    fill_table(reinterpret_cast<const float *>(p.w.table), block.table);
    for (int stage = 0; first < p.count; first += step, stage ^= 1) {
        Eight<from> x[chunks_of(from)];
        if (ahead) {
            block.ahead.take(stage, x);
            block.ahead.ask(p.from, p.count, first + 2 * step + own, stage);
        } else {
            const int64_t at = first + own;
            const auto *const vectors = static_cast<const uint4 *>(p.from);
            load_numbers(vectors + at / Ahead<from, kBlockThreads>::kOfVector,
                         int32_t(max64(min64(p.count - at, kRound), 0)), x);
        }
        quantize_round<from>(p, first + own, reinterpret_cast<const uint8_t *>(block.table), x);
    }
}

bool has_room(const Device &device, size_t bytes) {
    constexpr size_t kCutBytes = 2048;  // and what a block has of its own
    return size_t(device.shared_bytes) >= bytes + kCutBytes;
}

template <qk_format from>
Status launch_rounds(const Problem &p, const Launch &launch) {
    const int64_t rounds = ceil_div(p.count, int64_t{kStep} * chunks_of(from));
    const int64_t blocks = min64(ceil_div(rounds, kTeams), launch.device.multiprocessors);
    const bool ahead = has_room(launch.device, sizeof(Block<from>));
    const size_t bytes = ahead ? sizeof(Block<from>) : kTableBytes;
    return launch_kernel(launch, "quantize",
                         ahead ? quantize_lut8<from, true> : quantize_lut8<from, false>,
                         {dim3(uint32_t(blocks)), kBlockThreads, bytes}, p);
}

Status run(const QuantizeArgs &args, const Launch &launch) {
    const Geometry &s = args.to.geometry;
    const Problem problem = {view_of(args.to), rule_of(args), args.from.data, s.n * s.k,
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
           groups_follow(args) && aligned(w.table, 4) && has_room(device, kTableBytes);
}

}  // namespace

const Kernel<QuantizeArgs> kQuantizeLut8 = {"lut8", can_run, nullptr, run};

}  // namespace qk::cuda
