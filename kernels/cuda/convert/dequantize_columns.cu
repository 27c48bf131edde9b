// Dequantize 4-bit codes of any layout to columns, out [k, n]: value = (entry - zero) * scale as
// one fp32 product, or entry * scale less a minimum, rounded once.
//
//   a block takes   128 rows x 128 columns of codes    -> shared memory, by words (words.cuh)
//                   the scales of their groups         -> f32 there, each decoded once, and zeros
//                   8 rows x 16 columns a thread       -> a store of 16 bytes a column (f32 out:
//                                                         two), 16 lanes side by side
#include "cuda/any_weight.cuh"
#include "cuda/convert/tile_groups.cuh"
#include "cuda/convert/words.cuh"
#include "cuda/kernels.hpp"
#include "cuda/runtime.hpp"

namespace qk::cuda {
namespace {

constexpr uint32_t kThreads = 128;

using Shape = WordShape<128, 16, kThreads>;

constexpr uint32_t kGroups = Shape::kWords * 8 / 16;  // of a block at most, in a row
constexpr uint32_t kPitch = Shape::kRows + 4;         // from a group to the next: other banks

struct Problem {
    WeightView w;
    WordPlane codes;
    WordOrder words;
    bool whole;  // words come in vectors
    void *out;
    int64_t stride;  // elements from a column of out to the next
    IndexDivisor group;
    uint32_t lines;        // blocks along n, which write side by side and so follow one another
    int32_t second_shift;  // coded: log2 of second_group, or -1
};

template <Entries kind>
struct Block {
    uint4 words[Shape::kAll / 4];
    float scales[kGroups][kPitch];
    float others[kind == Entries::kTable ? 1 : kGroups][kPitch];  // biased zeros, or minima
    float entries[16], scale_codes[256];
};

template <bool whole>
__device__ void load_any(const Problem &p, const WordBlock &b, uint32_t *shared) {
    switch (p.words) {
        case WordOrder::kRows:
            load_words<Shape, WordOrder::kRows, whole>(p.codes, b, shared);
            break;
        case WordOrder::kColumns:
            load_words<Shape, WordOrder::kColumns, whole>(p.codes, b, shared);
            break;
        default: load_words<Shape, WordOrder::kEights, whole>(p.codes, b, shared);
    }
}

// What a thread brings of the look-up tables: asked for before codes and stored behind them, for a
// store waits for its value and keeps what follows from being asked for.
template <Entries kind>
struct Tables {
    static constexpr uint32_t kCodes = 256 / kThreads;
    float entry = 0, codes[kCodes] = {}, bias = 0;

    __device__ explicit Tables(const WeightView &w) {
        if (kind == Entries::kTable && threadIdx.x < 16) entry = entry_of(w, int(threadIdx.x));
        if (w.scale_format != QK_FORMAT_LUT8) return;
        bias = *reinterpret_cast<const float *>(w.bias);
#pragma unroll
        for (uint32_t i = 0; i < kCodes; ++i) {
            codes[i] = reinterpret_cast<const float *>(w.code)[threadIdx.x + i * kThreads];
        }
    }

