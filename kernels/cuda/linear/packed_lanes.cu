// y = x . transpose(w) + bias from packed tiles (16 rows x 64 columns) of weights with minima, few
// rows of x, any type of x, in f32 on plain lanes. Weights are those that qk_dequantize gives in
// f32.
//
//   block: a row of tiles, 1 or 4 rows of x    | tile 0 | tile 1 | .. | tile 7 | tile 8 | ..
//   lane:  16 columns of rows r and r + 8        warp 0   warp 1        warp 7   warp 0
//
// A warp loads kAhead tiles before the first is used. At the end the 4 lanes of a row are added by
// halves, then the warps in order, so y depends on k alone. Bytes per output row: its codes (k /
// 2), scales and minima, once for 4 rows of x.
#include "cuda/kernels.hpp"
#include "cuda/linear/stored/floats_of_x.cuh"
#include "cuda/runtime.hpp"
#include "cuda/tile/row_pair.cuh"

namespace qk::cuda {
namespace {

constexpr int kWarps = 8, kAhead = 4, kColumns = 16;  // of a lane
constexpr int32_t kThreads = kWarps * 32;

struct Problem : LinearView {
    int32_t tiles;         // of a row of tiles
    int32_t group_shift;   // log2 of group_size
    int32_t second_shift;  // coded scales: log2 of second_group
};

// What a lane has of a tile, `column` its first; past the row's last, zeros count.
struct Piece {
    uint4 codes;
    float2 scale, minimum;
    int32_t column;
};

__device__ Piece load_piece(const Problem &p, int64_t row_tile, int32_t tile) {
    const int lane = int(threadIdx.x) % 32, quad = lane / 4;
    const int32_t k = int32_t(p.w.geometry.k), column = tile * 64 + lane % 4 * kColumns;
    const int64_t group = min(column, k - 1) >> p.group_shift;
    const int32_t in = min(tile, p.tiles - 1);
    return {
        __ldcs(reinterpret_cast<const uint4 *>(p.w.data) + (row_tile * p.tiles + in) * 32 + lane),
        row_pair(p.w, p.w.scale, p.w.second, p.second_shift, row_tile, quad, group),
        row_pair(p.w, p.w.minimum, p.w.minimum_second, p.second_shift, row_tile, quad, group),
        column};
}

template <int kX>
__device__ void add_piece(const Problem &p, const Piece &piece, int64_t x_first,
                          float (&sum)[kX][2]) {
    const int64_t k = p.w.geometry.k;
    if (piece.column >= k) return;
    float value[2][kColumns];
#pragma unroll
    for (int high = 0; high < 2; ++high) {
        const float scale = high == 0 ? piece.scale.x : piece.scale.y;
        const float minimum = high == 0 ? piece.minimum.x : piece.minimum.y;
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
            const uint32_t code = tile_code<false>(piece.codes, high, c);
            const float number = __fadd_rn(__uint_as_float(0x4b000000u | code), -0x1p23f);
            value[high][c] = __fadd_rn(__fmul_rn(number, scale), -minimum);
        }
    }
#pragma unroll
    for (int i = 0; i < kX; ++i) {
        const int64_t at = min64(x_first + i, p.m - 1) * k + piece.column;
#pragma unroll
        for (int half = 0; half < kColumns; half += 8) {
            float x[8];
            load_eight(p, at + half, x);
#pragma unroll
            for (int c = 0; c < 8; ++c) {
                sum[i][0] = __fmaf_rn(value[0][half + c], x[c], sum[i][0]);
                sum[i][1] = __fmaf_rn(value[1][half + c], x[c], sum[i][1]);
            }
        }
    }
}

template <int kX>
__global__ void __launch_bounds__(kThreads) multiply_tiles(const __grid_constant__ Problem p) {
    __shared__ float sums[kWarps][kX][16];
    const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
    const int64_t row_tile = blockIdx.x, x_first = int64_t(blockIdx.y) * kX;
    float sum[kX][2] = {};
    for (int32_t first = warp; first < p.tiles; first += kWarps * kAhead) {
        Piece pieces[kAhead];
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
            pieces[i] = load_piece(p, row_tile, first + i * kWarps);
        }
#pragma unroll
        for (int i = 0; i < kAhead; ++i) add_piece<kX>(p, pieces[i], x_first, sum);
    }
#pragma unroll
    for (int i = 0; i < kX; ++i) {
#pragma unroll
        for (int high = 0; high < 2; ++high) {
            float y = sum[i][high];
            y = __fadd_rn(y, __shfl_xor_sync(~0u, y, 2));
            y = __fadd_rn(y, __shfl_xor_sync(~0u, y, 1));
            if (lane % 4 == 0) sums[warp][i][high * 8 + lane / 4] = y;
        }
    }
    __syncthreads();
    const int64_t n = p.w.geometry.n;
    for (int at = int(threadIdx.x); at < kX * 16; at += kThreads) {
        const int64_t i = at / 16, row = row_tile * 16 + at % 16;
        if (row >= n || x_first + i >= p.m) continue;
        float y = sums[0][i][at % 16];
        for (int other = 1; other < kWarps; ++other) y = __fadd_rn(y, sums[other][i][at % 16]);
        store_output(p, p.type, row, (x_first + i) * n + row, y);
    }
}

Status run(const LinearArgs &args, const Launch &launch) {
    constexpr int kMany = 4;
    const Geometry &s = args.w.geometry;
    const Problem p = {view_of(args), int32_t(ceil_div(s.k, 64)),
                       s.groups_per_row == 1 ? 31 : log2_of(s.group_size),
                       second_shift_of(args.w.scale)};
    const uint32_t blocks = uint32_t(ceil_div(s.n, 16));
    if (p.m == 1) {
        return launch_kernel(launch, "linear", multiply_tiles<1>, {dim3(blocks), kThreads}, p);
    }
    const Shape3 many = {dim3(blocks, uint32_t(ceil_div(p.m, kMany))), kThreads};
    return launch_kernel(launch, "linear", multiply_tiles<kMany>, many, p);
}

}  // namespace

const Kernel<LinearArgs> kLinearPackedLanes = linear_kernel<LinearKernel::kPackedLanes>(run);

}  // namespace qk::cuda
