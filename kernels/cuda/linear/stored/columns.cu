// y = x . transpose(w) + bias straight from AWQ_GEMM: codes are stored [k, n / 8], in words along
// n, 8 rows of w to a word, for 8 or 16 rows of x at a time, at any m.
//
//   block: 64 rows of w, all of k; its warps share k    a step: 32 columns. A lane loads the words
//      rows  0..7  8..15  ..  56..63                    of 8 of them, 8 t .. 8 t + 7 (t = lane %
//   k  0   | word | word | .. | word |  <- warp 0       4), in word column lane / 4: 4 sectors of
//      1   | word | ..                                  32 bytes a load.
//
// A matrix operand pairs neighbours in k. Half-words of two words, k and k + 1, side by side are
// such pairs (prmt): the low ones hold rows 0, 2, 4, 6, one a nibble, the high ones rows 1, 3, 5,
// 7. So a word of 8 codes becomes 4 pairs with one prmt and the arithmetic of tile/decode.cuh.
// Groups, sums and the order of loads are those of linear/stored/words.cu; bytes per output row: k
// / 2 of codes, its scales and zeros, once for 8 (16) rows of x.
#include "cuda/kernels.hpp"
#include "cuda/linear/stored/words_parts.cuh"

namespace qk::cuda {
namespace {

constexpr int kRowTiles = 4, kLaneRows = 8, kStepWords = 8;
constexpr int kBlockRows = 16 * kRowTiles;
constexpr int64_t kColumnsStep = kPart;

struct Words {
    uint32_t word[kStepWords];
};

// The lane's first row, counted from the block's; its rows are r .. r + 7.
__device__ inline int lane_row() { return int(threadIdx.x) % 32 / 4 * 8; }
__device__ inline int64_t first_row() { return int64_t(blockIdx.x) * kBlockRows; }
__device__ inline int32_t column_of(int32_t step) {
    return step * int32_t(kColumnsStep) + int(threadIdx.x) % 4 * 8;
}

__device__ inline Words load_words(const Problem &p, const uint8_t *at, int32_t step) {
    Words w;
    const int64_t down = p.w.geometry.n / 2;  // bytes
    // Never skipped: past the end of k they repeat the last ones, and x is zero.
    const int64_t column = min(column_of(step), int32_t(p.w.geometry.k) - 8);
#pragma unroll
    for (int i = 0; i < kStepWords; ++i) {
        w.word[i] = __ldcs(reinterpret_cast<const uint32_t *>(at + (column + i) * down));
    }
    return w;
}

__device__ inline int64_t word_column(const Problem &p) {
    return min64(first_row() + lane_row(), p.w.geometry.n - 8) / 8;
}

// The zeros of the lane's rows, in the order of codes.
__device__ inline uint32_t load_zero_word(const Problem &p, int32_t group) {
    if (p.w.zero == nullptr || group >= p.w.geometry.groups_per_row) return 0x88888888u;
    return __ldg(reinterpret_cast<const uint32_t *>(p.w.zero) + group * (p.w.geometry.n / 8) +
                 word_column(p));
}

// A lane's columns of x in a step.
template <int kBatches>
struct Columns {
    uint4 of[kBatches];
};

template <class T, int kBatches>
struct ColumnsProduct {
    using Operand = typename XOperand<T>::Operand;
    using Decode = U4<Operand>;

    const Problem &p;
    const XRows<T, kBatches> &x;
    Groups<kLaneRows> groups;
    uint32_t zero_word;    // of the next group
    uint32_t zeros[2][4];  // of even rows, of odd rows
    float part[kRowTiles][kBatches][4] = {}, sum[kRowTiles][kBatches][4] = {};

