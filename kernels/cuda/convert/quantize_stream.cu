// Quantize where groups follow one another and codes are stored in the order of the numbers: ROW,
// ROW_HIGH and WORD. Each number is read once and each code stored once; the bytes are the CPU's.
//
// A lane loads chunks of 8 numbers as vectors and stores the codes of each as one word. A group is
// 2 to 32 lanes, which agree on its range by shuffles; its scale is computed by one of them and
// shared. All loads of a lane are issued before the first is used.
//
// A code of a look-up format takes no branch (convert/ranks.cuh). Quotients are refined products
// with a reciprocal, which rounds as a division does where neither leaves the middle of the
// exponents. Groups outside of it, with a NaN or an infinity, and shorter last groups ask the rule
// for each number.
#include "backend/quantize_rule.hpp"
#include "cuda/convert/chunks.cuh"
#include "cuda/convert/nest.hpp"
#include "cuda/convert/ranks.cuh"
#include "cuda/kernels.hpp"
#include "cuda/runtime.hpp"

namespace qk::cuda {
namespace {

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
    int64_t count, whole;   // numbers; those of whole groups
    int32_t shift;          // log2 of the group size
    uint32_t pad;           // the code behind an odd run
    int32_t swap;           // bits by which the nibbles of a byte change places: 4, or 0
    Thresholds thresholds;  // NF4
    Cells cells;            // FP4_BNB
    void *scale;            // where and as what scales are stored; null: they are there
    qk_format scale_format;
    bool scales_only;
};

// ---- Scales

QK_HD constexpr bool multiplies(qk_format format) {
    return format == QK_FORMAT_NF4 || format == QK_FORMAT_FP4_BNB;
}

// The largest magnitude of a usual group. FP4_BNB: times the multiplier no number of 16 bits but 0
// becomes 0.
template <qk_format to>
__device__ uint32_t usual_limit(const Problem &p) {
    const bool low = to == QK_FORMAT_FP4_BNB && p.rule.from_format == QK_FORMAT_BF16;
    return low ? __float_as_uint(0x1p15f) : kInfinity - 1;
}

template <qk_format to>
using DivisorOf = std::conditional_t<multiplies(to), Multiplier, Divisor>;

template <qk_format to>
__device__ GroupScale scale_of(const Problem &p, uint32_t largest, int64_t size) {
    GroupRange range;
    range.nan = largest > kInfinity;
    range.absmax = range.nan ? 0 : __uint_as_float(largest);
    QuantizeRule rule = p.rule;
    rule.by = rule_by(to);  // known to the compiler
    return scale_of_range(rule, range, size, 1.0f);
}

// Of the group of number `at`; the scale is stored if `stores`.
template <qk_format to>
__device__ DivisorOf<to> divisor_of(const Problem &p, int64_t at, uint32_t largest, bool stores) {
    const bool whole = at < p.whole;
    const GroupScale group =
        scale_of<to>(p, largest, whole ? p.rule.group_size : p.count - p.whole);
    if (stores && p.scale != nullptr) {
        store_scale(p.scale_format, p.scale, at >> p.shift, group.scale);
    }
    if constexpr (multiplies(to)) {
        const bool usual = whole && largest <= usual_limit<to>(p);
        return {usual ? group.multiplier : __uint_as_float(kNone)};
    } else {
        // A scale that was rounded as a denormal number may be much too small.
        const bool fits =
            to != QK_FORMAT_FP4_E2M1 || __uint_as_float(largest) < 6.9f * group.divisor;
        return divisor(fits ? group.divisor : 0.0f);
    }
}

// ---- Codes

template <qk_format to>
__device__ uint32_t integer_of(float q) {
    const float low = to == QK_FORMAT_S8 ? -127 : -8, high = to == QK_FORMAT_S8 ? 127 : 7;
    const float nearest = fminf(fmaxf(q, low), high) + kInteger;
    return __float_as_uint(nearest) + (to == QK_FORMAT_S8 ? 0 : 8);
}

// FP4_E2M1's code of a magnitude below 7, plus the bits of kInteger. Its entries are steps of 1/2
// to 2, of 1 to 4, of 2 to 6; of the roundings to such steps, ties to even, the smallest is the one
// whose steps the entries have there.
__device__ inline uint32_t e2m1_of(float s) {
    return smallest(__float_as_uint(__fmaf_rn(2.0f, s, kInteger)),
                    __float_as_uint(__fadd_rn(s, kInteger + 2)),
                    __float_as_uint(__fmaf_rn(0.5f, s, kInteger + 4)));
}

// What codes are looked up in.
template <qk_format to>
using Table = std::conditional_t<to == QK_FORMAT_FP4_BNB, AllCells, Thresholds>;

template <qk_format to>
constexpr bool kLooksUp = multiplies(to);

// To shared memory; a barrier must follow.
__device__ inline void load_table(const Problem &p, Thresholds &table) {
    if (threadIdx.x < kRanks) table.last[threadIdx.x] = p.thresholds.last[threadIdx.x];
}
__device__ inline void load_table(const Problem &p, AllCells &table) {
    static_assert(kThreads == kLastCell);
    const int own = int(threadIdx.x) - kFirstCell;
    table.cell[threadIdx.x] = own < 0 ? Cell{~0u, 0} : p.cells.cell[own];
}

template <qk_format to, qk_format from>
__device__ uint64_t codes_of(const Table<to> &table, const Eight<from> &x, DivisorOf<to> by) {
    const auto s = [&](int i) { return quotient_of<from>(x[i], by); };
    if constexpr (to == QK_FORMAT_NF4) {
        return nf4_codes(table, s);
    } else if constexpr (to == QK_FORMAT_FP4_BNB) {
        return fp4_codes(table, s, x.above_zero(s));
    } else if constexpr (to == QK_FORMAT_FP4_E2M1) {
        const Eight<from> m = x.magnitudes();
        return nibbles_of([&](int i) { return e2m1_of(quotient_of<from>(m[i], by)); }) | x.signs();
    } else if constexpr (to == QK_FORMAT_S8) {
        uint64_t word = 0;
#pragma unroll
        for (int i = 0; i < kNumbers; ++i) word |= uint64_t(integer_of<to>(s(i)) & 255) << 8 * i;
        return word;
    } else {
        return nibbles_of([&](int i) { return integer_of<to>(s(i)); });
    }
}

QK_HD constexpr int bits_of(qk_format to) { return to == QK_FORMAT_S8 ? 8 : 4; }

// In the order of the bytes.
template <qk_format to>
__device__ uint64_t ordered(const Problem &p, uint64_t word) {
    if (bits_of(to) == 8) return word;
    const uint32_t low = uint32_t(word);
    return (low >> p.swap & 0x0f0f0f0fu) | (low << p.swap & 0xf0f0f0f0u);
}

// What the rule says of each number of a chunk. noinline: seldom called, and long.
template <qk_format to>
__device__ __noinline__ void ask_for_codes(const Problem &p, int64_t at, uint32_t largest) {
    const int64_t size = at < p.whole ? p.rule.group_size : p.count - p.whole;
    const GroupScale group = scale_of<to>(p, largest, size);
    QuantizeRule rule = p.rule;
    rule.by = rule_by(to);
    rule.format = to;
    uint64_t word = 0;
    const int32_t rest = int32_t(min64(p.count - at, kNumbers));
#pragma unroll 1
    for (int i = 0; i < kNumbers; ++i) {
        const uint32_t code =
            i < rest ? code_of_value(rule, load_float(p.rule.from_format, p.from, at + i), group,
                                     nullptr)
                     : p.pad;
        word |= uint64_t(code) << bits_of(to) * i;
    }
    word = ordered<to>(p, word);
    for (int i = 0; i < (rest * bits_of(to) + 7) / 8; ++i) {
        p.w.data[at * bits_of(to) / 8 + i] = uint8_t(word >> 8 * i);
    }
}

template <int kChunks, class By>
__device__ bool all_usual(const By (&divisors)[kChunks]) {
    bool usual = true;
#pragma unroll
    for (const By &by : divisors) usual &= by.reciprocal == by.reciprocal;
    return usual;
}

template <qk_format to, qk_format from>
__global__ void __launch_bounds__(kThreads, 4) quantize_groups(const __grid_constant__ Problem p) {
    constexpr int kChunks = chunks_of(from);
    __shared__ Table<to> table;
    const int64_t first = int64_t(blockIdx.x) * kChunks * kStep + threadIdx.x * kNumbers;
    const int32_t rest = int32_t(min64(p.count - first, kChunks * kStep));
    Eight<from> x[kChunks];
    load_numbers(static_cast<const uint4 *>(p.from) + first * Eight<from>::kVectors / kNumbers,
                 rest, x);
    if (kLooksUp<to>) {
        load_table(p, table);
        __syncthreads();
    }
    uint32_t largest[kChunks];
#pragma unroll
    for (int i = 0; i < kChunks; ++i) largest[i] = x[i].largest();
    DivisorOf<to> divisors[kChunks];
    share_groups(p.shift, largest, divisors, larger<from>, [&](int i, uint32_t most, bool stores) {
        const int64_t at = group_start(p.shift, first + i * kStep);
        return divisor_of<to>(p, at, largest_of<from>(most), stores && at < p.count);
    });
    if (p.scales_only) return;
    const bool usual = rest >= (kChunks - 1) * kStep + kNumbers && all_usual(divisors);
    if (__any_sync(~0u, !usual)) join_groups(p.shift, largest, larger<from>);
    if (!usual) {
#pragma unroll 1
        for (int i = 0; i < kChunks && i * kStep < rest; ++i) {
            ask_for_codes<to>(p, first + i * kStep, largest_of<from>(picked(largest, i)));
        }
        return;
    }
    using Word = std::conditional_t<bits_of(to) == 8, uint64_t, uint32_t>;
    Word *const words = reinterpret_cast<Word *>(p.w.data) + first / kNumbers;
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
        const uint64_t word = codes_of<to>(table, x[i], divisors[i]);
        __stcs(words + i * kThreads, Word(ordered<to>(p, word)));
    }
}

