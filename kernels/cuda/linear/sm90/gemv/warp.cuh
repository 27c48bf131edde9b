// y = x . transpose(w) + bias for one row of x, from the packed tiles, on sm_90 and later.
//
// The tensor core multiplies 16 rows of w by 8 columns, and one row of x would fill one column. So
// the columns alternate: in a unit (16 rows x 512 columns of w: 8 tiles) column j holds x for the
// unit's j-th tile of 64 columns,
//
//     product of tile j by all 8 columns:   only column j is kept
//
// and a lane loads 32 bytes of x a unit instead of 256. Columns 2 i and 2 i + 1 sit with the lanes
// whose number mod 4 is i, and such a lane needs the scales of tiles 2 i and 2 i + 1 alone. Where
// x is f32 or groups are parts of a tile, a tile keeps several columns (f32.cuh; unit.cuh).
//
//     row of tiles   |  unit 0  |  unit 1  | ... | unit 15 | unit 16 | ...      16 rows of w
//     warp                0          1              15          0
//
// Bytes per row of w: k / 2 of codes plus scales and zeros, read once. A warp's slot in shared
// memory takes one unit: codes by two bulk copies, scales by another or, beside zeros, by 4 bytes a
// lane; a half is refilled as soon as it has been consumed. No warp waits for another before sums
// meet.
//
// A chain (docs/decisions.md tells why it is safe): the next kernel's block starts where this one's
// has ended and asks for weights while it waits for x. Registers are for one block: with half as
// many for each of two, too few loads of codes and table entries are under way. A unit is 600
// instructions, 19 for 8 weights a lane; an H200's memory waits for 27.
#pragma once
#include "cuda/linear/sm90/gemv/slot.cuh"

namespace qk::cuda {
namespace {

template <class T, class Decode, ScaleKind kind, int kGroupTiles, class Rows = OwnRows>
struct GemvWarp : GemvSlot<T, Decode, kind, kGroupTiles, Rows> {
    using Slot = GemvSlot<T, Decode, kind, kGroupTiles, Rows>;
    using Slot::ahead, Slot::barrier, Slot::count, Slot::first_row, Slot::lane, Slot::lanes,
        Slot::p, Slot::pair, Slot::partials, Slot::places, Slot::row, Slot::slot, Slot::unit,
        Slot::w_row;
    using Slot::find_group, Slot::issue_codes, Slot::issue_scales, Slot::issue_seconds,
        Slot::scales_at, Slot::seconds;
    using Slot::kBarriers, Slot::kBias, Slot::kCodes, Slot::kGroups, Slot::kOfParts,
        Slot::kHalvesOfX, Slot::kScaleBias, Slot::kScalesTogether, Slot::kSecond, Slot::kSums,
        Slot::kTablesKnown, Slot::kXKnown;
    using typename Slot::Map, typename Slot::Operand, typename Slot::X;

    // What a lane knows of the unit in the slot.
    struct Lane {
        float2 scale[kGroups];
        Zeros zero[kGroups];  // groups of 32 and 16: their bytes, by four in each `low`
        X x;
    };

    __device__ GemvWarp(const GemvProblem &problem, Run rows, const Rows &where = {})
        : Slot(problem, rows, where) {}

    // Nested scales: their codes are looked up. A pair of tiles has one second scale, unless rows
    // have an odd number of groups.
    __device__ void begin_nested(Lane *v) const {
        const float bias = __uint_as_float(shared_load_4(kScaleBias));
        float2 second = {};
#pragma unroll
        for (uint32_t i = 0; i < kGroups; ++i) {
            uint32_t group;
            const bool there = find_group(unit.column, i, &group);
            const uint32_t both = shared_load_2(scales_at(i, group));
            const uint32_t low = shared_load_4(kCodes + (both & 255) * 4);
            const uint32_t high = shared_load_4(kCodes + (both >> 8) * 4);
            if (i == 0 || !Slot::kTilePair || p.groups % 2 != 0) second = seconds(group);
            v->scale[i] = {nested_scale(__uint_as_float(low), second.x, bias),
                           nested_scale(__uint_as_float(high), second.y, bias)};
            if (!there) v->scale[i] = {0, 0};
        }
    }

