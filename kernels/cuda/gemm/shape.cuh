// How the matrix kernels cut a product: what a block owns, and where the parts of a stage lie in
// its shared memory.
#pragma once
#include "cuda/decode/decode.cuh"
#include "cuda/decode/stream.cuh"
#include "cuda/gemm/problem.hpp"

namespace qk::cuda {
namespace {

constexpr int32_t kMaxSlots = 16;

template <class T_, class Decode_, ScaleKind kKind, int kN, int kR, int kQ, int kTiles_>
struct GemmShape {
    using T = T_;
    using Decode = Decode_;
    static constexpr ScaleKind kind = kKind;
    static constexpr int N = kN, R = kR, Q = kQ, kTiles = kTiles_;  // tiles of a stage
    // Wide: the scale, rounded to x's type, multiplies the weights; else the sums of a tile.
    static constexpr bool kScaled = kN > 64;
    // Wide: nested scales are made by the producers, as pairs of x's type.
    static constexpr bool kMade = kScaled && kind == ScaleKind::kNested;
    static constexpr uint32_t kPair = kMade ? 4 : kPairBytes<kind>;  // bytes: of rows r and r + 8
    static constexpr int kMakers = 3;                                // warps
    // Who arrives at a full stage: who orders boxes, scales, and zeros where scales are made.
    static constexpr int kArrivals = 1 + 32 + (kMade && !Decode::kPairs ? 32 : 0);
    static constexpr int kRows = 64 * R, kRowTiles = 4 * R, kConsumers = R * Q;  // warpgroups
    static constexpr int kThreads = (kConsumers + 1) * 128;  // one more warpgroup produces
    // Registers a thread, from what the producers leave of the 65536.
    static constexpr int kProducerRegisters = kConsumers == 4 ? 24 : 40;
    static constexpr int kConsumerRegisters = kConsumers == 4 ? 112 : kConsumers == 3 ? 152 : 232;

    // A stage in shared memory.
    static constexpr uint32_t kX = N * 128 * kTiles;
    static constexpr uint32_t kCodes = kRowTiles * 512 * kTiles;
    static constexpr uint32_t kScale = kRowTiles * 8 * kPair * kTiles;
    static constexpr uint32_t kZero = kRowTiles * 8 * kTiles;
    static constexpr uint32_t kStage = (kX + kCodes + kScale + kZero + 1023) / 1024 * 1024;
    static constexpr uint32_t kTable = Decode::kPairs ? kPairTableBytes : 0;
    // The sums of a warpgroup row: N columns of y, kRows long, padded against bank conflicts.
    static constexpr uint32_t kColumn = (kRows + 4) * 4;
    static constexpr uint32_t kSums = N * kColumn;
    // Wide: where a warpgroup turns 64 rows of w by 16 of x over, twice, behind the ring.
    static constexpr uint32_t kTurnPitch = 128 + 16, kTurnBytes = 16 * kTurnPitch;
    static constexpr uint32_t kTurns = kScaled ? kConsumers * 2 * kTurnBytes : 0;

    static constexpr int32_t slots(uint32_t shared) {
        return int32_t(min64((shared - 1024 - kTable - kTurns) / kStage, kMaxSlots));
    }
    static constexpr uint32_t shared_bytes(int32_t slots) {
        const uint32_t ring = uint32_t(slots) * kStage + kTurns, sums = kScaled ? 0 : Q * kSums;
        return 1024 + kTable + (ring > sums ? ring : sums);
    }
};

}  // namespace
}  // namespace qk::cuda
