// y = x . transpose(w) + bias for one row of x, from the packed tiles, on sm_90 and later: the
// kernel for large weights whose codes are looked up. Its rings hold more under way than
// linear/sm90/gemv/warp.cuh does, which pays where the look-ups leave little time for each unit.
//
// The tensor core multiplies 16 rows of w by 8 columns, and one row of x would fill one column. So
// the columns take turns: in a chunk (16 rows x 256 columns of w, drawn in tile/ring.cuh) column
// j holds x for the chunk's j-th 32 columns of w,
//
//     product of w[:, 32 j .. 32 j + 31] by all 8 columns:   only column j is kept
//
// and a lane loads 16 bytes of x a chunk instead of 128. Column 2 i + h sits with the lanes whose
// number mod 4 is i, and such a lane needs the scales of tile i alone: one load a chunk.
//
// Bytes per row of w: k / 2 of codes plus scales and zeros, read once, by bulk copies of 32 KiB
// that are issued before x is known (docs/decisions.md tells why that is safe). A chunk is about
// 240 instructions, 15 for 8 weights a lane; the memory of an H200 would wait for 27.
#include "cuda/tile/ring.cuh"
#include "cuda/lists.hpp"
#include "cuda/runtime.hpp"

namespace qk::cuda {
namespace {

constexpr int32_t kDepth = 3;                   // slots of the ring
constexpr int32_t kPanelRoom = 8;               // rows of tiles a panel
constexpr uint32_t kPartialBytes = 16 * 4 * 4;  // of a warp and a row of tiles: [row][lane mod 4]

// The places of x, the partial sums and the second scales behind the Map.
struct VectorShared {
    uint32_t x, partials, seconds, end;

    __host__ __device__ VectorShared(uint32_t start, int32_t k, const RingPlan &plan,
                                     uint32_t second_bytes) {
        x = start;
        partials = x + uint32_t(k) * 2;
        seconds = partials + uint32_t(plan.buffers * plan.panel) * (kRingWarps * kPartialBytes);
        end = seconds + second_bytes;
    }
};

// What a lane adds up: rows r and r + 8, r its number / 4.
struct Sums {
    float low, high;
};

// What the four lanes of a row have added up.
__device__ float lanes_sum(uint32_t from) {
    const uint4 v = shared_load_16(from);
    return __fadd_rn(__fadd_rn(__uint_as_float(v.x), __uint_as_float(v.y)),
                     __fadd_rn(__uint_as_float(v.z), __uint_as_float(v.w)));
}

template <class T, class Decode, ScaleKind kind, int kGroupTiles>
struct Consumer {
    using Map = RingMap<Decode, kind, kGroupTiles, kDepth>;
    const RingProblem &p;
    const VectorShared &shared;
    Seconds<Map> seconds;
    float scale_bias;
    uint32_t lane, warp;
    uint32_t codes, scales, zeros, x;  // this lane's places in slot 0 and in x
    uint32_t lanes;
    Slot<Map::kSlots> slot;

    __device__ Consumer(const RingProblem &problem, const VectorShared &places)
        : p(problem), shared(places), seconds{places.seconds, 0}, scale_bias(0) {
        lane = threadIdx.x % 32;
        warp = threadIdx.x / 32;
        codes = Map::kRing + warp * Map::kChunkBytes + lane * 16;
        scales = Map::kRing + Map::kScaleAt + warp * Map::kChunkScales +
                 lane % 4 / kGroupTiles * Map::kGroupScales + lane / 4 * kPairBytes<kind>;
        zeros = Map::kRing + Map::kZeroAt + warp * Map::kChunkZeros + lane / 4;
        x = shared.x + lane / 8 * 128 + lane % 4 * 32 + lane / 4 % 2 * 16;
        lanes = Decode::lanes();
    }

    __device__ float2 chunk_scales(uint32_t offset, int32_t row_tile, int32_t chunk) const {
        if constexpr (kind == ScaleKind::kNested) {
            const uint32_t both = shared_load_2(scales + offset);
            const int64_t row = int64_t(row_tile) * 16 + lane / 4;
            const int32_t group = chunk * int32_t(Map::kGroups) + int32_t(lane % 4 / kGroupTiles);
            return {seconds.scale(p, both & 255, row, group, scale_bias),
                    seconds.scale(p, both >> 8, row + 8, group, scale_bias)};
        } else {
            return scale_pair<kind>(scales + offset);
        }
    }

