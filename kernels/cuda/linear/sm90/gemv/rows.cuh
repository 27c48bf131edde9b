// Several rows of x times an expert, each in the bits of the kernel for one row (warp.cuh): the
// same units, but column j of the operands holds row j of the item for every tile, and each lane
// keeps the four sums that four lanes have there.
//
//     tiles of a unit    0 1 | 2 3 | 4 5 | 6 7
//     sums               0   | 1   | 2   | 3     then (0 + 1) + (2 + 3), as lanes add up
//
// Groups of a part of a tile have products of their own, the rest of x being zeros there, too.
//
// A block stays on a multiprocessor and has a run of strips (rows_items.cuh). A warp has whole
// strips, every so many of the block's: its sums meet in registers, no warp waits for another, and
// its slot is filled for its next strip, of another item if need be, while it multiplies one.
#pragma once
#include "cuda/linear/sm90/gemv/rows_x.cuh"

namespace qk::cuda {
namespace {

struct ItemTiles : ExpertTiles {
    static constexpr int32_t kWarps = kRowsWarps;
    static constexpr bool kScalesTogether = true;
};

template <class T, class Decode, ScaleKind kind, int kGroupTiles>
struct GemvRowsWarp : GemvWarp<T, Decode, kind, kGroupTiles, ItemTiles> {
    using Warp = GemvWarp<T, Decode, kind, kGroupTiles, ItemTiles>;
    using typename Warp::Lane, typename Warp::Map;
    using Warp::ahead, Warp::barrier, Warp::kGroups, Warp::kOfParts, Warp::lane, Warp::lanes,
        Warp::p, Warp::pair, Warp::row, Warp::slot, Warp::unit, Warp::w_row;
    static constexpr int kHalf = kUnitTiles / 2, kChains = 4;
    static constexpr uint32_t kPlaces = Warp::kSums, kBehind = kPlaces + XOfItems::kBytes;

    const GemvRowsProblem &q;
    const ItemsOfBlock items;
    const XOfItems x;
    uint32_t sums;                 // in shared memory: [tile of a strip][row of x][row]
    float chain[kChains][4] = {};  // rows r and r + 8 of w, rows 2 pair and 2 pair + 1 of x
    int32_t strips, step, left;    // of an expert; to the warp's next strip; strips to ask for
    RowsItem item;                 // of the unit to ask for
    int32_t strip, tile;           // the same
    const uint8_t *codes, *scales, *zeros;  // of its row of tiles; zeros: this lane's

    __device__ explicit GemvRowsWarp(const GemvRowsProblem &problem)
        : Warp(problem.gemv, {0, 0}, {{problem.e, problem.cut, problem.second_by_row, 0}}),
          q(problem), items(problem, kBehind), x{problem, kPlaces, kBehind + problem.plan.x},
          sums(kBehind + threadIdx.x / 32 * uint32_t(2 * problem.plan.item_rows) * kRowBytes),
          strips(int32_t(problem.cut.strips)), left(0) {}

    // Before the block meets.
    __device__ void prepare_block() {
        x.init();
        items.clear();
        if (threadIdx.x >= Warp::kThreads) return;
        const bool lanes_copy = !Decode::kLut4 && p.zero != nullptr;
        if (threadIdx.x == 0) barrier_init(Warp::kTablesKnown, Warp::kThreads);
        if (lane == 0) {
            barrier_init(barrier, lanes_copy ? 33 : 1);
            barrier_init(barrier + 8, 1);
            barrier_init_fence();
        }
        for (uint32_t i = lane; !Decode::kLut4 && !lanes_copy && i < kGroups * 8; i += 32) {
            shared_store_4(slot + Map::kZeros + i * 4, 0x88888888u);
        }
        __syncwarp();
        this->prepare_tables({0, 0});
    }

    // ---- What is asked for

