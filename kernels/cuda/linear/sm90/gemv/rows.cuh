// Up to 8 rows of x times an expert, each in the bits of the kernel for one row (warp.cuh): the
// same units, but column j of the operands holds the item's row j for every tile, and each lane
// keeps the four sums that four lanes have there.
//
//     tiles of a unit    0 1 | 2 3 | 4 5 | 6 7
//     sums               0   | 1   | 2   | 3     then (0 + 1) + (2 + 3), as lanes add up
//
// Groups of a part of a tile have products of their own, the rest of x being zeros there, too.
// x comes through the L1. A block has half the warps of the kernel for one row, and a
// multiprocessor two blocks: one reads weights while the other begins or ends.
#pragma once
#include "cuda/linear/sm90/gemv/experts.cuh"
#include "cuda/linear/sm90/gemv/rows_plan.hpp"

namespace qk::cuda {
namespace {

struct OneExpert : ExpertTiles {
    static constexpr int32_t kWarps = kRowsWarps;
    int32_t expert;

    __device__ int32_t in_w(int32_t row) const { return in_expert(expert, row); }
    __device__ const void *x(const GemvProblem &p, int32_t) const { return p.x; }
};

template <class T, class Decode, ScaleKind kind, int kGroupTiles>
struct GemvRowsWarp : GemvWarp<T, Decode, kind, kGroupTiles, OneExpert> {
    using Warp = GemvWarp<T, Decode, kind, kGroupTiles, OneExpert>;
    using typename Warp::Lane;
    using Warp::ahead, Warp::barrier, Warp::count, Warp::kGroups, Warp::kOfParts, Warp::lane,
        Warp::lanes, Warp::p, Warp::pair, Warp::row, Warp::slot, Warp::unit;
    static constexpr int kHalf = kUnitTiles / 2, kChains = 4;
    static constexpr uint32_t kTileBytes = uint32_t(kItemRows) * kRowBytes;

    const uint8_t *x;  // of this lane's row: row number lane / 4 of the item; null: there is none
    int32_t end_row;   // of tiles
    float chain[kChains][4] = {};  // rows r and r + 8 of w, rows 2 pair and 2 pair + 1 of x
    uint32_t b[kHalf][8];

    __device__ GemvRowsWarp(const GemvProblem &problem, const OneExpert &where)
        : Warp(problem, {0, 0}, where), x(nullptr), end_row(0) {}

    // Partial sums go to the warps in turn (Unit::follow_sum).
    __device__ void take_sums(int32_t rows) {
        const uint32_t warp = threadIdx.x / 32, first = warp * p.plan.reciprocal >> 16;
        unit = {int32_t(first), int32_t(warp) - int32_t(first) * p.plan.partials};
        ahead = unit;
        end_row = rows;
        count = unit.row < rows;
    }

    // x for four tiles; zeros past the end of k, and where there is no row.
    __device__ void load_half(int32_t first) {
#pragma unroll
        for (int i = 0; i < kHalf; ++i) {
            const int32_t column =
                unit.column * int32_t(kUnitColumns) + (first + i) * 64 + int32_t(pair) * 16;
            load_columns(x != nullptr && column < p.k, x, column, b[i]);
        }
    }

    // The scales of part `part` of tile i, from the lane that has them.
    __device__ float2 scale_of(const Lane &v, int i, int part) const {
        const int from = kOfParts == 4 ? i / 4 * 2 + part / 2 : i / 2;
        const int at = kOfParts == 4   ? i % 4 * 2 + part % 2
                       : kOfParts == 2 ? i % 2 * 2 + part
                                       : i % int(kGroups);
        const uint32_t lane_of = (lane & 28) + uint32_t(from);
        const float2 &own = v.scale[at];
        return {__uint_as_float(from_lane(__float_as_uint(own.x), lane_of)),
                __uint_as_float(from_lane(__float_as_uint(own.y), lane_of))};
    }

