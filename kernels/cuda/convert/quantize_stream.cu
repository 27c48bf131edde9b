// Quantize where groups follow one another and codes are stored in the order of the numbers: ROW,
// ROW_HIGH and WORD. Each number is read once and each code stored once; the bytes are the CPU's.
//
// A lane loads 8 numbers as vectors and stores their codes as one word. A group is 2 to 32 lanes,
// which agree on its range by shuffles. All loads of a lane are issued before the first is used.
//
// A code of a look-up format takes no branch and no chain of comparisons: the magnitude picks one
// of 16 buckets, each with one threshold at most, and the bucket's threshold decides between two
// codes. The buckets are found, at compile time, by asking the rule itself (format/quantizer.hpp)
// where its codes change. Quotients are refined products with a reciprocal, which rounds as a
// division does where neither leaves the middle of the exponents. Groups outside of it, with a NaN
// or an infinity, and shorter last groups ask the rule for each number.
#include "backend/quantize_rule.hpp"
#include "cuda/convert/parts.cuh"
#include "cuda/kernels.hpp"
#include "cuda/runtime.hpp"

namespace qk::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kNumbers = 8;  // of a lane, per load

// ---- Look-ups

constexpr int kBuckets = 16;          // of a sign
constexpr float kMagic = 8388608.0f;  // 2^23: a sum's low bits are the nearest integer
constexpr uint32_t kInfinity = 0x7f800000u;

// Magnitudes of bucket b are those that round to b when multiplied. The steps are smaller than
// the distance of any two thresholds, and no threshold is so near to a bucket's edge that it
// matters whether product and sum are rounded together.
QK_HD constexpr float steps_of(qk_format format) {
    return format == QK_FORMAT_FP4_E2M1 ? 2.4f : 14.5f;
}

QK_HD constexpr uint32_t bucket_of(qk_format format, float magnitude) {
    return f32_bits(magnitude * steps_of(format) + kMagic) & (kBuckets - 1);
}

// The last magnitude of a bucket with the first code, and both codes: 1st | 2nd << 16.
struct Buckets {
    float last[2 * kBuckets];
    uint32_t codes[2 * kBuckets];
};

// FP4_BNB's zeros of both signs are among the negative numbers, where they share a code.
constexpr uint32_t smallest_of(qk_format format, bool negative) {
    return format == QK_FORMAT_FP4_BNB && !negative ? 1 : 0;
}

constexpr Buckets make_buckets(qk_format format) {
    Buckets buckets = {};
    for (int i = 0; i < 2 * kBuckets; ++i) {
        const bool negative = i >= kBuckets;
        const uint32_t sign = negative ? 0x80000000u : 0, bucket = uint32_t(i % kBuckets);
        const uint32_t largest = f32_bits((float(kBuckets) - 0.6f) / steps_of(format));
        const auto code = [&](uint32_t bits) {
            return uint32_t(table_code(format, f32_from_bits(bits | sign)));
        };
        const auto first_with = [&](auto holds) {  // of magnitudes, by bisection
            uint32_t low = smallest_of(format, negative), high = largest + 1;
            while (low < high) {
                const uint32_t middle = low + (high - low) / 2;
                if (holds(middle)) {
                    high = middle;
                } else {
                    low = middle + 1;
                }
            }
            return low;
        };
        const uint32_t first = first_with(
            [&](uint32_t bits) { return bucket_of(format, f32_from_bits(bits)) >= bucket; });
        const uint32_t end = first_with(
            [&](uint32_t bits) { return bucket_of(format, f32_from_bits(bits)) > bucket; });
        const uint32_t before = code(first), behind = code(end - 1);
        const uint32_t change = first_with(
            [&](uint32_t bits) { return bits >= end || (bits >= first && code(bits) != before); });
        buckets.last[i] = f32_from_bits(before == behind ? kInfinity : change - 1);
        buckets.codes[i] = before | behind << 16;
    }
    return buckets;
}

QK_HD constexpr bool is_lookup(qk_format format) {
    return format == QK_FORMAT_NF4 || format == QK_FORMAT_FP4_BNB || format == QK_FORMAT_FP4_E2M1;
}

