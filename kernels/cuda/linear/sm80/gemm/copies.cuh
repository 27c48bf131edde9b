// The copies that fill the ring of the matrix kernel on mma.sync: without branches, so that they
// may stand between products.
#pragma once
#include "cuda/linear/sm80/gemm/shape.cuh"
#include "cuda/prim/copy.cuh"
#include "cuda/prim/mma.cuh"

namespace qk::cuda {
namespace {

// Until all stages but the newest slots - 2 are in.
__device__ inline void wait_for_stage(int32_t slots) {
    if (slots == 2) {
        copies_wait_but<0>();
    } else if (slots == 3) {
        copies_wait_but<1>();
    } else {
        copies_wait_but<2>();
    }
}

// What a thread copies of each stage: some runs of 16 bytes of codes and of x, and at most one
// piece of a scale, one zero, one second scale. Each has its place in a stage and the tile of k
// where it ends, -1 where it never is; only `tile` and the pointers to codes and x move on.
template <class S>
struct Sm80GemmCopies {
    static constexpr int kCodeStep = S::kThreads / 32, kXStep = S::kThreads / 8;  // rows
    static constexpr int kCodeRuns = S::kRowTiles / kCodeStep, kXRuns = S::kX / kXStep;
    static_assert(kXStep % 2 == 0 && S::kX % kXStep == 0 && S::kRowTiles % kCodeStep == 0);
    static_assert(S::kRowTiles * (S::kPieces + 1) <= S::kThreads);
    static_assert(S::kRowTiles * 16 <= S::kThreads);

    const Sm80GemmProblem &p;
    const uint8_t *codes, *x;     // of the next stage
    const uint8_t *scale, *zero;  // of the row of tiles: its first group
    int64_t second;               // nested: the number of its row's first group
    int32_t tile;                 // of k: the next stage
    int32_t codes_end[kCodeRuns], x_end[kXRuns], scale_end, zero_end, second_end;
    int32_t x_full;  // tiles of k that have this thread's columns of x: behind are zeros
    uint32_t x_to, scale_to, zero_to;

    __device__ Sm80GemmCopies(const Sm80GemmProblem &problem, int32_t row_tile, int64_t x_first,
                              int32_t first, int32_t last)
        : p(problem), tile(first) {
        place_codes(row_tile, last);
        place_x(x_first, last);
        place_scales(row_tile, last);
    }

    __device__ void place_codes(int32_t row_tile, int32_t last) {
        const int32_t t = int32_t(threadIdx.x), row = row_tile + t / 32;
        codes = p.w.data + (int64_t(row) * p.tiles + tile) * 512 + t % 32 * 16;
#pragma unroll
        for (int i = 0; i < kCodeRuns; ++i) {
            codes_end[i] = row + i * kCodeStep < p.row_tiles ? last : -1;
            keep(codes_end[i]);
        }
    }

    __device__ void place_x(int64_t x_first, int32_t last) {
        const int32_t t = int32_t(threadIdx.x), row = t / 8, chunk = t % 8;
        const int64_t k = p.w.geometry.k;
        x = static_cast<const uint8_t *>(p.x) + ((x_first + row) * k + tile * int64_t{64}) * 2 +
            chunk * 16;
        x_to = uint32_t(int32_t(S::kXAt) + row * 128 + (chunk ^ (row & 1)) * 16);
        keep(x_to);
#pragma unroll
        for (int i = 0; i < kXRuns; ++i) {
            x_end[i] = x_first + row + i * kXStep < p.m ? last : -1;
            keep(x_end[i]);
        }
        x_full = (int32_t(k) - chunk * 8 + 63) / 64;
        keep(x_full);
    }

    __device__ void place_scales(int32_t row_tile, int32_t last) {
        const int32_t t = int32_t(threadIdx.x);
        const int64_t groups = p.w.geometry.groups_per_row;
        const int32_t rows =
            p.row_tiles - row_tile < S::kRowTiles ? p.row_tiles - row_tile : S::kRowTiles;
        constexpr int32_t kPieces = int32_t(S::kPieces);
        int32_t item = t / kPieces;
        scale = p.w.scale + ((row_tile + item) * groups * kPieces + t % kPieces) * 16;
        scale_to = S::kScaleAt + uint32_t(item) * S::kScale + uint32_t(t % kPieces) * 16;
        scale_end = item < rows ? last : -1;
        keep(scale);
        keep(scale_to);
        keep(scale_end);
        if constexpr (!S::Decode::kLut4) {
            item = S::kThreads - 1 - t;
            const uint8_t *const plane = p.w.zero != nullptr ? p.w.zero : p.w.scale;
            zero = plane + (row_tile + item) * groups * 8;
            zero_to = S::kZeroAt + uint32_t(item) * 8;
            zero_end = p.w.zero != nullptr && item < rows ? last : -1;
            keep(zero);
            keep(zero_to);
            keep(zero_end);
        }
        if constexpr (S::kNested) {
            const int64_t row = int64_t(row_tile + t / 16) * 16 + t % 16 / 2 + t % 2 * 8;
            second = row * groups;
            second_end = row < p.w.geometry.n ? last : -1;
            keep(second_end);
        }
    }

    __device__ void issue_codes(uint8_t *at) const {
#pragma unroll
        for (int i = 0; i < kCodeRuns; ++i) {
            copy_ahead<16>(at + (i * S::kThreads + int(threadIdx.x)) * 16,
                           codes + i * (int64_t(p.tiles) * (kCodeStep * 512)), 16,
                           tile < codes_end[i]);
        }
    }

    __device__ void issue_x(uint8_t *at) const {
        const uint32_t count = tile < x_full ? 16 : 0;
#pragma unroll
        for (int i = 0; i < kXRuns; ++i) {
            copy_ahead<16>(at + x_to + i * (kXStep * 128), x + i * (p.w.geometry.k * (kXStep * 2)),
                           count, tile < x_end[i]);
        }
    }

    __device__ void issue_scales(uint8_t *at) const {
        const int64_t group = tile >> p.group_shift;
        copy_ahead<16>(at + scale_to, scale + group * (S::kPieces * 16), 16, tile < scale_end);
        if constexpr (!S::Decode::kLut4) {
            copy_ahead<8>(at + zero_to, zero + group * 8, 8, tile < zero_end);
        }
        if constexpr (S::kNested) {
            const uint32_t t = threadIdx.x;
            copy_ahead<4>(at + S::kScaleAt + t / 16 * S::kScale + 16 + t % 16 * 4,
                          p.w.second + ((second + group) >> p.second_shift) * 4, 4,
                          tile < second_end);
        }
    }

    __device__ void advance() {
        ++tile;
        codes += 512;
        x += 128;
    }
};

}  // namespace
}  // namespace qk::cuda
