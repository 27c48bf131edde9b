// y = x . transpose(w) + bias from packed tiles (16 rows x 64 columns), few rows of x, any type of
// x, in f32 on plain lanes: weights with minima, and whatever kernels on tensor cores do not take.
// Weights are those that qk_dequantize gives in f32.
//
//   block: a row of tiles, 1 or 4 rows of x    | tile 0 | tile 1 | .. | tile 7 | tile 8 | ..
//   lane:  16 columns of rows r and r + 8        warp 0   warp 1        warp 7   warp 0
//
// A warp loads kAhead tiles before the first is used. At the end the 4 lanes of a row are added by
// halves, then the warps in order, so y depends on k alone. Bytes per output row: its codes (k /
// 2), scales, zeros and minima, once for 4 rows of x.
#include "cuda/convert/tile_groups.cuh"
#include "cuda/kernels.hpp"
#include "cuda/linear/stored/floats_of_x.cuh"
#include "cuda/runtime.hpp"

namespace qk::cuda {
namespace {

constexpr int kWarps = 8, kAhead = 4, kColumns = 16;  // of a lane
constexpr int32_t kThreads = kWarps * 32;

struct Problem : LinearView {
    int32_t tiles;         // of a row of tiles
    int32_t group_shift;   // log2 of group_size
    int32_t second_shift;  // coded scales: log2 of second_group
};

// Values of the table and of coded scales.
struct Tables {
    float entries[16], scale_codes[256];
};

template <Entries kind>
__device__ void load_tables(const Problem &p, Tables &tables) {
    const bool coded = p.w.scale_format == QK_FORMAT_LUT8;
    if (coded) tables.scale_codes[threadIdx.x] = load_as<float>(p.w.code, threadIdx.x);
    if (kind == Entries::kTable && threadIdx.x < 16) {
        tables.entries[threadIdx.x] = entry_of(p.w, int(threadIdx.x));
    }
    if (coded || kind == Entries::kTable) __syncthreads();
}

// What a lane has of a tile, `column` its first; past the row's last, zeros count.
template <Entries kind>
struct Piece {
    uint4 codes;
    RawGroup<kind> group;
    int32_t column;
};

template <Entries kind>
__device__ Piece<kind> load_piece(const Problem &p, int64_t row_tile, int32_t tile) {
    const int lane = int(threadIdx.x) % 32;
    const int32_t k = int32_t(p.w.geometry.k), column = tile * 64 + lane % 4 * kColumns;
    const int64_t group = min(column, k - 1) >> p.group_shift;
    const int32_t in = min(tile, p.tiles - 1);
    return {
        __ldcs(reinterpret_cast<const uint4 *>(p.w.data) + (row_tile * p.tiles + in) * 32 + lane),
        load_group<kind, false>(p.w, p.second_shift, row_tile, lane / 4, group), column};
}

template <Entries kind, int kX>
__device__ void add_piece(const Problem &p, const Tables &tables, float bias,
                          const Piece<kind> &piece, int64_t x_first, float (&sum)[kX][2]) {
    const int64_t k = p.w.geometry.k;
    if (piece.column >= k) return;
    const Group<kind> group = group_of<kind>(
        p.w, piece.group, bias, [&](uint32_t code) { return tables.scale_codes[code]; });
    float value[2][kColumns];
#pragma unroll
    for (int high = 0; high < 2; ++high) {
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
            const uint32_t code = tile_code<kind == Entries::kTable>(piece.codes, high, c);
            value[high][c] = value_of<kind>(tables.entries, group, code, high);
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

template <Entries kind, int kX>
__global__ void __launch_bounds__(kThreads) multiply_tiles(const __grid_constant__ Problem p) {
    __shared__ float sums[kWarps][kX][16];
    __shared__ Tables tables;
    load_tables<kind>(p, tables);
    const float bias = p.w.scale_format == QK_FORMAT_LUT8 ? load_as<float>(p.w.bias, 0) : 0.0f;
    const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
    const int64_t row_tile = blockIdx.x, x_first = int64_t(blockIdx.y) * kX;
    float sum[kX][2] = {};
    for (int32_t first = warp; first < p.tiles; first += kWarps * kAhead) {
        Piece<kind> pieces[kAhead];
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
            pieces[i] = load_piece<kind>(p, row_tile, first + i * kWarps);
        }
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
            add_piece<kind, kX>(p, tables, bias, pieces[i], x_first, sum);
        }
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

template <Entries kind>
Status run_kind(const Problem &p, const Launch &launch) {
    constexpr int kMany = 4;
    const uint32_t blocks = uint32_t(ceil_div(p.w.geometry.n, 16));
    if (p.m == 1) {
        return launch_kernel(launch, "linear", multiply_tiles<kind, 1>, {dim3(blocks), kThreads},
                             p);
    }
    const Shape3 many = {dim3(blocks, uint32_t(ceil_div(p.m, kMany))), kThreads};
    return launch_kernel(launch, "linear", multiply_tiles<kind, kMany>, many, p);
}

Status run(const LinearArgs &args, const Launch &launch) {
    const Geometry &s = args.w.geometry;
    const Problem p = {view_of(args), int32_t(ceil_div(s.k, 64)),
                       s.groups_per_row == 1 ? 31 : log2_of(s.group_size),
                       second_shift_of(args.w.scale)};
    return run_by_entries(p.w, [&]<Entries kind>() { return run_kind<kind>(p, launch); });
}

}  // namespace

const Kernel<LinearArgs> kLinearPackedLanes = linear_kernel<LinearKernel::kPackedLanes>(run);

}  // namespace qk::cuda
