// y = x . transpose(w) + bias straight from layouts whose words hold 8 codes along k: ROW,
// ROW_HIGH, AWQ_GEMV, WORD (rows one after the other) and GPTQ ([k / 8, n] words), for 8 or 16 rows
// of x at a time, at any m.
//
//   block: 32 rows of w, all of k; its warps share k    a step: 64 columns of the 32 rows; a lane
//     warp 0        warp 1             warp 15          has 4 rows and 2 words of each, columns
//   | steps 0..s | s..2s | ...        | ..last |        16 t .. 16 t + 15 (t = lane % 4; small
//                                                       groups: 8 t .. + 7 and 32 + 8 t .. + 7)
//
// A word of 8 codes becomes 4 pairs of numbers: 2 products of 16 columns, which tensor cores sum in
// f32. The order of columns inside a step is free as long as x follows it. At the end of a group
// the sum is folded with the group's scale, in f32. Sums of warps meet in shared memory.
//
// Bytes per output row: k / 2 of codes, its scales and zeros, once for 8 (16) rows of x; the next
// step's codes are under way while one is multiplied. Nothing is read before the kernel ahead in
// the stream has finished: a checkpoint's weights may be its work.
#include "cuda/kernels.hpp"
#include "cuda/linear/stored/words_parts.cuh"

namespace qk::cuda {

namespace {

constexpr int kRowTiles = 2, kLaneRows = 4, kStepWords = 2;
constexpr int kBlockRows = 16 * kRowTiles;
constexpr int64_t kRowsStep = 64;  // columns

// How words are laid out: two neighbours a lane and step, two that are 32 columns apart, or GPTQ's.
enum class Words { kWide, kNarrow, kGptq };

struct LaneCodes {
    uint32_t word[kLaneRows][kStepWords];
};

// The places of a lane's words and columns. Loads are never skipped, or their results would have to
// be waited for: past the end of k they repeat the last ones, and x is zero.
template <Words words>
struct RowPlaces {
    static constexpr bool kGptq = words == Words::kGptq;
    static constexpr int kFirst = words == Words::kWide ? 16 : 8;  // columns a lane
    static constexpr int kApart = words == Words::kWide ? 8 : 32;  // columns from word to word

    int32_t quad, t, k;
    const uint8_t *row[kGptq ? 1 : kLaneRows];
    int64_t down;  // GPTQ: from a word to the next of its row

    __device__ explicit RowPlaces(const Problem &p) {
        const int lane = int(threadIdx.x) & 31;
        const Geometry &s = p.w.geometry;
        quad = lane / 4;
        t = lane % 4;
        k = int32_t(s.k);
        down = s.n * 4;
        if constexpr (kGptq) {
            row[0] = p.w.data + min64(first_row() + quad * 4, s.n - 4) * 4;
        } else {
#pragma unroll
            for (int i = 0; i < kLaneRows; ++i) {
                row[i] = p.w.data + min64(first_row() + row_of(i), s.n - 1) * (s.k / 2);
                keep(row[i]);
            }
        }
    }
    __device__ static int64_t first_row() { return int64_t(blockIdx.x) * kBlockRows; }
    // Of the lane's rows, two a tile; counted from the block's first.
    __device__ int row_of(int i) const { return kGptq ? quad * 4 + i : i * 8 + quad; }

    __device__ int32_t column(int32_t step, int word) const {
        return step * int32_t(kRowsStep) + t * kFirst + word * kApart;
    }
    __device__ bool inside(int32_t step, int word) const { return column(step, word) < k; }