    __device__ void prepare_zeros() {
        Decode::pairs(byte_permute(zero_word, 0, 0x1010u), zeros[0]);
        Decode::pairs(byte_permute(zero_word, 0, 0x3232u), zeros[1]);
        zero_word = load_zero_word(p, groups.group + 1);
    }
    __device__ Columns<kBatches> load_columns(int32_t step) const {
        Columns<kBatches> c;
#pragma unroll
        for (int b = 0; b < kBatches; ++b) {
            c.of[b] = x.load(b, column_of(step), column_of(step) < p.w.geometry.k);
        }
        return c;
    }
    __device__ void multiply(const Words &w, const Columns<kBatches> &c) {
        const uint4(&columns)[kBatches] = c.of;
#pragma unroll
        for (int half = 0; half < 2; ++half) {  // 16 columns, 4 of them the lane's
            uint32_t pairs[2][2][4];            // [columns][odd rows][tile]
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const uint32_t a = w.word[half * 4 + i * 2], b = w.word[half * 4 + i * 2 + 1];
                Decode::pairs(byte_permute(a, b, 0x5410u), pairs[i][0]);
                Decode::pairs(byte_permute(a, b, 0x7632u), pairs[i][1]);
            }
#pragma unroll
            for (int tile = 0; tile < kRowTiles; ++tile) {
                uint32_t a[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    a[i] = Decode::subtract(pairs[i / 2][i % 2][tile], zeros[i % 2][tile]);
                }
#pragma unroll
                for (int b = 0; b < kBatches; ++b) {
                    mma_16x8x16<Operand>(part[tile][b], a, half ? columns[b].z : columns[b].x,
                                         half ? columns[b].w : columns[b].y);
                }
            }
        }
        if (--groups.left > 0) return;
        fold_group(groups, sum, part);
        groups.advance();
        prepare_zeros();
    }
};

template <class T, int kBatches, int kWarps>
__global__ void __launch_bounds__(kWarps * 32, kWarps == kManyWarps ? 1 : 2)
    multiply_columns(const __grid_constant__ Problem p) {
    __shared__ float room[kWarps * 128 * kRowTiles];
    __shared__ float scale_codes[256];
    load_scale_codes(p.w, scale_codes);
    __syncthreads();
    const int warp = int(threadIdx.x) / 32;
    const int32_t first = int32_t(int64_t(p.steps) * warp / kWarps);
    const int32_t last = int32_t(int64_t(p.steps) * (warp + 1) / kWarps);
    const int64_t x_first = int64_t(blockIdx.y) * (kBatches * XOperand<T>::kRows);
    const uint8_t *at = p.w.data + word_column(p) * 4;
    keep(at);
    const XRows<T, kBatches> x(p.x, p.m, p.w.geometry.k, x_first);
    ColumnsProduct<T, kBatches> product = {
        p, x, Groups<kLaneRows>(p, scale_codes, first, first_row() + lane_row(), 1), 0, {}, {}, {}};
    product.zero_word = load_zero_word(p, product.groups.group);
    product.prepare_zeros();
    constexpr bool kAhead = kBatches == 1 && !std::is_same_v<T, F32>;
    multiply_steps<kAhead>(product, first, last,
                           [&](int32_t step) { return load_words(p, at, step); });
    store_sums<T, kWarps, kRowTiles, kBatches>(
        p, room, first_row(), x_first, product.sum,
        [](int tile, int high) { return lane_row() + 2 * tile + high; });
}

template <class T, int kWarps>
Status run_warps(const Problem &p, const Launch &launch) {
    const int batches = p.m <= XOperand<T>::kRows ? 1 : 2;
    const Shape3 shape = shape_of<T>(p, kBlockRows, kWarps, batches);
    return batches == 1 ? launch_kernel(launch, "linear", multiply_columns<T, 1, kWarps>, shape, p)
                        : launch_kernel(launch, "linear", multiply_columns<T, 2, kWarps>, shape, p);
}

template <class T>
Status run_type(const Problem &p, const Launch &launch) {
    if constexpr (!std::is_same_v<T, F32>) {
        if (fills_twice(p, kBlockRows, launch.device)) {
            return run_warps<T, kFewWarps>(p, launch);
        }
    }
    return run_warps<T, kManyWarps>(p, launch);
}

Status run(const LinearArgs &args, const Launch &launch) {
    const Problem p = problem_of(args, kColumnsStep);
    switch (p.type) {
        case QK_FORMAT_F16: return run_type<F16>(p, launch);
        case QK_FORMAT_BF16: return run_type<BF16>(p, launch);
        default: return run_type<F32>(p, launch);
    }
}

}  // namespace

const Kernel<LinearArgs> kLinearColumns = linear_kernel<LinearKernel::kColumns>(run);

}  // namespace qk::cuda
