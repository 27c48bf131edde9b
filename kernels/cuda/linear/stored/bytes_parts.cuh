// What the kernel for 8-bit codes (linear/stored/bytes.cu) is made of: the problem, the map
// of shared memory, and how sums become y.
#pragma once
#include <cuda.h>

#include "cuda/linear/stored/bytes_codes.cuh"
#include "cuda/linear/stored/bytes_plan.hpp"
#include "cuda/prim/tensor_copy.cuh"

namespace qk::cuda {
namespace {

constexpr int kBytesThreads = kBytesWarps * 32;
constexpr uint32_t kByteUnit = 16 * kBytesColumns;
constexpr int kByteSteps = kBytesColumns / 16;  // products of a unit, for 8 rows of x

struct BytesProblem {
    CUtensorMap codes, x;  // boxes of 16 rows x 128 bytes, of x_rows x 64 columns
    LinearView o;
    BytesPlan plan;
    uint32_t x_rows;        // of a box
    int32_t column_shift;   // log2 of the rows of x, of 8, whose sums are kept
    uint32_t scale_groups;  // 2^32 by the slices (or parts of 16 columns) of a group; 1: by one
    int32_t second_shift;   // nested: log2 of second_group
};

// Shared memory: [table] [rings] [x] [sums] [scales] [scale codes] [barriers]. kFine: scales change
// inside a slice, at multiples of 16 columns.
template <int kBatches, bool kFine, bool kTable>
struct BytesMap {
    static constexpr uint32_t kDepth = kTable && kBatches == 2 ? 2 : 3;  // units of a ring
    static constexpr uint32_t kFolds = kFine ? kByteSteps : 1;
    static constexpr uint32_t kGang = kFine ? 1 : 2;  // slices whose scales come together
    static constexpr uint32_t kXBox = kBatches * 1024, kWarpX = 2 * kXBox;
    static constexpr uint32_t kWarpSums = kBytesTiles * 16 * 8 * 4;  // of 8 rows of x
    static constexpr uint32_t kSliceScales = kBytesTiles * 16 * kFolds * 4;
    static constexpr uint32_t kRing = kBytesStart + (kTable ? kByteTable : 0);
    static constexpr uint32_t kX = kRing + kBytesWarps * kDepth * kByteUnit;
    static constexpr uint32_t kSums = kX + kBytesWarps * kWarpX;
    static constexpr uint32_t kScales = kSums + kBytesWarps * kWarpSums;
    static constexpr uint32_t kScaleCodes = kScales + kBytesWarps * kGang * kSliceScales;
    static constexpr uint32_t kBarriers = kScaleCodes + 256 * 4;
    static constexpr uint32_t kWarpBarriers = (kDepth + 1) * 8;  // of the units, of x
    static constexpr uint32_t kBytes = kBarriers + kBytesWarps * kWarpBarriers - kBytesStart;
};

// A warp's way through the weight: tiles of a slice, slices of a panel, panels.
struct BytesPlace {
    int32_t panel, slice, tile;
    int32_t first, tiles;  // tiles of the panel that are this warp's

    __device__ void enter(const BytesPlan &plan, Run block, int32_t row_part) {
        first = block.first + (panel * plan.row_parts + row_part) * plan.height;
        tiles = min(plan.height, block.last - first);
    }
    __device__ void next_slice(const BytesPlan &plan, Run block, int32_t part, int32_t row_part) {
        slice += plan.parts();
        if (slice < plan.slices) return;
        slice = part;
        ++panel;
        enter(plan, block, row_part);
    }
};

// Rows of y of some panels, for up to 8 rows of x: the sums of the warps that divide k, in their
// order. A warp's: [panel][tile][row][row of x].
template <class T, class Map>
__device__ void store_panels(const BytesProblem &p, Run block, Run panels, int64_t x_first) {
    const BytesPlan &plan = p.plan;
    const int32_t tiles = plan.row_parts * plan.height, first = block.first + panels.first * tiles;
    const int32_t shift = p.column_shift, end = (panels.last - panels.first) * tiles << (shift + 4);
    for (int32_t at = int32_t(threadIdx.x); at < end; at += kBytesThreads) {
        const int32_t row = at >> shift & 15, tile = at >> (shift + 4);
        const int64_t x_row = x_first + (at & ((1 << shift) - 1));
        const int64_t y_row = int64_t(first + tile) * 16 + row;
        if (x_row >= p.o.m || first + tile >= block.last || y_row >= p.o.w.geometry.n) continue;
        int32_t row_part = 0, own = tile;
        if (plan.row_parts > 1) {
            const int32_t run = tile / plan.height;
            row_part = run % plan.row_parts;
            own = run / plan.row_parts * plan.height + tile % plan.height;
        }
        uint32_t from = Map::kSums + uint32_t(row_part << plan.part_shift) * Map::kWarpSums +
                        (uint32_t(own) << (shift + 4) | uint32_t(at & ((16 << shift) - 1))) * 4;
        float y = __uint_as_float(shared_load_4(from));
#pragma unroll 4
        for (int32_t i = 1; i < plan.parts(); ++i) {
            from += Map::kWarpSums;
            y = __fadd_rn(y, __uint_as_float(shared_load_4(from)));
        }
        if (p.o.bias != nullptr) y = __fadd_rn(y, load_float(p.o.bias_type, p.o.bias, y_row));
        store_y<T>(p.o.y, x_row * p.o.w.geometry.n + y_row, y);
    }
}

}  // namespace
}  // namespace qk::cuda