    __device__ LaneCodes load(int32_t step) const {
        LaneCodes c;
        if constexpr (kGptq) {
#pragma unroll
            for (int j = 0; j < kStepWords; ++j) {
                const int32_t at = min(column(step, j), k - 8) / 8;
                const uint4 v = __ldcs(reinterpret_cast<const uint4 *>(row[0] + at * down));
                c.word[0][j] = v.x;
                c.word[1][j] = v.y;
                c.word[2][j] = v.z;
                c.word[3][j] = v.w;
            }
        } else if constexpr (words == Words::kWide) {
            const int32_t at = min(column(step, 0), k - 16) / 2;  // k is a multiple of 16
#pragma unroll
            for (int i = 0; i < kLaneRows; ++i) {
                const uint2 v = __ldcs(reinterpret_cast<const uint2 *>(row[i] + at));
                c.word[i][0] = v.x;
                c.word[i][1] = v.y;
            }
        } else {
#pragma unroll
            for (int j = 0; j < kStepWords; ++j) {
                const int32_t at = min(column(step, j), k - 8) / 2;
#pragma unroll
                for (int i = 0; i < kLaneRows; ++i) {
                    c.word[i][j] = __ldcs(reinterpret_cast<const uint32_t *>(row[i] + at));
                }
            }
        }
        return c;
    }
};

// A lane's columns of x in a step.
template <int kBatches>
struct Columns {
    uint4 of[kStepWords][kBatches];
};

template <class T, class Decode, int kBatches, Words words>
struct RowsProduct {
    using Operand = typename XOperand<T>::Operand;

    const Problem &p;
    const uint32_t *table;
    const RowPlaces<words> &at;
    const XRows<T, kBatches> &x;
    Groups<kLaneRows> groups;
    Zeros zeros[kLaneRows];
    float part[kRowTiles][kBatches][4] = {}, sum[kRowTiles][kBatches][4] = {};
    uint32_t even, odd;  // selectors of pairs of x

