// The part of CUDA's runtime interface and of its C++ dialect that the backend's host code and its
// simple kernels use, for machines without a GPU or a toolkit. Names and numbers are the real ones;
// mock.cpp implements the calls, simulator.cpp runs the kernels.
#pragma once
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <functional>
#include <tuple>

#include "cuda/mock/copy_engine.hpp"
#include "cuda/mock/products.hpp"
#include "cuda/mock/simulator.hpp"

// ---- the runtime

enum cudaError_t {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorInsufficientDriver = 35,
    cudaErrorInvalidDeviceFunction = 98,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101,
    cudaErrorNoKernelImageForDevice = 209,
    cudaErrorJitCompilerNotFound = 221,
    cudaErrorUnsupportedPtxVersion = 222,
    cudaErrorJitCompilationDisabled = 223,
    cudaErrorIllegalAddress = 700,
    cudaErrorLaunchOutOfResources = 701,
    cudaErrorLaunchFailure = 719,
    cudaErrorInvalidClusterSize = 912,
    cudaErrorUnknown = 999
};
enum cudaMemcpyKind {
    cudaMemcpyHostToDevice = 1,
    cudaMemcpyDeviceToHost = 2,
    cudaMemcpyDeviceToDevice = 3
};
enum cudaDeviceAttr {
    cudaDevAttrMultiProcessorCount = 16,
    cudaDevAttrL2CacheSize = 38,
    cudaDevAttrComputeCapabilityMajor = 75,
    cudaDevAttrComputeCapabilityMinor = 76,
    cudaDevAttrMaxSharedMemoryPerBlockOptin = 97
};
enum cudaFuncAttribute {
    cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
    cudaFuncAttributePreferredSharedMemoryCarveout = 9,
    cudaFuncAttributeNonPortableClusterSizeAllowed = 14
};
enum cudaSharedCarveout { cudaSharedmemCarveoutDefault = -1, cudaSharedmemCarveoutMaxShared = 100 };
struct cudaFuncAttributes {
    size_t sharedSizeBytes;
    int maxDynamicSharedSizeBytes;
    int preferredShmemCarveout;
    int ptxVersion;
};
enum cudaLaunchAttributeID {
    cudaLaunchAttributeClusterDimension = 4,
    cudaLaunchAttributeProgrammaticStreamSerialization = 6
};

using cudaStream_t = struct CUstream_st *;

struct cudaLaunchAttribute {
    cudaLaunchAttributeID id;
    union {
        int programmaticStreamSerializationAllowed;
        struct {
            unsigned x, y, z;
        } clusterDim;
    } val;
};
struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    cudaLaunchAttribute *attrs;
    unsigned numAttrs;
};

#define CUDART_VERSION 13000
enum cudaDriverEntryPointQueryResult {
    cudaDriverEntryPointSuccess = 0,
    cudaDriverEntryPointSymbolNotFound = 1
};
constexpr unsigned long long cudaEnableDefault = 0;

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                             unsigned long long flags,
                                             cudaDriverEntryPointQueryResult *found);
cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device);
cudaError_t cudaGetLastError();
cudaError_t cudaPeekAtLastError();
const char *cudaGetErrorString(cudaError_t error);
cudaError_t cudaMalloc(void **pointer, size_t bytes);
cudaError_t cudaFree(void *pointer);
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
// Of a variable that a real device keeps a copy of.
template <class T>
cudaError_t cudaGetSymbolAddress(void **pointer, const T &symbol) {
    *pointer = const_cast<T *>(&symbol);
    return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, const void *kernel);
cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute attribute, int value);

namespace mock {
// Counts it, and holds it against the limits of the device and of the kernel's attributes.
cudaError_t begin_launch(const cudaLaunchConfig_t &config, const void *kernel);
bool runs_kernels();
// What a stream has to do. Done when something waits for it, and no sooner.
void enqueue(cudaStream_t stream, std::function<void()> work);
}  // namespace mock

template <class... Parameters, class... Given>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *config, void (*kernel)(Parameters...),
                               Given &&...given) {
    const cudaError_t error = mock::begin_launch(*config, reinterpret_cast<const void *>(kernel));
    if (error != cudaSuccess || !mock::runs_kernels()) return error;
    mock::enqueue(config->stream, [grid = config->gridDim, block = config->blockDim, kernel,
                                   parameters = std::tuple<Parameters...>(given...)] {
        simulator::run(grid, block, [&] { std::apply(kernel, parameters); });
    });
    return cudaSuccess;
}

