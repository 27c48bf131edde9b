// The problem of the kernel for one row of x (linear/sm90/gemv/warp.cuh), and a warp's place in
// shared memory.
#pragma once
#include "cuda/linear/sm90/gemv/operands.cuh"
#include "cuda/linear/sm90/gemv/problem.hpp"

namespace qk::cuda {
namespace {

constexpr int32_t kGemvThreads = kGemvWarps * 32;
constexpr uint32_t kRowBytes = 16 * 4;  // of a partial sum of 16 rows

// Rows of y that a block computes.
__device__ inline int32_t y_rows(const GemvProblem &p, Run rows) {
    return int32_t(min64(int64_t(rows.last) * 16, p.n) - int64_t(rows.first) * 16);
}

inline uint32_t seconds_bytes(const GemvProblem &p) {
    return p.second == nullptr ? 0 : (p.last_second + 1) * 4;
}

// A unit of the weight.
struct Unit {
    int32_t row, column;  // of tiles, of units

    __device__ void advance(const GemvPlan &plan) {
        row += plan.row_step;
        column += plan.unit_step;
        if (column >= plan.units) {
            column -= plan.units;
            ++row;
        }
    }
};

// The groups of a unit's columns: the first of them in its row, and in the plane.
struct Groups {
    uint32_t first, count;
    uint64_t at;
};

template <int kGroupTiles>
__device__ inline Groups unit_groups(const GemvProblem &p, Unit unit) {
    const uint32_t tile = uint32_t(unit.column) * kUnitTiles;
    const uint32_t first = kGroupTiles == 0 ? tile * 2 : tile >> p.group_shift;
    const uint32_t last = tile + kUnitTiles - 1;
    const uint32_t end = (kGroupTiles == 0 ? last * 2 + 1 : last >> p.group_shift) + 1;
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

}  // namespace
}  // namespace qk::cuda
