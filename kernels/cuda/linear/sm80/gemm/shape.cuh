// How the matrix kernel on mma.sync cuts a product: what a block owns, and where the parts of a
// stage are in its shared memory.
#pragma once
#include "cuda/linear/sm80/gemm/plan.hpp"
#include "cuda/tile/decode.cuh"
#include "cuda/tile/problem.hpp"

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

// Four neighbours of a row of y.
__device__ inline void store_four(const Sm80GemmProblem &p, int64_t x_row, int64_t row, float4 v) {
    float y[4] = {v.x, v.y, v.z, v.w};
    const int count = int(min64(p.w.geometry.n - row, 4));
    if (p.bias != nullptr) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if (i < count) y[i] = __fadd_rn(y[i], load_float(p.bias_type, p.bias, row + i));
        }
    }
    const int64_t at = x_row * p.y_pitch + row;
    uint16_t *const to = static_cast<uint16_t *>(p.y) + at;
    if (count == 4 && reinterpret_cast<uintptr_t>(to) % 8 == 0) {
        *reinterpret_cast<uint2 *>(to) =
            p.type == QK_FORMAT_F16
                ? uint2{pack_pair(F16{}, y[0], y[1]), pack_pair(F16{}, y[2], y[3])}
                : uint2{pack_pair(BF16{}, y[0], y[1]), pack_pair(BF16{}, y[2], y[3])};
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        if (i < count) store_float(p.type, p.y, at + i, y[i]);
    }
}

__device__ inline float4 add_four(float4 a, float4 b) {
    return {__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y), __fadd_rn(a.z, b.z), __fadd_rn(a.w, b.w)};
}

template <class S>
struct Sm80GemmOutput {
    const Sm80GemmProblem &p;
    float *sums;
    int32_t row_tile;
    int64_t x_first;

    // As [row of x][row of w].
    __device__ void store_sums(const float (&sum)[S::kR][S::kB][4]) const {
        const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        float *const to = sums + lane % 4 * 2 * S::kPitch + warp * (S::kR * 16) + lane / 4;
#pragma unroll
        for (int i = 0; i < S::kR; ++i) {
#pragma unroll
            for (int b = 0; b < S::kB; ++b) {
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    to[(b * 8 + j % 2) * S::kPitch + i * 16 + j / 2 * 8] = sum[i][b][j];
                }
            }
        }
    }

    __device__ void store() const {
        constexpr uint32_t kFours = S::kRows / 4;
        const int64_t pitch = int64_t(p.row_tiles) * 16;
        for (uint32_t i = threadIdx.x; i < S::kX * kFours; i += S::kThreads) {
            const uint32_t x_row = i / kFours, four = i % kFours;
            const int64_t row = int64_t(row_tile) * 16 + four * 4;
            if (x_first + x_row >= p.m || row >= p.w.geometry.n) continue;
            const float4 v = *reinterpret_cast<const float4 *>(sums + x_row * S::kPitch + four * 4);
            if (p.split == 1) {
                store_four(p, x_first + x_row, row, v);
            } else {
                const int64_t part = int64_t(blockIdx.y) * p.m + x_first + x_row;
                *reinterpret_cast<float4 *>(p.parts + part * pitch + row) = v;
            }
        }
    }
};

}  // namespace
}  // namespace qk::cuda
