// y = x . w from packed tiles (16 rows x 64 columns), up to 16 rows of x of 16 bits, where a block
// has room for rings of copies.
//
//   strip: 128 columns of w, all rows
//   step:  16 rows of tiles of a strip, two tiles a warp; with more than 8 rows of x, whose sums
//          leave registers for one, 8 rows of tiles
//   block: a run of steps, strip after strip, as long as any other block's
//
// As in linear/transposed.cu rows of w are what the tensor core sums over:
//
//     y[16 columns, 8 rows of x] += transpose(w[16 rows, 16 columns]) . transpose(x[8, 16 rows])
//
// Tiles are transposed where they are loaded (ldmatrix), as 16 bits of codes of two columns and two
// rows each: matrix i of a tile is what lanes (r, i) of other products have of it, r = 0 to 7, and
// lane (g, q) gets bits 16 g to 16 g + 15 of rows 2 q and 2 q + 1. Each warp has a ring of tiles
// of its own, with scales, zeros and x; no warp waits for another before sums meet.
//
// Weights are entry * scale in x's type: the scale is rounded to it first, then the product. Sums
// are f32: a warp's tiles in their order, the warps in theirs, then the blocks', in the workspace.
// So a row of y depends on n, k, the device, and on whether x has more than 8 rows.
#include "cuda/kernels.hpp"
#include "cuda/linear/transposed_kinds.cuh"
#include "cuda/linear/transposed_rows.cuh"
#include "cuda/prim/shared.cuh"
#include "cuda/runtime.hpp"