    __device__ void add_tile_rows(int i, const uint4 &codes, const Zeros &zero, const Lane &v) {
        const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
        const auto &own = b[i % kHalf];
        float d[kOfParts][4] = {};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            uint32_t a[4];
            Decode::decode(words[j], zero, lanes, a);
#pragma unroll
            for (uint32_t part = 0; part < kOfParts; ++part) {
                const bool mine = kOfParts == 1 || pair / (4 / kOfParts) == part;
                mma_16x8x16<T>(d[part], a, mine ? own[2 * j] : 0, mine ? own[2 * j + 1] : 0);
            }
        }
#pragma unroll
        for (uint32_t part = 0; part < kOfParts; ++part) {
            const float2 scale = scale_of(v, i, int(part));
            float(&sum)[4] = chain[kOfParts == 4 ? i / 4 * 2 + int(part) / 2 : i / 2];
            sum[0] = __fmaf_rn(d[part][0], scale.x, sum[0]);
            sum[1] = __fmaf_rn(d[part][1], scale.x, sum[1]);
            sum[2] = __fmaf_rn(d[part][2], scale.y, sum[2]);
            sum[3] = __fmaf_rn(d[part][3], scale.y, sum[3]);
        }
    }

    template <int first>
    __device__ void add_half(const Lane &v) {
        const uint32_t codes = slot + lane * 16;
        Zeros zero = {};
#pragma unroll
        for (int i = first; i < first + kHalf; ++i) {
            if (!Decode::kLut4 && (kGroupTiles < 2 || i % 2 == 0)) zero = this->zero_of(v, i);
            add_tile_rows(i, shared_load_16(codes + i * 512), zero, v);
        }
    }

    // To [row of tiles][partial][row of x][row].
    __device__ void store_sums(Unit from) {
        const int32_t at = from.row * p.plan.partials + from.column % kGemvWarps;
        const uint32_t to = Warp::kSums + uint32_t(at) * kTileBytes + row * 4;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float y =
                __fadd_rn(__fadd_rn(chain[0][i], chain[1][i]), __fadd_rn(chain[2][i], chain[3][i]));
            const uint32_t column = pair * 2 + uint32_t(i % 2);
            shared_store_4(to + column * kRowBytes + uint32_t(i / 2) * 32, __float_as_uint(y));
        }
#pragma unroll
        for (int i = 0; i < kChains * 4; ++i) chain[i / 4][i % 4] = 0;
    }

    __device__ void run_rows() {
        Lane v;
        uint32_t parity = 0;
        if (kind == ScaleKind::kNested) {
            copies_arrive(Warp::kTablesKnown);
            barrier_wait(Warp::kTablesKnown, 0);
        }
        bool more = count > 0;
#pragma unroll 1
        while (more) {
            load_half(0);
            barrier_wait(barrier, parity);
            this->begin_unit(&v);
            add_half<0>(v);
            load_half(kHalf);
            const bool same_sum = ahead.follow_sum(p.plan);
            more = ahead.row < end_row;
            if (more) {
                this->find_row();
                __syncwarp();
                this->issue_codes(0);
                if constexpr (!Decode::kLut4) this->issue_scales();
            }
            barrier_wait(barrier + 8, parity);
            if (this->has_second_half()) add_half<kHalf>(v);
            if (!same_sum) store_sums(unit);
            unit = ahead;
            if (!more) break;
            __syncwarp();
            this->issue_codes(1);
            parity ^= 1;
        }
    }
};

template <class Warp>
__device__ void store_rows_of_x(const GemvRowsProblem &p, const OneExpert &place,
                                const ExpertsItem &item, Run strips) {
    const ExpertsView &e = p.e;
    const int32_t of_strip = columns_of_strip(e), partials = p.gemv.plan.partials;
    const int32_t columns = (strips.last - strips.first) * of_strip;
    for (int32_t i = int32_t(threadIdx.x); i < columns * item.count; i += Warp::kThreads) {
        const int32_t number = i / columns, column = i % columns;
        const int64_t slot = p.list.slots[item.first + number];
        const float z = z_of_column(e, column, [&](int32_t tile, int32_t row) {
            const uint32_t from = Warp::kSums + uint32_t(tile * partials) * Warp::kTileBytes +
                                  uint32_t(number) * kRowBytes + uint32_t(row) * 4;
            return with_bias(e, item.expert * e.rows + place.tile(tile) * 16 + row,
                             sum_of_partials(from, partials, Warp::kTileBytes));
        });
        SlotSum sum;
        sum.add(e, slot, item.expert, z);
        store_sum(e, slot, int64_t(strips.first) * of_strip + column, sum);
    }
}

