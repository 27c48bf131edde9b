// 8-bit codes that are floats, E4M3 or entries of a table of 256: what their kernels share.
#pragma once
#include "cuda/prim/mma.cuh"
#include "cuda/view.cuh"

namespace qk::cuda {
namespace {

// Two E4M3 numbers as halves, which hold them all, or as numbers of bf16, which do too.
__device__ inline uint32_t pair_of_e4m3(F16, uint32_t both) {
    uint32_t halves = 0;
#if __CUDA_ARCH__ >= 890
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(uint16_t(both)));
#elif defined(QK_CUDA_SIMULATED)
    halves = pack_pair(F16{}, e4m3_value(int(both & 255)), e4m3_value(int(both >> 8 & 255)));
#endif
    return halves;
}
__device__ inline uint32_t pair_of_e4m3(BF16, uint32_t both) {
    const uint32_t halves = pair_of_e4m3(F16{}, both);
    return pack_pair(BF16{}, __half2float(__ushort_as_half(uint16_t(halves))),
                     __half2float(__ushort_as_half(uint16_t(halves >> 16))));
}

// A lane's eight entries of a table.
struct LaneEntries {
    uint32_t bits[8];
};

__device__ inline LaneEntries load_entries(const uint8_t *table) {
    LaneEntries entries;
#pragma unroll
    for (uint32_t i = 0; i < 8; ++i) {
        const uint32_t at = i * 32 + threadIdx.x % 32;
        entries.bits[i] = __ldg(reinterpret_cast<const uint32_t *>(table) + at);
    }
    return entries;
}

// The largest over a warp, in every lane.
__device__ inline uint32_t warp_max(uint32_t x) {
#if __CUDA_ARCH__ >= 800
    return __reduce_max_sync(~0u, x);
#else
    for (int half = 16; half > 0; half /= 2) x = max(x, __shfl_xor_sync(~0u, x, half));
    return x;
#endif
}

// A power of two that scales the table's largest entry to 2^`most` or just below twice that: f16
// has the digits but not the range. By whole warps.
template <int kMost>
__device__ float table_unit(const LaneEntries &entries) {
    uint32_t most = 0;
#pragma unroll
    for (const uint32_t entry : entries.bits) {
        const uint32_t bits = entry & 0x7fffffffu;
        if (bits < 0x7f800000u) most = max(most, bits);
    }
    return __uint_as_float(uint32_t(max(int32_t(warp_max(most) >> 23) - kMost, 1)) << 23);
}

template <class T>
__device__ void store_y(void *y, int64_t at, float value) {
    if constexpr (std::is_same_v<T, F16>) {
        static_cast<__half *>(y)[at] = __float2half_rn(value);
    } else {
        static_cast<__nv_bfloat16 *>(y)[at] = __float2bfloat16_rn(value);
    }
}

// Some rows of w by some of x.
struct Part {
    int64_t first, last, x_first, x_last;
    int32_t warp, warps;  // this one; that share the rows of w
};

// For tables of any range: columns lane by lane, f32.
template <class T>
__device__ __noinline__ void multiply_slowly(const WeightView &w, const void *x,
                                             qk_format bias_type, const void *bias, void *y,
                                             int64_t y_pitch, const Part &part) {
    const qk_format type = kFormatOf<T>;
    const int64_t k = w.geometry.k;
    for (int64_t row = part.first + part.warp; row < min64(part.last, w.geometry.n);
         row += part.warps) {
        for (int64_t i = part.x_first; i < part.x_last; ++i) {
            float sum = 0;
            for (int64_t c = threadIdx.x % 32; c < k; c += 32) {
                const float entry = load_as<float>(w.table, w.data[row * k + c]);
                const float scale = scale_of(w, {row, c / w.geometry.group_size});
                sum = __fmaf_rn(load_float(type, x, i * k + c), __fmul_rn(entry, scale), sum);
            }
            for (unsigned half = 16; half > 0; half /= 2) {
                sum = __fadd_rn(sum, __shfl_down_sync(~0u, sum, half, 32));
            }
            if (threadIdx.x % 32 != 0) continue;
            if (bias != nullptr) sum = __fadd_rn(sum, load_float(bias_type, bias, row));
            store_y<T>(y, i * y_pitch + row, sum);
        }
    }
}

}  // namespace
}  // namespace qk::cuda
