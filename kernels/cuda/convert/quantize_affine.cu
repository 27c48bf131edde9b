// Quantize to U4 with zeros where groups follow one another and codes are stored in the order of
// the numbers; the bytes are the CPU's. As convert/quantize_stream.cu, but that a group's range has
// two ends. Zeros of one word belong to several groups, in some layouts to several rows: they are
// added to cleared words one by one.
#include "backend/quantize_rule.hpp"
#include "cuda/convert/chunks.cuh"
#include "cuda/kernels.hpp"
#include "cuda/runtime.hpp"

namespace qk::cuda {
namespace {

struct Problem {
    WeightView w;
    QuantizeRule rule;
    const void *from;
    int64_t count;
    int32_t shift;  // log2 of the group size
};

struct AffineDivisor {
    Divisor by;
    int32_t zero;
};

__device__ inline bool is_usual(const AffineDivisor &group) {
    return group.by.reciprocal == group.by.reciprocal;
}

// Of a group's numbers: the ends of their range, 0 or further out, as bits of f32; the largest
// magnitude, which alone shows a NaN.
struct Ends {
    uint32_t low, high, largest;
};

template <qk_format from>
__device__ Ends ends_of(const Eight<from> &x) {
    float least = 0, most = 0;
#pragma unroll
    for (int i = 0; i < kNumbers; ++i) {
        least = fminf(least, x[i]);
        most = fmaxf(most, x[i]);
    }
    return {__float_as_uint(least), __float_as_uint(most), x.largest()};
}

// Highs with a sign: of two zeros fmaxf may give -0 on a host.
template <qk_format from>
__device__ Ends further(const Ends &a, const Ends &b) {
    return {max(a.low, b.low), uint32_t(max(int32_t(a.high), int32_t(b.high))),
            larger<from>(a.largest, b.largest)};
}

template <qk_format from>
__device__ GroupRange range_of(const Ends &ends) {
    GroupRange range;
    range.low = __uint_as_float(ends.low);
    range.high = __uint_as_float(ends.high);
    range.nan = largest_of<from>(ends.largest) > kInfinity;
    return range;
}

__device__ inline GroupScale scale_of(const Problem &p, const GroupRange &range) {
    QuantizeRule rule = p.rule;
    rule.by = Rule::kAffine;  // known to the compiler
    return scale_of_range(rule, range, p.rule.group_size, 1.0f);
}

__device__ inline void store_zero(const Problem &p, GroupIndex index, int zero) {
    const int64_t at = zero_at(p.w, index);
    const uint32_t stored = uint32_t(zero - p.w.zero_offset) & 15u;
    atomicOr(reinterpret_cast<uint32_t *>(p.w.zero) + at / 8, stored << at % 8 * 4);
}

__device__ inline AffineDivisor divisor_of(const Problem &p, int64_t at, const GroupRange &range,
                                           bool stores) {
    const GroupScale group = scale_of(p, range);
    if (stores) {
        const GroupIndex index = group_from_number(p.w.geometry, at >> p.shift);
        store_scale(p.rule.scale_format, p.w.scale, at >> p.shift, group.scale);
        store_zero(p, index, group.zero);
    }
    return {divisor(group.divisor), group.zero};
}

// Of a whole chunk in a usual group.
template <qk_format from>
__device__ uint32_t codes_of(const Eight<from> &x, AffineDivisor group) {
    const float low = float(-group.zero), high = float(15 - group.zero);
    const uint32_t zero = uint32_t(group.zero);
    return nibbles_of([&](int i) {
        const float q = quotient_of<from>(x[i], group.by);
        return __float_as_uint(fminf(fmaxf(q, low), high) + kInteger) + zero;
    });
}

// What the rule says of each number of a chunk. noinline: seldom called, and long.
__device__ __noinline__ uint32_t ask_for_codes(const Problem &p, int64_t at, GroupRange range) {
    QuantizeRule rule = p.rule;
    rule.by = Rule::kAffine;
    const GroupScale group = scale_of(p, range);
    uint32_t word = 0;
#pragma unroll 1
    for (int i = 0; i < kNumbers && at + i < p.count; ++i) {
        const float x = load_float(rule.from_format, p.from, at + i);
        word |= uint32_t(code_of_value(rule, x, group, nullptr)) << 4 * i;
    }
    return word;
}

__device__ inline void store_word(const Problem &p, int64_t at, int32_t left, uint32_t word) {
    if (p.w.layout == QK_LAYOUT_ROW_HIGH) {
        word = (word >> 4 & 0x0f0f0f0fu) | (word << 4 & 0xf0f0f0f0u);
    }
    if (left >= kNumbers) {
        __stcs(reinterpret_cast<uint32_t *>(p.w.data) + at / kNumbers, word);
        return;
    }
    for (int i = 0; i < (left + 1) / 2; ++i) p.w.data[at / 2 + i] = uint8_t(word >> 8 * i);
}

template <qk_format from>
__global__ void __launch_bounds__(kThreads) quantize_affine(const __grid_constant__ Problem p) {
    constexpr int kChunks = chunks_of(from);
    const int64_t first = int64_t(blockIdx.x) * kChunks * kStep + threadIdx.x * kNumbers;
    const int32_t rest = int32_t(min64(p.count - first, kChunks * kStep));
    Eight<from> x[kChunks];
    load_numbers(static_cast<const uint4 *>(p.from) + first * Eight<from>::kVectors / kNumbers,
                 rest, x);
    Ends ends[kChunks];
#pragma unroll
    for (int i = 0; i < kChunks; ++i) ends[i] = ends_of(x[i]);
    AffineDivisor groups[kChunks];
    share_groups(p.shift, ends, groups, further<from>, [&](int i, const Ends &all, bool stores) {
        const int64_t at = group_start(p.shift, first + i * kStep);
        return divisor_of(p, at, range_of<from>(all), stores && at < p.count);
    });
    bool usual = rest >= (kChunks - 1) * kStep + kNumbers;
#pragma unroll
    for (const AffineDivisor &group : groups) usual &= is_usual(group);
    if (__any_sync(~0u, !usual)) join_groups(p.shift, ends, further<from>);
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
        const int64_t at = first + i * kStep;
        const int32_t left = rest - i * kStep;
        if (left >= kNumbers && is_usual(groups[i])) {
            store_word(p, at, left, codes_of(x[i], groups[i]));
        } else if (left > 0) {
            store_word(p, at, left, ask_for_codes(p, at, range_of<from>(ends[i])));
        }
    }
}

template <qk_format from>
Status launch_groups(const Problem &p, const Launch &launch) {
    constexpr int64_t kOfBlock = int64_t{kStep} * chunks_of(from);
    const Shape3 shape = {dim3(uint32_t(ceil_div(p.count, kOfBlock))), kThreads};
    return launch_kernel(launch, "quantize", quantize_affine<from>, shape, p);
}

Status run(const QuantizeArgs &args, const Launch &launch) {
    const Weight &w = args.to;
    const Geometry &s = w.geometry;
    {
        const DeviceGuard device(launch.device.index);
        QK_TRY(check(device.error(), launch.error, "quantize"));
        QK_TRY(fill_zero(launch, "quantize", w.zero, w.layout->zero_bytes(s)));
    }
    const Problem problem = {view_of(w), rule_of(args), args.from.data, s.n * s.k,
                             log2_of(s.group_size)};
    switch (args.from.format->id) {
        case QK_FORMAT_F16: return launch_groups<QK_FORMAT_F16>(problem, launch);
        case QK_FORMAT_BF16: return launch_groups<QK_FORMAT_BF16>(problem, launch);
        default: return launch_groups<QK_FORMAT_F32>(problem, launch);
    }
}

bool can_run(const QuantizeArgs &args, const Device &) {
    const Weight &w = args.to;
    return rule_of(w) == Rule::kAffine && is_float(*w.scale.format) && runs_in_order(w) &&
           groups_follow(args) && aligned(w.zero, 4) && w.layout->zero_bytes(w.geometry) % 4 == 0;
}

}  // namespace

const Kernel<QuantizeArgs> kQuantizeAffine = {"affine", can_run, nullptr, run};

}  // namespace qk::cuda
