// y = x . transpose(w) + bias for one row of x, from the packed tiles, on sm_90 and later.
//
// The tensor core multiplies 16 rows of w by 8 columns, and one row of x would fill one column. So
// the columns take turns: in a unit (16 rows x 512 columns of w: 8 tiles) column j holds x for the
// unit's j-th tile of 64 columns,
//
//     product of tile j by all 8 columns:   only column j is kept
//
// and a lane loads 32 bytes of x a unit instead of 256. Columns 2 i and 2 i + 1 sit with the lanes
// whose number mod 4 is i, and such a lane needs the scales of tiles 2 i and 2 i + 1 alone.
//
//     row of tiles   |  unit 0  |  unit 1  | ... | unit 15 | unit 16 | ...      16 rows of w
//     warp                0          1              15          0
//
// Bytes per row of w: k / 2 of codes plus scales and zeros, read once. A warp's slot in shared
// memory takes one unit: codes by two bulk copies, scales by 4 bytes a lane, and a half is ordered
// again once it is multiplied. No warp waits for another before the sums of a row meet.
//
// A chain (docs/decisions.md tells why it is safe): a block takes half of a multiprocessor, so the
// next kernel's blocks stand beside this one's. They order their weights and look at every
// parameter; what is left once x is there are products, sums and y. A unit is about 470
// instructions, 15 for 8 weights a lane; the memory of an H200 waits for 27.
#pragma once
#include "cuda/decode/vector_problem.cuh"

namespace qk::cuda {
namespace {

constexpr int32_t kVectorThreads = kVectorWarps * 32;
// What a lane adds up: rows r and r + 8, r its number / 4.
struct Sums {
    float low, high;
};

template <class T, class Decode, ScaleKind kind, int kGroupTiles>
struct VectorWarp {
    using X = XColumns<T>;
    using Operand = typename X::Operand;
    static constexpr uint32_t kTiles = kGroupTiles == 1 ? 2 : 1;  // of a lane, with own scales
    using Map = SlotMap<kind, Decode::kPairs, kTiles>;
    static constexpr uint32_t kCodes = kSharedStart + (Decode::kPairs ? kTableBytes : 0);
    static constexpr uint32_t kSlots = kCodes + (kind == ScaleKind::kNested ? 256 * 4 : 0);
    static constexpr uint32_t kBarriers = kSlots + kVectorWarps * Map::kBytes;
    static constexpr uint32_t kXKnown = kBarriers + kVectorWarps * 16;
    static constexpr uint32_t kBias = kXKnown + 16;
    static constexpr uint32_t kSums = kBias + kBlockRows * 16 * 4;

    // What a lane knows of the unit in the slot.
    struct Lane {
        float2 scale[kTiles];
        Zeros zero[kTiles];
        X x;
    };

    const VectorProblem &p;
    uint32_t lane, pair, row;  // pair of tiles of a unit: lane % 4; row: lane / 4
    uint32_t slot, barrier, partials, lanes;
    float scale_bias = 0;
    uint32_t first_second = 0;
    int32_t first_row;  // of tiles
    int32_t count;     // of this warp's units
    Unit unit, ahead;  // to multiply, to order
    Sums sums = {0, 0};

    __device__ VectorWarp(const VectorProblem &problem, Run rows) : p(problem) {
        const uint32_t warp = threadIdx.x / 32;
        lane = threadIdx.x % 32;
        pair = lane % 4;
        row = lane / 4;
        slot = kSlots + warp * Map::kBytes;
        barrier = kBarriers + warp * 16;
        partials = kSums + row * 4 - uint32_t(rows.first * p.plan.partials) * kRowBytes;
        lanes = Decode::lanes();
        keep(lane);
        keep(pair);
        keep(row);
        keep(slot);
        keep(barrier);
        keep(partials);
        first_row = rows.first;
        const int32_t first = int32_t(warp * p.plan.reciprocal >> 16);
        unit = {rows.first + first, int32_t(warp) - first * p.plan.units};
        ahead = unit;
        const int32_t total = (rows.last - rows.first) * p.plan.units;
        count = (total - int32_t(warp) + kVectorWarps - 1) / kVectorWarps;
    }

    // Half the codes of the next unit.
    __device__ void order_codes(int32_t half) const {
        if (!elect_one()) return;
        const int32_t first = ahead.column * kUnitTiles + half * (kUnitTiles / 2);
        const int32_t tiles = max(0, min(kUnitTiles / 2, p.plan.tiles - first));
        const uint32_t to = slot + uint32_t(half) * (kUnitBytes / 2), full = barrier + half * 8;
        barrier_expect(full, uint32_t(tiles) * 512);
        const int64_t at = int64_t(ahead.row) * p.plan.tiles + first;
        if (tiles > 0) copy_bulk(to, p.codes + at * 512, uint32_t(tiles) * 512, full);
    }

