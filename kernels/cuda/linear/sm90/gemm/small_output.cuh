// The sums of a block, or of the blocks of a cluster, become y.
#pragma once
#include "cuda/linear/sm90/gemm/shape.cuh"
#include "cuda/prim/cluster.cuh"

namespace qk::cuda {
namespace {

template <class S>
struct GemmOutput {
    using T = typename S::T;
    static constexpr int N = S::N, kAcc = N / 2;

    const GemmProblem &p;
    int32_t row_tile, x_first;

    __device__ void store_sums(uint8_t *sums, const float (&acc)[kAcc]) const {
        const uint32_t lane = threadIdx.x & 31, group = threadIdx.x >> 7;
        const uint32_t row = group / S::Q * 64 + (threadIdx.x >> 5 & 3) * 16 + lane / 4;
        float *const to = reinterpret_cast<float *>(sums + group % S::Q * S::kSums) + row +
                          lane % 4 * 2 * (S::kColumn / 4);
#pragma unroll
        for (int i = 0; i < kAcc; ++i) {
            to[(i / 4 * 8 + i % 2) * (S::kColumn / 4) + i / 2 % 2 * 8] = acc[i];
        }
    }

    __device__ float4 sum_of(uint32_t address, uint32_t rank) const {
        return p.split > 1 ? cluster_load(address, rank) : shared_load_floats(address);
    }

    // The blocks of a cluster share the outputs.
    __device__ void store_y(uint32_t sums, uint32_t rank) const {
        constexpr int kFours = S::kRows / 4, kAll = S::kConsumers * 128;
        const int32_t here = int32_t(min64(N, p.m - x_first));
        for (int32_t i = int32_t(rank) * kAll + int32_t(threadIdx.x); i < here * kFours;
             i += p.split * kAll) {
            const int32_t column = i / kFours, four = i % kFours;
            const uint32_t at = sums + column * S::kColumn + four * 16;
            float4 v = sum_of(at, 0);
            for (int32_t part = 1; part < p.split * S::Q; ++part) {
                const float4 next = sum_of(at + part % S::Q * S::kSums, part / S::Q);
                v.x = __fadd_rn(v.x, next.x);
                v.y = __fadd_rn(v.y, next.y);
                v.z = __fadd_rn(v.z, next.z);
                v.w = __fadd_rn(v.w, next.w);
            }
            store_four(x_first + column, int64_t(row_tile) * 16 + four * 4, {v.x, v.y, v.z, v.w});
        }
    }

    struct Four {
        float v[4];
    };

    __device__ void store_four(int64_t x_row, int64_t row, Four y) const {
        const int64_t n = p.w.geometry.n, at = x_row * p.y_pitch + row;
        const int count = int(min64(n - row, 4));
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if (p.bias == nullptr || i >= count) continue;
            y.v[i] = __fadd_rn(y.v[i], load_float(p.bias_type, p.bias, row + i));
        }
        uint16_t *const to = static_cast<uint16_t *>(p.y) + at;
        if (count == 4 && reinterpret_cast<uintptr_t>(to) % 8 == 0) {
            *reinterpret_cast<uint2 *>(to) = {pack_pair(T{}, y.v[0], y.v[1]),
                                              pack_pair(T{}, y.v[2], y.v[3])};
            return;
        }
        const qk_format type = kFormatOf<T>;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if (i < count) store_float(type, p.y, at + i, y.v[i]);
        }
    }
};

}  // namespace
}  // namespace qk::cuda
