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
#include "cuda/linear/transposed_kinds.cuh"
#include "cuda/linear/transposed_plan.hpp"
#include "cuda/runtime.hpp"
#include "cuda/tile/decode.cuh"

namespace qk::cuda {
namespace {

constexpr int kWarps = kTransposedWarps;
constexpr int32_t kThreads = kWarps * 32;

struct Problem : TransposedView {
    int32_t parts;  // blocks a strip
    float *sums;    // [parts][m][64 tiles], where parts > 1
};

// Scales of two rows 8 apart, r and r + 1, as words.
template <ScaleKind kind>
constexpr int kScaleWords = kind == ScaleKind::kF32      ? 4
                            : kind == ScaleKind::kNested ? 1
                                                         : 2;

// What a lane has of a tile, as it is in memory, so that nothing waits for it before it is used:
// codes as they are dealt to lanes; scales and zeros of rows r, r + 8, r + 1, r + 9; x for kX times
// 8 of its rows.
template <ScaleKind kind, int kX>
struct Piece {
    uint4 codes;
    uint32_t scales[kScaleWords<kind>];
    float second[kind == ScaleKind::kNested ? 4 : 1];
    uint32_t zeros;
    uint32_t x[kX][2];
};

// A lane's columns, and the rows of a tile that it has of each: r, r + 1, r + 8, r + 9. Addresses
// are those of row tile 0.
template <ScaleKind kind, int kX>
struct Place {
    const uint4 *codes;
    const uint8_t *scales, *zeros;  // zeros: may be null
    const uint32_t *x[kX];          // pairs of a row; of rows past the last, those of row 0
    uint32_t group, groups;         // of its columns; of a row
    int32_t row, n;
    int32_t odd;  // which half of a word has its columns
    int32_t from[2];

    __device__ explicit Place(const Problem &p) {
        const Geometry &s = p.w.geometry;
        const int lane = int(threadIdx.x) % 32, place = lane / 4;
        const int32_t tile = int32_t(blockIdx.x), column = tile * 64 + place / 2 * 16;
        n = int32_t(s.n);
        groups = uint32_t(s.groups_per_row);
        group = uint32_t(min(column, int32_t(s.k) - 1)) >> p.group_shift;
        row = lane % 4 * 2;
        odd = place % 2;
        from[0] = row * 4 + place / 2;
        from[1] = from[0] + 4;
        codes = reinterpret_cast<const uint4 *>(p.w.data) + int64_t(tile) * 32 + lane;
        scales = p.w.scale + (group * 8 + uint32_t(row)) * (kPairBytes<kind>);
        zeros = p.w.zero == nullptr ? nullptr : p.w.zero + group * 8 + row;
#pragma unroll
        for (int block = 0; block < kX; ++block) {
            const int64_t at = int64_t(blockIdx.z) * kTransposedRows + block * 8 + place;
            const int64_t first = (at < p.m ? at : 0) * p.x_stride;
            x[block] = static_cast<const uint32_t *>(p.x) + first / 2;
        }
    }

    __device__ void load(const Problem &p, int32_t row_tile, Piece<kind, kX> *to) const {
        to->codes = __ldcs(codes + int64_t(row_tile) * p.tiles * 32);
        const uint64_t at = uint64_t(uint32_t(row_tile)) * groups * 8;
        load_words(scales + at * kPairBytes<kind>, to->scales);
        to->zeros = 0x8888;
        if (zeros != nullptr) to->zeros = *reinterpret_cast<const uint16_t *>(zeros + at);
        const int32_t first = row_tile * 16 + row;
        if constexpr (kind == ScaleKind::kNested) load_seconds(p, first, to->second);
#pragma unroll
        for (int block = 0; block < kX; ++block) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int32_t r = first + half * 8;
                to->x[block][half] = 0;
                if (r < n) to->x[block][half] = x[block][r / 2];
            }
        }
    }

  private:
    // Words side by side, aligned to all of them.
    template <int kWords>
    static __device__ void load_words(const uint8_t *at, uint32_t (&to)[kWords]) {
        struct alignas(4 * kWords) Words {
            uint32_t word[kWords];
        };
        const Words words = *reinterpret_cast<const Words *>(at);
#pragma unroll
        for (int i = 0; i < kWords; ++i) to[i] = words.word[i];
    }
    __device__ void load_seconds(const Problem &p, int32_t first, float (&to)[4]) const {
        const auto *const seconds = reinterpret_cast<const float *>(p.w.second);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const uint32_t of = uint32_t(min(first + i / 2 + i % 2 * 8, n - 1));
            to[i] = seconds[p.second_shift < 31 ? (of * groups + group) >> p.second_shift : 0];
        }
    }
};

// The scale of row r, r + 8, r + 1 or r + 9.
template <ScaleKind kind, int kX>
__device__ float scale_of(const Piece<kind, kX> &piece, int i, const float *table) {
    if constexpr (kind == ScaleKind::kF32) {
        return __uint_as_float(piece.scales[i]);
    } else if constexpr (kind == ScaleKind::kNested) {
        return nested_scale(table[piece.scales[0] >> 8 * i & 255], piece.second[i], table[256]);
    } else {
        const uint32_t half = piece.scales[i / 2] >> i % 2 * 16 & 0xffff;
        if (kind == ScaleKind::kBF16) return __uint_as_float(half << 16);
        return __half2float(__ushort_as_half(uint16_t(half)));
    }
}

