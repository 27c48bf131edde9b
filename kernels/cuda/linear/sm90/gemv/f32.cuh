// f32 x in the kernel for one row of x (linear/sm90/gemv/warp.cuh), as halves (tile/halves.cuh).
#pragma once
#include "cuda/linear/sm90/gemv/unit.cuh"
#include "cuda/tile/halves.cuh"

namespace qk::cuda {
namespace {

// Columns 2 i and 2 i + 1 hold first and second halves: of tile 2 i of the unit in the first set of
// operands, of tile 2 i + 1 in the second. A tile has a 2^e of its own. Units with smaller x than a
// window below it holds (`rest`) are multiplied again, with what is left.
//
// Where groups are parts of a tile, halves or quarters, columns 2 j and 2 j + 1 hold halves of x
// for one part, and zeros for the others. Which part it is changes from tile to tile (part_of), so
// that every lane has columns of two tiles, as above, and zeros in place of those of the others.
// There 2^e is that of the four tiles of a set.
template <uint32_t kOfParts>
struct XColumns<F32, kOfParts> {
    using Operand = F16;
    static constexpr int kOfTile = 2 * int(kOfParts);
    static constexpr bool kAhead = true;
    struct Raw {
        uint32_t x[2][8];
    };
    uint32_t b[2][8];
    float unit[2];      // 2^e: of tiles 2 pair and 2 pair + 1, or of the sets
    uint32_t below[2];  // magnitudes that were multiplied are not below it
    bool rest;          // whether any of the warp's tiles has smaller ones

    // The set that tile i of a unit is in.
    static __device__ constexpr int set_of(int i) {
        return kOfParts == 1 ? i % 2 : kOfParts == 2 ? i / 2 % 2 : i / 4;
    }
    // The part of tile i that columns 2 j and 2 j + 1 hold.
    static __device__ constexpr uint32_t part_of(uint32_t i, uint32_t j) {
        return (i ^ j) % kOfParts;
    }
    // The tile of a set that a lane has columns of.
    static __device__ uint32_t own_tile(uint32_t set, uint32_t row, uint32_t pair) {
        const uint32_t own = part_of(row / 2, pair / (4 / kOfParts));
        if constexpr (kOfParts == 1) return row / 2 * 2 + set;
        if constexpr (kOfParts == 2) return row / 4 * 4 + set * 2 + own;
        return set * 4 + own;
    }
    // Whether the operands of tile i are the set's, or zeros. (Of tiles whose sums another lane
    // keeps, they are either.)
    static __device__ bool has_part(uint32_t i, uint32_t row, uint32_t pair) {
        return part_of(i, row / 2) == pair / (4 / kOfParts);
    }
    __device__ void of_tile(int i, uint32_t row, uint32_t pair, uint32_t (&to)[8]) const {
        const bool here = kOfParts == 1 || has_part(uint32_t(i), row, pair);
#pragma unroll
        for (int j = 0; j < 8; ++j) to[j] = here ? b[set_of(i)][j] : 0;
    }

    // Half of a lane's 16 columns of its tiles: the lane with the other halves of x has the rest.
    __device__ Raw load(const void *x, int32_t k, int32_t first, uint32_t row,
                        uint32_t pair) const {
        Raw raw = {};
#pragma unroll
        for (uint32_t s = 0; s < 2; ++s) {
            const uint32_t tile = own_tile(s, row, pair);
            const int32_t column = first + int32_t(tile * 64 + pair * 16 + row % 2 * 8);
            if (column >= k) continue;
            const auto *const from = static_cast<const uint4 *>(x) + int64_t(column) / 4;
            const uint4 q[2] = {from[0], from[1]};
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                raw.x[s][4 * i] = q[i].x;
                raw.x[s][4 * i + 1] = q[i].y;
                raw.x[s][4 * i + 2] = q[i].z;
                raw.x[s][4 * i + 3] = q[i].w;
            }
        }
        return raw;
    }

    // `again`: what is left of the same tiles.
    __device__ void split(Raw raw, bool again, uint32_t lane) {
        rest = split_x < kOfParts == 1 ? 8 : 32 > (raw.x, again, lane, below, unit, b);
        if constexpr (kOfParts == 1) {
            // From a lane of rows 2 i and 2 i + 1 to those that add tiles 2 i and 2 i + 1 up.
#pragma unroll
            for (int s = 0; s < 2; ++s) unit[s] = __shfl_sync(~0u, unit[s], int(lane % 4 * 8));
        }
    }

    // A unit's place in shared memory: the operands, 2^e of 8 tiles, whether there is a rest, and a
    // barrier that says that they are there.
    static constexpr uint32_t kUnits = 2048, kRest = kUnits + 32, kKnown = kRest + 8;
    static constexpr uint32_t kPlaceBytes = kKnown + 8;

    __device__ void publish(uint32_t place, uint32_t lane) const {
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) {
            const uint32_t *const from = &b[i / 2][i % 2 * 4];
            shared_store_16(place + i * 512 + lane * 16, {from[0], from[1], from[2], from[3]});
        }
        if (lane < 4) {
            shared_store_8(place + kUnits + lane * 8,
                           {__float_as_uint(unit[0]), __float_as_uint(unit[1])});
            shared_store_4(place + kRest, rest);
        }
        barrier_arrive(place + kKnown);
    }

    // False where there is a rest, which only x itself tells.
    __device__ bool recall(uint32_t place, uint32_t lane) {
        barrier_wait(place + kKnown, 0);
        rest = false;
        if (shared_load_4(place + kRest) != 0) return false;
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) {
            const uint4 q = shared_load_16(place + i * 512 + lane * 16);
            uint32_t *const to = &b[i / 2][i % 2 * 4];
            to[0] = q.x;
            to[1] = q.y;
            to[2] = q.z;
            to[3] = q.w;
        }
        const uint2 units = shared_load_8(place + kUnits + lane % 4 * 8);
        unit[0] = __uint_as_float(units.x);
        unit[1] = __uint_as_float(units.y);
        return true;
    }
};

}  // namespace
}  // namespace qk::cuda
