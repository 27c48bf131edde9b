// How the matrix kernels cut a product: what a block owns, and where the parts of a stage are in
// its shared memory.
#pragma once
#include "cuda/linear/sm90/gemm/problem.hpp"
#include "cuda/tile/decode.cuh"
#include "cuda/linear/sm90/gemm/plan.hpp"

namespace qk::cuda {
namespace {

constexpr int32_t kMaxSlots = 16;
constexpr uint32_t kStaticShared = 2048;  // barriers and the table of nested scales

// Ways to decode 8-bit codes stored in rows (linear/sm90/gemm/source_8bit.cuh); the others are of
// packed tiles.
template <class Decode>
concept OfBytes = requires {
    Decode::kEntryBytes;
};

template <class Decode>
constexpr uint32_t table_bytes() {
    if constexpr (OfBytes<Decode>) return Decode::kEntryBytes;
    return Decode::kLut4 ? kPairTableBytes : 0;
}

template <class T_, class Decode_, ScaleKind kKind, int kN, int kR, int kQ, int kTiles_>
struct GemmShape {
    using T = T_;
    using Decode = Decode_;
    static constexpr ScaleKind kind = kKind;
    static constexpr int N = kN, R = kR, Q = kQ, kTiles = kTiles_;  // tiles of a stage
    // Large: the scale, rounded to x's type, multiplies the weights; else the sums of a tile.
    static constexpr bool kScaled = kN > 64;
    static constexpr bool kBytes = OfBytes<Decode>;
    static constexpr int kBoxTiles = kTiles == 1 ? 1 : 2;  // 8-bit codes: tiles of a box
    // Large: nested scales are made by the producers, as pairs of x's type; so are all of 8-bit
    // codes, to 64 rows as floats.
    static constexpr bool kMade = kScaled && (kBytes || kind == ScaleKind::kNested);
    static constexpr uint32_t kPair = kMade ? 4 : kPairBytes<kind>;  // bytes: of rows r and r + 8
    // 8-bit codes: and whether the table fits, as each warp sees it.
    static constexpr int kScaleCodes = kBytes ? 256 + 32 : kind == ScaleKind::kNested ? 256 : 1;
    // Arrivals at a full stage: of the lane that issues boxes, of scales, of zeros where both are
    // made.
    static constexpr int kArrivals = 1 + 32 + (kMade && !Decode::kLut4 ? 32 : 0);
    static constexpr int kRows = 64 * R, kRowTiles = 4 * R, kConsumers = R * Q;  // warpgroups
    static constexpr int kThreads = (kConsumers + 1) * 128;  // one more warpgroup produces
    // Registers a thread, from what the producers leave of those that a launch gives the block
    // (96 a thread for four consumers, 128, 168): where they do not suffice, it hangs.
    static constexpr int kProducerRegisters = kConsumers == 4             ? (kBytes ? 32 : 24)
                                              : kBytes && kConsumers == 3 ? 56
                                                                          : 40;
    static constexpr int kConsumerRegisters = kConsumers == 4 ? 112 : kConsumers == 3 ? 152 : 232;

    // A stage in shared memory.
    static constexpr uint32_t kX = N * 128 * kTiles;
    static constexpr uint32_t kCodes = kRowTiles * (kBytes ? 1024 : 512) * kTiles;
    static constexpr uint32_t kScale = kRowTiles * 8 * kPair * kTiles;
    static constexpr uint32_t kZero = kBytes ? 0 : kRowTiles * 8 * kTiles;
    static constexpr uint32_t kStage = (kX + kCodes + kScale + kZero + 1023) / 1024 * 1024;
    static constexpr uint32_t kTable = table_bytes<Decode>();
    // The sums of a warpgroup row: N columns of y, kRows long, padded against bank conflicts.
    static constexpr uint32_t kColumn = (kRows + 4) * 4;
    static constexpr uint32_t kSums = N * kColumn;
    // Large: where a warpgroup transposes 64 rows of w by 16 of x, twice, after the ring.
    static constexpr uint32_t kTransposePitch = 128 + 16, kTransposeBytes = 16 * kTransposePitch;
    static constexpr uint32_t kTransposeRoom = kScaled ? kConsumers * 2 * kTransposeBytes : 0;

    static constexpr int32_t slots(uint32_t shared) {
        return int32_t(min64((shared - 1024 - kTable - kTransposeRoom) / kStage, kMaxSlots));
    }
    // Warps that make scales, a stage each in turn: not more than there are slots, or one would be
    // two rounds of the ring ahead, which a barrier's parity does not tell from none.
    static constexpr int kMakers = kBytes ? int(min64(slots(kMostShared - kStaticShared), 3)) : 3;
    static_assert(kMakers > 1);
    static constexpr uint32_t shared_bytes(int32_t slots) {
        const uint32_t ring = uint32_t(slots) * kStage + kTransposeRoom,
                       sums = kScaled ? 0 : Q * kSums;
        return 1024 + kTable + (ring > sums ? ring : sums);
    }
};

}  // namespace
}  // namespace qk::cuda
