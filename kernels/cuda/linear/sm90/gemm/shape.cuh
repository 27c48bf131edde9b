// The matrix kernels' blocks: what one owns, where the parts of a stage are in its shared memory,
// and what its warps know of each other.
#pragma once
#include "cuda/linear/sm90/gemm/problem.hpp"
#include "cuda/prim/cluster.cuh"
#include "cuda/prim/tensor_copy.cuh"
#include "cuda/prim/wgmma.cuh"
#include "cuda/tile/microscaled.cuh"

namespace qk::cuda {
namespace {

// Ways to decode 8-bit codes stored in rows (source_8bit.cuh); the others are of packed tiles.
template <class Decode>
concept OfBytes = requires {
    typename Decode::Lane;
};

// Packed tiles whose rows are summed over: y = x . w (transposed.cuh).
template <class Decode>
struct Transposed : Decode {};
// Which of the 64 columns of y that a warpgroup has sums of is in which of the 64 rows of its
// products: each in its own.
struct OwnOrder {
    static __device__ uint32_t column(uint32_t row) { return row; }
    static __device__ uint32_t row(uint32_t column) { return column; }
    // Bytes from the row of `column`, 2 bytes each, to that of the i-th behind it.
    static __device__ uint32_t bytes_to(uint32_t, uint32_t i) { return i * 2; }
    // Those of `column`, a multiple of 8, and of the 7 behind it, in this order.
    static __device__ uint4 load_8(uint32_t at) { return shared_load_16(at); }
};
// Tiles are turned over where they are loaded (linear/transposed_codes.cuh): of a warp's 16 rows
// row g + 8 is the column kOther further on than that of row g.
template <int32_t kOther>
struct TransposedOrder {
    static __device__ uint32_t column(uint32_t row) {
        const uint32_t g = row % 8, first = kOther == 1 ? g * 2 : g / 2 * 4 + g % 2;
        return row / 16 * 16 + first + row / 8 % 2 * kOther;
    }
    static __device__ uint32_t row(uint32_t column) {
        const uint32_t c = column % 16, first = kOther == 1 ? c / 2 : c / 4 * 2 + c % 2;
        return column / 16 * 16 + first + c / kOther % 2 * 8;
    }
    static __device__ uint32_t bytes_to(uint32_t column, uint32_t i) {
        return (row(column + i) - row(column)) * 2;
    }
    static __device__ uint4 load_8(uint32_t at) {
        const uint2 v = shared_load_8(at), other = shared_load_8(at + 16);
        if constexpr (kOther == 2) return {v.x, other.x, v.y, other.y};
        return {__byte_perm(v.x, other.x, 0x5410), __byte_perm(v.x, other.x, 0x7632),
                __byte_perm(v.y, other.y, 0x5410), __byte_perm(v.y, other.y, 0x7632)};
    }
};

template <class Decode>
constexpr bool kIsTransposed = false;
template <class Decode>
constexpr bool kIsTransposed<Transposed<Decode>> = true;

// `kSmallGroups`: of 16 or 32 columns; the kind of scale is known when it runs. `kOfExperts`: items
// come from a list (experts.cuh).
template <class T_, class Decode_, ScaleKind kKind, int kN, int kR, int kQ, int kTiles_,
          bool kSmallGroups = false, bool kOfExperts = false>
struct GemmShape {
    using T = T_;
    using Decode = Decode_;
    static constexpr ScaleKind kind = kKind;
    static constexpr int N = kN, R = kR, Q = kQ, kTiles = kTiles_;  // tiles of a stage
    static constexpr bool kSmall = kSmallGroups, kListed = kOfExperts;
    static constexpr bool kTransposed = kIsTransposed<Decode>;
    static constexpr bool kPlaced = std::is_same_v<Decode, PlacedE2m1<T>>;
    using Order = std::conditional_t<kTransposed, TransposedOrder<Decode::kLut4 ? 1 : 2>, OwnOrder>;
    static constexpr bool kAnyScale = kSmall || kTransposed;  // its kind is known when it runs
    static constexpr int kParts = kSmall ? 4 : 1;  // of a tile, with scales and zeros of their own
    // Large, and small groups: the scale, rounded to x's type, multiplies the weights; else the
    // sums of a tile.
    static constexpr bool kScaled = kN > 64 || kAnyScale || kListed;
    static constexpr bool kBytes = OfBytes<Decode>;
    static constexpr int kBoxTiles = kTiles == 1 ? 1 : 2;  // 8-bit codes: tiles of a box
    // Large: nested scales are made by the producers, as pairs of x's type; so are all of small
    // groups and of 8-bit codes, these to 64 rows as floats.
    static constexpr bool kMade = kScaled && (kBytes || kAnyScale || kind == ScaleKind::kNested);
    // Bytes: of rows r and r + 8; transposed, with what is subtracted for their zeros.
    static constexpr uint32_t kPair = kTransposed && !Decode::kLut4 ? 8
                                      : kMade                       ? 4
                                                                    : kPairBytes<kind>;
    static constexpr bool kZeros = !kBytes && !kTransposed;  // are copied
    // 8-bit codes: and whether the table fits, as each warp sees it.
    static constexpr int kScaleCodes = kBytes ? 256 + 32 : kind == ScaleKind::kNested ? 256 : 1;
    // Arrivals at a full stage: of the lane that issues boxes, of scales, of zeros beside made
    // ones.
    static constexpr int kArrivals = 1 + 32 + (kMade && kZeros && !Decode::kLut4 ? 32 : 0);
    static constexpr int kRows = 64 * R, kRowTiles = 4 * R, kConsumers = R * Q;  // warpgroups
    static constexpr int kThreads = (kConsumers + 1) * 128;  // one more warpgroup produces
    // Registers a thread: a launch gives the block 96 a thread for four consumers, 128, 168; what
    // the producers leave the consumers have. Where they do not suffice, it hangs or spills, or
    // ptxas waits after each product. Producers of lists and those that make scales want more.
    static constexpr int kLaunchRegisters = kConsumers == 4 ? 96 : kConsumers == 3 ? 128 : 168;
    static constexpr int producer_registers() {
        if (kTransposed) return N == 256 ? 72 : 120;
        if (kConsumers == 4) return kListed || kSmall ? 64 : kBytes ? 32 : 24;
        if (kListed) return 56;
        if (kSmall) return 88;
        return kBytes && kConsumers == 3 ? 56 : 40;
    }
    static constexpr int kProducerRegisters = producer_registers();
    static constexpr int kConsumerRegisters =
        (kLaunchRegisters * (kConsumers + 1) - kProducerRegisters) / kConsumers / 8 * 8;

