// Repack the layouts of checkpoints into the GPU's tiles (16 rows x 64 columns, 512 bytes): the
// codes, scales and zeros of rows [first_row, first_row + to.n) in one launch, nothing decoded.
//
//   a block takes                          reads lines of   writes runs of
//     ROW, ROW_HIGH,    32 rows x 1024       512 bytes         8 KiB
//       WORD, AWQ_GEMV
//     GPTQ             128 rows x 256        512 bytes         2 KiB
//     AWQ_GEMM         256 rows x 128        128 bytes         1 KiB
//
// of the codes into shared memory, whole lines, every load issued before the first is used. From
// there a lane takes 16 columns of rows r and r + 8 of a tile, lane / 4 = r, and weaves them into
// its 16 bytes of it. AWQ_GEMM has its words along n: a thread takes 16 rows x 8 columns,
// transposes 8 words of 8 nibbles at a time, 32 instructions, and sends them through shared memory
// once more. Places there are shifted so that no two lanes meet in a bank. Bytes per code: half in,
// half out, each moved once. Blocks among these move scales and zeros (convert/move_groups.cuh).
#include "cuda/convert/move_groups.cuh"
#include "cuda/convert/parts.cuh"
#include "cuda/kernels.hpp"
#include "cuda/prim/mma.cuh"
#include "cuda/runtime.hpp"
#include "cuda/view.cuh"