QK_HD constexpr Rule rule_by(qk_format format) {
    switch (format) {
        case QK_FORMAT_FP4_E2M1: return Rule::kE2m1;
        case QK_FORMAT_U4_AFFINE: return Rule::kSymmetric;
        case QK_FORMAT_S8: return Rule::kS8;
        default: return Rule::kAbsmax;
    }
}

struct Problem {
    WeightView w;
    QuantizeRule rule;
    const void *from;
    int64_t count;
    int32_t shift;  // log2 of the group size
    uint32_t pad;   // the code behind an odd run
    Buckets buckets;
};

// ---- Numbers

template <qk_format from>
struct Eight {
    static constexpr int kVectors = from == QK_FORMAT_F32 ? 2 : 1;
    uint4 v[kVectors];

    __device__ float operator[](int i) const {
        if constexpr (from == QK_FORMAT_F32) {
            const uint4 &four = v[i / 4];
            const uint32_t words[4] = {four.x, four.y, four.z, four.w};
            return __uint_as_float(words[i % 4]);
        } else {
            return half_in(v[0], i, from);
        }
    }
};

template <qk_format from>
__device__ Eight<from> load_numbers(const Problem &p, int64_t at) {
    using Bits = std::conditional_t<from == QK_FORMAT_F32, uint32_t, uint16_t>;
    constexpr int kVectors = Eight<from>::kVectors;
    Eight<from> x = {};
    if (at + kNumbers <= p.count) {
        const uint4 *const vectors = static_cast<const uint4 *>(p.from) + at / kNumbers * kVectors;
#pragma unroll
        for (int i = 0; i < kVectors; ++i) x.v[i] = __ldcs(vectors + i);
    } else if (at < p.count) {
        Bits bits[kNumbers] = {};
        for (int i = 0; i < int(p.count - at); ++i) {
            bits[i] = static_cast<const Bits *>(p.from)[at + i];
        }
        memcpy(&x, bits, sizeof(x));
    }
    return x;
}

// The largest magnitude as bits, NaN above all, of the lanes of a group.
template <qk_format from>
__device__ uint32_t largest_of(const Eight<from> &x, int lanes) {
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < kNumbers; ++i) most = max(most, __float_as_uint(x[i]) & 0x7fffffffu);
    for (unsigned other = unsigned(lanes) / 2; other > 0; other /= 2) {
        most = max(most, __shfl_xor_sync(~0u, most, other));
    }
    return most;
}

// ---- Codes

// x / d as a division rounds it, for d in the middle of the exponents and quotients that matter.
__device__ inline float quotient_of(float x, float d, float reciprocal) {
    float q = __fmul_rn(x, reciprocal);
    q = __fmaf_rn(__fmaf_rn(-q, d, x), reciprocal, q);
    return __fmaf_rn(__fmaf_rn(-q, d, x), reciprocal, q);
}

template <qk_format to>
__device__ uint32_t looked_up(const Buckets &buckets, float x, float s) {
    const uint32_t signed_bits = __float_as_uint(to == QK_FORMAT_FP4_E2M1 ? x : s);
    const bool negative = to == QK_FORMAT_FP4_BNB ? !(s > 0) : signed_bits >> 31 != 0;
    const float magnitude = magnitude_of(s);
    const uint32_t bucket = __float_as_uint(__fmaf_rn(magnitude, steps_of(to), kMagic));
    const uint32_t at = (bucket & (kBuckets - 1)) | (negative ? kBuckets : 0);
    const uint32_t codes = buckets.codes[at];
    return magnitude <= buckets.last[at] ? codes & 15 : codes >> 16;
}

template <qk_format to>
__device__ uint32_t integer_of(float q) {
    const float low = to == QK_FORMAT_S8 ? -127 : -8, high = to == QK_FORMAT_S8 ? 127 : 7;
    const float nearest = fminf(fmaxf(q, low), high) + 1.5f * kMagic;  // ties to even
    return __float_as_uint(nearest) + (to == QK_FORMAT_S8 ? 0 : 8);
}

// Whether the codes need not be asked for one by one.
template <qk_format to>
__device__ bool is_usual(const GroupScale &group, uint32_t largest, bool whole) {
    if (to == QK_FORMAT_NF4 || to == QK_FORMAT_FP4_BNB) return whole && largest < kInfinity;
    return largest < kInfinity && group.divisor > 0x1p-60f && group.divisor < 0x1p60f;
}