// The row of x of this lane's row of the item; null where it has fewer.
__device__ inline const uint8_t *x_of_lane(const GemvRowsProblem &p, const ExpertsItem &item) {
    const int32_t row = int32_t(threadIdx.x % 32 / 4);
    if (row >= item.count) return nullptr;
    const uint32_t slot = uint32_t(p.list.slots[item.first + row]);
    const uint32_t x_row = p.e.x_by_slot ? slot : slot / uint32_t(p.e.slots);
    return static_cast<const uint8_t *>(p.gemv.x) + x_row * (p.x_stride * 2);
}

template <class T, class Decode, ScaleKind kind, int kGroupTiles>
__global__ void __launch_bounds__(kRowsWarps * 32, 2)
    multiply_rows(const __grid_constant__ GemvRowsProblem p) {
#if __CUDA_ARCH__ >= 900
    using Warp = GemvRowsWarp<T, Decode, kind, kGroupTiles>;
    const uint32_t number = blockIdx.x / uint32_t(p.blocks);
    const Run strips = p.strips.part(int32_t(blockIdx.x % uint32_t(p.blocks)));
    Warp work(p.gemv, {{p.e, p.cut, p.second_by_row, strips.first}, 0});
    work.init_barriers();
    work.prepare_tables({0, 0});
    wait_for_previous_kernel();
    allow_next_kernel();
    if (number >= uint32_t(*p.list.items_there)) return;
    const ExpertsItem item = p.list.items[number];
    if (item.expert >= p.e.count) {
        const int32_t of_strip = columns_of_strip(p.e);
        return fill_rows(p.e, p.list, item.first, item.count, int64_t(strips.first) * of_strip,
                         (strips.last - strips.first) * of_strip, Warp::kThreads);
    }
    work.places.expert = item.expert;
    work.take_sums((strips.last - strips.first) * p.cut.tiles);
    work.issue_first();
    work.x = x_of_lane(p, item);
    __syncthreads();
    work.run_rows();
    __syncthreads();
    store_rows_of_x<Warp>(p, work.places, item, strips);
#endif
}

template <class T, class Decode, ScaleKind kind, int kGroupTiles>
Status launch_rows(GemvRowsProblem p, int64_t items, const Launch &launch) {
    using Warp = GemvRowsWarp<T, Decode, kind, kGroupTiles>;
    constexpr uint32_t kFixed = Warp::kSums - kSharedStart;
    const int64_t room = half_of_shared(launch.device.shared_bytes) - int64_t{kFixed};
    const int64_t touched = min64(items, p.e.count);
    const GemvRowsPlan plan =
        plan_gemv_rows(p.cut, p.gemv.plan, touched, room, launch.device.multiprocessors);
    p.blocks = plan.blocks;
    p.strips = plan.strips;
    Shape3 shape = {dim3(uint32_t(items * plan.blocks)), Warp::kThreads};
    shape.shared_bytes = kFixed + plan.sums_bytes;
    shape.overlaps = true;
    return launch_kernel(launch, "experts", multiply_rows<T, Decode, kind, kGroupTiles>, shape, p);
}

template <class T, class Decode>
Status run_rows(qk_format scale, const GemvRowsProblem &p, int64_t items, const Launch &launch) {
    return with_scale_kind(scale, [&](auto kind) {
        return with_group_tiles(p.gemv.group_shift, [&](auto tiles) {
            return launch_rows<T, Decode, kind.value, tiles.value>(p, items, launch);
        });
    });
}

}  // namespace

template <Codes codes, qk_format x>
Status GemvRows<codes, x>::run(const GemvRowsProblem &p, int64_t items, qk_format scale,
                               const Launch &launch) {
    using T = TypeOf<x>;
    using Decode = std::conditional_t<codes == Codes::kU4, RingU4<T>, RingLut4<T>>;
    return run_rows<T, Decode>(scale, p, items, launch);
}

}  // namespace qk::cuda