    __device__ void add_chunk(int32_t row_tile, int32_t chunk, Sums *sums) const {
        const uint32_t offset = slot.index * Map::kStage;
        const uint4 b = shared_load_16(x + uint32_t(chunk) * uint32_t(kChunkColumns * 2));
        const float2 scale = chunk_scales(offset, row_tile, chunk);
        Zeros zero = {};
#pragma unroll
        for (int i = 0; i < kChunkTiles; ++i) {
            if (!Decode::kLut4 && i % kGroupTiles == 0) {
                zero = Decode::zeros(shared_load_1(zeros + offset + i / kGroupTiles * 8));
            }
            const uint4 q = shared_load_16(codes + offset + i * 512);
            const uint32_t words[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                uint32_t a[4];
                float d[4] = {};
                Decode::decode(words[2 * half], zero, lanes, a);
                mma_16x8x16<T>(d, a, b.x, b.y);
                Decode::decode(words[2 * half + 1], zero, lanes, a);
                mma_16x8x16<T>(d, a, b.z, b.w);
                if (lane % 4 != uint32_t(i)) continue;
                sums->low = __fmaf_rn(d[half], scale.x, sums->low);
                sums->high = __fmaf_rn(d[2 + half], scale.y, sums->high);
            }
        }
    }

    // This warp's chunks of one row of tiles.
    __device__ void add_row(int32_t row_tile, uint32_t to) {
        Sums sums = {0, 0};
        for (int32_t stage = 0; stage < p.plan.row_stages; ++stage) {
            const int32_t chunk = stage * kRingWarps + int32_t(warp);
            barrier_wait(Map::full(slot.index), slot.parity);
            if (chunk < p.plan.chunks) add_chunk(row_tile, chunk, &sums);
            __syncwarp();
            if (lane == 0) barrier_arrive(Map::empty(slot.index));
            slot.advance();
        }
        shared_store_4(to + lane * 4, __float_as_uint(sums.low));
        shared_store_4(to + lane * 4 + 128, __float_as_uint(sums.high));
    }

    __device__ void store_panel(int32_t first, int32_t last, uint32_t partials) const {
        const int32_t warps = min(kRingWarps, p.plan.chunks);  // that had a chunk of every row
        for (int32_t i = int32_t(threadIdx.x); i < (last - first) * 16; i += kRingWarps * 32) {
            const uint32_t from = partials + uint32_t(i) * 16;
            const uint32_t stride = uint32_t(p.plan.panel) * kPartialBytes;
            float y = lanes_sum(from);
#pragma unroll
            for (int w = 1; w < kRingWarps; ++w) {
                if (w < warps) y = __fadd_rn(y, lanes_sum(from + w * stride));
            }
            const int64_t row = int64_t(first) * 16 + i;
            if (row < p.n) store_output(p, kFormatOf<T>, row, row, y);
        }
    }

    // Before x is known.
    __device__ void prepare(Run rows) {
        if constexpr (!Decode::kLut4) {
            if (p.zero == nullptr) fill_zeros<Map>();
        }
        if constexpr (kind == ScaleKind::kNested) {
            fill_scale_codes<Map>(p);
            seconds.fill(p, rows);
            scale_bias = __ldg(p.scale_bias);
        }
        Decode::prepare(p.entries, kRingWarps * 32);
    }