template <qk_format to, qk_format from>
Status launch_groups(const Problem &p, const Launch &launch) {
    constexpr int64_t kOfBlock = int64_t{kStep} * chunks_of(from);
    const Shape3 shape = {dim3(uint32_t(ceil_div(p.count, kOfBlock))), kThreads};
    return launch_kernel(launch, "quantize", quantize_groups<to, from>, shape, p);
}

template <qk_format to>
Status run_format(Problem &p, const Launch &launch) {
    if constexpr (to == QK_FORMAT_NF4) {
        static constexpr Thresholds kThresholds = make_thresholds();
        static_assert(guesses_well(kThresholds));
        p.thresholds = kThresholds;
    } else if constexpr (to == QK_FORMAT_FP4_BNB) {
        static constexpr Cells kCells = make_cells();
        static_assert(has_cells());
        p.cells = kCells;
    }
    switch (p.rule.from_format) {
        case QK_FORMAT_F16: return launch_groups<to, QK_FORMAT_F16>(p, launch);
        case QK_FORMAT_BF16: return launch_groups<to, QK_FORMAT_BF16>(p, launch);
        default: return launch_groups<to, QK_FORMAT_F32>(p, launch);
    }
}

Status run_problem(Problem &problem, const Launch &launch) {
    switch (problem.w.format) {
        case QK_FORMAT_NF4: return run_format<QK_FORMAT_NF4>(problem, launch);
        case QK_FORMAT_FP4_BNB: return run_format<QK_FORMAT_FP4_BNB>(problem, launch);
        case QK_FORMAT_FP4_E2M1: return run_format<QK_FORMAT_FP4_E2M1>(problem, launch);
        case QK_FORMAT_U4_AFFINE: return run_format<QK_FORMAT_U4_AFFINE>(problem, launch);
        default: return run_format<QK_FORMAT_S8>(problem, launch);
    }
}

