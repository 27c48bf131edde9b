// How the matrix kernel on mma.sync cuts a product: what a block owns, and where the parts of a
// stage are in its shared memory.
#pragma once
#include "cuda/linear/sm80/gemm/problem.hpp"
#include "cuda/tile/codes.cuh"
#include "cuda/tile/scale_kind.hpp"

namespace qk::cuda {
namespace {

constexpr int kSm80GemmWarps = 4;      // of a block, along w
constexpr int kSm80GemmWarpTiles = 2;  // of 16 rows of w, of a warp

// kB: tiles of 8 rows of x, of a block and of each of its warps.
template <class T_, class Decode_, ScaleKind kKind, int kB_>
struct Sm80GemmShape {
    using T = T_;
    using Decode = Decode_;
    static constexpr ScaleKind kind = kKind;
    static constexpr bool kNested = kind == ScaleKind::kNested;
    static constexpr int kB = kB_, kR = kSm80GemmWarpTiles;
    static constexpr int kThreads = kSm80GemmWarps * 32;
    static constexpr int kRowTiles = kR * kSm80GemmWarps, kRows = kRowTiles * 16;  // of w
    static constexpr int kX = kB * 8;                                              // rows of x

    // A stage: 64 columns of codes by rows of tiles, of x, the scales of 16 rows at a time
    // (nested: their codes, then the floats that multiply them), zeros.
    static constexpr uint32_t kXAt = kRowTiles * 512, kScaleAt = kXAt + kX * 128;
    static constexpr uint32_t kPieces = kPairBytes<kind> / 2;  // of 16 bytes
    static constexpr uint32_t kScale = kPieces * 16 + (kNested ? 64 : 0);
    static constexpr uint32_t kZeroAt = kScaleAt + kRowTiles * kScale;
    static constexpr uint32_t kStage = (kZeroAt + kRowTiles * 8 + 127) / 128 * 128;
    // Before the ring: pairs to look up; nested: the floats that 8-bit scales stand for.
    static constexpr uint32_t kTable = Decode::kLut4 ? kTableWords * 4 : 0;
    static constexpr uint32_t kRing = kTable + (kNested ? 1024 : 0);
    // The sums at the end, in place of all this: rows are padded against conflicts.
    static constexpr uint32_t kPitch = kRows + 4;
    static constexpr uint32_t kSums = kX * kPitch * 4;

    static constexpr uint32_t shared_bytes(int32_t slots) {
        const uint32_t all = kRing + uint32_t(slots) * kStage;
        return all > kSums ? all : kSums;
    }
};

}  // namespace
}  // namespace qk::cuda