namespace qk::cuda {
namespace {

enum class Source { kLowFirst, kHighFirst, kAlongK, kAlongN };

struct Problem {
    const uint8_t *codes;
    uint4 *to;
    int64_t pitch;  // bytes of a row of codes, or of words
    int64_t rows;
    uint32_t k, tiles, row_tiles, runs;  // runs: blocks along k
    Groups groups;
};

// What a block stages: kLines of codes, each kPieces loads long, kPitch words apart.
template <Source source>
struct Stage {  // rows of codes
    static constexpr uint32_t kRows = 32, kColumns = 1024, kPitch = 128 + 8;
    static constexpr uint32_t kLines = kRows, kPieces = 64;
    using Piece = uint2;
};
template <>
struct Stage<Source::kAlongK> {  // words [k / 8][n]
    static constexpr uint32_t kRows = 128, kColumns = 256, kPitch = 128 + 4;
    static constexpr uint32_t kLines = kColumns / 8, kPieces = 128;
    using Piece = uint32_t;
};
template <>
struct Stage<Source::kAlongN> {  // words [k][n / 8]: parts.cuh
    static constexpr uint32_t kRows = kAwqRows, kColumns = 128, kPitch = kRows / 8;
    static constexpr uint32_t kLines = kColumns;
};

// The block's codes into shared memory; zeros past the last row and column.
template <Source source>
__device__ void stage_codes(const Problem &p, uint32_t first_row, uint32_t first_column,
                            uint32_t *shared) {
    using S = Stage<source>;
    using Piece = typename S::Piece;
    constexpr uint32_t kLoads = S::kLines * S::kPieces / kRepackThreads;
    constexpr uint32_t kStep = kRepackThreads / S::kPieces;  // lines
    const uint32_t line = threadIdx.x / S::kPieces, piece = threadIdx.x % S::kPieces;
    uint32_t row = first_row, column = first_column, down, end;  // of the first line; all lines
    int64_t along;                                               // bytes
    if (source == Source::kAlongK) {
        row += piece, along = int64_t(row) * 4;
        down = column / 8 + line, end = p.k / 8;
    } else {
        column += piece * 16, along = column / 2;
        down = row + line, end = uint32_t(p.rows);
    }
    const bool there = row < p.rows && column < p.k;
    const uint8_t *const from = p.codes + down * p.pitch + along;
    Piece pieces[kLoads] = {};
#pragma unroll
    for (uint32_t i = 0; i < kLoads; ++i) {
        if (!there || down + i * kStep >= end) continue;
        pieces[i] = __ldcs(reinterpret_cast<const Piece *>(from + int64_t(i * kStep) * p.pitch));
    }
#pragma unroll
    for (uint32_t i = 0; i < kLoads; ++i) {
        Piece *const to = reinterpret_cast<Piece *>(shared + (line + i * kStep) * S::kPitch);
        to[piece] = pieces[i];
    }
    __syncthreads();
}

// 16 columns of a row of the block.
template <Source source>
__device__ uint2 staged(const uint32_t *shared, uint32_t row, uint32_t column) {
    constexpr uint32_t kPitch = Stage<source>::kPitch;
    if (source == Source::kAlongK) {
        const uint32_t *const at = shared + column / 8 * kPitch + row;
        return {at[0], at[kPitch]};
    }
    const uint2 v = *reinterpret_cast<const uint2 *>(shared + row * kPitch + column / 8);
    if (source != Source::kHighFirst) return v;
    return {swap_nibbles(v.x), swap_nibbles(v.y)};
}

template <Source source, bool pairs>
__device__ void weave_codes(const Problem &p, uint32_t block, uint32_t *shared) {
    using S = Stage<source>;
    constexpr uint32_t kTiles = S::kColumns / 64, kAll = S::kRows / 16 * kTiles;
    const uint32_t line = block / p.runs, run = block - line * p.runs;
    stage_codes<source>(p, line * S::kRows, run * S::kColumns, shared);
    const uint32_t lane = threadIdx.x & 31;
#pragma unroll
    for (uint32_t i = threadIdx.x / 32; i < kAll; i += kRepackThreads / 32) {
        const uint32_t row = i / kTiles * 16 + lane / 4, column = i % kTiles * 64 + lane % 4 * 16;
        const uint32_t row_tile = line * (S::kRows / 16) + i / kTiles;
        const uint32_t tile = run * kTiles + i % kTiles;
        if (row_tile >= p.row_tiles || tile >= p.tiles) continue;
        const uint2 above = staged<source>(shared, row, column);
        const uint2 below = staged<source>(shared, row + 8, column);
        const uint2 left = weave_words(pairs, above.x, below.x);
        const uint2 right = weave_words(pairs, above.y, below.y);
        p.to[(int64_t(row_tile) * p.tiles + tile) * 32 + lane] = {left.x, left.y, right.x, right.y};
    }
}

// A thread transposes 16 rows x 8 columns; tiles are stored whole.
template <bool pairs>
__device__ void turn_codes(const Problem &p, uint32_t block, uint32_t *shared) {
    using S = Stage<Source::kAlongN>;
    constexpr uint32_t kRowTiles = S::kRows / 16, kTiles = S::kColumns / 64;
    const uint32_t line = block / p.runs, run = block - line * p.runs;
    stage_awq<S::kColumns>({p.codes, p.pitch, uint32_t(p.rows), p.k}, line * S::kRows,
                           run * S::kColumns, shared, [] {});
    const uint32_t eight = threadIdx.x % 16, piece = threadIdx.x / 16;
    uint2 words[8];  // of a column each: rows 0..7 and 8..15
#pragma unroll
    for (uint32_t i = 0; i < 8; ++i) {
        const uint32_t at = awq_place(eight * 8 + i, piece * 2);
        words[i] = *reinterpret_cast<const uint2 *>(shared + at);
    }
    __syncthreads();
    uint32_t turned[2][8];  // [word of the tile][nibble of the row]
#pragma unroll
    for (int s = 0; s < 2; ++s) {
        const uint2 *const w = words + s * 4;
        const uint32_t numbers[8] = {w[0].x, w[0].y, w[2].x, w[2].y,
                                     w[1].x, w[1].y, w[3].x, w[3].y};
        const uint32_t looked_up[8] = {w[0].x, w[1].x, w[0].y, w[1].y,
                                       w[2].x, w[3].x, w[2].y, w[3].y};
        turn_nibbles(pairs ? looked_up : numbers, turned[s]);
    }
    // Every second tile has its rows swapped in pairs, or its lanes would meet the first's.
    const uint32_t half = eight / 8;
    uint32_t *const to = shared + (piece * kTiles + half) * 128 + eight % 8 * 2;
#pragma unroll
    for (uint32_t r = 0; r < 8; ++r) {
        const uint32_t j = (r & 1) * 4 + r / 2;
        *reinterpret_cast<uint2 *>(to + ((r ^ half) * 16)) = {turned[0][j], turned[1][j]};
    }
    __syncthreads();
    const uint32_t lane = threadIdx.x & 31;
#pragma unroll
    for (uint32_t i = threadIdx.x / 32; i < kRowTiles * kTiles; i += kRepackThreads / 32) {
        const uint32_t row_tile = line * kRowTiles + i / kTiles, tile = run * kTiles + i % kTiles;
        if (row_tile >= p.row_tiles || tile >= p.tiles) continue;
        const uint32_t at = i * 128 + (lane * 4 ^ i % kTiles * 16);
        p.to[(int64_t(row_tile) * p.tiles + tile) * 32 + lane] =
            *reinterpret_cast<const uint4 *>(shared + at);
    }
}

template <Source source, bool pairs>
__global__ void __launch_bounds__(kRepackThreads, kRepackBlocks)
    repack_tiles(const __grid_constant__ Problem p) {
    using S = Stage<source>;
    __shared__ uint4 shared[S::kLines * S::kPitch / 4];  // for its alignment
    for_codes<kRepackThreads>(p.groups, [&](uint32_t block) {
        if constexpr (source == Source::kAlongN) {
            turn_codes<pairs>(p, block, &shared[0].x);
        } else {
            weave_codes<source, pairs>(p, block, &shared[0].x);
        }
    });
}

Source source_of(const Weight &w) {
    switch (w.layout->id) {
        case QK_LAYOUT_ROW_HIGH: return Source::kHighFirst;
        case QK_LAYOUT_GPTQ:
        case QK_LAYOUT_GPTQ_V1: return Source::kAlongK;
        case QK_LAYOUT_AWQ_GEMM: return Source::kAlongN;
        default: return Source::kLowFirst;
    }
}

// Bytes from a row of codes (of words: GPTQ, AWQ_GEMM) to the next, and from a row of the weight to
// 8 rows further down.
struct CodeSteps {
    int64_t pitch, rows8;
};

CodeSteps code_steps(const Weight &w) {
    const Geometry &s = w.geometry;
    switch (source_of(w)) {
        case Source::kAlongK: return {s.n * 4, 32};
        case Source::kAlongN: return {s.n / 2, 4};
        default: return {s.k / 2, s.k * 4};
    }
}

template <Source source>
Status run_source(const RepackArgs &args, const Launch &launch, Problem p) {
    using S = Stage<source>;
    p.runs = uint32_t(ceil_div(p.k, S::kColumns));
    const int64_t blocks = ceil_div(p.rows, S::kRows) * p.runs;
    const Shape3 shape = {dim3(blocks_beside(&p.groups, blocks)), kRepackThreads};
    return args.to.layout->id == kLayoutTilesPairs
               ? launch_kernel(launch, "repack", repack_tiles<source, true>, shape, p)
               : launch_kernel(launch, "repack", repack_tiles<source, false>, shape, p);
}

Status run(const RepackArgs &args, const Launch &launch) {
    const CodeSteps steps = code_steps(args.from);
    Problem p = {};
    p.codes = static_cast<const uint8_t *>(args.from.data) + args.first_row / 8 * steps.rows8;
    p.to = static_cast<uint4 *>(args.to.data);
    p.pitch = steps.pitch;
    p.rows = args.to.geometry.n;
    p.k = uint32_t(args.to.geometry.k);
    p.tiles = uint32_t(ceil_div(args.to.geometry.k, 64));
    p.row_tiles = uint32_t(ceil_div(p.rows, 16));
    p.groups = groups_of(args.from, args.to, kRepackThreads, args.first_row);
    if (!args.in_workspace) QK_TRY(copy_shared_planes(args, launch));
    switch (source_of(args.from)) {
        case Source::kHighFirst: return run_source<Source::kHighFirst>(args, launch, p);
        case Source::kAlongK: return run_source<Source::kAlongK>(args, launch, p);
        case Source::kAlongN: return run_source<Source::kAlongN>(args, launch, p);
        default: return run_source<Source::kLowFirst>(args, launch, p);
    }
}

bool takes_layout(const Weight &w) {
    switch (w.layout->id) {
        case QK_LAYOUT_ROW:
        case QK_LAYOUT_ROW_HIGH:
        case QK_LAYOUT_AWQ_GEMV:
        case QK_LAYOUT_WORD: return aligned(w.data, 8);
        case QK_LAYOUT_GPTQ:
        case QK_LAYOUT_GPTQ_V1: return aligned(w.data, 4);
        case QK_LAYOUT_AWQ_GEMM: return w.geometry.n % 16 == 0 && aligned(w.data, 8);
        default: return false;
    }
}

bool can_run(const RepackArgs &args, const Device &) {
    const Weight &w = args.from, &to = args.to;
    const Geometry &s = to.geometry;
    const bool tiles = to.layout->id == kLayoutTiles || to.layout->id == kLayoutTilesPairs;
    const int64_t limit = int64_t{1} << 28;
    return tiles && !has_minimum(w) && !s.flat && w.format->bits == 4 && takes_layout(w) &&
           s.k % 16 == 0 && s.k < limit && s.n < limit && args.first_row % 16 == 0 &&
           ceil_div(s.n, 16) * ceil_div(s.k, 64) < limit && s.group_count < limit &&
           aligned(to.data) && has_group_planes(w) && has_group_planes(to);
}

}  // namespace

const Kernel<RepackArgs> kRepackTiles = {"tiles", can_run, nullptr, run};

}  // namespace qk::cuda