// With f32 scales in the workspace the numbers are read once; if these take the place of the codes,
// twice.
Status run_nested(const QuantizeArgs &args, Problem &problem, const Launch &launch) {
    const NestRoom room = room_for_scales(args, launch);
    const bool beside = room.scales != nullptr && room.scales != args.to.data;
    problem.scale = room.scales;
    problem.scale_format = QK_FORMAT_F32;
    problem.scales_only = !beside;
    if (room.scales != nullptr) QK_TRY(run_problem(problem, launch));
    QK_TRY(nest_scales(args, room, launch));
    if (beside) return QK_OK;
    problem.scale = nullptr;
    problem.scales_only = false;
    return run_problem(problem, launch);
}

Status run(const QuantizeArgs &args, const Launch &launch) {
    const Weight &w = args.to;
    const Geometry &s = w.geometry;
    const bool pads = w.layout->id == QK_LAYOUT_ROW_HIGH && w.format->kind == FormatKind::kLut4;
    Problem problem = {view_of(w),
                       rule_of(args),
                       args.from.data,
                       s.n * s.k,
                       s.n * s.k / s.group_size * s.group_size,
                       log2_of(s.group_size),
                       pads ? table_code(w.format->id, 0.0f) : 0u,
                       w.layout->id == QK_LAYOUT_ROW_HIGH ? 4 : 0,
                       {},
                       {},
                       w.scale.data,
                       w.scale.format->id,
                       false};
    return is_nested(w) ? run_nested(args, problem, launch) : run_problem(problem, launch);
}

bool takes_rule(const Weight &w) {
    const Rule rule = rule_of(w);
    return (is_float(*w.scale.format) || is_nested(w)) && rule != Rule::kNone &&
           rule == rule_by(w.format->id);
}

bool can_run(const QuantizeArgs &args, const Device &) {
    const Weight &w = args.to;
    return takes_rule(w) && runs_in_order(w) && groups_follow(args);
}

}  // namespace

const Kernel<QuantizeArgs> kQuantizeStream = {"stream", can_run, nullptr, run};

}  // namespace qk::cuda
