// The sums of a block become y, or a part of it that a second kernel adds to the others.
#pragma once
#include "cuda/linear/sm80/gemm/shape.cuh"

namespace qk::cuda {
namespace {

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