    __device__ void find_tiles() {
        const int64_t at = int64_t(item.expert) * (q.e.rows / 16) + strip + tile * strips;
        codes = p.codes + at * p.plan.tiles * 512;
        scales = p.scale + at * p.groups * Map::kGroupBytes;
        if constexpr (!Decode::kLut4) zeros = p.zero + at * p.groups * 8 + row;
    }
    __device__ void find_item() {
        for (; strip >= strips; strip -= strips) item = items.next(item);
    }
    // The warp's first strip; as many warps take part as end together.
    __device__ void begin(const ItemStrips &of) {
        const int32_t warp = int32_t(threadIdx.x / 32);
        step = (of.count - 1) / ((of.count + kRowsWarps - 1) / kRowsWarps) + 1;
        left = warp < min(step, of.count) ? (of.count - warp - 1) / step + 1 : 0;
        item = of.first, strip = of.strip + warp, tile = 0;
        ahead = {0, 0};
        if (left == 0) return;
        find_item();
        find_tiles();
    }
    __device__ void advance() {
        ahead.column += kGemvWarps;  // the units of a partial sum
        if (ahead.column < p.plan.units) return;
        ahead.column = ahead.column % kGemvWarps + 1;
        if (ahead.column < p.plan.partials) return;
        ahead.column = 0;
        if (++tile == q.cut.tiles) {
            tile = 0;
            if (--left == 0) return;
            strip += step;
            find_item();
        }
        find_tiles();
    }
    __device__ void ask_for_half(int32_t half) const {
        if (!elect_one()) return;
        const int32_t first = ahead.column * kUnitTiles + half * kHalf;
        const uint32_t bytes = uint32_t(max(0, min(kHalf, p.plan.tiles - first))) * 512;
        const uint32_t full = barrier + uint32_t(half) * 8;
        if (half == 0) {
            const Groups of = unit_groups<kGroupTiles>(p, {0, ahead.column});
            const uint32_t more = of.count * Map::kGroupBytes;
            barrier_expect(full, bytes + more);
            copy_bulk(slot + Map::kScales, scales + of.first * Map::kGroupBytes, more, full);
        } else {
            barrier_expect(full, bytes);
        }
        if (bytes == 0) return;
        copy_bulk(slot + uint32_t(half) * (kUnitBytes / 2), codes + int64_t(first) * 512, bytes,
                  full);
    }
    __device__ void ask_for_zeros() const {
        if constexpr (!Decode::kLut4) {
            if (p.zero == nullptr) return;
#pragma unroll
            for (uint32_t i = 0; i < kGroups; ++i) {
                uint32_t group;
                if (row % 4 != 0 || !this->find_group(ahead.column, i, &group)) continue;
                copy_word(slot + Map::kZeros + i * 32 + pair * 8 + row, zeros + group * 8);
            }
            copies_arrive(barrier);
        }
    }

    // ---- Products

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

    // `at`: x of this lane's row and columns of the unit.
    __device__ void add_tile_rows(int i, const uint4 &of_tile, uint32_t at, const Zeros &zero,
                                  const Lane &v) {
        const uint32_t words[4] = {of_tile.x, of_tile.y, of_tile.z, of_tile.w};
        const uint4 b0 = shared_load_16(at + uint32_t(i) * 128);
        const uint4 b1 = shared_load_16(at + uint32_t(i) * 128 + 16);
        const uint32_t b[8] = {b0.x, b0.y, b0.z, b0.w, b1.x, b1.y, b1.z, b1.w};
        float d[kOfParts][4] = {};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            uint32_t a[4];
            Decode::decode(words[j], zero, lanes, a);
#pragma unroll
            for (uint32_t part = 0; part < kOfParts; ++part) {
                const bool mine = kOfParts == 1 || pair / (4 / kOfParts) == part;
                mma_16x8x16<T>(d[part], a, mine ? b[2 * j] : 0, mine ? b[2 * j + 1] : 0);
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
    __device__ void add_half(const Lane &v, uint32_t at) {
        Zeros zero = {};
#pragma unroll
        for (int i = first; i < first + kHalf; ++i) {
            if (!Decode::kLut4 && (kGroupTiles < 2 || i % 2 == 0)) zero = this->zero_of(v, i);
            add_tile_rows(i, shared_load_16(slot + lane * 16 + i * 512), at, zero, v);
        }
    }

    // A partial sum to the row's; -0 begins those as nothing does.
    __device__ void add_partial(float (&total)[4]) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            total[i] = __fadd_rn(total[i], __fadd_rn(__fadd_rn(chain[0][i], chain[1][i]),
                                                     __fadd_rn(chain[2][i], chain[3][i])));
        }
#pragma unroll
        for (int i = 0; i < kChains * 4; ++i) chain[i / 4][i % 4] = 0;
    }