    // Tile i's zeros, from the lane that has them.
    __device__ Zeros zero_of(const Lane &v, int i) const {
        if constexpr (Decode::kLut4) return {};
        if constexpr (kHalvesOfX && kOfParts > 1) {
            const uint32_t part = X::part_of(uint32_t(i), pair / (4 / kOfParts));
            const uint32_t owner = (lane & 28) + (kOfParts == 2 ? uint32_t(i) / 4 * 2 : 0) + part;
            const uint32_t bytes = from_lane(v.zero[i / 4 % int(kOfParts / 2)].low, owner);
            return Decode::zeros(bytes >> i % 4 * 8 & 255);
        }
        const uint32_t from = (lane & 28) + uint32_t(i) / 2;
        if constexpr (kOfParts == 2) {
            const uint32_t bytes = from_lane(v.zero[0].low, from);
            return Decode::zeros(bytes >> (i % 2 * 16 + pair / 2 * 8) & 255);
        } else if constexpr (kOfParts == 4) {
            const uint32_t owner = (lane & 28) + uint32_t(i) / 4 * 2 + pair / 2;
            const uint32_t bytes = from_lane(v.zero[i % 4 / 2].low, owner);
            return Decode::zeros(bytes >> (i % 2 * 16 + pair % 2 * 8) & 255);
        }
        const Zeros &own = v.zero[i % int(kGroups)];
        return {from_lane(own.low, from), from_lane(own.high, from)};
    }

    // Coded scales that need no table. Where w ends before a group x is 0, and code 0 a number.
    __device__ void begin_coded(Lane *v) const {
        const float one = __uint_as_float(shared_load_4(kSecond));
        uint32_t both[kGroups];
#pragma unroll
        for (uint32_t i = 0; i < kGroups; ++i) {
            uint32_t group;
            const bool there = find_group(unit.column, i, &group);
            both[i] = there ? shared_load_2(scales_at(i, group)) : 0;
        }
        const auto decode = [&](qk_format coded) {
#pragma unroll
            for (uint32_t i = 0; i < kGroups; ++i) v->scale[i] = coded_pair(coded, both[i], one);
        };
        p.coded == QK_FORMAT_E8M0 ? decode(QK_FORMAT_E8M0) : decode(QK_FORMAT_E4M3);
    }

    // The scales and zeros of the unit in the slot.
    __device__ void begin_unit(Lane *v) const {
        if (kind == ScaleKind::kNested && Decode::kLut4 && p.coded != QK_FORMAT_LUT8) {
            return begin_coded(v);
        }
        if constexpr (kind == ScaleKind::kNested) begin_nested(v);
        uint32_t bytes[2] = {};
#pragma unroll
        for (uint32_t i = 0; i < kGroups; ++i) {
            if constexpr (kind != ScaleKind::kNested) {
                uint32_t group;
                const bool there = find_group(unit.column, i, &group);
                v->scale[i] = scale_pair<kind>(scales_at(i, group));
                if (!there) v->scale[i] = {0, 0};
            }
            if constexpr (!Decode::kLut4) {
                const uint32_t byte = shared_load_1(slot + Map::kZeros + i * 32 + pair * 8 + row);
                if (kGroupTiles > 0) v->zero[i] = Decode::zeros(byte);
                bytes[i / 4] |= byte << i % 4 * 8;
            }
        }
        if constexpr (kOfParts > 1) {
#pragma unroll
            for (uint32_t i = 0; i < kGroups / 4; ++i) v->zero[i].low = bytes[i];
        }
    }

    // f32 x: halves of x to a sum.
    __device__ void fold_halves(int i, const float (&d)[4], const Lane &v, Sums *sums) const {
        if (kOfParts == 2 ? pair / 2 != uint32_t(i) / 4
                          : kOfParts == 1 && pair != uint32_t(i) / 2) {
            return;
        }
        const float unit = v.x.unit[X::set_of(i)];
        const int group = kOfParts == 2 ? i % 4 : i % int(kGroups);
        sums->add(__fmul_rn(__fmaf_rn(d[1], 0x1p-12f, d[0]), unit),
                  __fmul_rn(__fmaf_rn(d[3], 0x1p-12f, d[2]), unit), v.scale[group]);
    }