namespace qk::cuda {
namespace {

constexpr int32_t kThreads = kStripWarps * 32;

__device__ void store_sum(const StripProblem &p, int64_t strip, bool whole, int32_t x_row,
                          int32_t column, float y) {
    if (whole) {
        const int64_t c = strip * kStripColumns + column;
        if (c < p.w.geometry.k) store_moved(p, x_row, c, y);
    } else {
        const int64_t place = p.plan.place_of(blockIdx.x, strip);
        p.sums[(place * p.m + x_row) * kStripColumns + column] = y;
    }
}

// The warps' sums of a strip, in their order.
template <class Warp>
__device__ void flush(const StripProblem &p, const Warp &work, int32_t strip, int warp,
                      const typename Warp::Acc &sum, StripSums *sums) {
    constexpr int kTiles = Warp::kTiles, kPieces = 2 * kTiles;  // of 32 columns
    const bool whole = p.plan.is_whole(blockIdx.x, strip);
#pragma unroll
    for (int piece = 0; piece < Warp::kXBlocks * kPieces; ++piece) {
        const int block = piece / kPieces, h = piece % kPieces;
        if (block * 8 >= p.m) break;
        work.put(sum[block], h, &sums[warp]);
        __syncthreads();
        const int32_t at = int32_t(threadIdx.x), side = kTiles == 1 ? at / 256 : 0,
                      x_row = at / 32 % 8;
        const int32_t column = at % 32, from = column ^ (x_row / 2 * 8);
        if (kTiles == 1 || at < 256) {
            constexpr int kApart = kTiles == 1 ? kStripAcross : 1;
            float y = sums[side][x_row][from];
#pragma unroll
            for (int i = 1; i < kStripWarps / kStripAcross * kTiles; ++i) {
                y = __fadd_rn(y, sums[i * kApart + side][x_row][from]);
            }
            const int32_t to = side * 64 + h * 32 + column;
            if (block * 8 + x_row < p.m) store_sum(p, strip, whole, block * 8 + x_row, to, y);
        }
        __syncthreads();
    }
}

template <class T, class Code, ScaleKind kind, int kX>
__global__ void __launch_bounds__(kThreads, 1)
    multiply_rows(const __grid_constant__ StripProblem p) {
    QK_LAUNCH_SHARED(shared);
    __shared__ float scale_table[kind == ScaleKind::kNested ? 257 : 1];
    allow_next_kernel();
    auto *const table = reinterpret_cast<uint32_t *>(shared);
    auto *const sums = reinterpret_cast<StripSums *>(table + (Code::kLut4 ? kTableWords : 0));
    auto *const rings = reinterpret_cast<uint8_t *>(sums + kStripWarps);
    // By a broadcast the compiler knows that a warp stays together.
    const int warp = int(__shfl_sync(~0u, threadIdx.x / 32, 0));
    using Work = StripWarp<T, Code, kind, kX>;
    Work work(p, rings, table, scale_table, warp);
    if constexpr (Code::kLut4) Code::prepare(p.w, table, false);
    if constexpr (kind == ScaleKind::kNested) {
        for (int i = int(threadIdx.x); i < 257; i += kThreads) {
            scale_table[i] = i < 256 ? load_as<float>(p.w.code, i) : load_as<float>(p.w.bias, 0);
        }
    }
    wait_for_previous_kernel();
    int32_t strip = work.strip, row = work.row, left = work.left;
    constexpr int kStages = Work::Map::kStages;
#pragma unroll 1
    for (int i = 0; i < kStages - 1; ++i) work.issue();
    __syncthreads();
    uint32_t stage = 0;
    while (left > 0) {
        const int32_t count = min(left, p.plan.steps - row / Work::kDown);
        const bool there = strip * kStripAcross + work.across < p.tiles;
        const int32_t n = int32_t(p.w.geometry.n);
        const int32_t own = there ? min(count, Work::tiles_below(row, p.row_tiles)) : 0;
        const int32_t usual = p.spans == 1 ? min(own, Work::tiles_below(row, n / 16)) : 0;
        const bool more = Work::kTiles == 2 && strip * kStripAcross + 1 < p.tiles;
        typename Work::Acc sum = {};
        const auto turn = [&](const auto &add) {
            copies_wait_but<kStages - 2>();
            __syncwarp();
            work.issue();  // where all lanes have read the stage before
            add(rings + uint32_t(warp) * Work::Map::kRing + stage);
            stage = stage + Work::Map::kBytes == Work::Map::kRing ? 0 : stage + Work::Map::kBytes;
        };
#pragma unroll 1
        for (int32_t i = 0; i < usual; ++i) {
            turn([&](const uint8_t *at) { work.template add_tile<false>(at, 16, more, sum); });
        }
#pragma unroll 1
        for (int32_t i = usual; i < count; ++i) {
            turn([&](const uint8_t *at) {
                const int32_t rows = n - (row + i * Work::kDown) * 16;
                if (i < own) work.template add_tile<true>(at, rows, more, sum);
            });
        }
        flush(p, work, strip, warp, sum, sums);
        left -= count;
        row = work.down, ++strip;
    }
}

constexpr int32_t kAddThreads = 128;
static_assert(kAddThreads == kStripColumns);

// y of the strips that several blocks have parts of, in the blocks' order.
__global__ void __launch_bounds__(kAddThreads) add_parts(const __grid_constant__ StripProblem p) {
    allow_next_kernel();
    const int64_t strip = blockIdx.x, x_row = blockIdx.y;
    const int64_t column = strip * kStripColumns + threadIdx.x;
    const int32_t first = p.plan.block_of(strip * p.plan.steps);
    const int32_t last = p.plan.block_of((strip + 1) * p.plan.steps - 1);
    const bool there = first < last && column < p.w.geometry.k;
    wait_for_previous_kernel();
    if (!there) return;
    const auto part = [&](int32_t block) {
        const int64_t place = p.plan.place_of(block, strip);
        return p.sums[(place * p.m + x_row) * kStripColumns + threadIdx.x];
    };
    float y = part(first);
    for (int32_t block = first + 1; block <= last; ++block) y = __fadd_rn(y, part(block));
    store_moved(p, x_row, column, y);
}

template <class T, class Code, ScaleKind kind, int kX>
Status launch_rows(const StripProblem &p, const Launch &launch) {
    Shape3 shape = {dim3(uint32_t(p.plan.blocks)), kThreads};
    shape.shared_bytes =
        (Code::kLut4 ? kTableWords * 4 : 0) +
        kStripWarps * (sizeof(StripSums) + size_t(StageMap<kind, Code::kLut4, kX>::kRing));
    shape.overlaps = launch.device.capability >= 90;
    QK_TRY(launch_kernel(launch, "linear", multiply_rows<T, Code, kind, kX>, shape, p));
    Shape3 add = {dim3(uint32_t(p.plan.strips), uint32_t(p.m)), kAddThreads};
    add.overlaps = shape.overlaps;
    return launch_kernel(launch, "linear", add_parts, add, p);
}

template <class T, class Code, ScaleKind kind>
Status launch_kind(const StripProblem &p, const Launch &launch) {
    return p.m <= 8 ? launch_rows<T, Code, kind, 1>(p, launch)
                    : launch_rows<T, Code, kind, 2>(p, launch);
}

Status run(const LinearArgs &args, const Launch &launch) {
    const Geometry &s = args.w.geometry;
    const StripProblem p = {view_of(args),
                            int32_t(ceil_div(s.n, 16)),
                            int32_t(ceil_div(s.k, 64)),
                            s.groups_per_row == 1 ? 31 : log2_of(s.group_size),
                            log2_of(args.w.scale.second_group),
                            s.groups_per_row > 1 && s.group_size < 64 ? 4 : 1,
                            plan_strips(args.x.rows, s.n, s.k, launch.device.multiprocessors),
                            static_cast<float *>(launch.workspace)};
    const bool lut4 = codes_of(args.w) == Codes::kLut4;
    return with_transposed_kinds(p, lut4, [&](auto type, auto code, auto kind) {
        return launch_kind<decltype(type), decltype(code), kind.value>(p, launch);
    });
}

}  // namespace

const Kernel<LinearArgs> kLinearTransposedRows = linear_kernel<LinearKernel::kTransposedRows>(run);

}  // namespace qk::cuda