    // The scales and zeros of the next unit; they arrive with the first half of its codes.
    __device__ void order_scales() const {
#pragma unroll
        for (uint32_t i = 0; i < kTiles; ++i) {
            const int32_t tile = ahead.column * kUnitTiles + int32_t(pair * 2 + i);
            if (tile >= p.plan.tiles) continue;
            const uint32_t group = uint32_t(tile) >> p.group_shift;
            const uint64_t at = uint64_t(uint32_t(ahead.row)) * p.groups + group;
            const uint32_t to = slot + Map::kScales + i * Map::kScaleStride;
            const uint32_t mine = pair * 8 + row;
            if constexpr (kind == ScaleKind::kF32) {
                copy_8(to + mine * 8, p.scale + at * 64 + row * 8);
            } else if constexpr (kind == ScaleKind::kNested) {
                if (row % 2 == 0) copy_word(to + mine * 2, p.scale + at * 16 + row * 2);
            } else {
                copy_word(to + mine * 4, p.scale + at * 32 + row * 4);
            }
            if (!Decode::kPairs && p.zero != nullptr && row % 4 == 0) {
                copy_word(slot + Map::kZeros + i * 32 + mine, p.zero + at * 8 + row);
            }
        }
        copies_arrive(barrier);
    }

    // The second scale of a group; rows past the end of w read what is there.
    __device__ float second(uint32_t number) const {
        const uint32_t at = min((number >> p.second_shift) - first_second, p.last_second);
        return __uint_as_float(shared_load_4(kSums + p.plan.sums_bytes + at * 4));
    }

    // Those of the block's rows, under way until copies_wait.
    __device__ void order_seconds(Run rows) {
        const uint32_t end = uint32_t(min64(int64_t(rows.last) * 16, p.n)) * p.groups;
        first_second = uint32_t(rows.first) * 16 * p.groups >> p.second_shift;
        const uint32_t last = (end - 1) >> p.second_shift;
#pragma unroll 1
        for (uint32_t i = threadIdx.x; i <= last - first_second; i += kVectorThreads) {
            copy_word(kSums + p.plan.sums_bytes + i * 4, p.second + first_second + i);
        }
    }

    __device__ float2 scales(uint32_t i) const {
        const uint32_t at = slot + Map::kScales + i * Map::kScaleStride;
        const uint32_t mine = pair * 8 + row;
        if constexpr (kind == ScaleKind::kNested) {
            const uint32_t both = shared_load_2(at + mine * 2);
            const uint32_t low = shared_load_4(kCodes + (both & 255) * 4);
            const uint32_t high = shared_load_4(kCodes + (both >> 8) * 4);
            const uint32_t group =
                uint32_t(unit.column * kUnitTiles + int32_t(pair * 2 + i)) >> p.group_shift;
            const uint32_t number = (uint32_t(unit.row) * 16 + row) * p.groups + group;
            return {__fadd_rn(__fmul_rn(__uint_as_float(low), second(number)), scale_bias),
                    __fadd_rn(__fmul_rn(__uint_as_float(high), second(number + 8 * p.groups)),
                              scale_bias)};
        } else {
            return scale_pair<kind>(at + mine * kPairBytes<kind>);
        }
    }

    // Tile i's zeros, from the lane that has them.
    __device__ Zeros zero_of(const Lane &v, int i) const {
        if constexpr (Decode::kPairs) return {};
        const Zeros &own = v.zero[i % int(kTiles)];
        const uint32_t from = (lane & 28) + uint32_t(i) / 2;
        return {from_lane(own.low, from), from_lane(own.high, from)};
    }

    // The scales and zeros of the unit in the slot.
    __device__ void begin_unit(Lane *v) const {
#pragma unroll
        for (uint32_t i = 0; i < kTiles; ++i) {
            v->scale[i] = scales(i);
            const bool there = unit.column * kUnitTiles + int32_t(pair * 2 + i) < p.plan.tiles;
            if (!there) v->scale[i] = {0, 0};
            if constexpr (!Decode::kPairs) {
                v->zero[i] =
                    Decode::zeros(shared_load_1(slot + Map::kZeros + i * 32 + pair * 8 + row));
            }
        }
    }

