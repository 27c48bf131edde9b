// y = x . w from packed tiles (16 rows x 64 columns), few rows of x of 16 bits: what comes back
// through a layer whose y was x . transpose(w).
//
//   block: a strip of 64 columns, a run of the rows of w, up to 16 rows of x
//   warp:  every 8th row of tiles of the run, four of them loaded ahead
//
// The tensor core sums over the columns of its left operand. A tile's codes are decoded as pairs of
// columns of a row; each 8 x 8 of them is transposed in registers, so that rows become what is
// summed over:
//
//     y[64 columns, 8 rows of x] += transpose(w[16 rows, 64 columns]) . transpose(x[8, 16 rows])
//
// Weights are entry * scale in x's type: the scale is rounded to it first, then the product. Sums
// are f32: a warp's row tiles in their order, the warps in theirs, then the blocks', whose sums
// meet in the workspace. So a row of y depends on n, k and the device, and not on m. Bytes: codes,
// scales and zeros once for 16 rows of x.
#include "cuda/kernels.hpp"
#include "cuda/linear/transposed_plan.hpp"
#include "cuda/runtime.hpp"
#include "cuda/tile/decode.cuh"
#include "cuda/tile/row_pair.cuh"

namespace qk::cuda {
namespace {

constexpr int kWarps = kTransposedWarps, kAhead = 4;
constexpr int32_t kThreads = kWarps * 32;

struct Problem : LinearView {
    int32_t row_tiles, tiles;  // tiles: of a row
    int32_t group_shift;       // log2 of group_size
    int32_t second_shift;      // coded scales: log2 of second_group
    int32_t parts;             // blocks a strip
    float *sums;               // [parts][m][64 tiles], where parts > 1
};

// What a lane has of a tile: its codes, the scales of its rows r and r + 8, their zeros, and its
// share of x for the tile's rows, kX times 8 rows of x.
template <int kX>
struct Piece {
    uint4 codes;
    uint32_t scale[2];  // each twice
    uint32_t zero;      // a byte
    uint32_t x[kX][2];
};

template <int kX>
__device__ void load_x(const Problem &p, int32_t row_tile, uint32_t (&to)[kX][2]) {
    const int lane = int(threadIdx.x) % 32;
    const int64_t n = p.w.geometry.n, row = int64_t(row_tile) * 16 + lane % 4 * 2;
#pragma unroll
    for (int block = 0; block < kX; ++block) {
        const int64_t at = int64_t(blockIdx.z) * kTransposedRows + block * 8 + lane / 4;
        const auto *const x = static_cast<const uint16_t *>(p.x) + at * p.x_stride;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int64_t first = row + half * 8;
            const uint32_t low = at < p.m && first < n ? x[first] : 0;
            const uint32_t high = at < p.m && first + 1 < n ? x[first + 1] : 0;
            to[block][half] = low | high << 16;
        }
    }
}

template <class T, int kX>
__device__ Piece<kX> load_piece(const Problem &p, int32_t row_tile, int32_t tile, int64_t group) {
    Piece<kX> piece;
    const int lane = int(threadIdx.x) % 32, quad = lane / 4;
    const int64_t at = int64_t(row_tile) * p.tiles + tile;
    piece.codes = __ldcs(reinterpret_cast<const uint4 *>(p.w.data) + at * 32 + lane);
    const float2 scale =
        row_pair(p.w, p.w.scale, p.w.second, p.second_shift, row_tile, quad, group);
    const int64_t row = int64_t(row_tile) * 16 + quad;  // past the last: no NaN of the padding
    const float low = row < p.w.geometry.n ? scale.x : 0;
    const float high = row + 8 < p.w.geometry.n ? scale.y : 0;
    piece.scale[0] = pack_pair(T{}, low, low);
    piece.scale[1] = pack_pair(T{}, high, high);
    const int64_t zero = (int64_t(row_tile) * p.w.geometry.groups_per_row + group) * 8 + quad;
    piece.zero = p.w.zero == nullptr ? 0x88 : p.w.zero[zero];
    load_x<kX>(p, row_tile, piece.x);
    return piece;
}

template <class T, class Code, int kX>
__device__ void add_piece(const Piece<kX> &piece, const uint32_t *table, float (&sum)[kX][4][4]) {
    const uint32_t words[4] = {piece.codes.x, piece.codes.y, piece.codes.z, piece.codes.w};
    const Zeros zeros = Code::zeros_of(piece.zero * 0x01010101u);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        uint32_t a[4];
        Code::decode(words[j], zeros, table, a);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            a[i] = transpose_8x8(multiply_pair<T>(a[i], piece.scale[i % 2]));
        }
        const uint32_t columns[4] = {a[0], a[2], a[1], a[3]};
#pragma unroll
        for (int block = 0; block < kX; ++block) {
            mma_16x8x16<T>(sum[block][j], columns, piece.x[block][0], piece.x[block][1]);
        }
    }
}

// Of 64 columns and one block of 8 rows of x.
using Sums = float[8][64];

// A lane's sums to [warp][row of x][column]: of word j it has columns 16 (quad / 2) + 4 j + quad %
// 2 and the second next one, of rows 2 (lane % 4) and the next one.
__device__ void put_sums(const float (&sum)[4][4], Sums *to) {
    const int lane = int(threadIdx.x) % 32, quad = lane / 4, x_row = lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        const int column = quad / 2 * 16 + 4 * j + quad % 2;
#pragma unroll
        for (int i = 0; i < 4; ++i) (*to)[x_row + i % 2][column + i / 2 * 2] = sum[j][i];
    }
}

