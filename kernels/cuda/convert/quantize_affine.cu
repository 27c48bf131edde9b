// Quantize to U4 with zeros where groups follow one another and codes are stored in the order of
// the numbers; the bytes are the CPU's. As convert/quantize_stream.cu, but that a group's range has
// two ends. Zeros in the order of their groups are put together by a block, which has all of a
// word's; in other layouts a word's groups are in several rows, and zeros are added to cleared
// words one by one.
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
    int32_t shift;       // log2 of the group size
    int64_t zero_words;  // where zeros are stored in the order of the groups; else 0
};

struct AffineDivisor {
    Divisor by;
    int32_t zero;
};

__device__ inline bool is_usual(const AffineDivisor &group) {
    return group.by.reciprocal == group.by.reciprocal;
}

// Of a group's numbers: the smallest one, negated, and the largest one, as bits; NaN if one is
// there. Of 16 bits both are in one word, so that lanes exchange and compare them together.
template <qk_format from>
struct Ends {
    uint32_t words[from == QK_FORMAT_F32 ? 2 : 1];
};

template <qk_format from>
__device__ Ends<from> further(const Ends<from> &a, const Ends<from> &b) {
    if constexpr (from == QK_FORMAT_F32) {
        const auto larger = [&](int i) {
            return __float_as_uint(
                larger_number(__uint_as_float(a.words[i]), __uint_as_float(b.words[i])));
        };
        return {{larger(0), larger(1)}};
    } else {
        return {{larger_numbers(TypeOf<from>{}, a.words[0], b.words[0])}};
    }
}

template <qk_format from>
__device__ Ends<from> ends_of(const Eight<from> &x) {
    if constexpr (from == QK_FORMAT_F32) {
        float least = -x[0], most = x[0];
#pragma unroll
        for (int i = 1; i < kNumbers; ++i) {
            least = larger_number(least, -x[i]);
            most = larger_number(most, x[i]);
        }
        return {{__float_as_uint(least), __float_as_uint(most)}};
    } else {
        constexpr TypeOf<from> type;
        const uint4 &v = x.v[0];
        const uint32_t least =
            larger_numbers(type, larger_negated(type, v.x, v.y), larger_negated(type, v.z, v.w));
        const uint32_t most =
            larger_numbers(type, larger_numbers(type, v.x, v.y), larger_numbers(type, v.z, v.w));
        return {{larger_numbers(type, byte_permute(least, most, 0x5410),
                                byte_permute(least, most, 0x7632))}};
    }
}

template <qk_format from>
__device__ GroupRange range_of(const Ends<from> &ends) {
    float least, most;
    if constexpr (from == QK_FORMAT_F32) {
        least = __uint_as_float(ends.words[0]);
        most = __uint_as_float(ends.words[1]);
    } else {
        least = half_in({ends.words[0], 0, 0, 0}, 0, from);
        most = half_in({ends.words[0], 0, 0, 0}, 1, from);
    }
    GroupRange range;
    range.low = least > 0 ? -least : 0.0f;
    range.high = most > 0 ? most : 0.0f;
    range.nan = most != most;
    return range;
}

// As rounded_to rounds a number, by an instruction.
__device__ inline float rounded_number(qk_format format, float value) {
    switch (format) {
        case QK_FORMAT_F16: return half_in({pack_pair(F16{}, value, 0), 0, 0, 0}, 0, format);
        case QK_FORMAT_BF16: return half_in({pack_pair(BF16{}, value, 0), 0, 0, 0}, 0, format);
        default: return value;
    }
}

__device__ inline GroupScale scale_of(const Problem &p, const GroupRange &range) {
    return affine_scale(range, rounded_number(p.rule.scale_format, exact_affine_scale(range)));
}

// Such a number, or the NaN of a group that has one, which an instruction would store as another.
template <class T>
__device__ uint16_t narrow(T type, float scale) {
    const uint32_t nan = std::is_same_v<T, F16> ? 0x7e00u : 0x7fc0u;
    return uint16_t(scale == scale ? pack_pair(type, scale, 0) : nan);
}