    __device__ void fold(int i, const float (&d)[4], const Lane &v, Sums *sums) const {
        if (pair != uint32_t(i) / 2) return;
        float low = d[i % 2], high = d[2 + i % 2];
        if constexpr (X::kOfTile == 2) {
            low = __fmul_rn(__fmaf_rn(d[1], 0x1p-12f, d[0]), v.x.unit[i % 2]);
            high = __fmul_rn(__fmaf_rn(d[3], 0x1p-12f, d[2]), v.x.unit[i % 2]);
        }
        sums->low = __fmaf_rn(low, v.scale[i % int(kTiles)].x, sums->low);
        sums->high = __fmaf_rn(high, v.scale[i % int(kTiles)].y, sums->high);
    }

    // Tile i of the slot, whose codes are here, to the sums.
    __device__ void add_tile(int i, const uint4 &codes, const Zeros &zero, const Lane &v,
                             Sums *sums) const {
        const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
        const auto &b = v.x.b[i % X::kOfTile];
        if constexpr (two_terms<Decode>) {
            float d[2][4] = {};
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                uint32_t a[2][4];
                Decode::decode_two(words[j], lanes, a);
                mma_16x8x16<Operand>(d[0], a[0], b[2 * j], b[2 * j + 1]);
                mma_16x8x16<Operand>(d[1], a[1], b[2 * j], b[2 * j + 1]);
            }
            const auto second = [](const float (&s)[4]) {  // second halves have 2^-12 each
                return __fmaf_rn(s[3], 0x1p-12f, __fadd_rn(s[1], s[2]));
            };
            fold(i, {d[0][0], second(d[0]), d[1][0], second(d[1])}, v, sums);
        } else {
            float d[4] = {};
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                uint32_t a[4];
                Decode::decode(words[j], zero, lanes, a);
                mma_16x8x16<Operand>(d, a, b[2 * j], b[2 * j + 1]);
            }
            fold(i, d, v, sums);
        }
    }

    template <int first, int last>
    __device__ void add_tiles(const Lane &v, Sums *sums) const {
        const uint32_t codes = slot + lane * 16;
        uint4 q[2] = {shared_load_16(codes + first * 512),
                      shared_load_16(codes + first * 512 + 512)};
        Zeros zero = {};
#pragma unroll
        for (int i = first; i < last; ++i) {
            if (!Decode::kPairs && (i % kGroupTiles == 0 || i == first)) zero = zero_of(v, i);
            const uint4 now = q[i % 2];
            if (i + 2 < last) q[i % 2] = shared_load_16(codes + (i + 2) * 512);
            add_tile(i, now, zero, v, sums);
        }
    }

    // Sums of 16 rows, each of its four lanes, to [row of tiles][partial][row].
    __device__ void store_partial(Unit from, Sums *sums) const {
        float low = sums->low, high = sums->high;
#pragma unroll
        for (int i = 1; i < 4; i *= 2) {
            low = __fadd_rn(low, __shfl_xor_sync(~0u, low, i));
            high = __fadd_rn(high, __shfl_xor_sync(~0u, high, i));
        }
        const int32_t partial = from.row * p.plan.partials + from.column % kVectorWarps;
        const uint32_t to = partials + uint32_t(partial) * kRowBytes;
        if (pair == 0) shared_store_4(to, __float_as_uint(low));
        if (pair == 1) shared_store_4(to + kRowBytes / 2, __float_as_uint(high));
        *sums = {0, 0};
    }

    // Before x is known, and without waiting for another warp's copies.
    __device__ void prepare(Run rows) {
        if (threadIdx.x == 0) barrier_init(kXKnown, 1);
        if (lane == 0) {
            barrier_init(barrier, 33);  // who orders codes, and every lane's scales
            barrier_init(barrier + 8, 1);
            barrier_init_fence();
        }
        __syncwarp();
        if (count > 0) {
            order_codes(0);
            if (!Decode::kPairs && p.zero == nullptr && lane < kTiles * 8) {
                shared_store_4(slot + Map::kZeros + lane * 4, 0x88888888u);
            }
            __syncwarp();
            order_scales();
        }
        if constexpr (kind == ScaleKind::kNested) {
            for (uint32_t i = threadIdx.x; i < 256; i += kVectorThreads) {
                copy_word(kCodes + i * 4, p.scale_code + i);
            }
            order_seconds(rows);
            scale_bias = __ldg(p.scale_bias);
        }
        Decode::prepare(p.entries, kVectorThreads);
        // A first look at a parameter costs hundreds of clocks.
        asm volatile("" ::"l"(p.x), "l"(p.y), "l"(p.bias), "l"(p.n), "r"(p.k), "r"(p.bias_type));
        if (kind == ScaleKind::kNested) copies_wait();
    }

