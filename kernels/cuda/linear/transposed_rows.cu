// y = x . w from packed tiles (16 rows x 64 columns), up to 16 rows of x of 16 bits, where a block
// has room for rings of copies.
//
//   strip:   64 columns of w, all rows; a cluster takes strip after strip
//   block:   a part of the rows of its cluster's strips
//   warp:    every 16th stack of the block's, four tiles one below the other
//
// As in linear/transposed.cu rows of w are what the tensor core sums over:
//
//     y[16 columns, 8 rows of x] += transpose(w[16 rows, 16 columns]) . transpose(x[8, 16 rows])
//
// Tiles are transposed where they are loaded (ldmatrix), as 16 bits of codes of two columns and two
// rows each: matrix i of a tile is what lanes (r, i) of other products have of it, r = 0 to 7, and
// lane (g, q) gets bits 16 g to 16 g + 15 of rows 2 q and 2 q + 1. Each warp has a ring of stacks
// of its own, with scales, zeros and x; no warp waits for another before sums meet. A lane
// makes two scales of a stack in x's type, for all.
//
// Weights are entry * scale in x's type: the scale is rounded to it first, then the product. Sums
// are f32: a warp's tiles in their order, the warps in theirs, then the blocks of the cluster. So a
// row of y depends on n, k and the device, not on how many rows x has.
#include "cuda/kernels.hpp"
#include "cuda/linear/transposed_kinds.cuh"
#include "cuda/linear/transposed_rows.cuh"
#include "cuda/prim/cluster.cuh"
#include "cuda/prim/shared.cuh"
#include "cuda/runtime.hpp"

namespace qk::cuda {
namespace {

#if defined(QK_CUDA_SIMULATED)
constexpr bool kClusters = false;  // simulated threads have none
#else
constexpr bool kClusters = true;
#endif
constexpr int32_t kThreads = kStripWarps * 32;
static_assert(kThreads == 8 * kStripColumns);  // a thread a sum

// What a block's warps meet with. Of warp w's 32 sums block w mod cut of the cluster stores the
// total.
struct Meeting {
    const StripProblem &p;
    StripSums *sums;
    StripMail *mail;  // two, in turns: one barrier a round keeps them apart
    uint32_t rank;    // of the block in its cluster
    uint32_t turn = 0, owner = 0, first_box = 0;

    __device__ void settle() {
        const uint32_t cut = uint32_t(p.plan.cut), warp = threadIdx.x / 32;
        owner = warp % cut, first_box = warp / cut * cut;
        keep(owner), keep(first_box);
    }

    __device__ float of_cluster(float y) {
        const uint32_t lane = threadIdx.x % 32;
        float(*const box)[32] = mail[turn] + first_box;
        turn ^= 1;
#if !defined(QK_CUDA_SIMULATED)
        cluster_store_4(remote_address(shared_address(&box[rank][lane]), owner), y);
#endif
        cluster_sync();
        if (!owns()) return 0;
        y = box[0][lane];
        for (int32_t i = 1; i < p.plan.cut; ++i) y = __fadd_rn(y, box[i][lane]);
        return y;
    }
    __device__ bool owns() const { return owner == rank; }