    // A row of tiles, unit after unit; `at`: x of this lane's row.
    __device__ void multiply_tiles(uint32_t at, uint32_t &parity, float (&total)[4]) {
        Lane v;
#pragma unroll
        for (int i = 0; i < 4; ++i) total[i] = -0.0f;
        unit.column = 0;
#pragma unroll 1
        while (true) {
            const uint32_t columns = at + uint32_t(unit.column) * (kUnitColumns * 2);
            barrier_wait(barrier, parity);
            this->begin_unit(&v);
            add_half<0>(v, columns);
            const bool more = left > 0;
            if (more) {
                __syncwarp();
                ask_for_half(0);
                ask_for_zeros();
            }
            barrier_wait(barrier + 8, parity);
            if (this->has_second_half()) add_half<kHalf>(v, columns);
            if (more) {
                __syncwarp();
                ask_for_half(1);
                advance();
            }
            parity ^= 1;
            unit.column += kGemvWarps;
            if (unit.column < p.plan.units) continue;
            add_partial(total);
            unit.column = unit.column % kGemvWarps + 1;
            if (unit.column >= p.plan.partials) return;
        }
    }

    // ---- Strips

    __device__ void keep_sums(int32_t of, const float (&total)[4]) const {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int32_t column = int32_t(pair) * 2 + i % 2;
            if (column >= q.plan.item_rows) continue;
            const uint32_t at = uint32_t(of * q.plan.item_rows + column) * kRowBytes + row * 4;
            shared_store_4(sums + at + uint32_t(i / 2) * 32, __float_as_uint(total[i]));
        }
    }
    // Sums of strip `at` become y.
    __device__ void store_strip(uint32_t place, int32_t at) const {
        const ExpertsView &e = q.e;
        const int32_t of_strip = columns_of_strip(e), shift = of_strip == 16 ? 4 : 3;
        const int32_t all = int32_t(shared_load_4(place + XOfItems::kRows)) * of_strip;
        const int32_t expert = int32_t(shared_load_4(place + XOfItems::kExpert));
#pragma unroll 1
        for (int32_t i = int32_t(lane); i < all; i += 32) {
            const int32_t x_row = i >> shift, column = i & (of_strip - 1);
            const int64_t of =
                int32_t(shared_load_4(place + XOfItems::kSlots + uint32_t(x_row) * 4));
            const float z = z_of_column(e, column, [&](int32_t t, int32_t r) {
                const uint32_t from = uint32_t(t * q.plan.item_rows + x_row) * kRowBytes;
                return with_bias(e, int64_t(expert) * e.rows + (at + t * strips) * 16 + r,
                                 __uint_as_float(shared_load_4(sums + from + uint32_t(r) * 4)));
            });
            SlotSum sum;
            sum.add(e, of, expert, z);
            store_sum(e, of, int64_t(at) * of_strip + column, sum);
        }
    }