    static constexpr int32_t kBox = N == 32 ? 8 : N == 64 ? 16 : 32;  // of a list: rows of x

    // A stage in shared memory.
    static constexpr uint32_t kX = N * 128 * kTiles;
    static constexpr uint32_t kCodes = kRowTiles * (kBytes ? 1024 : 512) * kTiles;
    static constexpr uint32_t kScale = kRowTiles * 8 * kPair * kTiles * kParts;
    static constexpr uint32_t kZero = !kZeros ? 0 : kRowTiles * 8 * kTiles * kParts;
    static constexpr uint32_t kStage = (kX + kCodes + kScale + kZero + 1023) / 1024 * 1024;
    static constexpr uint32_t kTable = Decode::kEntryBytes;
    // The sums of a warpgroup row: N columns of y, kRows long, padded against bank conflicts.
    static constexpr uint32_t kColumn = (kRows + 4) * 4;
    static constexpr uint32_t kSums = N * kColumn;
    // Large: where a warpgroup transposes 64 rows of w by 16 of x, twice, after the ring.
    static constexpr uint32_t kTransposePitch = 128 + 16, kTransposeBytes = 16 * kTransposePitch;
    // Of a list: two pieces of a warpgroup, 64 rows of w by 16 of x, and units that come.
    static constexpr uint32_t kPitch = 64 * 4 + 16, kPiece = 16 * kPitch;
    static constexpr uint32_t kPieces = kConsumers * 2 * kPiece, kUnits = 3, kUnit = 16 + N * 4;
    static constexpr uint32_t kTransposeRoom = kListed   ? kPieces + kUnits * kUnit
                                               : kScaled ? kConsumers * 2 * kTransposeBytes
                                                         : 0;
    static_assert(!kListed || (kQ == 1 && !kBytes));
    // Halves of an expert meet in two warpgroups, whose stores are whole lines then.
    static constexpr bool kAcross = kListed && kR == 2;
    static_assert(!kPlaced || (kListed && kSmall));