__device__ inline void store_rounded(const Problem &p, int64_t group, float scale) {
    auto *const halves = reinterpret_cast<uint16_t *>(p.w.scale);
    switch (p.rule.scale_format) {
        case QK_FORMAT_F16: halves[group] = narrow(F16{}, scale); return;
        case QK_FORMAT_BF16: halves[group] = narrow(BF16{}, scale); return;
        default: reinterpret_cast<float *>(p.w.scale)[group] = scale;
    }
}

// ---- Zeros

// Those of a block's groups, a nibble each: the smallest have 16 numbers.
constexpr int kZeroWords = kStep * chunks_of(QK_FORMAT_F16) / 16 / kNumbers;

// Where they are stored in another order, in a cleared plane: WORD, or ROW whose rows end with a
// spare nibble.
__device__ inline void scatter_zero(const Problem &p, int64_t group, uint32_t zero) {
    const Geometry &s = p.w.geometry;
    const uint32_t of_row = uint32_t(s.groups_per_row), row = uint32_t(group) / of_row;
    const GroupIndex index = {int64_t{row}, int64_t{uint32_t(group) - row * of_row}};
    const int64_t at =
        p.w.layout == QK_LAYOUT_WORD ? MapWord::zero_at(s, index) : MapRow::zero_at(s, index);
    atomicOr(reinterpret_cast<uint32_t *>(p.w.zero) + at / 8, zero << at % 8 * 4);
}

// Of group number `group`, whose block has the zeros of `words`.
__device__ inline void add_zero(const Problem &p, int64_t group, int zero, uint32_t *words) {
    const uint32_t stored = uint32_t(zero - p.w.zero_offset) & 15u;
    if (p.zero_words == 0) return scatter_zero(p, group, stored);
    const uint32_t swap = p.w.layout == QK_LAYOUT_ROW_HIGH ? 1 : 0;
    const uint32_t at = uint32_t(group) % (kZeroWords * kNumbers) ^ swap;
    atomicOr(&words[at / 8], stored << at % 8 * 4);
}

__device__ inline AffineDivisor divisor_of(const Problem &p, int64_t at, const GroupRange &range,
                                           bool stores, uint32_t *zeros) {
    const GroupScale group = scale_of(p, range);
    if (stores) {
        store_rounded(p, at >> p.shift, group.scale);
        add_zero(p, at >> p.shift, group.zero, zeros);
    }
    return {divisor(group.divisor), group.zero};
}

