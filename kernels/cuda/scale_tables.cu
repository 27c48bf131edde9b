#include "cuda/scale_tables.hpp"

#include "cuda/runtime.hpp"
#include "cuda/view.cuh"

namespace qk::cuda {
namespace {

__device__ const ScaleTables kDeviceTables = make_scale_tables();

__global__ void fold(float *to, const float *from, const void *global) {
    to[threadIdx.x] = __fdiv_rn(from[threadIdx.x], load_as<float>(global, 0));
}

}  // namespace

const ScaleTables *scale_tables(int32_t device_index) {
    const DeviceGuard device(device_index);
    void *tables = nullptr;
    if (device.error() == cudaSuccess &&
        cudaGetSymbolAddress(&tables, kDeviceTables) == cudaSuccess) {
        return static_cast<const ScaleTables *>(tables);
    }
    cudaGetLastError();
    return &kScaleTables;
}

cudaError_t read_code_capability(int32_t device_index, int32_t *capability) {
    const DeviceGuard device(device_index);
    cudaFuncAttributes is = {};
    cudaError_t error = device.error();
    if (error == cudaSuccess) {
        error = cudaFuncGetAttributes(&is, reinterpret_cast<const void *>(&fold));
    }
    if (error == cudaSuccess) *capability = is.ptxVersion;
    return error;
}

Status fold_scale_code(const ScalePlane &from, const ScalePlane &to, const Launch &launch) {
    return launch_kernel(launch, "repack", fold, {dim3(1), 256}, static_cast<float *>(to.code),
                         static_cast<const float *>(from.code), from.second);
}

}  // namespace qk::cuda
