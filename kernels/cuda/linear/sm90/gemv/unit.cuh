// A unit of the weight in the kernel for one row of x (linear/sm90/gemv/warp.cuh): its place in
// memory, x for its columns as operands, what a lane adds up.
#pragma once
#include "cuda/linear/sm90/gemv/plan.hpp"
#include "cuda/prim/copy.cuh"
#include "cuda/tile/decode.cuh"

namespace qk::cuda {
namespace {

constexpr int32_t kGemvThreads = kGemvWarps * 32;
constexpr uint32_t kRowBytes = 16 * 4;  // of a partial sum of 16 rows

// Rows of y that a block computes.
__device__ inline int32_t y_rows(const GemvProblem &p, Run rows) {
    return int32_t(min64(int64_t(rows.last) * 16, p.n) - int64_t(rows.first) * 16);
}

inline uint32_t seconds_bytes(const GemvProblem &p) { return p.seconds * 4; }

// The groups of a unit's columns: the first of them in its row, and in the plane.
struct Groups {
    uint32_t first, count;
    uint64_t at;
};

// Groups of a tile of 64 columns, where they are as large or smaller. `kGroupTiles`: tiles of a
// group, 2 for two and more; 0: groups are half a tile, -2: a quarter.
template <int kGroupTiles>
constexpr uint32_t kParts = kGroupTiles == 0  ? 2
                            : kGroupTiles < 0 ? 4
                                              : 1;

template <int kGroupTiles>
__device__ inline Groups unit_groups(const GemvProblem &p, Unit unit) {
    constexpr uint32_t parts = kParts<kGroupTiles>;
    const uint32_t tile = uint32_t(unit.column) * kUnitTiles;
    const uint32_t first = parts > 1 ? tile * parts : tile >> p.group_shift;
    const uint32_t last = tile + kUnitTiles - 1;
    const uint32_t end = (parts > 1 ? last * parts + parts - 1 : last >> p.group_shift) + 1;
    return {first, min(end, p.groups) - first, uint64_t(uint32_t(unit.row)) * p.groups + first};
}

// A warp's slot: the codes of a unit, then scales and zeros, of each lane's groups in turn; or,
// where there are no zeros, the scales as in memory, by one bulk copy. (Copies of
// zeros would be small and start anywhere: with them that is slower.)
template <ScaleKind kind, bool pairs, uint32_t kGroups>
struct SlotMap {
    static constexpr uint32_t kScales = kUnitBytes;
    static constexpr uint32_t kScaleStride = 32 * kPairBytes<kind>, kGroupBytes = kScaleStride / 4;
    static constexpr uint32_t kZeros = kScales + kGroups * kScaleStride;
    static constexpr uint32_t kBytes = kZeros + (pairs ? 0 : kGroups * 32);
    static_assert(kBytes % 16 == 0);
};

// What a lane adds up: rows r and r + 8, r its number / 4.
struct Sums {
    float low, high;

    __device__ void add(float of_low, float of_high, const float2 &scale) {
        low = __fmaf_rn(of_low, scale.x, low);
        high = __fmaf_rn(of_high, scale.y, high);
    }
    // In all four lanes of a row, what they have together.
    __device__ void add_lanes() {
#pragma unroll
        for (int i = 1; i < 4; i *= 2) {
            low = __fadd_rn(low, __shfl_xor_sync(~0u, low, i));
            high = __fadd_rn(high, __shfl_xor_sync(~0u, high, i));
        }
    }
};

// y may have any address.
template <class T>
__device__ void store_y(void *data, int64_t index, float y) {
    if constexpr (std::is_same_v<T, F32>) {
        store_as(data, index, y);
    } else {
        const uint32_t bits = pack_pair(T{}, y, 0);
        auto *const to = static_cast<uint8_t *>(data) + index * 2;
        if ((reinterpret_cast<uintptr_t>(data) & 1) == 0) {
            *reinterpret_cast<uint16_t *>(to) = uint16_t(bits);
        } else {
            to[0] = uint8_t(bits);
            to[1] = uint8_t(bits >> 8);
        }
    }
}

__device__ inline uint32_t from_lane(uint32_t v, uint32_t lane) {
    return __shfl_sync(~0u, v, int(lane));
}

// Keeps the compiler from rematerializing or sinking these.
template <class... V>
__device__ void keep(V &...v) {
    (..., ([](uint32_t &one) { asm volatile("" : "+r"(one)); }(v)));
}

// A lane's 16 columns of a tile, as the operands of its four products; zeros where it has none.
__device__ inline void load_columns(bool own, const void *x, int32_t column, uint32_t (&b)[8]) {
    uint4 q[2] = {};
    if (own) {
        const auto *const from = static_cast<const uint4 *>(x) + int64_t(column) / 8;
        q[0] = from[0];
        q[1] = from[1];
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        b[4 * i] = q[i].x;
        b[4 * i + 1] = q[i].y;
        b[4 * i + 2] = q[i].z;
        b[4 * i + 3] = q[i].w;
    }
}

// The sum, in their order, of partial sums that begin at `from`.
__device__ inline float sum_of_partials(uint32_t from, const int32_t &partials, uint32_t apart) {
    float y = __uint_as_float(shared_load_4(from));
#pragma unroll 4
    for (int32_t i = 1; i < partials; ++i) {
        y = __fadd_rn(y, __uint_as_float(shared_load_4(from + uint32_t(i) * apart)));
    }
    return y;
}

// run(kGroupTiles), a constant, of a problem's group_shift.
template <class Run>
Status with_group_tiles(int32_t group_shift, const Run &run) {
    switch (group_shift) {
        case -2: return run(std::integral_constant<int, -2>());
        case -1: return run(std::integral_constant<int, 0>());
        case 0: return run(std::integral_constant<int, 1>());
        default: return run(std::integral_constant<int, 2>());
    }
}

// x of 16 bits. Column j of the operands holds x for tile j of the unit; or, where groups are half
// a tile, columns 2 i and 2 i + 1 hold one half each of tile 2 i in the first set of operands, of
// tile 2 i + 1 in the second, and zeros for the other half. Quarters the same in four sets.
template <class T, uint32_t kOfParts>
struct XColumns {
    using Operand = T;
    static constexpr int kOfTile = int(kOfParts);  // columns
    static constexpr bool kAhead = false;  // whether x may be asked for before it has its place
    static constexpr bool rest = false;    // whether x is more than the operands
    struct Raw {};
    uint32_t b[kOfTile][8];

    // A lane's 16 columns of its tiles of the unit that starts at column `first`; 0 past the end.
    __device__ Raw load(const void *x, int32_t k, int32_t first, uint32_t row, uint32_t pair) {
#pragma unroll
        for (uint32_t s = 0; s < kOfTile; ++s) {
            const uint32_t tile = row / kOfParts * kOfParts + s;
            const bool own = pair / (4 / kOfParts) == row % kOfParts;
            const int32_t column = first + int32_t(tile * 64 + pair * 16);
            load_columns(own && column < k, x, column, b[s]);
        }
        return {};
    }
    __device__ void split(Raw, bool, uint32_t) {}
    // The operands of tile i.
    __device__ void of_tile(int i, uint32_t, uint32_t, uint32_t (&to)[8]) const {
#pragma unroll
        for (int j = 0; j < 8; ++j) to[j] = b[i % kOfTile][j];
    }
};

}  // namespace
}  // namespace qk::cuda
