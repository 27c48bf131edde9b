// y = x . w from packed tiles (16 rows x 64 columns), up to 16 rows of x of 16 bits, where there is
// a copy engine (sm_90) and a block has room for two stages.
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
// lane (g, q) gets bits 16 g to 16 g + 15 of rows 2 q and 2 q + 1. Each warp asks for the
// stacks that it will add up, one ahead: codes, x and scales as boxes of the copy engine, second
// scales lane by lane, zeros to registers of the lanes that use them. No warp waits for another
// before sums meet, from 9 rows of x on where the stack was that it added up last. A lane makes
// scales in x's type and what is subtracted for zeros, for all; groups of 16 and 32 have more.
//
// Weights are entry * scale in x's type: the scale is rounded to it first, then the product. Sums
// are f32: a warp's tiles in their order, the warps in theirs, then the blocks of the cluster. So a
// row of y depends on n, k and the device, not on how many rows x has.
#include "cuda/kernels.hpp"
#include "cuda/linear/transposed_rows.cuh"
#include "cuda/prim/cluster.cuh"
#include "cuda/prim/copy.cuh"
#include "cuda/prim/shared.cuh"
#include "cuda/prim/tensor_map.hpp"
#include "cuda/runtime.hpp"

namespace qk::cuda {
namespace {

#if defined(QK_CUDA_SIMULATED)
constexpr bool kClusters = false;  // simulated threads have none
#else
constexpr bool kClusters = true;
#endif
constexpr int32_t kThreads = kStripWarps * 32;
static_assert(kThreads == 8 * kStripColumns);

// What a block's warps meet with. A thread adds up what they have of a column and one row of x, or
// two side by side; of what the threads of warp w have block w mod cut of the cluster stores the
// total.
template <class S>
struct Meeting {
    using Map = StageMap<S>;
    static constexpr uint32_t kX = S::kX;
    using Sums = float[kX];
    const StripProblem &p;
    const StripRoom<Map> &room;
    uint32_t rank;  // of the block in its cluster
    uint32_t turn = 0, owner = 0, first_box = 0, place = 0;
    int32_t left = 0;  // rows of x from the thread's first on

    __device__ void settle() {
        const uint32_t cut = uint32_t(p.plan.cut), warp = threadIdx.x / 32;
        owner = warp % cut, first_box = warp / cut * cut;
        place = StripWarp<S>::place_of_sum(column(), row());
        // By a shuffle m is read here, where nothing waits for it, and not at the end.
        left = __shfl_sync(~0u, int32_t(p.m), 0) - row();
        keep(owner), keep(first_box), keep(place);
    }
    static __device__ int32_t column() { return int32_t(threadIdx.x) % int32_t(kStripColumns); }
    static __device__ int32_t row() {
        return int32_t(threadIdx.x) / int32_t(kStripColumns) * int32_t(kX);
    }
    __device__ bool owns() const { return owner == rank; }

    // Turns alternate between two sets of mail and barriers. Two are enough: a block sends when all
    // of its warps have received the last turn's sums, and other blocks sent those when they had
    // received the sums of the turn before.
    __device__ uint8_t *box(uint32_t i) const {
        const uint32_t at = (first_box + i) * 32 + threadIdx.x % 32;
        return room.mail + turn % 2 * Map::kMail + at * 4 * kX;
    }
    __device__ uint32_t posted() const {
        return shared_address(room.stages + turn % 2 * Map::kStage + Map::kPosted) +
               threadIdx.x / 32 * 8;
    }
    __device__ void send(const Sums &y) const {
        const uint32_t bytes = uint32_t(p.plan.cut) * 128 * kX;
        if (owns() && threadIdx.x % 32 == 0) barrier_expect(posted(), bytes);
        const uint32_t to = remote_address(shared_address(box(rank)), owner);
        const uint32_t barrier = remote_address(posted(), owner);
        if constexpr (kX == 2) {
            remote_store_8(to, {__float_as_uint(y[0]), __float_as_uint(y[1])}, barrier);
        } else {
            remote_store_4(to, __float_as_uint(y[0]), barrier);
        }
    }
    __device__ void receive(Sums &y) const {
        barrier_wait(posted(), turn / 2 % 2);
        load(box(0), y);
#pragma unroll 1
        for (int32_t i = 1; i < p.plan.cut; ++i) add(box(uint32_t(i)), y);
    }
    static __device__ void load(const uint8_t *from, Sums &y) {
        if constexpr (kX == 2) {
            const float2 v = *reinterpret_cast<const float2 *>(from);
            y[0] = v.x, y[1] = v.y;
        } else {
            y[0] = *reinterpret_cast<const float *>(from);
        }
    }
    static __device__ void add(const uint8_t *from, Sums &y) {
        Sums more;
        load(from, more);
#pragma unroll
        for (uint32_t i = 0; i < kX; ++i) y[i] = __fadd_rn(y[i], more[i]);
    }
    // The warps' sums, in their order.
    __device__ void add_warps(Sums &y) const {
        const auto take = [&](uint32_t warp, const uint8_t *from) {
            if (warp == 0) return load(from, y);
            add(from, y);
        };
#pragma unroll
        for (uint32_t four = 0; four < kStripWarps; four += 4) {
            if constexpr (Map::kInStage) {
                const uint4 last = *reinterpret_cast<const uint4 *>(room.last + four);
                const uint32_t stages[4] = {last.x, last.y, last.z, last.w};
#pragma unroll
                for (uint32_t i = 0; i < 4; ++i) {
                    take(four + i, room.stages + stages[i] + place + (four + i) * Map::kBoxes);
                }
            } else {
#pragma unroll
                for (uint32_t i = 0; i < 4; ++i) {
                    take(four + i, room.sums + place + (four + i) * Map::kSums);
                }
            }
        }
    }

