// Dequantize layouts whose codes run in the order of the output: ROW_HIGH, ROW, WORD, AWQ_GEMV, and
// 8-bit codes. value = (entry - zero) * scale as one fp32 product, or entry * scale less a minimum,
// rounded once; nested scales are decoded on the way, in the same launch.
//
//   a block takes   16 KiB of codes, as stored       -> shared memory
//                   the scales of their groups       -> f32 there, each decoded once, and zeros
//                   8 codes a thread (f32 out: 4)    -> a store of 16 bytes, lanes side by side
//
// Every load of a thread is issued before it waits for the first. Bytes per output: the code,
// its share of the scale, and the output, each moved once. 16 table entries are in 16 banks: no
// conflicts; u4 codes are looked up nowhere. Groups are numbered one after the other,
// so a place in the block divided by the size of a group (or by that of a row first, where rows end
// with a smaller group) says which one: a product with its inverse. Groups may end inside a store.
#include "cuda/convert/parts.cuh"
#include "cuda/kernels.hpp"
#include "cuda/runtime.hpp"
#include "cuda/view.cuh"

namespace qk::cuda {
namespace {

constexpr int32_t kThreads = 256;
constexpr uint32_t kBlockBytes = 16 * 1024, kPieces = kBlockBytes / 8 / kThreads;
constexpr uint32_t kMostCodes = kBlockBytes * 2;  // of a block
constexpr uint32_t kGroups = 2056;                // of a block at most; of 16 codes 2049
constexpr uint32_t kNever = ~0u;

enum class Codes { kHighFirst, kLowFirst, kBytes };

struct Problem {
    WeightView w;
    void *out;
    int64_t skipped;          // codes before the first
    int64_t count;            // of codes
    uint64_t inverse;         // of `stride`: for places in the weight
    int64_t stride;           // a row's codes where rows end with a smaller group, else a group's
    int64_t stride_groups;    // groups of so many codes
    IndexDivisor row, group;  // row: kNever where groups are all of one size
    uint32_t groups_per_row;
    int64_t row_scales;    // AWQ_GEMV: of a row, as padded; else 0
    uint32_t group_step;   // groups from a thread's store to its next; 0: not always as many
    int32_t second_shift;  // nested: log2 of second_group
};

// Where a block's groups begin, and where it begins itself.
struct Start {
    int64_t number;  // of the group that `place` counts from
    uint32_t place;  // of the block's first code
    uint32_t first;  // group of the block, from there
};

// The group of the code at `place`; left: how many codes it has from there on.
__device__ uint32_t group_at(const Problem &p, uint32_t place, uint32_t *left) {
    const uint32_t row = p.row.divide(place), column = place - row * p.row.size;
    const uint32_t group = p.group.divide(column);
    *left = min((group + 1) * p.group.size, p.row.size) - column;
    return row * p.groups_per_row + group;
}

__device__ uint32_t group_at(const Problem &p, uint32_t place) {
    uint32_t left;
    return group_at(p, place, &left);
}

__device__ Start start_of(const Problem &p, int64_t code) {
    const int64_t strides = int64_t(__umul64hi(uint64_t(code), p.inverse));
    const uint32_t place = uint32_t(code - strides * p.stride);
    return {strides * p.stride_groups, place, group_at(p, place)};
}

// A scale or a minimum as it is stored, or its code and its second scale.
struct RawScale {
    uint32_t bits;
    float second;
};

__device__ RawScale load_scale(const Problem &p, const uint8_t *plane, const uint8_t *seconds,
                               int64_t at, int64_t number) {
    switch (p.w.scale_format) {
        case QK_FORMAT_F32: return {reinterpret_cast<const uint32_t *>(plane)[at], 0};
        case QK_FORMAT_LUT8:
            return {plane[at], reinterpret_cast<const float *>(seconds)[number >> p.second_shift]};
        default: return {reinterpret_cast<const uint16_t *>(plane)[at], 0};
    }
}

struct RawGroup {
    RawScale scale;
    RawScale minimum;  // kLowered
    uint32_t zero;
};

// `scale`: the place of the group's scale.
__device__ uint32_t zero_of(const Problem &p, GroupIndex group, int64_t scale) {
    const Geometry &s = p.w.geometry;
    const int64_t at = p.w.layout == QK_LAYOUT_AWQ_GEMV   ? scale
                       : p.w.layout == QK_LAYOUT_WORD     ? MapWord::zero_at(s, group)
                       : p.w.layout == QK_LAYOUT_ROW_HIGH ? MapRowHigh::zero_at(s, group)
                                                          : MapRow::zero_at(s, group);
    return uint32_t((p.w.zero[at >> 1] >> (at & 1) * 4 & 15) + p.w.zero_offset) & 15;
}

// kZeros: whether there may be some.
template <bool kZeros, Entries entries>
__device__ RawGroup load_group(const Problem &p, int64_t number) {
    RawGroup raw = {{0, 0}, {0, 0}, 8};
    int64_t at = number;
    if (p.row_scales != 0 || (kZeros && p.w.zero != nullptr)) {
        GroupIndex index = {0, number};
        if (!p.w.geometry.flat) {  // 32 bits: can_run saw to it
            index.row = uint32_t(number) / p.groups_per_row;
            index.group = number - index.row * p.groups_per_row;
        }
        if (p.row_scales != 0) at = index.row * p.row_scales + index.group;
        if (kZeros && p.w.zero != nullptr) raw.zero = zero_of(p, index, at);
    }
    raw.scale = load_scale(p, p.w.scale, p.w.second, at, number);
    if (entries == Entries::kLowered) {
        raw.minimum = load_scale(p, p.w.minimum, p.w.minimum_second, at, number);
    }
    return raw;
}

// Nested: two fp32 roundings, as bitsandbytes computes it.
__device__ float scale_value(const Problem &p, const RawScale &raw, const float *scale_codes,
                             float bias) {
    switch (p.w.scale_format) {
        case QK_FORMAT_F32: return __uint_as_float(raw.bits);
        case QK_FORMAT_F16: return __half2float(__ushort_as_half(uint16_t(raw.bits)));
        case QK_FORMAT_BF16: return __uint_as_float(raw.bits << 16);
        default: return nested_scale(scale_codes[raw.bits], raw.second, bias);
    }
}

template <int bits>
using Word =
    std::conditional_t<bits == 64, uint64_t, std::conditional_t<bits == 32, uint32_t, uint16_t>>;

template <Codes order>
__device__ uint32_t code_in(uint64_t word, int i) {
    if (order == Codes::kBytes) return uint32_t(word >> 8 * i) & 255;
    return uint32_t(word) >> 4 * (order == Codes::kHighFirst ? i ^ 1 : i) & 15;
}

// 2^23 + code as a float, so that one subtraction gives code - zero, exactly; a byte's sign is
// turned, and its zero is 128.
template <Codes order>
__device__ float biased(uint32_t code) {
    return __uint_as_float(0x4b000000u | (order == Codes::kBytes ? code ^ 128 : code));
}

__host__ __device__ constexpr uint32_t bits_of(Codes order) {
    return order == Codes::kBytes ? 8 : 4;
}

// What the threads of a block share. Groups of 4-bit numbers have zeros beside their scales, those
// of numbers with minima have these.
template <Codes order, Entries kind>
struct Block {
    static constexpr bool kZeros = kind == Entries::kNumbers && order != Codes::kBytes;
    static constexpr bool kPairs = kZeros || kind == Entries::kLowered;
    uint2 codes[kBlockBytes / 8];
    float2 groups[kPairs ? kGroups : 1];
    float scales[kPairs ? 1 : kGroups], scale_codes[256];
    float entries[kind == Entries::kTable ? 1 << bits_of(order) : 1];
};

// Codes, the groups' scales and zeros, and the table to shared memory.
template <Codes order, Entries kind>
__device__ void stage(const Problem &p, const Start &start, int64_t first, uint32_t codes,
                      Block<order, kind> &block) {
    // Groups a thread asks for before it waits; more that have zeros would cost blocks their
    // registers.
    constexpr uint32_t kAhead = kind == Entries::kTable ? 4 : 2;
    const uint32_t bytes = order == Codes::kBytes ? codes : (codes + 1) / 2;
    const uint8_t *const from = p.w.data + (order == Codes::kBytes ? first : first / 2);
    uint2 pieces[kPieces];
    const uint32_t own = threadIdx.x * 8;
    load_pieces<kThreads * 8>(from + own, int32_t(bytes - own), pieces);
    const uint32_t groups = group_at(p, start.place + codes - 1) - start.first + 1;
    const int64_t number = start.number + start.first;
    RawGroup raw[kAhead] = {};
    const auto ask = [&](uint32_t first_group) {
#pragma unroll
        for (uint32_t i = 0; i < kAhead; ++i) {
            const uint32_t at = first_group + i * kThreads;
            if (at >= groups) continue;
            raw[i] = load_group<Block<order, kind>::kZeros, kind>(p, number + at);
        }
    };
    ask(threadIdx.x);
    const bool nested = p.w.scale_format == QK_FORMAT_LUT8;
    const bool looks_up = kind == Entries::kTable && threadIdx.x < 1u << bits_of(order);
    const float entry = looks_up ? entry_of(p.w, int(threadIdx.x)) : 0.0f;
    const float bias = nested ? *reinterpret_cast<const float *>(p.w.bias) : 0.0f;
    if (nested) {
        block.scale_codes[threadIdx.x] = reinterpret_cast<const float *>(p.w.code)[threadIdx.x];
        __syncthreads();
    }
#pragma unroll
    for (uint32_t i = 0; i < kPieces; ++i) block.codes[threadIdx.x + i * kThreads] = pieces[i];
    if (looks_up) block.entries[threadIdx.x] = entry;
    const auto store = [&](uint32_t at, const RawGroup &group) {
        const float scale = scale_value(p, group.scale, block.scale_codes, bias);
        if (kind == Entries::kLowered) {
            block.groups[at] = {scale, scale_value(p, group.minimum, block.scale_codes, bias)};
        } else if (Block<order, kind>::kZeros) {
            block.groups[at] = {scale, biased<order>(group.zero)};
        } else {
            block.scales[at] = scale;
        }
    };
    for (uint32_t from = threadIdx.x; from < groups; from += kAhead * kThreads) {
        if (from != threadIdx.x) ask(from);
#pragma unroll
        for (uint32_t i = 0; i < kAhead; ++i) {
            if (from + i * kThreads < groups) store(from + i * kThreads, raw[i]);
        }
    }
    __syncthreads();
}

// The scale of a group of the block with its zero or minimum, and what its codes are worth.
template <Codes order, Entries kind>
struct Group {
    const Block<order, kind> &block;
    float scale, zero, minimum = 0;