    __device__ void fold(int i, const float (&d)[4], const Lane &v, Sums *sums) const {
        if constexpr (kHalvesOfX) return fold_halves(i, d, v, sums);
        if (kOfParts == 4 ? pair / 2 != uint32_t(i) / 4 : pair != uint32_t(i) / 2) return;
        if constexpr (kOfParts == 4) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                sums->add(d[half], d[2 + half], v.scale[i % 4 * 2 + half]);
            }
        } else if constexpr (kOfParts == 2) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                sums->add(d[half], d[2 + half], v.scale[i % 2 * 2 + half]);
            }
        } else {
            sums->add(d[i % 2], d[2 + i % 2], v.scale[i % int(kGroups)]);
        }
    }

    __device__ void add_tile(int i, const uint4 &codes, const Zeros &zero, const Lane &v,
                             Sums *sums) const {
        const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
        uint32_t b[8];
        v.x.of_tile(i, row, pair, b);
        if constexpr (kTwoTerms<Decode>) {
            float d[2][4] = {};
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                uint32_t a[2][4];
                Decode::decode_two(words[j], lanes, a);
                mma_16x8x16<Operand>(d[0], a[0], b[2 * j], b[2 * j + 1]);
                mma_16x8x16<Operand>(d[1], a[1], b[2 * j], b[2 * j + 1]);
            }
            fold(i, {d[0][0], Decode::rest(d[0]), d[1][0], Decode::rest(d[1])}, v, sums);
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

    // Whether w goes on there.
    __device__ bool has_second_half() const {
        return unit.column * kUnitTiles + kUnitTiles / 2 < p.plan.tiles;
    }

    template <int first, int last>
    __device__ void add_tiles(const Lane &v, Sums *sums) const {
        const uint32_t codes = slot + lane * 16;
        uint4 q[2] = {shared_load_16(codes + first * 512),
                      shared_load_16(codes + first * 512 + 512)};
        Zeros zero = {};
#pragma unroll
        for (int i = first; i < last; ++i) {
            if (!Decode::kLut4 && (kGroupTiles < 2 || i % 2 == 0)) zero = zero_of(v, i);
            const uint4 now = q[i % 2];
            if (i + 2 < last) q[i % 2] = shared_load_16(codes + (i + 2) * 512);
            add_tile(i, now, zero, v, sums);
        }
    }

    // Sums of 16 rows, each of its four lanes, to [row of tiles][partial][row].
    __device__ void store_partial(Unit from, Sums *sums) const {
        sums->add_lanes();
        const int32_t number = from.row * p.plan.partials + from.column % kGemvWarps;
        const uint32_t to = partials + uint32_t(number) * kRowBytes;
        if (pair == 0) shared_store_4(to, __float_as_uint(sums->low));
        if (pair == 1) shared_store_4(to + kRowBytes / 2, __float_as_uint(sums->high));
        *sums = {0, 0};
    }

    __device__ void init_barriers() const {
        if (threadIdx.x == 0) barrier_init(kXKnown, 1);
        if (threadIdx.x == 0) barrier_init(kTablesKnown, Slot::kThreads);
        if (lane == 0) {
            barrier_init(barrier, Decode::kLut4 ? 1 : 33);  // the issuing lane, lanes with scales
            barrier_init(barrier + 8, 1);
            barrier_init_fence();
        }
        __syncwarp();
    }

    // The first half of the first unit; where a routing has said where it is, all of it.
    __device__ void issue_first() {
        if (count == 0) return;
        Slot::find_row();
        if (elect_one()) {
            Slot::copy_codes(0);
            if (!Rows::kOwn) Slot::copy_codes(1);
        }
        for (uint32_t i = lane; !Decode::kLut4 && p.zero == nullptr && i < kGroups * 8; i += 32) {
            shared_store_4(slot + Map::kZeros + i * 4, 0x88888888u);
        }
        __syncwarp();
        if constexpr (!Decode::kLut4) issue_scales();
    }

    // What no place in w or x decides.
    __device__ void prepare_tables(Run rows) {
        if constexpr (kind == ScaleKind::kNested) {
            const uint32_t i = threadIdx.x;
            if (i < 256) copy_word(kCodes + i * 4, p.scale_code + i);
            if constexpr (Rows::kOwn) issue_seconds(rows);
            if (i == 0) copy_word(kScaleBias, p.scale_bias);
            if (i == 0) copy_word(kSecond, p.second);
        }
        if constexpr (X::kAhead) {
            const uint32_t known = kSums + p.x_places + threadIdx.x * X::kPlaceBytes + X::kKnown;
            if (p.x_places != 0 && int32_t(threadIdx.x) < p.plan.units) barrier_init(known, 32);
        }
        Decode::prepare(p.entries, Slot::kThreads);
        // A first look at a parameter costs hundreds of clocks.
        asm volatile("" ::"l"(p.x), "l"(p.y), "l"(p.bias), "l"(p.n), "r"(p.k), "r"(p.bias_type));
    }

    // Before x is known, and without waiting for another warp's copies.
    __device__ void prepare(Run rows) {
        init_barriers();
        issue_first();
        prepare_tables(rows);
    }

    __device__ typename X::Raw load_x(int32_t column, Lane *v) const {
        return v->x.load(places.x(p, unit.row), p.k, column * int32_t(kUnitColumns), row, pair);
    }

    // Waits for x and asks for the first unit's; what the end needs comes in beside it.
    __device__ typename X::Raw await_x(Run rows, Lane *v) const {
        wait_for_previous_kernel();
        const Beside beside = places.beside_x(p, rows);
        const typename X::Raw x = count > 0 ? load_x(unit.column, v) : typename X::Raw{};
        if (beside.any) shared_store_4(kBias + threadIdx.x * 4, __float_as_uint(beside.value));
        return x;
    }

    // f32 x: whether the first row of tiles has left units of x in shared memory.
    __device__ bool is_kept(int32_t row_tile) const {
        return X::kAhead && p.x_places != 0 && row_tile != first_row;
    }

    // x of the unit, or (again) what is left of it, to the operands.
    __device__ void place_x(typename X::Raw x, bool again, Lane *v) const {
        if constexpr (X::kAhead) {
            const uint32_t kept = kSums + p.x_places + uint32_t(unit.column) * X::kPlaceBytes;
            if (!again && is_kept(unit.row)) {
                if (v->x.recall(kept, lane)) return;
                x = load_x(unit.column, v);
            }
            v->x.split(x, again, lane);
            if (!again && p.x_places != 0 && unit.row == first_row) v->x.publish(kept, lane);
        }
    }

    // Whether x is known already, so that a launch of its own asks for x before the rest of its
    // weights. The last warp looks, the others look at it for a moment.
    __device__ bool x_comes_first() const {
        if (threadIdx.x >= kGemvThreads - 32) return true;
        for (int i = 0; i < 6; ++i) {
            if (barrier_test(kXKnown, 0)) return true;
            __nanosleep(32);
        }
        return false;
    }

    __device__ void run(Run rows) {
        Lane v;
        Sums sums = {0, 0};
        typename X::Raw x;
        const bool last = threadIdx.x >= kGemvThreads - 32;
        const bool codes_first = places.x_is_late(last);
        if (Rows::kOwn && codes_first && count > 0) issue_codes(1);
        if (kind == ScaleKind::kNested) copies_arrive(kTablesKnown);
        const bool early = X::kOfTile > 1 || (Rows::kOwn ? x_comes_first() : !codes_first);
        if (early) x = await_x(rows, &v);
        if (threadIdx.x == kGemvThreads - 32) barrier_arrive(kXKnown);
        if (Rows::kOwn && !codes_first && count > 0) issue_codes(1);
        if (kind == ScaleKind::kNested) barrier_wait(kTablesKnown, 0);
        if (!early) {
            if (count > 0) {
                barrier_wait(barrier, 0);
                begin_unit(&v);
            }
            x = await_x(rows, &v);
        }
        uint32_t parity = 0;
        bool begun = !early, asked = true, again = false;
#pragma unroll 1
        for (int32_t left = count; left > 0;) {
            if (asked) place_x(x, again, &v);
            if (!begun) {
                barrier_wait(barrier, parity);
                begin_unit(&v);
            }
            begun = false;
            add_tiles<0, kUnitTiles / 2>(v, &sums);
            if (__builtin_expect(left > 1 && !v.x.rest, 0)) {
                ahead.advance(p.plan);
                Slot::find_row();
                __syncwarp();
                issue_codes(0);
                if constexpr (!Decode::kLut4) issue_scales();
            }
            asked = v.x.rest || again || !Rows::kOwn || p.plan.unit_step != 0;
            again = v.x.rest;
            const bool here = asked && (again || !is_kept(ahead.row));
            if (X::kAhead && here) x = load_x(again ? unit.column : ahead.column, &v);
            barrier_wait(barrier + 8, parity);
            if (has_second_half()) add_tiles<kUnitTiles / 2, kUnitTiles>(v, &sums);
            if (!again) {  // else the same unit, what is left of x
                const Unit now = unit;
                if (--left > 0) unit.advance(p.plan);
                if (Slot::kUnitSums || left == 0 || unit.row != now.row) {
                    store_partial(now, &sums);
                }
                if (left == 0) break;
                __syncwarp();
                issue_codes(1);
                parity ^= 1;
            }
            if (!X::kAhead && asked) x = load_x(unit.column, &v);
        }
    }
};

}  // namespace
}  // namespace qk::cuda