    // Of a strip, once all warps have put their sums. `more`: others follow.
    __device__ void end(int64_t strip, bool more) {
        __syncthreads();
        const int64_t to = strip * kStripColumns + column();
        const bool there = left > 0 && to < p.w.geometry.k;
        Sums y = {};
        if (there) add_warps(y);
        if (p.plan.cut > 1) {
            if (turn == 0) cluster_wait();  // all blocks are there, to be written to
            send(y);
        }
        if (more) {
            shared_writes_before_copies();
            __syncthreads();
        }
        if (p.plan.cut > 1 && owns()) receive(y);
        ++turn;
        if (!there || !owns()) return;
#pragma unroll
        for (uint32_t i = 0; i < kX; ++i) {
            if (int32_t(i) < left) store_moved(p, row() + int32_t(i), to, y[i]);
        }
    }
};

template <class S>
__global__ void __launch_bounds__(kThreads, 1)
    multiply_rows(const __grid_constant__ StripProblem p) {
#if __CUDA_ARCH__ >= 900 || defined(QK_CUDA_SIMULATED)
    QK_LAUNCH_SHARED_LINES(shared);
    allow_next_kernel();
    using Work = StripWarp<S>;
    using Map = StageMap<S>;
    const StripRoom<Map> room(shared);
    const uint32_t rank = blockIdx.x, cluster = blockIdx.y;
    // By a broadcast the compiler knows that a warp stays together.
    const int warp = int(__shfl_sync(~0u, threadIdx.x / 32, 0));
    Work work(p, room, warp, cluster, rank);
    wait_for_previous_kernel();
    // Asked for ahead of the copies, behind which they would wait for all. Single bytes, which
    // would have to be put together here, would delay the copies.
    float code = 0, one = 0;
    constexpr bool kCoded = S::kNested || S::kScales == StripScales::kCodes;
    if constexpr (kCoded) {
        code = global_load_float(p.w.code + threadIdx.x % 256 * 4);
        if constexpr (!S::kNested) one = global_load_float(p.w.second);
        work.scale_bias = global_load_float(p.w.bias);
    }
    work.issue(0);
    work.prepare_barriers();
    if (p.plan.cut > 1) cluster_arrive_relaxed();
    work.settle();
    Meeting<S> meeting = {p, room, rank};
    meeting.settle();
    if constexpr (!S::kZeros) S::Code::prepare(p.w, room.table);
    if (kCoded && threadIdx.x < 256) work.store_scale(code, one);
    if constexpr (!S::kZeros || kCoded) __syncthreads();
    uint32_t stage = 0, to = Map::kStage, parity = 0;
    const int32_t n = int32_t(p.w.geometry.n);
#pragma unroll 1
    for (int32_t strip = int32_t(cluster); strip < p.plan.strips; strip += p.plan.clusters) {
        typename Work::Acc sum = {};
        int32_t left = n - work.first * kStackTiles * 16;  // rows of w, from the stack on
#pragma unroll 1
        for (int32_t i = 0; i < work.own; ++i) {
            if constexpr (S::kNested) copies_wait_but<0>();  // by groups: fewer instructions
            __syncwarp();
            work.take_zeros();
            work.issue(to);  // where all lanes have read the stack before
            barrier_wait(work.full + stage, parity);
            work.add_stack(room.stages + stage, left, sum);
            left -= kStripWarps * kStackTiles * 16;
            to = stage;
            stage = Map::kStage - stage;
            if (stage == 0) parity ^= 1;
        }
        work.put(sum, to);
        meeting.end(strip, strip + p.plan.clusters < p.plan.strips);
    }
#endif
}

template <class S>
Status launch_strips(const StripProblem &p, const Launch &launch) {
    Shape3 shape = {dim3(uint32_t(p.plan.cut), uint32_t(p.plan.clusters)), kThreads};
    shape.shared_bytes = StageMap<S>::kShared;
    shape.overlaps = launch.device.capability >= 90;
    shape.cluster = p.plan.cut;
    return launch_kernel(launch, "linear", multiply_rows<S>, shape, p);
}

template <class T, Codes codes, StripScales scales, int parts>
Status launch_rows(const StripProblem &p, const Launch &launch) {
    return p.m <= 8 ? launch_strips<StripKind<T, codes, scales, parts, 1>>(p, launch)
                    : launch_strips<StripKind<T, codes, scales, parts, 2>>(p, launch);
}

template <class T, Codes codes, StripScales scales>
Status launch_scales(const StripProblem &p, int32_t parts, const Launch &launch) {
    if constexpr (scales != StripScales::kNested) {
        // Beside a table of what codes look up is no room for so many floats.
        if constexpr (codes != Codes::kLut4 || scales != StripScales::kFloats) {
            if (parts == 4) return launch_rows<T, codes, scales, 4>(p, launch);
        }
        if (parts == 2) return launch_rows<T, codes, scales, 2>(p, launch);
    }
    return launch_rows<T, codes, scales, 1>(p, launch);
}

template <class T, Codes codes>
Status launch_codes(const StripProblem &p, int32_t parts, const Launch &launch) {
    using Scales = StripScales;
    switch (p.w.scale_format) {
        case QK_FORMAT_F32: return launch_scales<T, codes, Scales::kFloats>(p, parts, launch);
        case QK_FORMAT_F16:
        case QK_FORMAT_BF16: return launch_scales<T, codes, Scales::kHalves>(p, parts, launch);
        default: break;
    }
    return p.w.second_group == kOneSecond
               ? launch_scales<T, codes, Scales::kCodes>(p, parts, launch)
               : launch_scales<T, codes, Scales::kNested>(p, parts, launch);
}

template <class T>
Status launch_type(const StripProblem &p, Codes codes, int32_t parts, const Launch &launch) {
    return codes == Codes::kU4 ? launch_codes<T, Codes::kU4>(p, parts, launch)
                               : launch_codes<T, Codes::kLut4>(p, parts, launch);
}

Status run(const LinearArgs &args, const Launch &launch) {
    const DeviceGuard device(launch.device.index);  // the driver describes tensors in a context
    QK_TRY(check(device.error(), launch.error, "linear"));
    const Geometry &s = args.w.geometry;
    const int32_t parts = strip_parts(s.group_size, s.groups_per_row);
    StripProblem p = {};
    const TransposedView view = transposed_view(args);
    static_cast<LinearView &>(p) = view;
    p.groups = int32_t(s.groups_per_row), p.zero = p.w.zero;
    p.row_tiles = view.row_tiles, p.group_shift = view.group_shift;
    p.second_shift = view.second_shift;
    p.plan = plan_strips(s.n, s.k, launch.device.multiprocessors, kClusters);
    const int32_t scale_bytes = args.w.scale.format->bits / 8;
    p.box_bytes = uint32_t(kStackTiles * (512 + parts * 16 * scale_bytes) + p.m * 128);
    QK_TRY(describe_tiles(args.w, kStackTiles, 1, launch.error, &p.code_map));
    QK_TRY(describe_scales(args.w, kStackTiles, parts, launch.error, &p.scale_map));
    QK_TRY(describe_tensor({args.x.data, s.n, p.m, 2, p.x_stride * 2}, 64, int32_t(p.m),
                           launch.error, &p.x_map));
    const Codes codes = codes_of(args.w);
    return p.type == QK_FORMAT_F16 ? launch_type<F16>(p, codes, parts, launch)
                                   : launch_type<BF16>(p, codes, parts, launch);
}

}  // namespace

const Kernel<LinearArgs> kLinearTransposedRows = linear_kernel<LinearKernel::kTransposedRows>(run);

}  // namespace qk::cuda