    __device__ Group(const Block<order, kind> &b, uint32_t at) : block(b) {
        zero = biased<order>(0);
        if (Block<order, kind>::kPairs) {
            const float2 both = b.groups[at];
            scale = both.x;
            (kind == Entries::kLowered ? minimum : zero) = both.y;
        } else {
            scale = b.scales[at];
        }
    }
    __device__ float value(uint32_t code) const {
        const float entry =
            kind == Entries::kTable ? block.entries[code] : __fadd_rn(biased<order>(code), -zero);
        const float value = __fmul_rn(entry, scale);
        return kind == Entries::kLowered ? __fadd_rn(value, -minimum) : value;
    }
};

template <class Out, Codes order, Entries kind>
__global__ void __launch_bounds__(kThreads)
    expand(const __grid_constant__ Problem p, qk_format to) {
    constexpr uint32_t kCodes = Store<Out>::kCodes;
    constexpr uint32_t kBlockCodes = kBlockBytes * 8 / bits_of(order);
    using Bits = Word<kCodes * bits_of(order)>;
    __shared__ Block<order, kind> block;
    const int64_t first = int64_t(blockIdx.x) * kBlockCodes;
    const uint32_t codes = uint32_t(min64(p.count - first, kBlockCodes));
    const Start start = start_of(p, p.skipped + first);
    stage(p, start, first, codes, block);
    const Bits *const words = reinterpret_cast<const Bits *>(block.codes);
    uint4 *const out = static_cast<uint4 *>(p.out) + first / kCodes;
    uint32_t left, group = group_at(p, start.place + threadIdx.x * kCodes, &left) - start.first;
    const uint32_t step = p.group_step;
#pragma unroll 4
    for (uint32_t unit = threadIdx.x; unit < codes / kCodes; unit += kThreads) {
        const uint64_t word = words[unit];
        if (step == 0) group = group_at(p, start.place + unit * kCodes, &left) - start.first;
        const Group<order, kind> here(block, group);
        float values[kCodes];
#pragma unroll
        for (uint32_t i = 0; i < kCodes; ++i) values[i] = here.value(code_in<order>(word, int(i)));
        if (step == 0 && left < kCodes) {
            const Group<order, kind> next(block, group + 1);
#pragma unroll
            for (uint32_t i = 1; i < kCodes; ++i) {
                if (i >= left) values[i] = next.value(code_in<order>(word, int(i)));
            }
        }
        __stcs(out + unit, Store<Out>::pack(values));
        group += step;
    }
    const uint32_t rest = codes / kCodes * kCodes + threadIdx.x;  // past the last whole store
    if (rest >= codes) return;
    const uint8_t *const bytes = reinterpret_cast<const uint8_t *>(block.codes);
    const uint32_t byte = bytes[order == Codes::kBytes ? rest : rest / 2];
    const uint32_t high = order == Codes::kHighFirst ? ~rest & 1 : rest & 1;
    const uint32_t code = order == Codes::kBytes ? byte : byte >> high * 4 & 15;
    const Group<order, kind> here(block, group_at(p, start.place + rest) - start.first);
    store_float(to, p.out, first + rest, here.value(code));
}

template <class Out, Entries kind>
Status run_order(const Problem &p, qk_format to, const Launch &launch) {
    const int64_t codes = int64_t{kBlockBytes} * 8 / p.w.bits;
    const Shape3 shape = {dim3(uint32_t(ceil_div(p.count, codes))), kThreads};
    if (p.w.bits == 8) {
        const auto kernel = expand<Out, Codes::kBytes, kind>;
        return launch_kernel(launch, "dequantize", kernel, shape, p, to);
    }
    const auto kernel = p.w.layout == QK_LAYOUT_ROW_HIGH ? expand<Out, Codes::kHighFirst, kind>
                                                         : expand<Out, Codes::kLowFirst, kind>;
    return launch_kernel(launch, "dequantize", kernel, shape, p, to);
}

template <class Out>
Status run_kind(const Problem &p, qk_format to, const Launch &launch) {
    const bool numbers = p.w.kind == FormatKind::kU4 || p.w.kind == FormatKind::kS8;
    if (p.w.lowered) return run_order<Out, Entries::kLowered>(p, to, launch);
    return numbers ? run_order<Out, Entries::kNumbers>(p, to, launch)
                   : run_order<Out, Entries::kTable>(p, to, launch);
}

// Whether rows end with a smaller group: groups are counted row by row then.
bool ends_small(const Geometry &s) { return !s.flat && s.k % s.group_size != 0; }

Status run(const DequantizeArgs &args, const Launch &launch) {
    const Geometry &s = args.from.geometry;
    const int64_t skipped = args.first_row * s.k;
    const bool rows = ends_small(s), awq = args.from.layout->id == QK_LAYOUT_AWQ_GEMV;
    const int64_t stride = rows ? s.k : s.group_size;
    const int64_t stores = kThreads * (args.to.format->id == QK_FORMAT_F32 ? 4 : 8);
    Problem problem = {view_of(args.from),
                       args.to.data,
                       skipped,
                       args.to.rows * s.k,
                       ~uint64_t{0} / uint64_t(stride) + 1,
                       stride,
                       rows ? s.groups_per_row : 1,
                       rows ? index_divisor(s.k) : IndexDivisor{kNever, 0},
                       index_divisor(s.group_size),
                       uint32_t(s.groups_per_row),
                       awq ? 8 * MapAwqGemv::zero_words(s) : 0,
                       rows || stores % s.group_size != 0 ? 0 : uint32_t(stores / s.group_size),
                       log2_of(args.from.scale.second_group)};
    problem.w.data += problem.w.bits == 8 ? skipped : skipped / 2;
    switch (args.to.format->id) {
        case QK_FORMAT_F16: return run_kind<__half>(problem, QK_FORMAT_F16, launch);
        case QK_FORMAT_BF16: return run_kind<__nv_bfloat16>(problem, QK_FORMAT_BF16, launch);
        default: return run_kind<float>(problem, QK_FORMAT_F32, launch);
    }
}

// Whether code number r * k + c is at place r * k + c (but for the order inside a byte).
bool runs_in_order(const Weight &w) {
    switch (w.layout->id) {
        case QK_LAYOUT_ROW_HIGH: return true;
        case QK_LAYOUT_ROW: return w.format->bits == 8 || w.geometry.k % 2 == 0;
        case QK_LAYOUT_WORD:
        case QK_LAYOUT_AWQ_GEMV: return w.geometry.k % 8 == 0;
        default: return false;
    }
}

// Whether a store meets two groups at most, a block no more than it has room for, and the divisions
// are exact.
bool takes_groups(const Geometry &s) {
    const int64_t limit = int64_t{1} << 31, codes = s.n * s.k;
    if (s.group_size < 8 || s.group_size >= limit || s.group_count >= limit) return false;
    if (!ends_small(s)) {
        return kMostCodes / s.group_size + 2 <= kGroups &&
               codes < (int64_t{1} << 62) / s.group_size;
    }
    return s.k < limit && s.k % s.group_size >= 7 && s.k * s.group_size < (int64_t{1} << 32) &&
           (kMostCodes / s.k + 2) * s.groups_per_row <= kGroups && codes < (int64_t{1} << 62) / s.k;
}

bool can_run(const DequantizeArgs &args, const Device &) {
    const Weight &w = args.from;
    return is_compact(args.to) && runs_in_order(w) && takes_groups(w.geometry) &&
           args.first_row % 16 == 0 && power_of_two(w.scale.second_group) && !w.scale.divides &&
           ceil_div(args.to.rows * w.geometry.k, kMostCodes / 2) < (int64_t{1} << 31) &&
           aligned(w.data, 8) && aligned(w.scale.data, 4) && aligned(w.scale.second, 4) &&
           aligned(w.scale.code, 4) && aligned(w.scale.bias, 4) && aligned(w.minimum.data, 4) &&
           aligned(w.minimum.second, 4) && aligned(args.to.data);
}

}  // namespace

const Kernel<DequantizeArgs> kDequantizeStream = {"stream", can_run, nullptr, run};

}  // namespace qk::cuda
