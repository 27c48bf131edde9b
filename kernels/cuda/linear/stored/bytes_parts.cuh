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
    int32_t column_shift;   // log2 of the rows of x, of 8, whose sums are kept
    uint32_t scale_groups;  // 2^32 by the slices (or parts of 16 columns) of a group; 1: by one
    int32_t second_shift;   // nested: log2 of second_group
};

// Four codes as the registers of two products with x in the order of columns.
//
// Signed: 1024 + u has u in the lowest bits of a half; u is the code plus 128. bf16 has room for 7
// bits: 128 + the lower ones, less 128 or, for negative codes, 256.
template <class T>
struct SignedBytes;

template <>
struct SignedBytes<F16> {
    static constexpr int kTerms = 1;
    static __device__ void decode(uint32_t word, uint32_t, uint32_t (&to)[2]) {
        const uint32_t u = word ^ 0x80808080u;
        to[0] = subtract_f16(byte_permute(u, 0x64646464u, 0x4140u), 0x64806480u);
        to[1] = subtract_f16(byte_permute(u, 0x64646464u, 0x4342u), 0x64806480u);
    }
};

template <>
struct SignedBytes<BF16> {
    static constexpr int kTerms = 1;
    static __device__ void decode(uint32_t word, uint32_t, uint32_t (&to)[2]) {
        const uint32_t lower = word & 0x7f7f7f7fu, sign = word & 0x80808080u;
        to[0] = subtract_bf16(byte_permute(lower, 0x43434343u, 0x4140u),
                              byte_permute(sign, 0x43434343u, 0x4140u));
        to[1] = subtract_bf16(byte_permute(lower, 0x43434343u, 0x4342u),
                              byte_permute(sign, 0x43434343u, 0x4342u));
    }
};

// These kernels have no static shared memory, so their dynamic part starts here; addresses are
// constants in the instructions (tile/ring.cuh).
constexpr uint32_t kBytesStart = 1024;
constexpr uint32_t kByteTable = 32 * 1024;

// Entries of a table: two terms of 16 bits in a word, in shared memory 32 times, once for each
// bank. Entry b of lane l is at byte 256 (b mod 128) + 128 (b / 128) + 4 l; a permute makes that
// of the lower bits of a code and, in another word, its top bit beside the lane. An entry's word is
// an operand as it is: its terms are two columns, and x is there twice.
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
    // `lanes`: this one's place in an entry, in every byte.
    static __device__ void decode(uint32_t word, uint32_t lanes, uint32_t (&to)[4]) {
        const uint32_t lower = word & 0x7f7f7f7fu, upper = (word & 0x80808080u) | lanes;
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) to[i] = look_up(lower, upper, 0x8804u + 0x1111u * i);
    }
};

// The number of an entry that is a number; 0 where there is none. By whole warps.
__device__ inline uint32_t finite_code(const LaneEntries &entries) {
    uint32_t code = 0;
#pragma unroll
    for (uint32_t i = 0; i < 8; ++i) {
        const bool finite = (entries.bits[i] & 0x7fffffffu) < 0x7f800000u;
        code = finite ? i * 32 + threadIdx.x % 32 : code;
    }
    return __reduce_max_sync(~0u, code);
}

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

// By all threads of a block, with entry threadIdx.x / 2 each; ends with a barrier. False where two
// terms are not exact enough, or where no entry is a number.
template <class T>
__device__ bool fill_table(float entry, float unit) {
    static_assert(kBytesThreads == 512);
    const uint32_t b = threadIdx.x / 2;
    const TwoTerms of = two_terms(T{}, entry, unit);
    const uint32_t to = kBytesStart + b % 128 * 256 + b / 128 * 128 + threadIdx.x % 2 * 64;
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
        shared_store_16(to + i * 16, {of.word, of.word, of.word, of.word});
    }
    const bool fits = __syncthreads_and(of.fits) != 0;
    return __syncthreads_or(isfinite(entry)) != 0 && fits;
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
