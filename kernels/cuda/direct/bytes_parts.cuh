// What the kernel for 8-bit codes (direct/bytes.cuh) is made of: codes as numbers, the map of
// shared memory, x, and how sums become y.
#pragma once
#include "cuda/choose/bytes.hpp"
#include "cuda/direct/operands.cuh"
#include "cuda/prim/copy.cuh"

namespace qk::cuda {
namespace {

constexpr int kBytesThreads = kBytesWarps * 32;
constexpr uint32_t kByteUnit = 16 * kBytesColumns;
constexpr int kByteSteps = kBytesColumns / 16;  // products of a unit, for 8 rows of x

struct BytesProblem : LinearView {
    BytesPlan plan;
    uint32_t group;        // columns
    int32_t second_shift;  // nested: log2 of second_group
};

// Four signed bytes as two pairs of numbers. f16: 1024 + u has u in its lowest bits; u is the code
// plus 128. bf16 has room for 7 bits: 128 + the lower ones, less 128 or, for negative codes, 256.
template <class T>
struct SignedBytes;

template <>
struct SignedBytes<F16> {
    static __device__ void decode(uint32_t word, uint32_t &low, uint32_t &high) {
        const uint32_t u = word ^ 0x80808080u;
        low = subtract_f16(byte_permute(u, 0x64646464u, 0x4140u), 0x64806480u);
        high = subtract_f16(byte_permute(u, 0x64646464u, 0x4342u), 0x64806480u);
    }
};

template <>
struct SignedBytes<BF16> {
    static __device__ void decode(uint32_t word, uint32_t &low, uint32_t &high) {
        const uint32_t lower = word & 0x7f7f7f7fu, sign = word & 0x80808080u;
        low = subtract_bf16(byte_permute(lower, 0x43434343u, 0x4140u),
                            byte_permute(sign, 0x43434343u, 0x4140u));
        high = subtract_bf16(byte_permute(lower, 0x43434343u, 0x4342u),
                             byte_permute(sign, 0x43434343u, 0x4342u));
    }
};

// Shared memory: [rings] [sums] [scales] [scale codes]. kFine: scales change inside a slice, at
// multiples of 16 columns.
template <int kBatches, bool kFine>
struct BytesMap {
    static constexpr uint32_t kDepth = 4;  // units of a ring
    static constexpr uint32_t kFolds = kFine ? kByteSteps : 1;
    static constexpr uint32_t kColumns = 8 * kBatches;  // of sums
    static constexpr uint32_t kWarpSums = kBytesTiles * 16 * kColumns;
    static constexpr uint32_t kWarpScales = kBytesTiles * 16 * kFolds;
    static constexpr uint32_t kSums = kBytesWarps * kDepth * kByteUnit;
    static constexpr uint32_t kScales = kSums + kBytesWarps * kWarpSums * 4;
    static constexpr uint32_t kScaleCodes = kScales + kBytesWarps * kWarpScales * 4;
    static constexpr uint32_t kEnd = kScaleCodes + 256 * 4;

    // Where a sum lies among a tile's: a warp's stores and the loads meet no bank twice.
    static __device__ uint32_t place(uint32_t row, uint32_t column) {
        const uint32_t turn = kBatches == 2 ? (row >> 1 & 1) * 8 : 0;
        return row * kColumns + (column ^ turn);
    }
};

// A warp's way through the weight: tiles of a slice, slices of a panel, panels.
struct BytesPlace {
    int32_t panel, slice, tile;
    int32_t first, tiles;  // tiles of the panel that are this warp's

    __device__ void enter(const BytesPlan &plan, Run block, int32_t row_part) {
        first = block.first + (panel * plan.row_parts + row_part) * plan.height;
        tiles = min(plan.height, block.last - first);
    }
};

// x, for a warp's columns.
template <class T, int kBatches>
struct BytesX {
    const uint8_t *row[kBatches];

    __device__ BytesX(const LinearView &p, int64_t first) {
        const auto lane = int(threadIdx.x % 32);
#pragma unroll
        for (int b = 0; b < kBatches; ++b) {  // rows past the last: the last once more, not stored
            const int64_t at = min64(first + b * 8 + lane / 4, p.m - 1);
            row[b] = static_cast<const uint8_t *>(p.x) + (at * p.w.geometry.k + lane % 4 * 4) * 2;
        }
    }
    // Columns of a slice from column `at` on; 0 past the end of k.
    __device__ void load(int32_t at, int32_t k, uint2 (&b)[kBatches][kByteSteps]) const {
#pragma unroll
        for (int j = 0; j < kBatches; ++j) {
#pragma unroll
            for (int s = 0; s < kByteSteps; ++s) {
                const auto *const from =
                    reinterpret_cast<const uint2 *>(row[j] + int64_t(at) * 2) + s * 4;
                b[j][s] = at + s * 16 < k ? __ldg(from) : uint2{0, 0};
            }
        }
    }
};

// Rows of y of a panel: the sums of the warps that divide k, in their order.
template <class T, int kBatches, class Map>
__device__ void store_panel(const BytesProblem &p, const float *sums, Run block, int32_t panel,
                            int64_t x_first) {
    const BytesPlan &plan = p.plan;
    const int32_t tiles = plan.row_parts * plan.height, first = block.first + panel * tiles;
    for (int32_t at = int32_t(threadIdx.x); at < tiles * 16 * int32_t(Map::kColumns);
         at += kBytesThreads) {
        const int32_t column = at % int32_t(Map::kColumns), in_panel = at / int32_t(Map::kColumns);
        const int32_t row = in_panel % 16, tile = in_panel / 16, row_part = tile / plan.height;
        const int64_t y_row = int64_t(first + tile) * 16 + row;
        if (x_first + column >= p.m || first + tile >= block.last || y_row >= p.w.geometry.n) {
            continue;
        }
        const float *from = sums + (row_part << plan.part_shift) * int32_t(Map::kWarpSums) +
                            (tile - row_part * plan.height) * 16 * int32_t(Map::kColumns) +
                            Map::place(uint32_t(row), uint32_t(column));
        float y = *from;
#pragma unroll 4
        for (int32_t i = 1; i < plan.parts(); ++i) {
            from += Map::kWarpSums;
            y = __fadd_rn(y, *from);
        }
        if (p.bias != nullptr) y = __fadd_rn(y, load_float(p.bias_type, p.bias, y_row));
        const int64_t to = (x_first + column) * p.w.geometry.n + y_row;
        if constexpr (std::is_same_v<T, F16>) {
            static_cast<__half *>(p.y)[to] = __float2half_rn(y);
        } else {
            static_cast<__nv_bfloat16 *>(p.y)[to] = __float2bfloat16_rn(y);
        }
    }
}

}  // namespace
}  // namespace qk::cuda