// ---- the dialect

#define __global__
#define __device__
#define __host__
#define __shared__ static  // blocks run one after the other
#define __grid_constant__
#define __noinline__
#define __launch_bounds__(...)

struct alignas(8) uint2 {
    uint32_t x, y;
};
struct alignas(8) int2 {
    int32_t x, y;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(16) uint4 {
    uint32_t x, y, z, w;
};

namespace simulator {
extern uint4 launch_shared[(227 << 10) / 16];  // shared memory whose size is the launch's
}

inline void __syncthreads() { simulator::block_barrier(); }
// Whether all threads of the block say so.
inline int __syncthreads_and(int value) {
    __shared__ int all;
    __syncthreads();
    all = 1;
    __syncthreads();
    if (value == 0) all = 0;
    __syncthreads();
    return all;
}
inline int __syncthreads_or(int value) { return !__syncthreads_and(!value); }
inline void __syncwarp() { simulator::exchange(0, 0); }

template <class T>
T __shfl_xor_sync(unsigned, T value, unsigned lanes) {
    static_assert(sizeof(T) == 4);
    uint32_t bits;
    memcpy(&bits, &value, 4);
    bits = simulator::exchange(bits, threadIdx.x % 32 ^ lanes);
    memcpy(&value, &bits, 4);
    return value;
}

template <class T>
T __shfl_sync(unsigned, T value, int source) {
    static_assert(sizeof(T) == 4);
    uint32_t bits;
    memcpy(&bits, &value, 4);
    bits = simulator::exchange(bits, unsigned(source));
    memcpy(&value, &bits, 4);
    return value;
}

inline int __any_sync(unsigned, int value) {
    int any = 0;
    for (int lane = 0; lane < 32; ++lane) any |= __shfl_sync(~0u, value, lane);
    return any;
}

template <class T>
T __shfl_down_sync(unsigned, T value, unsigned delta, int width) {
    static_assert(sizeof(T) == 4);
    uint32_t bits;
    memcpy(&bits, &value, 4);
    const unsigned lane = threadIdx.x % 32, end = (lane / unsigned(width) + 1) * unsigned(width);
    bits = simulator::exchange(bits, lane + delta < end ? lane + delta : lane);
    memcpy(&value, &bits, 4);
    return value;
}

template <class T>
T __shfl_xor_sync(unsigned, T value, int mask) {
    static_assert(sizeof(T) % 4 == 0);
    uint32_t words[sizeof(T) / 4];
    memcpy(words, &value, sizeof(T));
    const unsigned source = threadIdx.x % 32 ^ unsigned(mask);
    for (uint32_t &word : words) word = simulator::exchange(word, source);
    memcpy(&value, words, sizeof(T));
    return value;
}

inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __uint_as_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
inline uint32_t __float_as_uint(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}
inline uint32_t atomicAdd(uint32_t *to, uint32_t value) {
    const uint32_t before = *to;
    *to += value;
    return before;
}
inline uint32_t atomicOr(uint32_t *to, uint32_t bits) {  // simulated threads take turns
    const uint32_t before = *to;
    *to |= bits;
    return before;
}
inline uint32_t __umulhi(uint32_t a, uint32_t b) { return uint32_t(uint64_t{a} * b >> 32); }
inline uint64_t __umul64hi(uint64_t a, uint64_t b) {
    __extension__ using Wide = unsigned __int128;
    return uint64_t(Wide{a} * b >> 64);
}
inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline uint32_t __funnelshift_l(uint32_t low, uint32_t high, uint32_t shift) {
    return shift == 0 ? high : high << shift | low >> (32 - shift);
}
inline uint32_t __funnelshift_r(uint32_t low, uint32_t high, uint32_t shift) {
    return uint32_t((uint64_t{high} << 32 | low) >> (shift & 31));
}
inline int __viaddmin_s32(int a, int b, int c) { return min(a + b, c); }
inline int __viaddmin_s32_relu(int a, int b, int c) { return max(min(a + b, c), 0); }
inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
inline unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }
template <class T>
void __stcs(T *to, const T &value) {
    *to = value;
}
template <class T>
T __ldg(const T *from) {
    return *from;
}
template <class T>
T __ldcs(const T *from) {
    return *from;
}