__device__ void store_sum(const Problem &p, int64_t x_row, int64_t column, float y) {
    if (x_row >= p.m || column >= p.w.geometry.k) return;
    if (p.parts == 1) {
        store_moved(p, x_row, column, y);
    } else {
        p.sums[(int64_t(blockIdx.y) * p.m + x_row) * p.tiles * 64 + column] = y;
    }
}

template <class T, class Code, int kX>
__global__ void __launch_bounds__(kThreads, 2) multiply(const __grid_constant__ Problem p) {
    __shared__ uint4
        memory[kWarps * sizeof(Sums) / 16 > kTableWords / 4 ? kWarps * sizeof(Sums) / 16
                                                            : kTableWords / 4];
    uint32_t *const table = reinterpret_cast<uint32_t *>(memory);
    allow_next_kernel();
    if constexpr (Code::kLut4) {
        Code::prepare(p.w, table, false);
        __syncthreads();
    }
    const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
    const int32_t tile = int32_t(blockIdx.x);
    const int64_t column = int64_t(tile) * 64 + lane % 4 * 16;
    const int64_t group = min64(column, p.w.geometry.k - 1) >> p.group_shift;
    const int32_t part = int32_t(blockIdx.y);
    const int32_t end = int32_t(int64_t(p.row_tiles) * (part + 1) / p.parts);
    float sum[kX][4][4] = {};
    wait_for_previous_kernel();
    for (int32_t first = int32_t(int64_t(p.row_tiles) * part / p.parts) + warp; first < end;
         first += kWarps * kAhead) {
        Piece<kX> pieces[kAhead];
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
            const int32_t row_tile = first + i * kWarps;
            if (row_tile < end) pieces[i] = load_piece<T, kX>(p, row_tile, tile, group);
        }
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
            if (first + i * kWarps < end) add_piece<T, Code, kX>(pieces[i], table, sum);
        }
    }
    Sums *const sums = reinterpret_cast<Sums *>(memory);
#pragma unroll
    for (int block = 0; block < kX; ++block) {
        __syncthreads();  // the table, or the sums before, have been read
        put_sums(sum[block], &sums[warp]);
        __syncthreads();
        for (int at = int(threadIdx.x); at < 8 * 64; at += kThreads) {
            const int64_t x_row = int64_t(blockIdx.z) * kTransposedRows + block * 8 + at / 64;
            float y = sums[0][at / 64][at % 64];
            for (int i = 1; i < kWarps; ++i) y = __fadd_rn(y, sums[i][at / 64][at % 64]);
            store_sum(p, x_row, int64_t(tile) * 64 + at % 64, y);
        }
    }
}

// y from the parts, in their order.
__global__ void __launch_bounds__(kThreads) add_parts(const __grid_constant__ Problem p) {
    allow_next_kernel();
    const int64_t column = int64_t(blockIdx.x) * kThreads + threadIdx.x, x_row = blockIdx.y;
    wait_for_previous_kernel();
    if (column >= p.w.geometry.k) return;
    const int64_t width = int64_t(p.tiles) * 64;
    const float *const from = p.sums + x_row * width + column;
    float y = from[0];
    for (int32_t i = 1; i < p.parts; ++i) y = __fadd_rn(y, from[i * p.m * width]);
    store_moved(p, x_row, column, y);
}

template <class T, class Code, int kX>
Status launch_rows(const Problem &p, const Launch &launch) {
    Shape3 shape = {
        dim3(uint32_t(p.tiles), uint32_t(p.parts), uint32_t(ceil_div(p.m, kTransposedRows))),
        kThreads};
    shape.overlaps = launch.device.capability >= 90;
    return launch_kernel(launch, "linear", multiply<T, Code, kX>, shape, p);
}

template <class T, class Code>
Status launch_code(const Problem &p, const Launch &launch) {
    return p.m <= 8 ? launch_rows<T, Code, 1>(p, launch) : launch_rows<T, Code, 2>(p, launch);
}

template <class T>
Status launch_type(const Problem &p, bool lut4, const Launch &launch) {
    return lut4 ? launch_code<T, Lut4<T>>(p, launch) : launch_code<T, U4<T>>(p, launch);
}

Status run(const LinearArgs &args, const Launch &launch) {
    const Geometry &s = args.w.geometry;
    const Problem p = {view_of(args),
                       int32_t(ceil_div(s.n, 16)),
                       int32_t(ceil_div(s.k, 64)),
                       s.groups_per_row == 1 ? 31 : log2_of(s.group_size),
                       second_shift_of(args.w.scale),
                       transposed_parts(s.n, s.k, launch.device.multiprocessors),
                       static_cast<float *>(launch.workspace)};
    const bool lut4 = codes_of(args.w) == Codes::kLut4;
    QK_TRY(p.type == QK_FORMAT_F16 ? launch_type<F16>(p, lut4, launch)
                                   : launch_type<BF16>(p, lut4, launch));
    if (p.parts == 1) return QK_OK;
    Shape3 shape = {dim3(uint32_t(ceil_div(s.k, kThreads)), uint32_t(p.m)), kThreads};
    shape.overlaps = launch.device.capability >= 90;
    return launch_kernel(launch, "linear", add_parts, shape, p);
}

}  // namespace

const Kernel<LinearArgs> kLinearTransposed = linear_kernel<LinearKernel::kTransposed>(run);

}  // namespace qk::cuda
