#include "harness/shared_memory.hpp"

#include <cuda_runtime.h>

#include "harness/guarded.hpp"

namespace harness {
namespace {

constexpr int kThreads = 1024;

__global__ void fill(uint32_t word, uint32_t words) {
    extern __shared__ uint32_t memory[];
    volatile uint32_t *const to = memory;  // nobody reads it here
    for (uint32_t i = threadIdx.x; i < words; i += kThreads) to[i] = word;
}

}  // namespace

void poison_shared_memory() {
    static uint64_t turn = 0;
    int device = 0, multiprocessors = 0, bytes = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
    cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    cudaFuncSetAttribute(fill, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    // A multiprocessor has room for one block at a time, so none is left out.
    fill<<<2 * multiprocessors, kThreads, size_t(bytes)>>>(working_poison(turn++) * 0x01010101u,
                                                           uint32_t(bytes) / 4);
    cudaDeviceSynchronize();
}

}  // namespace harness
