// y = x . w from packed tiles (16 rows x 64 columns), few rows of x of 16 bits: what comes back
// through a layer whose y was x . transpose(w).
//
//   block: a strip of 64 columns, a run of the rows of w, up to 16 rows of x
//   warp:  every 8th row of tiles of the run, three or four of them on their way
//
// The tensor core sums over the columns of its left operand, and these must be rows of w:
//
//     y[64 columns, 8 rows of x] += transpose(w[16 rows, 64 columns]) . transpose(x[8, 16 rows])
//
// So tiles are transposed, as codes, which are small: lane (p, q), p its number / 4, takes 16 bits
// of the words of lanes (2 q, p / 2) and (2 q + 1, p / 2), codes of rows 2 q and 2 q + 1 and of
// those 8 further down, and has then a word like any other (tile/decode.cuh) of columns p and p
// + 8.
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

constexpr int kWarps = kTransposedWarps;
constexpr int32_t kThreads = kWarps * 32;

struct Problem : LinearView {
    int32_t row_tiles, tiles;  // tiles: of a row
    int32_t group_shift;       // log2 of group_size
    int32_t second_shift;      // coded scales: log2 of second_group
    int32_t parts;             // blocks a strip
    float *sums;               // [parts][m][64 tiles], where parts > 1
};

// A lane's columns, and the rows of a tile that it has of each: r, r + 1, r + 8, r + 9.
struct Place {
    int32_t tile;
    int64_t group;  // of its columns
    int32_t row;
    int odd;  // which half of a word has its columns
    int from[2];

    __device__ explicit Place(const Problem &p) {
        const int lane = int(threadIdx.x) % 32, place = lane / 4;
        tile = int32_t(blockIdx.x);
        const int64_t column = int64_t(tile) * 64 + place / 2 * 16;
        group = min64(column, p.w.geometry.k - 1) >> p.group_shift;
        row = lane % 4 * 2;
        odd = place % 2;
        from[0] = row * 4 + place / 2;
        from[1] = from[0] + 4;
    }
};

// What a lane has of a tile, as it is in memory, so that nothing waits for it before it is used:
// codes as they are dealt to lanes; scales and zeros of pairs of rows r and r + 1 (a pair: 8
// apart); x for kX times 8 of its rows.
template <int kX>
struct Piece {
    uint4 codes;
    uint32_t scales[5];  // coded: four codes, then their second scales
    uint32_t zeros;
    uint32_t x[kX][2];
};

template <int kX>
__device__ void load_x(const Problem &p, int64_t row, uint32_t (&to)[kX][2]) {
    const int64_t n = p.w.geometry.n;
#pragma unroll
    for (int block = 0; block < kX; ++block) {
        const int lane = int(threadIdx.x) % 32;
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

// Coded scales: the second ones of rows r, r + 8, r + 1, r + 9.
__device__ void load_seconds(const Problem &p, int64_t row, int64_t group, uint32_t (&to)[5]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int64_t of = min64(row + i / 2 + i % 2 * 8, p.w.geometry.n - 1);
        const int64_t number = of * p.w.geometry.groups_per_row + group;
        to[1 + i] = load_as<uint32_t>(
            p.w.second, p.second_shift < 0 ? number / p.w.second_group : number >> p.second_shift);
    }
}

// So many side by side, aligned to all of them.
template <int kWords>
__device__ void load_words(const uint8_t *from, uint32_t (&to)[5]) {
    struct alignas(4 * kWords) Words {
        uint32_t word[kWords];
    };
    const Words words = *reinterpret_cast<const Words *>(from);
#pragma unroll
    for (int i = 0; i < kWords; ++i) to[i] = words.word[i];
}

template <int kX>
__device__ void load_piece(const Problem &p, const Place &place, int32_t row_tile, Piece<kX> *to) {
    const int64_t at = int64_t(row_tile) * p.tiles + place.tile;
    to->codes = __ldcs(reinterpret_cast<const uint4 *>(p.w.data) + at * 32 + threadIdx.x % 32);
    const int64_t row = int64_t(row_tile) * 16 + place.row;
    const int64_t of_group = int64_t(row_tile) * p.w.geometry.groups_per_row + place.group;
    const int64_t scale = (of_group * 8 + place.row) * 2;
    switch (p.w.scale_format) {
        case QK_FORMAT_F32: load_words<4>(p.w.scale + scale * 4, to->scales); break;
        case QK_FORMAT_F16:
        case QK_FORMAT_BF16: load_words<2>(p.w.scale + scale * 2, to->scales); break;
        default:
            load_words<1>(p.w.scale + scale, to->scales);
            load_seconds(p, row, place.group, to->scales);
    }
    to->zeros = 0x8888;
    if (p.w.zero != nullptr) {
        to->zeros = *reinterpret_cast<const uint16_t *>(p.w.zero + of_group * 8 + place.row);
    }
    load_x<kX>(p, row, to->x);
}

// The scales of rows r, r + 8, r + 1, r + 9; 0 past the last row, where the padding may be a NaN.
template <int kX>
__device__ void decode_scales(const Problem &p, const float *table, const Piece<kX> &piece,
                              int64_t row, float (&to)[4]) {
    const auto &words = piece.scales;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const uint32_t half = words[i / 2] >> i % 2 * 16 & 0xffff;
        switch (p.w.scale_format) {
            case QK_FORMAT_F32: to[i] = __uint_as_float(words[i]); break;
            case QK_FORMAT_F16: to[i] = __half2float(__ushort_as_half(uint16_t(half))); break;
            case QK_FORMAT_BF16: to[i] = __uint_as_float(half << 16); break;
            default: {
                const float value = table[words[0] >> 8 * i & 255];
                const float second = __uint_as_float(words[1 + i]);
                const float bias = table[256];
                to[i] = p.w.divides ? __fadd_rn(__fdiv_rn(value, second), bias)
                                    : nested_scale(value, second, bias);
            }
        }
        if (row + i / 2 + i % 2 * 8 >= p.w.geometry.n) to[i] = 0;
    }
}