    // The warps' sums of a strip and 8 rows of x, in their order.
    template <class Warp>
    __device__ void end(const Warp &work, int64_t strip, int block, const float (&sum)[4][4]) {
        work.put(sum, &sums[threadIdx.x / 32]);
        __syncthreads();
        const int32_t column = int32_t(threadIdx.x) % int32_t(kStripColumns);
        const int32_t row = int32_t(threadIdx.x) / int32_t(kStripColumns);
        const int64_t to = strip * kStripColumns + column;
        const bool there = block * 8 + row < p.m && to < p.w.geometry.k;
        float y = 0;
        if (there) {
            y = sums[0][row][column];
#pragma unroll
            for (int i = 1; i < kStripWarps; ++i) y = __fadd_rn(y, sums[i][row][column]);
        }
        if (p.plan.cut > 1) {
            y = of_cluster(y);
        } else {
            __syncthreads();
        }
        if (there && owns()) store_moved(p, block * 8 + row, to, y);
    }
};

template <class T, class Code, ScaleKind kind, int kX>
__global__ void __launch_bounds__(kThreads, 1)
    multiply_rows(const __grid_constant__ StripProblem p) {
    QK_LAUNCH_SHARED(shared);
    __shared__ float scale_table[kind == ScaleKind::kNested ? 257 : 1];
    allow_next_kernel();
    using Work = StripWarp<T, Code, kind, kX>;
    using Map = typename Work::Map;
    auto *const table = reinterpret_cast<uint32_t *>(shared);
    auto *const sums = reinterpret_cast<StripSums *>(table + Map::kTable / 4);
    auto *const mail = reinterpret_cast<StripMail *>(sums + kStripWarps);
    auto *const rings = reinterpret_cast<uint8_t *>(mail + 2);
    const uint32_t rank = blockIdx.x, cluster = blockIdx.y;
    if (p.plan.cut > 1) cluster_arrive_relaxed();
    // By a broadcast the compiler knows that a warp stays together.
    const int warp = int(__shfl_sync(~0u, threadIdx.x / 32, 0));
    Work work(p, rings, table, scale_table, warp, cluster, rank);
    wait_for_previous_kernel();
    float scale_code = 0;  // asked for ahead of the copies, behind which it would wait for them all
    if constexpr (kind == ScaleKind::kNested) {
        scale_code = load_as<float>(p.w.code, threadIdx.x % 256);
        work.scale_bias = load_as<float>(p.w.bias, 0);
    }
    Meeting meeting = {p, sums, mail, rank};
#pragma unroll 1
    for (int i = 0; i < Map::kStages - 1; ++i) work.issue();
    work.settle();
    meeting.settle();
    if constexpr (Code::kLut4) Code::prepare(p.w, table, false);
    if (kind == ScaleKind::kNested && threadIdx.x < 256) scale_table[threadIdx.x] = scale_code;
    __syncthreads();
    if (p.plan.cut > 1) cluster_wait();  // all blocks are there, to be written to
    uint32_t stage = 0;
    const int32_t n = int32_t(p.w.geometry.n);
#pragma unroll 1
    for (int32_t strip = int32_t(cluster); strip < p.plan.strips; strip += p.plan.clusters) {
        typename Work::Acc sum = {};
        const typename Work::ZerosAt zeros = work.zeros_at(strip);
#pragma unroll 1
        for (int32_t i = 0; i < work.own; ++i) {
            copies_wait_but<Map::kStages - 2>();
            __syncwarp();
            work.issue();  // where all lanes have read the stage before
            work.add_stack(work.ring + stage, n - (work.first + i * kStripWarps) * kStackTiles * 16,
                           zeros, sum);
            stage = stage + Map::kBytes == Map::kStages * Map::kBytes ? 0 : stage + Map::kBytes;
        }
#pragma unroll
        for (int block = 0; block < kX; ++block) {
            if (block * 8 < p.m) meeting.end(work, strip, block, sum[block]);
        }
    }
}

template <class T, class Code, ScaleKind kind, int kX>
Status launch_rows(const StripProblem &p, const Launch &launch) {
    Shape3 shape = {dim3(uint32_t(p.plan.cut), uint32_t(p.plan.clusters)), kThreads};
    shape.shared_bytes = StageMap<kind, Code::kLut4, kX>::kShared;
    shape.overlaps = launch.device.capability >= 90;
    shape.cluster = p.plan.cut;
    return launch_kernel(launch, "linear", multiply_rows<T, Code, kind, kX>, shape, p);
}

template <class T, class Code, ScaleKind kind>
Status launch_kind(const StripProblem &p, const Launch &launch) {
    return p.m <= 8 ? launch_rows<T, Code, kind, 1>(p, launch)
                    : launch_rows<T, Code, kind, 2>(p, launch);
}

Status run(const LinearArgs &args, const Launch &launch) {
    const Geometry &s = args.w.geometry;
    const StripProblem p = {transposed_view(args),
                            plan_strips(s.n, s.k, launch.device.multiprocessors, kClusters)};
    const bool lut4 = codes_of(args.w) == Codes::kLut4;
    return with_transposed_kinds(p, lut4, [&](auto type, auto code, auto kind) {
        return launch_kind<decltype(type), decltype(code), kind.value>(p, launch);
    });
}

}  // namespace

const Kernel<LinearArgs> kLinearTransposedRows = linear_kernel<LinearKernel::kTransposedRows>(run);

}  // namespace qk::cuda
