// What the kernel for 8-bit codes (linear/stored/bytes.cu) is made of: the problem, codes as
// numbers, the map of shared memory, and how sums become y.
#pragma once
#include <cuda.h>

#include "cuda/linear/stored/bytes_plan.hpp"
#include "cuda/prim/tensor_copy.cuh"
#include "cuda/tile/lut8.cuh"

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
    uint32_t scale_groups;  // 2^32 by the slices (or parts of 16 columns) of a group; 1: by one
    int32_t second_shift;   // nested: log2 of second_group
};

// Four codes as two pairs of numbers, in kTerms of them. `lanes`: of the table.
//
// Signed: 1024 + u has u in the lowest bits of a half; u is the code plus 128. bf16 has room for 7
// bits: 128 + the lower ones, less 128 or, for negative codes, 256.
template <class T>
struct SignedBytes;

template <>
struct SignedBytes<F16> {
    static constexpr int kTerms = 1;
    static __device__ void decode(uint32_t word, uint32_t, uint32_t (&low)[1],
                                  uint32_t (&high)[1]) {
        const uint32_t u = word ^ 0x80808080u;
        low[0] = subtract_f16(byte_permute(u, 0x64646464u, 0x4140u), 0x64806480u);
        high[0] = subtract_f16(byte_permute(u, 0x64646464u, 0x4342u), 0x64806480u);
    }
};

template <>
struct SignedBytes<BF16> {
    static constexpr int kTerms = 1;
    static __device__ void decode(uint32_t word, uint32_t, uint32_t (&low)[1],
                                  uint32_t (&high)[1]) {
        const uint32_t lower = word & 0x7f7f7f7fu, sign = word & 0x80808080u;
        low[0] = subtract_bf16(byte_permute(lower, 0x43434343u, 0x4140u),
                               byte_permute(sign, 0x43434343u, 0x4140u));
        high[0] = subtract_bf16(byte_permute(lower, 0x43434343u, 0x4342u),
                                byte_permute(sign, 0x43434343u, 0x4342u));
    }
};

// These kernels have no static shared memory, so their dynamic part starts here; addresses are
// constants in the instructions (tile/ring.cuh).
constexpr uint32_t kBytesStart = 1024;
constexpr uint32_t kByteTable = 32 * 1024;

// Entries of a table: two terms of 16 bits in a word, in shared memory 32 times, once for each
// bank. Entry b of lane l is at byte 256 (b mod 128) + 128 (b / 128) + 4 l; a permute makes that
// of the lower bits of a code and, in another word, its top bit beside the lane.
template <class T>
struct TableBytes {
    static constexpr int kTerms = 2;

    static __device__ uint32_t look_up(uint32_t low, uint32_t high, uint32_t select) {
        uint32_t value;
        asm("ld.shared.u32 %0, [%1 + %2];"
            : "=r"(value)
            : "r"(byte_permute(low, high, select)), "n"(kBytesStart));
        return value;
    }
    static __device__ void decode(uint32_t word, uint32_t lanes, uint32_t (&low)[2],
                                  uint32_t (&high)[2]) {
        const uint32_t lower = word & 0x7f7f7f7fu, upper = (word & 0x80808080u) | lanes;
        uint32_t entry[4];
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) {
            entry[i] = look_up(lower, upper, 0x8804u + 0x1111u * i);
        }
#pragma unroll
        for (uint32_t term = 0; term < 2; ++term) {
            const uint32_t select = term == 0 ? 0x5410u : 0x7632u;
            low[term] = byte_permute(entry[0], entry[1], select);
            high[term] = byte_permute(entry[2], entry[3], select);
        }
    }
};

// An entry as its two terms; their unit, which sums are multiplied by; whether they are the entry
// to 2^-17 of it.
struct TwoTerms {
    uint32_t word;
    bool fits;
};

__device__ inline TwoTerms two_terms(F16, float entry, float unit) {
    const float scaled = __fdiv_rn(entry, unit);
    const __half first = __float2half_rn(scaled);
    const float rest = isfinite(scaled) ? __fadd_rn(scaled, -__half2float(first)) : 0.0f;
    const __half second = __float2half_rn(rest);
    const float back = __fmul_rn(__fadd_rn(__half2float(first), __half2float(second)), unit);
    const bool fits = !isfinite(entry) || fabsf(__fadd_rn(entry, -back)) <= fabsf(entry) * 0x1p-17f;
    return {uint32_t(__half_as_ushort(second)) << 16 | __half_as_ushort(first), fits};
}
__device__ inline TwoTerms two_terms(BF16, float entry, float) {
    __nv_bfloat16 first = __float2bfloat16_rn(entry);
    if (isinf(__bfloat162float(first)) && !isinf(entry)) first = __float2bfloat16_rz(entry);
    const float rest = isfinite(entry) ? __fadd_rn(entry, -__bfloat162float(first)) : 0.0f;
    const __nv_bfloat16 second = __float2bfloat16_rn(rest);
    return {uint32_t(__bfloat16_as_ushort(second)) << 16 | __bfloat16_as_ushort(first), true};
}

// By all threads of a block; ends with a barrier. False where two terms are not exact enough.
template <class T>
__device__ bool fill_table(const uint8_t *table, float unit) {
    static_assert(kBytesThreads == 512);
    const uint32_t b = threadIdx.x / 2;
    const TwoTerms of = two_terms(T{}, __ldg(reinterpret_cast<const float *>(table) + b), unit);
    const uint32_t to = kBytesStart + b % 128 * 256 + b / 128 * 128 + threadIdx.x % 2 * 64;
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
        shared_store_16(to + i * 16, {of.word, of.word, of.word, of.word});
    }
    return __syncthreads_and(of.fits) != 0;
}

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

// Rows of y of a panel, for 8 rows of x: the sums of the warps that divide k, in their order.
template <class T, class Map>
__device__ void store_panel(const BytesProblem &p, Run block, int32_t panel, int64_t x_first) {
    const BytesPlan &plan = p.plan;
    const int32_t tiles = plan.row_parts * plan.height, first = block.first + panel * tiles;
    for (int32_t at = int32_t(threadIdx.x); at < tiles * 128; at += kBytesThreads) {
        const int32_t row = at / 8 % 16, tile = at / 128;
        const int32_t row_part = plan.row_parts == 1 ? 0 : tile / plan.height;
        const int64_t x_row = x_first + at % 8, y_row = int64_t(first + tile) * 16 + row;
        if (x_row >= p.o.m || first + tile >= block.last || y_row >= p.o.w.geometry.n) continue;
        uint32_t from = Map::kSums + uint32_t(row_part << plan.part_shift) * Map::kWarpSums +
                        uint32_t(at - row_part * plan.height * 128) * 4;
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
