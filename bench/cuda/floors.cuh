// What the memory allows: kernels that only move the bytes, the best of several variants a shape.
#pragma once
#include "timing.cuh"

namespace bench {

template <int kUnits>
__global__ void __launch_bounds__(512) read_only(const uint4 *p, int64_t count, uint32_t *out) {
    uint32_t sum = 0;
    const int64_t tile = int64_t(blockDim.x) * kUnits;
    for (int64_t b = int64_t(blockIdx.x) * tile; b < count; b += int64_t(gridDim.x) * tile) {
        uint4 v[kUnits];
#pragma unroll
        for (int u = 0; u < kUnits; ++u) {
            const int64_t i = b + threadIdx.x + int64_t(u) * blockDim.x;
            v[u] = i < count ? __ldcs(p + i) : uint4{};
        }
#pragma unroll
        for (int u = 0; u < kUnits; ++u) sum += v[u].x ^ v[u].y ^ v[u].z ^ v[u].w;
    }
    if (sum == 0x12345678u) *out = sum;  // practically never: keeps the loads
}

// A word of 8 nibbles in, 16 bytes out, almost no arithmetic.
template <int kUnits>
__global__ void __launch_bounds__(512) expand_only(const uint32_t *p, uint4 *out, int64_t count) {
    const int64_t b = int64_t(blockIdx.x) * blockDim.x * kUnits;
    uint32_t v[kUnits];
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
        const int64_t i = b + threadIdx.x + int64_t(u) * blockDim.x;
        if (i < count) v[u] = __ldcs(p + i);
    }
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
        const int64_t i = b + threadIdx.x + int64_t(u) * blockDim.x;
        const auto spread = [&](int shift) { return (v[u] >> shift & 0x000f000fu) | 0x64006400u; };
        if (i < count) out[i] = {spread(0), spread(4), spread(8), spread(12)};
    }
}

template <int kUnits>
__global__ void __launch_bounds__(512) copy_only(const uint4 *p, uint4 *out, int64_t count) {
    const int64_t b = int64_t(blockIdx.x) * blockDim.x * kUnits;
    uint4 v[kUnits];
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
        const int64_t i = b + threadIdx.x + int64_t(u) * blockDim.x;
        if (i < count) v[u] = __ldcs(p + i);
    }
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
        const int64_t i = b + threadIdx.x + int64_t(u) * blockDim.x;
        if (i < count) __stcs(out + i, v[u]);
    }
}

using CopyKernel = void (*)(const uint4 *, uint4 *, int64_t);
using ReadKernel = void (*)(const uint4 *, int64_t, uint32_t *);
using ExpandKernel = void (*)(const uint32_t *, uint4 *, int64_t);

// `pool`: at least `bytes` of random bytes, rotated over.
inline double read_floor(Timer &timer, const uint8_t *pool, int64_t pool_bytes, int64_t bytes,
                         uint32_t *sink) {
    const struct {
        ReadKernel kernel;
        int units;
    } kernels[] = {{read_only<1>, 1}, {read_only<2>, 2}, {read_only<4>, 4}, {read_only<8>, 8}};
    bytes = bytes / 16 * 16;
    const int copies = int(std::min<int64_t>(copies_for(double(bytes)), pool_bytes / bytes));
    double best = 1e30;
    for (const auto &[kernel, units] : kernels) {
        for (const int threads : {128, 256, 512}) {
            const int64_t full = (bytes / 16 + threads * units - 1) / (threads * units);
            for (const int64_t limit :
                 {int64_t(132 * 2048 / threads), int64_t(132 * 1024 / threads), full}) {
                std::vector<Call> calls;
                for (int i = 0; i < copies; ++i) {
                    const uint4 *p = reinterpret_cast<const uint4 *>(pool + i * bytes);
                    const unsigned grid = unsigned(std::min(full, limit));
                    calls.push_back([=](cudaStream_t s) {
                        kernel<<<grid, threads, 0, s>>>(p, bytes / 16, sink);
                    });
                }
                best = std::min(best, timer.run(calls, 1e-3, 5));
            }
        }
    }
    return best;
}

// `bytes` of 4-bit codes to four times as many bytes.
inline double expand_floor(Timer &timer, const uint8_t *in, int64_t in_bytes, uint8_t *out,
                           int64_t out_bytes, int64_t bytes) {
    const struct {
        ExpandKernel kernel;
        int units;
    } kernels[] = {
        {expand_only<1>, 1}, {expand_only<2>, 2}, {expand_only<4>, 4}, {expand_only<8>, 8}};
    const int64_t room = std::min(in_bytes / bytes, out_bytes / (4 * bytes));
    const int copies = int(std::min<int64_t>(copies_for(5.0 * double(bytes)), room));
    double best = 1e30;
    for (const auto &[kernel, units] : kernels) {
        for (const int threads : {128, 256, 512}) {
            std::vector<Call> calls;
            for (int i = 0; i < copies; ++i) {
                const auto *p = reinterpret_cast<const uint32_t *>(in + i * bytes);
                auto *o = reinterpret_cast<uint4 *>(out + i * bytes * 4);
                const unsigned grid =
                    unsigned((bytes / 4 + threads * units - 1) / (threads * units));
                calls.push_back(
                    [=](cudaStream_t s) { kernel<<<grid, threads, 0, s>>>(p, o, bytes / 4); });
            }
            best = std::min(best, timer.run(calls, 1e-3, 5));
        }
    }
    return best;
}

// `bytes` read and as many written.
inline double copy_floor(Timer &timer, const uint8_t *in, int64_t in_bytes, uint8_t *out,
                         int64_t out_bytes, int64_t bytes) {
    const struct {
        CopyKernel kernel;
        int units;
    } kernels[] = {{copy_only<1>, 1}, {copy_only<2>, 2}, {copy_only<4>, 4}};
    bytes = bytes / 16 * 16;
    const int copies = int(
        std::min<int64_t>(copies_for(2.0 * double(bytes)), std::min(in_bytes, out_bytes) / bytes));
    double best = 1e30;
    for (const auto &[kernel, units] : kernels) {
        for (const int threads : {128, 256, 512}) {
            std::vector<Call> calls;
            for (int i = 0; i < copies; ++i) {
                const auto *p = reinterpret_cast<const uint4 *>(in + i * bytes);
                auto *o = reinterpret_cast<uint4 *>(out + i * bytes);
                const int64_t of_block = int64_t{threads} * units;
                const unsigned grid = unsigned((bytes / 16 + of_block - 1) / of_block);
                calls.push_back(
                    [=](cudaStream_t s) { kernel<<<grid, threads, 0, s>>>(p, o, bytes / 16); });
            }
            best = std::min(best, timer.run(calls, 1e-3, 5));
        }
    }
    return best;
}

}  // namespace bench