    // Waits for x; the bias comes in beside it.
    __device__ void await_x(int32_t y_rows) const {
        wait_for_previous_kernel();
        if (p.bias != nullptr && int32_t(threadIdx.x) < y_rows) {
            const int64_t y_row = int64_t(first_row) * 16 + threadIdx.x;
            shared_store_4(kBias + threadIdx.x * 4,
                           __float_as_uint(load_float(p.bias_type, p.bias, y_row)));
        }
    }

    __device__ typename X::Raw load_x(Lane *v) const {
        return v->x.load(p.x, p.k, unit.column * int32_t(kUnitColumns), row, pair);
    }

    // Whether x is known already, so that a launch of its own asks for x before the rest of its
    // weights. The last warp looks, the others look at it for a moment.
    __device__ bool x_comes_first() const {
        if (threadIdx.x >= kVectorThreads - 32) return true;
        for (int i = 0; i < 6; ++i) {
            if (barrier_test(kXKnown, 0)) return true;
            __nanosleep(32);
        }
        return false;
    }

    // Rows of y that this block computes.
    __device__ int32_t y_rows(Run rows) const {
        return int32_t(min64(int64_t(rows.last) * 16, p.n) - int64_t(rows.first) * 16);
    }

    // Returns with the sums of the last unit's row in `sums`.
    __device__ void run(Run rows) {
        Lane v;
        uint32_t parity = 0;
        const bool last = threadIdx.x >= kVectorThreads - 32;
        if (last && count > 0) order_codes(1);
        const bool early = X::kOfTile > 1 || x_comes_first();
        if (early) await_x(y_rows(rows));
        if (threadIdx.x == kVectorThreads - 32) barrier_arrive(kXKnown);
        if (!early) {
            if (count > 0 && !last) order_codes(1);
            if (count > 0) barrier_wait(barrier, 0);
            if (count > 0) begin_unit(&v);
            await_x(y_rows(rows));
            if (count > 0) v.x.split(load_x(&v), false, lane);
        }
        bool begun = !early, asks = true, orders = !last, again = false;
#pragma unroll 1
        for (int32_t left = count; left > 0;) {
            if (!begun) {
                typename X::Raw raw;
                if (asks) raw = load_x(&v);
                if (orders) order_codes(1);
                if (asks) v.x.split(raw, again, lane);
                barrier_wait(barrier, parity);
                begin_unit(&v);
            }
            begun = false;
            add_tiles<0, kUnitTiles / 2>(v, &sums);
            if (__builtin_expect(left > 1 && !v.x.rest, 0)) {
                ahead.advance(p.plan);
                __syncwarp();
                order_codes(0);
                order_scales();
            }
            barrier_wait(barrier + 8, parity);
            add_tiles<kUnitTiles / 2, kUnitTiles>(v, &sums);
            asks = v.x.rest || again || p.plan.unit_step != 0;
            again = v.x.rest;
            orders = !again;
            if (again) continue;  // the same unit, what is left of x
            if (--left == 0) break;
            const Unit now = unit;
            unit.advance(p.plan);
            if (unit.row != now.row) store_partial(now, &sums);
            __syncwarp();
            parity ^= 1;
        }
    }

    // Partial sums of a row, in their order, to y.
    __device__ void store_rows(Run rows) const {
        const uint32_t at = threadIdx.x;
        if (int32_t(at) >= y_rows(rows)) return;
        const int64_t y_row = int64_t(rows.first) * 16 + at;
        uint32_t from = kSums + at / 16 * uint32_t(p.plan.partials) * kRowBytes + at % 16 * 4;
        float y = __uint_as_float(shared_load_4(from));
#pragma unroll 4
        for (int32_t i = 1; i < p.plan.partials; ++i) {
            y = __fadd_rn(y, __uint_as_float(shared_load_4(from + uint32_t(i) * kRowBytes)));
        }
        if constexpr (X::kOfTile == 2 && Decode::kPairs) y = __fmul_rn(y, p.entry_unit);
        if (p.bias != nullptr) y = __fadd_rn(y, __uint_as_float(shared_load_4(kBias + at * 4)));
        if constexpr (std::is_same_v<T, F32>) {
            store_as(p.y, y_row, y);
        } else {
            const uint32_t bits = DecodePairs<T>::pair(y, 0);
            auto *const to = static_cast<uint8_t *>(p.y) + y_row * 2;
            if ((reinterpret_cast<uintptr_t>(p.y) & 1) == 0) {
                *reinterpret_cast<uint16_t *>(to) = uint16_t(bits);
            } else {
                to[0] = uint8_t(bits);
                to[1] = uint8_t(bits >> 8);
            }
        }
    }
};

}  // namespace
}  // namespace qk::cuda