    static constexpr int32_t slots(uint32_t shared) {
        return int32_t(min64((shared - 1024 - kTable - kTransposeRoom) / kStage, kMaxSlots));
    }
    // Warps that make scales, a stage each in turn: not more than there are slots, or one would be
    // two rounds of the ring ahead, which a barrier's parity does not tell from none.
    static constexpr int kMakers = int(min64(slots(kMostShared - kStaticShared), 3));
    static_assert(kMakers > 1);
    static constexpr uint32_t shared_bytes(int32_t slots) {
        const uint32_t ring = uint32_t(slots) * kStage + kTransposeRoom,
                       sums = kScaled ? 0 : Q * kSums;
        return 1024 + kTable + (ring > sums ? ring : sums);
    }
};

// The part of the product that a block computes next.
struct Item {
    int32_t row_tile, x_first, first, last;  // first, last: tiles of k, whole stages
    // Of a list: rows of tiles between the first half and the second; boxes of rows of x.
    int32_t gap = 0, x_boxes = 0;
    bool halves = false;  // of a list: gate's rows of tiles come first, then those of up

    // Row of tiles number i of the block.
    template <class S>
    __device__ int32_t tile(int32_t i) const {
        if constexpr (!S::kListed) return row_tile + i;
        return row_tile + i + (i < S::kRowTiles / 2 ? 0 : gap);
    }
    // This warp's among the block's. Of halves a warpgroup has two of either, or four of one.
    template <class S>
    __device__ uint32_t warp_tile() const {
        const uint32_t group = (threadIdx.x >> 7) / S::Q, warp = threadIdx.x >> 5 & 3;
        if (!S::kListed || S::kAcross || !halves) return group * 4 + warp;
        return warp / 2 * (S::kRowTiles / 2) + group * 2 + warp % 2;
    }
    // The one `step` after `first`, which is in the first half where there are two.
    template <class S>
    __device__ int32_t after(int32_t first, int32_t step) const {
        return first + step + (S::kListed && step >= S::kRowTiles / 2 ? gap : 0);
    }
};

struct Turn {  // of the ring
    uint32_t slot = 0, parity;
    __device__ explicit Turn(uint32_t first_parity) : parity(first_parity) {}
    __device__ void next(int32_t slots) {
        if (++slot == uint32_t(slots)) slot = 0, parity ^= 1;
    }
    // Passes `count` stages.
    __device__ void skip(int32_t count, int32_t slots) {
        slot += uint32_t(count);
        parity ^= slot / uint32_t(slots) & 1;
        slot %= uint32_t(slots);
    }
};

// What every warp of a block knows.
template <class S>
struct Shared {
    using T = typename S::T;
    const GemmProblem &p;
    uint32_t ring, full, empty, table;
    float *scale_codes;
    float second_bias;
    __device__ uint32_t slot(uint32_t i) const { return ring + i * S::kStage; }

    __device__ static void scale_operands(uint32_t (&a)[4][4], const uint32_t (&both)[2]) {
#pragma unroll
        for (int j = 0; j < 4; ++j) scale_step<T>(a[j], both);
    }
};

}  // namespace
}  // namespace qk::cuda