// A word of the codes of rows r, r + 8 (of columns p, p + 8) and the same of r + 1.
template <class Code>
__device__ uint32_t transpose(uint32_t word, const int32_t (&from)[2], int32_t half) {
    const uint32_t even = __shfl_sync(~0u, word, from[0]);
    const uint32_t odd = __shfl_sync(~0u, word, from[1]);
    if constexpr (Code::kLut4) {
        const uint32_t shift = uint32_t(half) * 4;
        return (even >> shift & 0x0f0f0f0fu) | (odd >> shift & 0x0f0f0f0fu) << 4;
    }
    return byte_permute(even, odd, half == 0 ? 0x5410 : 0x7632);
}

template <class T, class Code, ScaleKind kind, int kX>
__device__ void add_piece(const Place<kind, kX> &place, const Piece<kind, kX> &piece,
                          int32_t row_tile, const uint32_t *table, const float *scale_table,
                          float (&sum)[kX][4][4]) {
    const uint32_t words[4] = {piece.codes.x, piece.codes.y, piece.codes.z, piece.codes.w};
    float of[4];  // 0 past the last row, where the padding may be a NaN
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int32_t row = row_tile * 16 + place.row + i / 2 + i % 2 * 8;
        of[i] = row < place.n ? scale_of(piece, i, scale_table) : 0;
    }
    const uint32_t scales[2] = {pack_pair(T{}, of[0], of[2]), pack_pair(T{}, of[1], of[3])};
    const Zeros zeros = Code::zeros_of((piece.zeros & 0xff) | (piece.zeros & 0xff00) << 8);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        uint32_t a[4];
        Code::decode(transpose<Code>(words[j], place.from, place.odd), zeros, table, a);
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

template <class T, class Code, ScaleKind kind, int kX>
__global__ void __launch_bounds__(kThreads, 2) multiply(const __grid_constant__ Problem p) {
    constexpr size_t kWords = kWarps * sizeof(Sums) / 4;
    __shared__ uint4 memory[(kWords > kTableWords ? kWords : kTableWords) / 4];
    __shared__ float scale_table[257];  // of coded scales, and their bias
    uint32_t *const table = reinterpret_cast<uint32_t *>(memory);
    allow_next_kernel();
    if constexpr (Code::kLut4) Code::prepare(p.w, table, false);
    if constexpr (kind == ScaleKind::kNested) {
        for (int i = int(threadIdx.x); i < 257; i += kThreads) {
            scale_table[i] = i < 256 ? load_as<float>(p.w.code, i) : load_as<float>(p.w.bias, 0);
        }
    }
    __syncthreads();
    // By a broadcast the compiler knows that a warp stays together.
    const int warp = int(__shfl_sync(~0u, threadIdx.x / 32, 0)), part = int(blockIdx.y);
    const int32_t end = int32_t(int64_t(p.row_tiles) * (part + 1) / p.parts);
    const Place<kind, kX> place(p);
    constexpr int kAhead = kX == 1 ? 4 : 3;  // what 128 registers hold
    int32_t row_tile = int32_t(int64_t(p.row_tiles) * part / p.parts) + warp;
    float sum[kX][4][4] = {};
    Piece<kind, kX> pieces[kAhead];
    wait_for_previous_kernel();
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
        if (row_tile + i * kWarps < end) place.load(p, row_tile + i * kWarps, &pieces[i]);
    }
    for (; row_tile < end; row_tile += kWarps * kAhead) {
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
            const int32_t now = row_tile + i * kWarps, ahead = now + kWarps * kAhead;
            if (now >= end) break;
            add_piece<T, Code>(place, pieces[i], now, table, scale_table, sum);
            if (ahead < end) place.load(p, ahead, &pieces[i]);
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
            store_sum(p, x_row, int64_t(blockIdx.x) * 64 + at % 64, y);
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

template <class T, class Code, ScaleKind kind>
Status launch_kind(const Problem &p, const Launch &launch) {
    Shape3 shape = {
        dim3(uint32_t(p.tiles), uint32_t(p.parts), uint32_t(ceil_div(p.m, kTransposedRows))),
        kThreads};
    shape.overlaps = launch.device.capability >= 90;
    const auto kernel = p.m <= 8 ? multiply<T, Code, kind, 1> : multiply<T, Code, kind, 2>;
    return launch_kernel(launch, "linear", kernel, shape, p);
}

Status run(const LinearArgs &args, const Launch &launch) {
    const Geometry &s = args.w.geometry;
    const Problem p = {transposed_view(args),
                       transposed_parts(s.n, s.k, launch.device.multiprocessors),
                       static_cast<float *>(launch.workspace)};
    const bool lut4 = codes_of(args.w) == Codes::kLut4;
    QK_TRY(with_transposed_kinds(p, lut4, [&](auto type, auto code, auto kind) {
        return launch_kind<decltype(type), decltype(code), kind.value>(p, launch);
    }));
    if (p.parts == 1) return QK_OK;
    Shape3 shape = {dim3(uint32_t(ceil_div(s.k, kThreads)), uint32_t(p.m)), kThreads};
    shape.overlaps = launch.device.capability >= 90;
    return launch_kernel(launch, "linear", add_parts, shape, p);
}

}  // namespace

const Kernel<LinearArgs> kLinearTransposed = linear_kernel<LinearKernel::kTransposed>(run);

}  // namespace qk::cuda