// Of a whole chunk in a usual group. Its quotients are small: a scale that is rounded to 16 bits
// is not far from what it was.
template <qk_format from>
__device__ uint32_t codes_of(const Eight<from> &x, AffineDivisor group) {
    const int32_t up = group.zero - int32_t(kIntegerBits);
    uint32_t word = 0;
#pragma unroll
    for (int i = kNumbers - 1; i >= 0; --i) {
        const float nearest = quotient_of<from>(x[i], group.by) + kInteger;
        word = word * 16 + uint32_t(__viaddmin_s32_relu(int32_t(__float_as_uint(nearest)), up, 15));
    }
    return word;
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

// Every thread of the block calls it.
template <int kChunks>
__device__ void store_zeros(const Problem &p, const uint32_t *zeros) {
    __syncthreads();
    const uint32_t count = uint32_t(kChunks * kStep) >> p.shift >> 3;
    const int64_t at = int64_t(blockIdx.x) * count + threadIdx.x;
    if (threadIdx.x < count && at < p.zero_words) {
        __stcs(reinterpret_cast<uint32_t *>(p.w.zero) + at, zeros[uint32_t(at) % kZeroWords]);
    }
}

template <qk_format from>
__global__ void __launch_bounds__(kThreads, 4) quantize_affine(const __grid_constant__ Problem p) {
    constexpr int kChunks = chunks_of(from);
    __shared__ uint32_t zeros[kZeroWords];
    const int64_t first = int64_t(blockIdx.x) * kChunks * kStep + threadIdx.x * kNumbers;
    const int32_t rest = int32_t(min64(p.count - first, kChunks * kStep));
    Eight<from> x[kChunks];
    load_numbers(static_cast<const uint4 *>(p.from) + first * Eight<from>::kVectors / kNumbers,
                 rest, x);
    if (threadIdx.x < kZeroWords) zeros[threadIdx.x] = 0;
    __syncthreads();
    Ends<from> ends[kChunks];
#pragma unroll
    for (int i = 0; i < kChunks; ++i) ends[i] = ends_of(x[i]);
    AffineDivisor groups[kChunks];
    const auto compute = [&](int i, const Ends<from> &all, bool stores) {
        const int64_t at = group_start(p.shift, first + i * kStep);
        return divisor_of(p, at, range_of<from>(all), stores && at < p.count, zeros);
    };
    share_groups(p.shift, ends, groups, further<from>, compute);
    bool usual = rest >= (kChunks - 1) * kStep + kNumbers;
#pragma unroll
    for (const AffineDivisor &group : groups) usual &= is_usual(group);
    if (__any_sync(~0u, !usual)) join_groups(p.shift, ends, further<from>);
    if (usual) {
#pragma unroll
        for (int i = 0; i < kChunks; ++i) {
            store_word(p, first + i * kStep, kNumbers, codes_of(x[i], groups[i]));
        }
    } else {
#pragma unroll 1
        for (int i = 0; i < kChunks && i * kStep < rest; ++i) {
            const int64_t at = first + i * kStep;
            const uint32_t word = ask_for_codes(p, at, range_of<from>(picked(ends, i)));
            store_word(p, at, rest - i * kStep, word);
        }
    }
    if (p.zero_words != 0) store_zeros<kChunks>(p, zeros);
}

template <qk_format from>
Status launch_groups(const Problem &p, const Launch &launch) {
    constexpr int64_t kOfBlock = int64_t{kStep} * chunks_of(from);
    const Shape3 shape = {dim3(uint32_t(ceil_div(p.count, kOfBlock))), kThreads};
    return launch_kernel(launch, "quantize", quantize_affine<from>, shape, p);
}

// Whether zero number g is at place g, but for the order inside a byte.
bool zeros_follow(const Weight &w) {
    const Geometry &s = w.geometry;
    switch (w.layout->id) {
        case QK_LAYOUT_ROW_HIGH: return true;
        case QK_LAYOUT_ROW: return s.flat || s.groups_per_row % 2 == 0;
        default: return false;
    }
}

Status run(const QuantizeArgs &args, const Launch &launch) {
    const Weight &w = args.to;
    const Geometry &s = w.geometry;
    const int64_t zero_bytes = w.layout->zero_bytes(s);
    const bool follow = zeros_follow(w);
    if (!follow) {
        const DeviceGuard device(launch.device.index);
        QK_TRY(check(device.error(), launch.error, "quantize"));
        QK_TRY(fill_zero(launch, "quantize", w.zero, zero_bytes));
    }
    const Problem problem = {view_of(w), rule_of(args),         args.from.data,
                             s.n * s.k,  log2_of(s.group_size), follow ? zero_bytes / 4 : 0};
    switch (args.from.format->id) {
        case QK_FORMAT_F16: return launch_groups<QK_FORMAT_F16>(problem, launch);
        case QK_FORMAT_BF16: return launch_groups<QK_FORMAT_BF16>(problem, launch);
        default: return launch_groups<QK_FORMAT_F32>(problem, launch);
    }
}

bool can_run(const QuantizeArgs &args, const Device &) {
    const Weight &w = args.to;
    return rule_of(w) == Rule::kAffine && is_float(*w.scale.format) && runs_in_order(w) &&
           groups_follow(args) && aligned(w.zero, 4) && w.layout->zero_bytes(w.geometry) % 4 == 0 &&
           (zeros_follow(w) || (!w.geometry.flat && w.geometry.group_count < int64_t{1} << 32));
}

}  // namespace

const Kernel<QuantizeArgs> kQuantizeAffine = {"affine", can_run, nullptr, run};

}  // namespace qk::cuda