    __device__ void run(const ItemStrips &of) {
        begin(of);
        if (left > 0) {
            ask_for_half(0);
            ask_for_half(1);
            ask_for_zeros();
        }
        if (kind == ScaleKind::kNested) {
            copies_arrive(Warp::kTablesKnown);
            barrier_wait(Warp::kTablesKnown, 0);
        }
        const int32_t last = (of.strip + of.count - 1) / strips;
        int32_t in = 0, at = of.strip + int32_t(threadIdx.x / 32);  // item of the block; strip
        int32_t to_do = left;
        if (left > 0) advance();
        if (q.routed_early) wait_for_previous_kernel();
        x.await(in);
        for (uint32_t parity = 0; to_do > 0; --to_do, at += step) {
            for (; at >= strips; at -= strips) x.leave(in), x.await(++in);
            const uint32_t place = x.place(in), rows = shared_load_4(place + XOfItems::kRows);
            const uint32_t first = shared_load_4(place + XOfItems::kFirst);
            const uint32_t mine = x.row(first + (row < rows ? row : 0)) + pair * 32;
            w_row = int32_t(shared_load_4(place + XOfItems::kExpert)) * int32_t(q.e.rows / 16) + at;
            __syncwarp();
#pragma unroll 1
            for (int32_t t = 0; t < q.cut.tiles; ++t, w_row += strips) {
                float total[4];
                multiply_tiles(mine, parity, total);
                keep_sums(t, total);
            }
            __syncwarp();
            store_strip(place, at);
        }
        for (x.leave(in); in < last; x.leave(in)) x.await(++in);
    }
};

// Rows of y of slots whose experts are not there, a block each.
__device__ inline void fill_slots(const GemvRowsProblem &p, const ItemsOfBlock &items) {
    if (p.routed_early) wait_for_previous_kernel();
    for (int32_t slot = int32_t(blockIdx.x); slot < p.slots; slot += int32_t(gridDim.x)) {
        if (items.is_there(slot)) continue;
        const int32_t expert = expert_of(p.e, slot);
        SlotSum sum;
        if (expert >= 0) sum.add(p.e, slot, expert, 0);
        for (int64_t column = threadIdx.x; column < p.e.columns; column += blockDim.x) {
            store_sum(p.e, slot, column, sum);
        }
    }
}

template <class T, class Decode, ScaleKind kind, int kGroupTiles>
__global__ void __launch_bounds__(kRowsWarps * 32 + 32, 1)
    multiply_rows(const __grid_constant__ GemvRowsProblem p) {
#if __CUDA_ARCH__ >= 900
    GemvRowsWarp<T, Decode, kind, kGroupTiles> work(p);
    work.prepare_block();
    if (!p.routed_early) wait_for_previous_kernel();
    allow_next_kernel();
    __syncthreads();
    work.items.count();
    __syncthreads();
    const ItemStrips strips = work.items.strips_of_block();
    if (strips.count > 0) {
        if (threadIdx.x < kRowsWarps * 32) {
            work.run(strips);
        } else {
            work.x.bring(work.items, strips);
        }
    }
    if (p.fills) fill_slots(p, work.items);
#endif
}

template <class T, class Decode, ScaleKind kind, int kGroupTiles>
Status launch_rows(GemvRowsProblem p, const Launch &launch) {
    using Warp = GemvRowsWarp<T, Decode, kind, kGroupTiles>;
    constexpr int64_t kFixed = Warp::kBehind - kSharedStart;
    static_assert(kFixed <= kRowsFixed);
    p.plan = plan_gemv_rows(p.e.count, p.slots, p.gemv.k, launch.device.shared_bytes - kFixed);
    const int64_t items = min64(p.slots, p.slots / p.plan.item_rows + p.e.count);
    const int64_t blocks = min64(launch.device.multiprocessors, items * p.cut.strips);
    Shape3 shape = {dim3(uint32_t(blocks)), kRowsWarps * 32 + 32};
    shape.shared_bytes = size_t(kFixed + p.plan.end);
    shape.overlaps = true;
    return launch_kernel(launch, "experts", multiply_rows<T, Decode, kind, kGroupTiles>, shape, p);
}

template <class T, class Decode>
Status run_rows(qk_format scale, const GemvRowsProblem &p, const Launch &launch) {
    return with_scale_kind(scale, [&](auto kind) {
        return with_group_tiles(p.gemv.group_shift, [&](auto tiles) {
            return launch_rows<T, Decode, kind.value, tiles.value>(p, launch);
        });
    });
}

}  // namespace

template <Codes codes, qk_format x>
Status GemvRows<codes, x>::run(const GemvRowsProblem &p, qk_format scale, const Launch &launch) {
    using T = TypeOf<x>;
    using Decode = std::conditional_t<codes == Codes::kU4, RingU4<T>, RingLut4<T>>;
    return run_rows<T, Decode>(scale, p, launch);
}

}  // namespace qk::cuda
