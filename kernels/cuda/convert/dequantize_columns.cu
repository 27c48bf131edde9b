// Dequantize 4-bit codes of any layout to columns, out [k, n]: value = (entry - zero) * scale as
// one fp32 product, or entry * scale less a minimum, rounded once.
//
//   a block takes   128 rows x 256 columns of codes      -> shared memory, by words (words.cuh)
//                   the scales of their groups           -> f32 there, each decoded once, and zeros
//                   8 rows x 8 columns a thread, twice   -> a store of 16 bytes a column, 16 lanes
//                                                           side by side
#include "cuda/any_weight.cuh"
#include "cuda/convert/words.cuh"
#include "cuda/kernels.hpp"
#include "cuda/runtime.hpp"

namespace qk::cuda {
namespace {

constexpr uint32_t kGroups = kWordColumns / 16;  // of a block at most, in a row

struct Problem {
    WeightView w;
    WordPlane codes;
    void *out;
    int64_t stride;  // elements from a column of out to the next
    IndexDivisor group;
    uint32_t runs;  // blocks along k
};

struct Block {
    uint32_t words[kBlockWords];
    float scales[kGroups][kWordRows], zeros[kGroups][kWordRows], minima[kGroups][kWordRows];
    float entries[16];
};

// The place of a row's scale: lanes have every eighth row.
__device__ uint32_t row_place(uint32_t row) { return row % 8 * (kWordRows / 8) + row / 8; }

// The scales, zeros and minima of the block's groups, the first of which is number `first`.
__device__ void stage_groups(const Problem &p, const WordBlock &b, uint32_t start, uint32_t first,
                             Block &block) {
    const uint32_t columns = min(uint32_t(p.w.geometry.k) - b.word * 8, kWordColumns);
    const uint32_t groups = p.group.divide(start + columns - 1) + 1;
    for (uint32_t at = threadIdx.x; at < groups * kWordRows; at += kWordThreads) {
        const uint32_t group = at / kWordRows, row = at % kWordRows;
        if (b.row + row >= p.codes.rows) continue;
        const GroupValues values = any_group(p.w, {b.row + row, first + group});
        block.scales[group][row_place(row)] = values.scale;
        block.zeros[group][row_place(row)] = values.zero;
        block.minima[group][row_place(row)] = values.minimum;
    }
}

// 8 rows of a column; `rest`: how many of them there are.
template <class Out>
__device__ void store_rows(const Problem &p, uint32_t row, int64_t column, uint32_t rest,
                           const float (&values)[8], qk_format to) {
    constexpr int kCodes = Store<Out>::kCodes;
    const int64_t at = column * p.stride + row;
    if (rest < 8) {
        for (uint32_t i = 0; i < rest; ++i) store_float(to, p.out, at + i, values[i]);
        return;
    }
#pragma unroll
    for (int part = 0; part < 8 / kCodes; ++part) {
        float some[kCodes];
#pragma unroll
        for (int i = 0; i < kCodes; ++i) some[i] = values[part * kCodes + i];
        __stcs(static_cast<uint4 *>(p.out) + at / kCodes + part, Store<Out>::pack(some));
    }
}

template <class Out>
__global__ void __launch_bounds__(kWordThreads)
    expand_columns(const __grid_constant__ Problem p, qk_format to) {
    __shared__ Block block;
    const uint32_t line = blockIdx.x / p.runs;
    const WordBlock b = {line * kWordRows, (blockIdx.x - line * p.runs) * kRowWords};
    const uint32_t first = b.word * 8 / p.group.size, start = b.word * 8 - first * p.group.size;
    load_words(p.codes, b, block.words);
    stage_groups(p, b, start, first, block);
    fill_entries(p.w, block.entries);  // ends with a barrier
#pragma unroll 1
    for (uint32_t i = 0; i < kTurns; ++i) {
        const WordPlace at = eights_of(i);
        const uint32_t row = b.row + at.row, group = p.group.divide(start + at.word * 8);
        if (row >= p.codes.rows || b.word + at.word >= p.codes.words) continue;
        uint32_t words[8];
        GroupValues groups[8];
#pragma unroll
        for (uint32_t r = 0; r < 8; ++r) {
            const uint32_t place = row_place(at.row + r);
            words[r] = block.words[word_place(at.row + r, at.word)];
            groups[r] = {block.zeros[group][place], block.scales[group][place],
                         block.minima[group][place]};
        }
#pragma unroll
        for (int c = 0; c < 8; ++c) {
            float values[8];
#pragma unroll
            for (int r = 0; r < 8; ++r) {
                values[r] = any_value(p.w, block.entries, int(words[r] >> 4 * c & 15), groups[r]);
            }
            store_rows<Out>(p, row, int64_t(b.word + at.word) * 8 + c, min(p.codes.rows - row, 8u),
                            values, to);
        }
    }
}

Status run(const DequantizeArgs &args, const Launch &launch) {
    const Geometry &s = args.from.geometry;
    const Dense &to = args.to;
    const Problem p = {view_of(args.from),
                       word_plane(args.from),
                       to.data,
                       to.stride != 0 ? to.stride : to.rows,
                       index_divisor(s.group_size),
                       uint32_t(ceil_div(s.k, kWordColumns))};
    const Shape3 shape = {dim3(uint32_t(ceil_div(s.n, kWordRows)) * p.runs), kWordThreads};
    const auto expand = [&](auto kernel) {
        return launch_kernel(launch, "dequantize", kernel, shape, p, to.format->id);
    };
    switch (to.format->id) {
        case QK_FORMAT_F16: return expand(expand_columns<__half>);
        case QK_FORMAT_BF16: return expand(expand_columns<__nv_bfloat16>);
        default: return expand(expand_columns<float>);
    }
}

bool can_run(const DequantizeArgs &args, const Device &) {
    const Weight &w = args.from;
    const Geometry &s = w.geometry;
    const int64_t stride = args.to.stride != 0 ? args.to.stride : args.to.rows;
    return args.to.column_major && args.first_row == 0 && args.to.rows == s.n && has_words(w) &&
           (s.groups_per_row == 1 || (s.group_size >= 16 && s.group_size % 8 == 0)) &&
           stride % 8 == 0 && aligned(args.to.data) && s.group_size < (int64_t{1} << 31) &&
           ceil_div(s.n, kWordRows) * ceil_div(s.k, kWordColumns) < (int64_t{1} << 31);
}

}  // namespace

const Kernel<DequantizeArgs> kDequantizeColumns = {"columns", can_run, nullptr, run};

}  // namespace qk::cuda
