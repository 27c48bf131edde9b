// Products with experts by the kernel for one row of x (warp.cuh): the same units, in the same
// order, of other places. A block has a row of y, so that its slots' sums meet there, and the rows
// of tiles of each slot one after the other:
//
//     row of the block    |  0  1  2  |  3  4  5  | ...       3 strips
//     slot that is there        0           1                 its expert's rows of w, its row of x
//
// Slots of experts that are elsewhere take no time.
#pragma once
#include "cuda/linear/sm90/gemv/experts_plan.hpp"
#include "cuda/linear/sm90/gemv/warp.cuh"
#include "cuda/runtime.hpp"

namespace qk::cuda {

namespace {

// Rows of tiles of an expert that a block has, one strip after the other.
struct ExpertTiles {
    static constexpr bool kOwn = false;
    static constexpr bool kScalesTogether = false;
    const ExpertsView &e;
    const ExpertsCut &cut;
    const bool &second_by_row;
    int32_t first;  // row of tiles

    // From a gate's row of tiles to its up's.
    __device__ int32_t tile(int32_t i) const {
        return cut.tiles == 1 ? first + i : first + i / 2 + i % 2 * int32_t(cut.strips);
    }
    __device__ int32_t in_expert(int32_t expert, int32_t i) const {
        return expert * int32_t(e.rows / 16) + tile(i);
    }
    __device__ float second(const GemvProblem &p, uint32_t row_of_w, uint32_t group) const {
        const uint64_t number = uint64_t(row_of_w) * p.groups + group;
        return p.second[second_by_row ? row_of_w : number >> p.second_shift];
    }
};

template <int32_t kBlockWarps>
struct ExpertRows : ExpertTiles {
    static constexpr int32_t kWarps = kBlockWarps;
    const GemvExpertsProblem &p;
    uint32_t list;  // in shared memory: kSlotBytes
    int32_t tiles;  // rows of tiles of a slot
    uint32_t reciprocal;

    __device__ ExpertRows(const GemvExpertsProblem &problem, Run strips, uint32_t list_at)
        : ExpertTiles{problem.e, problem.cut, problem.second_by_row, strips.first}, p(problem),
          list(list_at), tiles((strips.last - strips.first) * problem.cut.tiles),
          reciprocal((65536u + uint32_t(tiles) - 1) / uint32_t(tiles)) {}

    // Slots that are there; the row of y.
    __device__ int32_t there() const { return int32_t(shared_load_4(list + kSlotsThere)); }
    __device__ int64_t head() const { return int32_t(shared_load_4(list + kHead)); }

