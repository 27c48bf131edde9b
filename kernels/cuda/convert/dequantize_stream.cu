// Dequantize layouts whose codes run in the order of the output: ROW_HIGH, ROW, WORD, and 8-bit
// codes. value = (entry - zero) * scale as one fp32 product, rounded once; nested scales are
// decoded on the way, in the same launch.
//
// A thread turns 8 codes (4 for f32 outputs) into one 16-byte store; neighbours store side by side.
// kUnits of them are loaded, with their scales, before the first is used. Bytes per output: the
// code, its share of the scale, and the output, each moved once. 16 table entries lie in 16 banks:
// no conflicts. A group's number is the place of its first code divided by the group's size: a
// shift, or, where a group is a row of any length, a division of 32 bits.
#include "cuda/conditions.hpp"
#include "cuda/lists.hpp"
#include "cuda/prim/pack.cuh"
#include "cuda/runtime.hpp"
#include "cuda/view.cuh"

namespace qk::cuda {
namespace {

constexpr int32_t kThreads = 256;
constexpr int kUnits = 8;  // in flight a thread

enum class Codes { kHighFirst, kLowFirst, kBytes };

struct Problem {
    WeightView w;
    void *out;
    int64_t skipped;       // codes before the first
    int64_t count;         // of codes
    int32_t group_shift;   // log2 of group_size; < 0: it is no power of two
    uint32_t group_units;  // group_size / 8
    int32_t second_shift;  // nested: log2 of second_group
};

template <int bits>
struct Word;
template <>
struct Word<16> {
    using Type = uint16_t;
};
template <>
struct Word<32> {
    using Type = uint32_t;
};
template <>
struct Word<64> {
    using Type = uint64_t;
};

template <Codes order>
__device__ uint32_t code_in(uint64_t word, int i) {
    if (order == Codes::kBytes) return uint32_t(word >> 8 * i) & 255;
    return uint32_t(word) >> 4 * (order == Codes::kHighFirst ? i ^ 1 : i) & 15;
}

template <bool shifts>
__device__ int64_t group_of(const Problem &p, int64_t code) {
    if (shifts) return code >> p.group_shift;
    return uint32_t(code / 8) / p.group_units;  // 32 bits: can_run saw to it
}

// A scale as it is stored; nested: its code and its second scale.
struct RawScale {
    uint32_t bits;
    float second;
};

__device__ RawScale load_scale(const Problem &p, int64_t number) {
    switch (p.w.scale_format) {
        case QK_FORMAT_F32:
            return {reinterpret_cast<const uint32_t *>(p.w.scale)[number], 0};
        case QK_FORMAT_LUT8:
            return {p.w.scale[number],
                    reinterpret_cast<const float *>(p.w.second)[number >> p.second_shift]};
        default:
            return {reinterpret_cast<const uint16_t *>(p.w.scale)[number], 0};
    }
}

// Nested: two fp32 roundings, as bitsandbytes computes it.
__device__ float scale_value(const Problem &p, RawScale raw, const float *scale_codes, float bias) {
    switch (p.w.scale_format) {
        case QK_FORMAT_F32:
            return __uint_as_float(raw.bits);
        case QK_FORMAT_F16:
            return __half2float(__ushort_as_half(uint16_t(raw.bits)));
        case QK_FORMAT_BF16:
            return __uint_as_float(raw.bits << 16);
        default:
            return __fadd_rn(__fmul_rn(scale_codes[raw.bits], raw.second), bias);
    }
}

__device__ float group_zero(const Problem &p, int64_t number) {
    if (p.w.kind != FormatKind::kAffine) return 0;
    if (p.w.zero == nullptr) return 8;
    GroupIndex group = {0, number};
    if (!p.w.geometry.flat) {  // 32 bits: can_run saw to it
        const uint32_t per_row = uint32_t(p.w.geometry.groups_per_row);
        group.row = uint32_t(number) / per_row;
        group.group = uint32_t(number) - uint32_t(group.row) * per_row;
    }
    return float(zero_of(p.w, group));
}

// The codes that are left over past the last whole unit.
template <Codes order, bool shifts>
__device__ void finish(const Problem &p, const float *entries, const float *scale_codes, float bias,
                       qk_format to, int64_t first) {
    const int64_t i = first + threadIdx.x;
    if (blockIdx.x != 0 || i >= p.count) return;
    const int64_t at = order == Codes::kHighFirst ? i ^ 1 : i;
    const int code = order == Codes::kBytes ? p.w.data[i] : p.w.data[at >> 1] >> (at & 1) * 4 & 15;
    const int64_t number = group_of<shifts>(p, p.skipped + i);
    const float entry = entries[code] - group_zero(p, number);
    const float scale = scale_value(p, load_scale(p, number), scale_codes, bias);
    store_float(to, p.out, i, __fmul_rn(entry, scale));
}

template <class Out, Codes order, bool shifts>
__global__ void __launch_bounds__(kThreads)
    expand(const __grid_constant__ Problem p, qk_format to) {
    constexpr int kCodes = Store<Out>::kCodes;
    using Bits = typename Word<kCodes *(order == Codes::kBytes ? 8 : 4)>::Type;
    __shared__ float entries[256], scale_codes[256];
    const bool nested = p.w.scale_format == QK_FORMAT_LUT8;
    const float bias = nested ? *reinterpret_cast<const float *>(p.w.bias) : 0.0f;
    if (nested) {
        scale_codes[threadIdx.x] = reinterpret_cast<const float *>(p.w.code)[threadIdx.x];
    }
    const int64_t units = p.count / kCodes;
    const int64_t first = int64_t(blockIdx.x) * (kThreads * kUnits) + threadIdx.x;
    Bits words[kUnits];
    RawScale raw[kUnits];
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {  // every load of the thread is under way before it waits
        const int64_t unit = first + u * kThreads;
        if (unit >= units) break;
        words[u] = __ldcs(reinterpret_cast<const Bits *>(p.w.data) + unit);
        raw[u] = load_scale(p, group_of<shifts>(p, p.skipped + unit * kCodes));
    }
    fill_entries(p.w, entries);
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
        const int64_t unit = first + u * kThreads;
        if (unit >= units) break;
        const float scale = scale_value(p, raw[u], scale_codes, bias);
        const float zero = group_zero(p, group_of<shifts>(p, p.skipped + unit * kCodes));
        float values[kCodes];
#pragma unroll
        for (int i = 0; i < kCodes; ++i) {
            const float entry = __fadd_rn(entries[code_in<order>(words[u], i)], -zero);
            values[i] = __fmul_rn(entry, scale);
        }
        static_cast<uint4 *>(p.out)[unit] = Store<Out>::pack(values);
    }
    finish<order, shifts>(p, entries, scale_codes, bias, to, units * kCodes);
}

template <class Out, bool shifts>
Status run_order(const Problem &p, qk_format to, const Launch &launch) {
    const int64_t units = ceil_div(p.count, Store<Out>::kCodes);
    const Shape3 shape = {dim3(uint32_t(ceil_div(units, kThreads * kUnits))), kThreads};
    if (p.w.bits == 8) {
        const auto kernel = expand<Out, Codes::kBytes, shifts>;
        return launch_kernel(launch, "dequantize", kernel, shape, p, to);
    }
    const auto kernel = p.w.layout == QK_LAYOUT_ROW_HIGH ? expand<Out, Codes::kHighFirst, shifts>
                                                         : expand<Out, Codes::kLowFirst, shifts>;
    return launch_kernel(launch, "dequantize", kernel, shape, p, to);
}

template <class Out>
Status run_groups(const Problem &p, qk_format to, const Launch &launch) {
    return p.group_shift >= 0 ? run_order<Out, true>(p, to, launch)
                              : run_order<Out, false>(p, to, launch);
}

Status run(const DequantizeArgs &args, const Launch &launch) {
    const Geometry &s = args.from.geometry;
    const int64_t second = args.from.scale.second_group;
    const int64_t skipped = args.first_row * s.k;
    Problem problem = {view_of(args.from),
                       args.to.data,
                       skipped,
                       args.to.rows * s.k,
                       power_of_two(s.group_size) ? log2_of(s.group_size) : -1,
                       uint32_t(s.group_size / 8),
                       log2_of(second)};
    problem.w.data += problem.w.bits == 8 ? skipped : skipped / 2;
    switch (args.to.format->id) {
        case QK_FORMAT_F16:
            return run_groups<__half>(problem, QK_FORMAT_F16, launch);
        case QK_FORMAT_BF16:
            return run_groups<__nv_bfloat16>(problem, QK_FORMAT_BF16, launch);
        default:
            return run_groups<float>(problem, QK_FORMAT_F32, launch);
    }
}

// Whether code number r * k + c lies at place r * k + c (but for the order inside a byte).
bool runs_in_order(const Weight &w) {
    switch (w.layout->id) {
        case QK_LAYOUT_ROW_HIGH:
            return true;
        case QK_LAYOUT_ROW:
            return w.format->bits == 8 || w.geometry.k % 2 == 0;
        case QK_LAYOUT_WORD:
            return w.geometry.k % 8 == 0;
        default:
            return false;
    }
}

bool can_run(const DequantizeArgs &args, int32_t) {
    const Weight &w = args.from;
    const Geometry &s = w.geometry;
    const bool numbered = s.flat || s.k % s.group_size == 0;  // group = place / group_size
    const bool divides = power_of_two(s.group_size) || ceil_div(s.n * s.k, 8) < (int64_t{1} << 32);
    return runs_in_order(w) && numbered && args.first_row % 16 == 0 && s.group_size % 8 == 0 &&
           divides && power_of_two(w.scale.second_group) && s.group_count < (int64_t{1} << 31) &&
           ceil_div(s.n * s.k, 4 * kThreads * kUnits) < (int64_t{1} << 31) && aligned(w.data, 8) &&
           aligned(w.scale.data, 4) && aligned(w.scale.second, 4) && aligned(w.scale.code, 4) &&
           aligned(w.scale.bias, 4) && aligned(args.to.data);
}

}  // namespace

const Kernel<DequantizeArgs> kDequantizeStream = {"stream", can_run, nullptr, run};

}  // namespace qk::cuda