// A word of the codes of rows r, r + 8 (of columns p, p + 8) and the same of r + 1.
template <class Code>
__device__ uint32_t transpose(uint32_t word, const Place &place) {
    const uint32_t even = __shfl_sync(~0u, word, place.from[0]);
    const uint32_t odd = __shfl_sync(~0u, word, place.from[1]);
    if constexpr (Code::kLut4) {
        const uint32_t shift = uint32_t(place.odd) * 4;
        return (even >> shift & 0x0f0f0f0fu) | (odd >> shift & 0x0f0f0f0fu) << 4;
    }
    return byte_permute(even, odd, place.odd == 0 ? 0x5410 : 0x7632);
}

template <class T, class Code, int kX>
__device__ void add_piece(const Problem &p, const Place &place, const Piece<kX> &piece,
                          int32_t row_tile, const uint32_t *table, const float *scale_table,
                          float (&sum)[kX][4][4]) {
    const uint32_t words[4] = {piece.codes.x, piece.codes.y, piece.codes.z, piece.codes.w};
    float of[4];
    decode_scales(p, scale_table, piece, int64_t(row_tile) * 16 + place.row, of);
    const uint32_t scales[2] = {pack_pair(T{}, of[0], of[2]), pack_pair(T{}, of[1], of[3])};
    const Zeros zeros = Code::zeros_of((piece.zeros & 0xff) | (piece.zeros & 0xff00) << 8);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        uint32_t a[4];
        Code::decode(transpose<Code>(words[j], place), zeros, table, a);
#pragma unroll
        for (int i = 0; i < 4; ++i) a[i] = multiply_pair<T>(a[i], scales[i % 2]);
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
    constexpr size_t kWords = kWarps * sizeof(Sums) / 4;
    __shared__ uint4 memory[(kWords > kTableWords ? kWords : kTableWords) / 4];
    __shared__ float scale_table[257];  // of coded scales, and their bias
    uint32_t *const table = reinterpret_cast<uint32_t *>(memory);
    allow_next_kernel();
    if constexpr (Code::kLut4) Code::prepare(p.w, table, false);
    if (p.w.scale_format == QK_FORMAT_LUT8) {
        for (int i = int(threadIdx.x); i < 257; i += kThreads) {
            scale_table[i] = i < 256 ? load_as<float>(p.w.code, i) : load_as<float>(p.w.bias, 0);
        }
    }
    __syncthreads();
    const int warp = int(threadIdx.x) / 32, part = int(blockIdx.y);
    const int32_t end = int32_t(int64_t(p.row_tiles) * (part + 1) / p.parts);
    const Place place(p);
    constexpr int kAhead = kX == 1 ? 4 : 3;  // what 128 registers hold
    int32_t row_tile = int32_t(int64_t(p.row_tiles) * part / p.parts) + warp;
    float sum[kX][4][4] = {};
    Piece<kX> pieces[kAhead];
    wait_for_previous_kernel();
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
        if (row_tile + i * kWarps < end) load_piece(p, place, row_tile + i * kWarps, &pieces[i]);
    }
    for (; row_tile < end; row_tile += kWarps * kAhead) {
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
            const int32_t now = row_tile + i * kWarps, ahead = now + kWarps * kAhead;
            if (now >= end) break;
            add_piece<T, Code, kX>(p, place, pieces[i], now, table, scale_table, sum);
            if (ahead < end) load_piece(p, place, ahead, &pieces[i]);
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
            store_sum(p, x_row, int64_t(place.tile) * 64 + at % 64, y);
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