// What the rule says of one number. noinline: seldom called, and long.
__device__ __noinline__ uint32_t asked(const QuantizeRule &rule, float x, const GroupScale &group) {
    return code_of_value(rule, x, group, nullptr);
}

template <qk_format to, qk_format from>
__device__ void codes_of(const Problem &p, const Buckets &buckets, const Eight<from> &x,
                         const GroupScale &group, bool usual, uint32_t (&codes)[kNumbers]) {
    constexpr bool kMultiplies = to == QK_FORMAT_NF4 || to == QK_FORMAT_FP4_BNB;
    if (!usual) {
#pragma unroll
        for (int i = 0; i < kNumbers; ++i) codes[i] = asked(p.rule, x[i], group);
        return;
    }
    const float reciprocal = kMultiplies ? group.multiplier : __fdiv_rn(1.0f, group.divisor);
#pragma unroll
    for (int i = 0; i < kNumbers; ++i) {
        const float s = kMultiplies ? __fmul_rn(x[i], reciprocal)
                                    : quotient_of(x[i], group.divisor, reciprocal);
        codes[i] = is_lookup(to) ? looked_up<to>(buckets, x[i], s) : integer_of<to>(s);
    }
}

template <qk_format to>
__device__ void store_codes(const Problem &p, int64_t at, uint32_t (&codes)[kNumbers]) {
    constexpr int kBits = to == QK_FORMAT_S8 ? 8 : 4;
    const int swap = p.w.layout == QK_LAYOUT_ROW_HIGH && kBits == 4 ? 1 : 0;
    uint64_t word = 0;
#pragma unroll
    for (int i = 0; i < kNumbers; ++i) {
        word |= uint64_t(codes[i] & ((1u << kBits) - 1)) << kBits * i;
    }
    if (swap != 0) {
        const uint32_t low = uint32_t(word);
        word = (low >> 4 & 0x0f0f0f0fu) | (low << 4 & 0xf0f0f0f0u);
    }
    uint8_t *const bytes = p.w.data + at * kBits / 8;
    if (at + kNumbers > p.count) {
        const int stored = int((p.count - at) * kBits + 7) / 8;
        for (int i = 0; i < stored; ++i) bytes[i] = uint8_t(word >> 8 * i);
    } else if (kBits == 8) {
        __stcs(reinterpret_cast<uint2 *>(bytes), uint2{uint32_t(word), uint32_t(word >> 32)});
    } else {
        __stcs(reinterpret_cast<uint32_t *>(bytes), uint32_t(word));
    }
}

template <qk_format to, qk_format from>
__device__ void quantize_eight(const Problem &p, const Buckets &buckets, int64_t at,
                               const Eight<from> &x) {
    const int lanes = 1 << (p.shift - 3);
    const uint32_t largest = largest_of(x, lanes);
    if (at >= p.count) return;
    const int64_t number = at >> p.shift, first = number << p.shift;
    const int64_t size = min64(int64_t{1} << p.shift, p.count - first);
    GroupRange range;
    range.nan = largest > kInfinity;
    range.absmax = range.nan ? 0 : __uint_as_float(largest);
    QuantizeRule rule = p.rule;
    rule.by = rule_by(to);  // known to the compiler
    const GroupScale group = scale_of_range(rule, range, size, 1.0f);
    if (at == first && p.rule.scale_format != QK_FORMAT_LUT8) {
        store_float(p.rule.scale_format, p.w.scale, number, group.scale);
    }
    const bool usual = is_usual<to>(group, largest, size == int64_t{1} << p.shift);
    uint32_t codes[kNumbers];
    codes_of<to>(p, buckets, x, group, usual, codes);
    if (at + kNumbers > p.count) {
#pragma unroll
        for (int i = 0; i < kNumbers; ++i) {
            if (at + i >= p.count) codes[i] = p.pad;
        }
    }
    store_codes<to>(p, at, codes);
}

// Loads that a lane has under way: 64 bytes.
QK_HD constexpr int units_of(qk_format from) { return from == QK_FORMAT_F32 ? 2 : 4; }