    __device__ void run(Run rows) {
#pragma unroll 2
        for (int32_t i = int32_t(threadIdx.x); i < p.k / 8; i += kRingWarps * 32) {
            shared_store_16(shared.x + uint32_t(i) * 16, static_cast<const uint4 *>(p.x)[i]);
        }
        if (kind == ScaleKind::kNested) copies_wait();
        wait_for_all();
        const uint32_t warp_bytes = uint32_t(p.plan.panel) * kPartialBytes;
        uint32_t buffer = 0;
        for (int32_t first = rows.first; first < rows.last; first += p.plan.panel) {
            const int32_t last = min(rows.last, first + p.plan.panel);
            const uint32_t partials = shared.partials + buffer * (kRingWarps * warp_bytes);
            for (int32_t row_tile = first; row_tile < last; ++row_tile) {
                add_row(row_tile,
                        partials + warp * warp_bytes + uint32_t(row_tile - first) * kPartialBytes);
            }
            wait_for_consumers();
            store_panel(first, last, partials);
            buffer ^= 1;  // warps that still add this panel up are not waited for
        }
    }
};

template <class T, class Decode, ScaleKind kind, int kGroupTiles>
__global__ void __launch_bounds__(kRingThreads, 1) multiply(const __grid_constant__ RingProblem p) {
    using Work = Consumer<T, Decode, kind, kGroupTiles>;
    using Map = typename Work::Map;
#if __CUDA_ARCH__ >= 900
    allow_next_kernel();
    const Run rows = p.plan.rows.part(int32_t(blockIdx.x));
    // Expected, so that its code comes first: cold instructions are what delays the first copy.
    if (__builtin_expect(threadIdx.x >= kRingWarps * 32, 1)) {
        const bool first = threadIdx.x == kRingWarps * 32;
        Producer<Map> producer(p, rows);
        if (first) {
            producer.init_barriers();
            producer.issue();
        }
        __syncwarp();
        announce_barriers();
        if (first) producer.issue_rest();
        return;
    }
    const VectorShared shared(Map::kEnd, p.k, p.plan, p.second_bytes);
    Work work(p, shared);
    work.prepare(rows);
    wait_for_previous_kernel();
    work.run(rows);
#endif
}

template <class T, class Decode, ScaleKind kind, int kGroupTiles>
Status launch_vector(const RingProblem &p, const Launch &launch) {
    using Map = RingMap<Decode, kind, kGroupTiles, kDepth>;
    const uint32_t seconds = kind == ScaleKind::kNested ? p.second_bytes : 0;
    const VectorShared shared(Map::kEnd, p.k, p.plan, seconds);
    Shape3 shape = {dim3(uint32_t(p.plan.blocks)), kRingThreads};
    shape.shared_bytes = shared.end;
    shape.overlaps = true;
    return launch_kernel(launch, "linear", multiply<T, Decode, kind, kGroupTiles>, shape, p);
}

template <class T, class Decode, ScaleKind kind>
Status run_groups(const RingProblem &p, const Launch &launch) {
    return int64_t(p.groups) * 64 == p.k ? launch_vector<T, Decode, kind, 1>(p, launch)
                                         : launch_vector<T, Decode, kind, 2>(p, launch);
}

template <class T, class Decode>
Status run_scales(qk_format scale, const RingProblem &p, const Launch &launch) {
    return with_scale_kind(scale,
                           [&](auto kind) { return run_groups<T, Decode, kind.value>(p, launch); });
}

template <class T>
Status run_type(const LinearArgs &args, const RingProblem &p, const Launch &launch) {
    const qk_format scale = args.w.scale.format->id;
    return args.w.layout->id == kLayoutTiles ? run_scales<T, RingU4<T>>(scale, p, launch)
                                             : run_scales<T, RingLut4<T>>(scale, p, launch);
}

RingPlan plan_of(const LinearArgs &args, const Device &device) {
    const Geometry &s = args.w.geometry;
    return plan_ring(s.n, s.k, device.multiprocessors, kPanelRoom);
}

Status run(const LinearArgs &args, const Launch &launch) {
    const RingPlan plan = plan_of(args, launch.device);
    const RingProblem problem = {tiles_problem(args), second_bytes(args.w, plan), plan};
    return args.x.format->id == QK_FORMAT_F16 ? run_type<F16>(args, problem, launch)
                                              : run_type<BF16>(args, problem, launch);
}

bool can_run(const LinearArgs &args, const Device &device) {
    if (args.x.rows != 1 || !fits_ring(args, device)) return false;
    // The largest of all maps: a table and nested or f32 scales of groups of 64.
    using Largest = RingMap<RingLut4<F16>, ScaleKind::kF32, 1, kDepth>;
    const RingPlan plan = plan_of(args, device);
    const VectorShared shared(Largest::kEnd + 1024, args.w.geometry.k, plan,
                              second_bytes(args.w, plan));
    return shared.end <= uint32_t(device.shared_bytes);
}

}  // namespace

const Kernel<LinearArgs> kLinearStages = {"sm90 gemv deep", can_run, nullptr, run};

}  // namespace qk::cuda