    __device__ void store(Block<kind> &block) const {
        if (kind == Entries::kTable && threadIdx.x < 16) block.entries[threadIdx.x] = entry;
#pragma unroll
        for (uint32_t i = 0; i < kCodes; ++i) {
            block.scale_codes[threadIdx.x + i * kThreads] = codes[i];
        }
    }
};

// A group's scale and the like of a row of the block.
template <Entries kind>
__device__ void store_group(Block<kind> &block, uint32_t group, uint32_t row, float scale,
                            float other) {
    block.scales[group][row] = scale;
    if (kind != Entries::kTable) block.others[group][row] = other;
}

// Codes of packed tiles, and the scales of `groups` groups from number `first` on, two rows' at a
// time. A thread asks for its scales before it asks for codes, and waits for all of them once.
template <Entries kind>
__device__ void stage_tiles(const Problem &p, const WordBlock &b, uint32_t first, uint32_t groups,
                            const Tables<kind> &tables, Block<kind> &block) {
    constexpr uint32_t kAhead = kGroupsAhead<kind>, kPairs = Shape::kRows / 2;
    const WeightView &w = p.w;
    RawGroup<kind> raw[kAhead] = {};
    const auto ask = [&](uint32_t from) {
#pragma unroll
        for (uint32_t i = 0; i < kAhead; ++i) {
            const uint32_t at = from + i * kThreads, row = b.row + at % kPairs / 8 * 16;
            if (at >= groups * kPairs || row >= p.codes.rows) continue;
            raw[i] = load_group<kind>(w, p.second_shift, row / 16, int(at % 8),
                                      int64_t(first + at / kPairs));
        }
    };
    ask(threadIdx.x);
    load_tiles<Shape>(p.codes, b, &block.words[0].x);
    tables.store(block);
    if (w.scale_format == QK_FORMAT_LUT8) __syncthreads();
    for (uint32_t from = threadIdx.x; from < groups * kPairs; from += kAhead * kThreads) {
        if (from != threadIdx.x) ask(from);
#pragma unroll
        for (uint32_t i = 0; i < kAhead; ++i) {
            const uint32_t at = from + i * kThreads, row = at % kPairs / 8 * 16 + at % 8;
            if (at >= groups * kPairs) continue;
            const Group<kind> group = group_of<kind>(
                w, raw[i], tables.bias, [&](uint32_t code) { return block.scale_codes[code]; });
            float2 other = {};
            if constexpr (kind == Entries::kNumbers) other = group.zero;
            if constexpr (kind == Entries::kLowered) other = group.minimum;
            store_group(block, at / kPairs, row, group.scale.x, other.x);
            store_group(block, at / kPairs, row + 8, group.scale.y, other.y);
        }
    }
}

// The same of any other layout.
template <Entries kind>
__device__ void stage_any(const Problem &p, const WordBlock &b, uint32_t first, uint32_t groups,
                          const Tables<kind> &tables, Block<kind> &block) {
    p.whole ? load_any<true>(p, b, &block.words[0].x) : load_any<false>(p, b, &block.words[0].x);
    tables.store(block);
    for (uint32_t at = threadIdx.x; at < groups * Shape::kRows; at += kThreads) {
        const uint32_t group = at / Shape::kRows, row = at % Shape::kRows;
        if (b.row + row >= p.codes.rows) continue;
        const GroupValues values = any_group(p.w, {b.row + row, first + group});
        const float zero = biased(uint32_t(values.zero));
        store_group(block, group, row, values.scale,
                    kind == Entries::kLowered ? values.minimum : zero);
    }
}

template <Entries kind>
__device__ float value_of(const Block<kind> &block, uint32_t code, float scale, float other) {
    if (kind == Entries::kTable) return __fmul_rn(block.entries[code & 15], scale);
    if (kind == Entries::kNumbers) return __fmul_rn(__fadd_rn(biased(code), -other), scale);
    return __fadd_rn(__fmul_rn(__fadd_rn(biased(code), -biased(0)), scale), -other);
}

// The row of the block that a lane's rows 0 to 3 (part 0) or 4 to 7 begin with. A store has all 8
// or, of f32, 4, which lie beside other lanes' either way.
template <class Out>
__device__ uint32_t part_row(uint32_t lane, uint32_t part) {
    return Store<Out>::kCodes == 8 ? lane * 8 + part * 4 : part * (Shape::kRows / 2) + lane * 4;
}

// Eight rows of 8 columns, which a group's scales have in common.
template <class Out, Entries kind>
__device__ void store_word(const Problem &p, const WordBlock &b, const Block<kind> &block,
                           uint32_t lane, uint32_t word, uint32_t group,
                           const uint32_t (&words)[8]) {
    constexpr int kCodes = Store<Out>::kCodes;
    float scales[8], others[8] = {};
#pragma unroll
    for (uint32_t r = 0; r < 8; ++r) {
        const uint32_t row = part_row<Out>(lane, r / 4) + r % 4;
        scales[r] = block.scales[group][row];
        if (kind != Entries::kTable) others[r] = block.others[group][row];
    }
    const int64_t column = int64_t(b.word + word) * 8;
#pragma unroll
    for (int c = 0; c < 8; ++c) {
#pragma unroll
        for (int first = 0; first < 8; first += kCodes) {
            float values[kCodes];
#pragma unroll
            for (int i = 0; i < kCodes; ++i) {
                const int r = first + i;
                values[i] = value_of(block, words[r] >> 4 * c, scales[r], others[r]);
            }
            const int64_t row = b.row + part_row<Out>(lane, uint32_t(first / 4));
            __stcs(static_cast<uint4 *>(p.out) + ((column + c) * p.stride + row) / kCodes,
                   Store<Out>::pack(values));
        }
    }
}

// The same where the last row is among them. noinline: seldom called.
template <class Out, Entries kind>
__device__ __noinline__ void store_last(const Problem &p, const WordBlock &b,
                                        const Block<kind> &block, uint32_t lane, uint32_t word,
                                        uint32_t group, qk_format to) {
#pragma unroll 1
    for (uint32_t i = 0; i < 64; ++i) {
        const uint32_t row = part_row<Out>(lane, i / 32) + i / 8 % 4, c = i % 8;
        if (b.row + row >= p.codes.rows) continue;
        const uint32_t codes = (&block.words[0].x)[Shape::place(row, word)] >> 4 * c;
        const float other = kind == Entries::kTable ? 0 : block.others[group][row];
        const int64_t column = int64_t(b.word + word) * 8 + c;
        store_float(to, p.out, column * p.stride + b.row + row,
                    value_of(block, codes, block.scales[group][row], other));
    }
}

template <class Out, Entries kind>
__global__ void __launch_bounds__(kThreads)
    expand_columns(const __grid_constant__ Problem p, qk_format to) {
    __shared__ Block<kind> block;
    const uint32_t run = blockIdx.x / p.lines;
    const WordBlock b = {(blockIdx.x - run * p.lines) * Shape::kRows, run * Shape::kWords};
    const uint32_t first = b.word * 8 / p.group.size, start = b.word * 8 - first * p.group.size;
    const uint32_t columns = min((p.codes.words - b.word) * 8, Shape::kWords * 8);
    const uint32_t groups = p.group.divide(start + columns - 1) + 1;
    const Tables<kind> tables(p.w);
    if (p.words == WordOrder::kTiles) {
        stage_tiles(p, b, first, groups, tables, block);
    } else {
        stage_any(p, b, first, groups, tables, block);
    }
    __syncthreads();
    // Two lanes have the halves of four words, or they would meet in a bank.
    const uint32_t lane = threadIdx.x / 2 % 16;
    const uint32_t word = threadIdx.x / 32 * 4 + threadIdx.x % 2 * 2;
    const bool whole = b.row + part_row<Out>(lane, 1) + 4 <= p.codes.rows;
    uint2 words[8];
#pragma unroll
    for (uint32_t r = 0; r < 8; ++r) {
        const uint32_t row = part_row<Out>(lane, r / 4) + r % 4;
        words[r] = *reinterpret_cast<const uint2 *>(&block.words[0].x + Shape::place(row, word));
    }
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
        if (b.word + word + i >= p.codes.words) continue;
        const uint32_t group = p.group.divide(start + (word + i) * 8);
        uint32_t some[8];
#pragma unroll
        for (int r = 0; r < 8; ++r) some[r] = i == 0 ? words[r].x : words[r].y;
        if (whole) {
            store_word<Out>(p, b, block, lane, word + i, group, some);
        } else {
            store_last<Out>(p, b, block, lane, word + i, group, to);
        }
    }
}

template <class Out>
Status run_type(const Problem &p, const DequantizeArgs &args, const Launch &launch) {
    const int64_t runs = ceil_div(args.from.geometry.k, Shape::kWords * 8);
    const Shape3 shape = {dim3(p.lines * uint32_t(runs)), kThreads};
    const auto expand = [&](auto kernel) {
        return launch_kernel(launch, "dequantize", kernel, shape, p, args.to.format->id);
    };
    if (p.w.lowered) return expand(expand_columns<Out, Entries::kLowered>);
    return p.w.kind == FormatKind::kU4 ? expand(expand_columns<Out, Entries::kNumbers>)
                                       : expand(expand_columns<Out, Entries::kTable>);
}

Status run(const DequantizeArgs &args, const Launch &launch) {
    const Geometry &s = args.from.geometry;
    const Dense &to = args.to;
    const Problem p = {view_of(args.from),
                       word_plane(args.from),
                       words_of(args.from),
                       has_vectors(args.from),
                       to.data,
                       to.stride != 0 ? to.stride : to.rows,
                       index_divisor(s.group_size),
                       uint32_t(ceil_div(s.n, Shape::kRows)),
                       second_shift_of(args.from.scale)};
    switch (to.format->id) {
        case QK_FORMAT_F16: return run_type<__half>(p, args, launch);
        case QK_FORMAT_BF16: return run_type<__nv_bfloat16>(p, args, launch);
        default: return run_type<float>(p, args, launch);
    }
}

bool can_run(const DequantizeArgs &args, const Device &) {
    const Weight &w = args.from;
    const Geometry &s = w.geometry;
    const int64_t stride = args.to.stride != 0 ? args.to.stride : args.to.rows;
    const int64_t limit = int64_t{1} << 31;
    return args.to.column_major && args.first_row == 0 && args.to.rows == s.n && has_words(w) &&
           (words_of(w) != WordOrder::kTiles ||
            (aligned(w.scale.data) && aligned(w.minimum.data))) &&
           (w.format->kind == FormatKind::kU4 || !has_minimum(w)) &&
           (s.groups_per_row == 1 || (s.group_size >= 16 && s.group_size % 8 == 0)) &&
           stride % 8 == 0 && aligned(args.to.data) && s.group_size < limit &&
           aligned(w.scale.second, 4) && aligned(w.scale.code, 4) && aligned(w.scale.bias, 4) &&
           aligned(w.minimum.second, 4) &&
           ceil_div(s.n, Shape::kRows) * ceil_div(s.k, Shape::kWords * 8) < limit;
}

}  // namespace

const Kernel<DequantizeArgs> kDequantizeColumns = {"columns", can_run, nullptr, run};

}  // namespace qk::cuda