template <qk_format to, qk_format from>
__global__ void __launch_bounds__(kThreads) quantize_groups(const __grid_constant__ Problem p) {
    constexpr int kUnits = units_of(from);
    __shared__ Buckets buckets;
    const int64_t first = (int64_t(blockIdx.x) * kUnits * kThreads + threadIdx.x) * kNumbers;
    Eight<from> x[kUnits];
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
        x[i] = load_numbers<from>(p, first + i * kThreads * kNumbers);
    }
    if (is_lookup(to)) {
        if (threadIdx.x < 2 * kBuckets) {
            buckets.last[threadIdx.x] = p.buckets.last[threadIdx.x];
            buckets.codes[threadIdx.x] = p.buckets.codes[threadIdx.x];
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
        quantize_eight<to>(p, buckets, first + i * kThreads * kNumbers, x[i]);
    }
}

template <qk_format to, qk_format from>
Status launch_groups(const Problem &p, const Launch &launch) {
    constexpr int64_t kOfBlock = int64_t{kThreads} * kNumbers * units_of(from);
    const Shape3 shape = {dim3(uint32_t(ceil_div(p.count, kOfBlock))), kThreads};
    return launch_kernel(launch, "quantize", quantize_groups<to, from>, shape, p);
}

template <qk_format to>
Status run_format(Problem &p, const Launch &launch) {
    if constexpr (is_lookup(to)) {
        static constexpr Buckets kOfFormat = make_buckets(to);
        p.buckets = kOfFormat;
    }
    switch (p.rule.from_format) {
        case QK_FORMAT_F16: return launch_groups<to, QK_FORMAT_F16>(p, launch);
        case QK_FORMAT_BF16: return launch_groups<to, QK_FORMAT_BF16>(p, launch);
        default: return launch_groups<to, QK_FORMAT_F32>(p, launch);
    }
}

Status run(const QuantizeArgs &args, const Launch &launch) {
    const Weight &w = args.to;
    const Geometry &s = w.geometry;
    if (is_nested(w)) QK_TRY(nest_scales(args, launch));
    const bool pads = w.layout->id == QK_LAYOUT_ROW_HIGH && w.format->kind == FormatKind::kLut4;
    Problem problem = {
        view_of(w), rule_of(args),         args.from.data,
        s.n * s.k,  log2_of(s.group_size), pads ? table_code(w.format->id, 0.0f) : 0u,
        {}};
    switch (w.format->id) {
        case QK_FORMAT_NF4: return run_format<QK_FORMAT_NF4>(problem, launch);
        case QK_FORMAT_FP4_BNB: return run_format<QK_FORMAT_FP4_BNB>(problem, launch);
        case QK_FORMAT_FP4_E2M1: return run_format<QK_FORMAT_FP4_E2M1>(problem, launch);
        case QK_FORMAT_U4_AFFINE: return run_format<QK_FORMAT_U4_AFFINE>(problem, launch);
        default: return run_format<QK_FORMAT_S8>(problem, launch);
    }
}

bool takes_rule(const Weight &w) {
    const Rule rule = rule_of(w);
    return (is_float(*w.scale.format) || is_nested(w)) && rule != Rule::kNone &&
           rule == rule_by(w.format->id);
}

// Whether code number r * k + c is at place r * k + c, but for the order inside a byte.
bool runs_in_order(const Weight &w) {
    switch (w.layout->id) {
        case QK_LAYOUT_ROW_HIGH: return true;
        case QK_LAYOUT_ROW: return w.format->bits == 8 || w.geometry.k % 2 == 0;
        case QK_LAYOUT_WORD: return w.geometry.k % 8 == 0;
        default: return false;
    }
}

bool can_run(const QuantizeArgs &args, const Device &) {
    const Weight &w = args.to;
    const Geometry &s = w.geometry;
    const bool follow = s.flat || s.k % s.group_size == 0;
    return !is_records(w) && runs_in_order(w) && follow && takes_rule(w) && s.group_size >= 16 &&
           s.group_size <= 256 && power_of_two(s.group_size) &&
           ceil_div(s.n * s.k, kThreads * kNumbers * 2) < (int64_t{1} << 31) &&
           aligned(args.from.data) && aligned(w.data, 8);
}

}  // namespace

const Kernel<QuantizeArgs> kQuantizeStream = {"stream", can_run, nullptr, run};

}  // namespace qk::cuda