    __device__ uint32_t slot_of(int32_t row) const { return uint32_t(row) * reciprocal >> 16; }
    __device__ int32_t in_w(int32_t row) const {
        const uint32_t slot = slot_of(row);
        const int32_t expert = int32_t(shared_load_4(list + slot * 8));
        return in_expert(expert, row - int32_t(slot) * tiles);
    }
    __device__ const void *x(const GemvProblem &gemv, int32_t row) const {
        const uint32_t x_row = shared_load_4(list + slot_of(row) * 8 + 4);
        return static_cast<const uint8_t *>(gemv.x) + x_row * (p.x_stride * 2);
    }
    __device__ bool x_is_late(bool) const { return p.routed_early; }
    // The weight of a slot.
    __device__ Beside beside_x(const GemvProblem &, Run) const {
        if (!e.summed || e.weight == nullptr || int32_t(threadIdx.x) >= cut.slots) {
            return {false, 0};
        }
        return {true, load_as<float>(e.weight, head() * e.slots + threadIdx.x)};
    }
};

// From the L2: what the L1 has may be older than a routing that is read early.
__device__ inline int32_t fresh_expert(const ExpertsView &e, int64_t slot) {
    const auto *const at = static_cast<const char *>(e.expert) + slot * 4;
    if ((reinterpret_cast<uintptr_t>(at) & 3) == 0) {
        return __ldcg(reinterpret_cast<const int32_t *>(at));
    }
    uint32_t bytes = 0;
    for (int i = 0; i < 4; ++i) bytes |= uint32_t(uint8_t(__ldcg(at + i))) << i * 8;
    return int32_t(bytes);
}

// The slots of a row of y, by the first warp; how many are there, which every thread knows once the
// block has met.
__device__ inline void list_slots(const GemvExpertsProblem &p, int32_t head, Run strips,
                                  uint32_t list) {
    if (threadIdx.x >= 32) return;
    const ExpertsView &e = p.e;
    const int32_t lane = int32_t(threadIdx.x);
    const int64_t slot = e.summed ? int64_t{head} * e.slots + lane : head;
    const int32_t expert = lane < p.cut.slots ? fresh_expert(e, slot) : -1;
    const bool is_there = expert >= 0 && expert < e.count;
    const uint32_t all = __ballot_sync(~0u, is_there);
    shared_store_4(list + kSlotExperts + uint32_t(lane) * 4, uint32_t(expert));
    if (is_there) {
        const uint32_t token = e.summed ? uint32_t(head) : uint32_t(head) / uint32_t(e.slots);
        const uint32_t at = list + uint32_t(__popc(all & ((1u << lane) - 1))) * 8;
        shared_store_4(at, uint32_t(expert));
        shared_store_4(at + 4, e.x_by_slot ? uint32_t(slot) : token);
    }
    if (lane == 0) {
        shared_store_16(list + kSlotsThere, {uint32_t(__popc(all)), uint32_t(head),
                                             uint32_t(strips.first), uint32_t(strips.last)});
    }
}

// z of a column of the block's strips. product(tile, row): of a row of one of their tiles.
template <class Product>
__device__ float z_of_column(const ExpertsView &e, int32_t column, const Product &product) {
    if (!e.joins()) return product(column / 16, column % 16);
    if (e.interleaved) {
        const int32_t gate = column % 8 * 2, tile = column / 8;
        return join(e.activation, e.limit, e.alpha, product(tile, gate), product(tile, gate + 1));
    }
    const int32_t row = column % 16, tile = column / 16 * 2;
    return join(e.activation, e.limit, e.alpha, product(tile, row), product(tile + 1, row));
}

__device__ inline int32_t columns_of_strip(const ExpertsView &e) {
    return e.joins() && e.interleaved ? 8 : 16;
}

// z of the block's columns. Of a product without a sum it is y; else z of all slots that are there
// go to where codes were, then their sums to y.
template <class Warp, class Rows>
__device__ void store_columns(const GemvExpertsProblem &p, const Rows &rows) {
    constexpr uint32_t kZ = Warp::kSlots;
    static_assert(Warp::kWarps * Warp::Map::kBytes >= uint32_t(kBlockRows) * kRowBytes);
    const ExpertsView &e = p.e;
    const uint4 block = shared_load_16(rows.list + kSlotsThere);
    const int32_t there = int32_t(block.x);
    const Run strips = {int32_t(block.z), int32_t(block.w)};
    const int32_t of_strip = columns_of_strip(e), partials = p.gemv.plan.partials;
    const int32_t columns = (strips.last - strips.first) * of_strip;
    const int64_t first_column = int64_t(strips.first) * of_strip;
    for (int32_t i = int32_t(threadIdx.x); i < there * columns; i += Warp::kThreads) {
        const int32_t number = e.summed ? i / columns : 0, first = number * rows.tiles;
        const int64_t expert = int32_t(shared_load_4(rows.list + uint32_t(number) * 8));
        const float z = z_of_column(e, i - number * columns, [&](int32_t tile, int32_t row) {
            const uint32_t at = uint32_t((first + tile) * partials);
            const uint32_t from = Warp::kSums + at * kRowBytes + uint32_t(row) * 4;
            return with_bias(e, expert * e.rows + rows.tile(tile) * 16 + row,
                             sum_of_partials(from, partials, kRowBytes));
        });
        if (e.summed) {
            shared_store_4(kZ + uint32_t(i) * 4, __float_as_uint(z));
        } else {
            store_sum(e, int64_t(block.y), first_column + i, {z, true});
        }
    }
    if (!e.summed && there > 0) return;
    __syncthreads();
    for (int32_t column = int32_t(threadIdx.x); column < columns; column += Warp::kThreads) {
        SlotSum sum;
        uint32_t z = kZ + uint32_t(column) * 4;  // of the next slot that is there
        for (int32_t j = 0; j < p.cut.slots; ++j) {
            const uint32_t at = uint32_t(j) * 4;
            const int32_t expert = int32_t(shared_load_4(rows.list + kSlotExperts + at));
            if (expert < 0) continue;
            const float weight =
                e.weight == nullptr ? 1.0f : __uint_as_float(shared_load_4(Warp::kBias + at));
            sum.add_times(e, weight, expert, __uint_as_float(shared_load_4(z)));
            if (expert < e.count) z += uint32_t(columns) * 4;
        }
        store_sum(e, int64_t(block.y), first_column + column, sum);
    }
}

// Blocks a multiprocessor, as registers have it.
template <int kGroupTiles>
constexpr int kExpertsBlocks = kParts<kGroupTiles> > 2 ? 1 : 2;

// What the compiler takes a block's threads for. With groups of half a tile it spills where it
// could have the 80 registers a thread that 12 warps leave, and does not with 64.
template <int kGroupTiles, int32_t kWarps>
constexpr int kBoundThreads = kParts<kGroupTiles> == 2 ? kGemvThreads : kWarps * 32;

template <class T, class Decode, ScaleKind kind, int kGroupTiles, int32_t kWarps>
__global__ void __launch_bounds__(kBoundThreads<kGroupTiles, kWarps>, kExpertsBlocks<kGroupTiles>)
    multiply_experts(const __grid_constant__ GemvExpertsProblem p) {
#if __CUDA_ARCH__ >= 900
    using Warp = GemvWarp<T, Decode, kind, kGroupTiles, ExpertRows<kWarps>>;
    const int32_t head = int32_t(blockIdx.x / uint32_t(p.plan.blocks));
    const Run strips = p.plan.strips.part(int32_t(blockIdx.x % uint32_t(p.plan.blocks)));
    const uint32_t list = Warp::kSums + p.plan.gemv.sums_bytes;
    Warp work(p.gemv, {0, 0}, ExpertRows<kWarps>(p, strips, list));
    work.init_barriers();
    work.prepare_tables({0, 0});
    asm volatile("" ::"l"(p.e.y), "l"(p.e.weight), "l"(p.e.bias), "l"(p.x_stride), "r"(p.e.y_type));
    // The next kernel may rely on the routing, so it begins once this one has seen it.
    if (!p.routed_early) wait_for_previous_kernel();
    allow_next_kernel();
    list_slots(p, head, strips, list);
    __syncthreads();
    const int32_t rows = work.places.there() * work.places.tiles;
    work.take_count(rows);
    work.issue_first();
    work.run({0, rows});
    wait_for_previous_kernel();
    __syncthreads();
    store_columns<Warp>(p, work.places);
#endif
}

template <class T, class Decode, ScaleKind kind, int kGroupTiles, int32_t kWarps>
Status launch_experts(GemvExpertsProblem p, const Launch &launch) {
    using Warp = GemvWarp<T, Decode, kind, kGroupTiles, ExpertRows<kWarps>>;
    constexpr uint32_t kFixed = Warp::kSums - kSharedStart + kSlotBytes;
    constexpr int64_t kBlocks = kExpertsBlocks<kGroupTiles>;
    const int64_t of_block = launch.device.shared_bytes;
    const int64_t room = kBlocks == 2 ? half_of_shared(of_block) : of_block;
    p.plan = plan_experts(p.cut, p.e.heads(), p.gemv.plan, room - int64_t{kFixed},
                          kBlocks * launch.device.multiprocessors, kWarps);
    p.gemv.plan = p.plan.gemv;
    Shape3 shape = {dim3(uint32_t(p.e.heads() * p.plan.blocks)), kWarps * 32};
    shape.shared_bytes = kFixed + p.plan.gemv.sums_bytes;
    shape.overlaps = true;
    return launch_kernel(launch, "experts", multiply_experts<T, Decode, kind, kGroupTiles, kWarps>,
                         shape, p);
}

template <class T, class Decode>
Status run_experts(qk_format scale, const GemvExpertsProblem &p, const Launch &launch) {
    return with_scale_kind(scale, [&](auto kind) {
        return with_group_tiles(p.gemv.group_shift, [&](auto tiles) {
            constexpr ScaleKind kKind = kind.value;
            constexpr int kTiles = tiles.value;
            return experts_warps(p.cut, p.gemv.plan) == kFewerWarps
                       ? launch_experts<T, Decode, kKind, kTiles, kFewerWarps>(p, launch)
                       : launch_experts<T, Decode, kKind, kTiles, kGemvWarps>(p, launch);
        });
    });
}

}  // namespace

template <Codes codes, qk_format x>
Status GemvExperts<codes, x>::run(const GemvExpertsProblem &p, qk_format scale,
                                  const Launch &launch) {
    using T = TypeOf<x>;
    using Decode = std::conditional_t<codes == Codes::kU4, RingU4<T>, RingLut4<T>>;
    return run_experts<T, Decode>(scale, p, launch);
}

}  // namespace qk::cuda