    __device__ void prepare_zeros() {
        if constexpr (!Decode::kLut4) {
#pragma unroll
            for (int i = 0; i < kLaneRows; ++i) {
                zeros[i] = Decode::zeros_of(groups.zero_of_row(i, groups.group) * 0x11111111u);
            }
            groups.load_zeros(groups.group + 1);
        }
    }
    __device__ uint4 match(uint4 v) const { return Decode::kLut4 ? v : paired(v, even, odd); }
    __device__ Columns<kBatches> load_columns(int32_t step) const {
        Columns<kBatches> c;
#pragma unroll
        for (int j = 0; j < kStepWords; ++j) {
#pragma unroll
            for (int b = 0; b < kBatches; ++b) {
                c.of[j][b] = x.load(b, at.column(step, j), at.inside(step, j));
            }
        }
        return c;
    }
    __device__ void multiply(const LaneCodes &w, const Columns<kBatches> &c) {
#pragma unroll
        for (int j = 0; j < kStepWords; ++j) {
            uint4 columns[kBatches];
#pragma unroll
            for (int b = 0; b < kBatches; ++b) columns[b] = match(c.of[j][b]);
#pragma unroll
            for (int tile = 0; tile < kRowTiles; ++tile) {
                uint32_t low[4], high[4];
                Decode::decode(w.word[2 * tile][j], zeros[2 * tile], table, low);
                Decode::decode(w.word[2 * tile + 1][j], zeros[2 * tile + 1], table, high);
                const uint32_t a[2][4] = {{low[0], high[0], low[1], high[1]},
                                          {low[2], high[2], low[3], high[3]}};
#pragma unroll
                for (int b = 0; b < kBatches; ++b) {
                    mma_16x8x16<Operand>(part[tile][b], a[0], columns[b].x, columns[b].y);
                    mma_16x8x16<Operand>(part[tile][b], a[1], columns[b].z, columns[b].w);
                }
            }
            if (words == Words::kWide && j == 0) continue;  // a group is whole steps
            groups.left -= words == Words::kWide ? 2 : 1;
            if (groups.left > 0) continue;
            fold_group(groups, sum, part);
            groups.advance();
            prepare_zeros();
        }
    }
};

template <class T, class Decode, int kBatches, Words words, int kWarps>
__global__ void __launch_bounds__(kWarps * 32, min_blocks(kWarps, kBatches))
    multiply_words(const __grid_constant__ Problem p) {
    // The table, then the sums of the warps.
    constexpr uint32_t kSumWords = kWarps * 128 * kRowTiles;
    __shared__ uint4 shared[(Decode::kLut4 ? kTableWords : kSumWords) / 4];
    __shared__ float scale_codes[256];
    static_assert(kTableWords >= kSumWords);
    uint32_t *const table = reinterpret_cast<uint32_t *>(shared);
    const bool high_first = p.w.layout == QK_LAYOUT_ROW_HIGH;
    if constexpr (Decode::kLut4) Decode::prepare(p.w, table, high_first);
    load_scale_codes(p.w, scale_codes);
    __syncthreads();
    const int warp = int(threadIdx.x) / 32;
    const int32_t first = int32_t(int64_t(p.steps) * warp / kWarps);
    const int32_t last = int32_t(int64_t(p.steps) * (warp + 1) / kWarps);
    const int64_t x_first = int64_t(blockIdx.y) * (kBatches * XOperand<T>::kRows);
    using Places = RowPlaces<words>;
    const Places at(p);
    const XRows<T, kBatches> x(p.x, p.m, p.w.geometry.k, x_first);
    RowsProduct<T, Decode, kBatches, words> product = {
        p,
        table,
        at,
        x,
        Groups<kLaneRows>(p, scale_codes, first * 2, Places::first_row() + at.row_of(0),
                          at.row_of(1) - at.row_of(0)),
        {},
        {},
        {},
        high_first ? kOddColumns : kEvenColumns,
        high_first ? kEvenColumns : kOddColumns};
    if constexpr (!Decode::kLut4) product.groups.load_zeros(product.groups.group);
    product.prepare_zeros();
    constexpr bool kAhead = kWarps == kManyWarps && kBatches == 1 && !std::is_same_v<T, F32>;
    multiply_steps<kAhead>(product, first, last, [&](int32_t step) { return at.load(step); });
    store_sums<T, kWarps, kRowTiles, kBatches>(
        p, reinterpret_cast<float *>(shared), Places::first_row(), x_first, product.sum,
        [&](int tile, int high) { return at.row_of(2 * tile + high); });
}

// Whether a lane's two words of a step may be neighbours: groups are whole steps.
bool is_wide(const Weight &w) {
    const Geometry &s = w.geometry;
    return s.k % 16 == 0 && (s.groups_per_row == 1 || s.group_size % kRowsStep == 0) &&
           aligned(w.data, 8);
}

template <class T, class Decode, Words words, int kWarps>
Status run_warps(const Problem &p, const Launch &launch) {
    // Small groups are rare: they do without a kernel for one pass of 8 rows.
    const int batches = p.m <= XOperand<T>::kRows && words != Words::kNarrow ? 1 : 2;
    const Shape3 shape = shape_of<T>(p, kBlockRows, kWarps, batches);
    if constexpr (words != Words::kNarrow) {
        if (batches == 1) {
            return launch_kernel(launch, "linear", multiply_words<T, Decode, 1, words, kWarps>,
                                 shape, p);
        }
    }
    return launch_kernel(launch, "linear", multiply_words<T, Decode, 2, words, kWarps>, shape, p);
}

template <class T, class Decode, Words words>
Status run_words(const Problem &p, const Launch &launch) {
    if constexpr (words != Words::kNarrow && !std::is_same_v<T, F32>) {
        if (fills_twice(p, kBlockRows, launch.device)) {
            return run_warps<T, Decode, words, kFewWarps>(p, launch);
        }
    }
    return run_warps<T, Decode, words, kManyWarps>(p, launch);
}

template <class T, Words words>
Status run_type(const Problem &p, const Launch &launch) {
    if constexpr (words != Words::kGptq) {
        if (p.w.kind == FormatKind::kLut4) return run_words<T, Lut4<T>, words>(p, launch);
    }
    return run_words<T, U4<T>, words>(p, launch);
}

template <Words words>
Status run_layout(const Problem &p, const Launch &launch) {
    if (p.type == QK_FORMAT_F16) return run_type<F16, words>(p, launch);
    if (p.type == QK_FORMAT_BF16) return run_type<BF16, words>(p, launch);
    return run_words<F32, U4<BF16>, words>(p, launch);
}

Status run(const LinearArgs &args, const Launch &launch) {
    const Problem p = problem_of(args, kRowsStep);
    if (is_gptq(args.w)) return run_layout<Words::kGptq>(p, launch);
    return is_wide(args.w) ? run_layout<Words::kWide>(p, launch)
                           : run_layout<Words::kNarrow>(p, launch);
}

}  // namespace

const Kernel<LinearArgs> kLinearWords = linear_kernel<LinearKernel::kWords>(run);

}  // namespace qk::cuda
