#include "cuda/runtime.hpp"

namespace qk::cuda {

DeviceGuard::DeviceGuard(int32_t device_index) {
    int current = 0;
    error_ = cudaGetDevice(&current);
    if (error_ != cudaSuccess || current == device_index) return;
    error_ = cudaSetDevice(device_index);
    if (error_ == cudaSuccess) previous_ = current;
}

DeviceGuard::~DeviceGuard() {
    if (previous_ >= 0 && cudaSetDevice(previous_) != cudaSuccess) cudaGetLastError();
}

static Status status_of(cudaError_t error) {
    switch (error) {
        case cudaSuccess: return QK_OK;
        case cudaErrorMemoryAllocation: return QK_ERROR_MEMORY;
        case cudaErrorNoDevice:
        case cudaErrorInsufficientDriver:
        case cudaErrorInvalidDevice: return QK_ERROR_NO_DEVICE;
        case cudaErrorNoKernelImageForDevice:
        case cudaErrorInvalidDeviceFunction: return QK_ERROR_UNSUPPORTED;
        case cudaErrorInvalidConfiguration:
        case cudaErrorLaunchOutOfResources: return QK_ERROR_INTERNAL;
        default: return QK_ERROR_DEVICE_FAULT;
    }
}

Status check(cudaError_t error, ErrorText *text, const char *what) {
    if (error == cudaSuccess) return QK_OK;
    cudaGetLastError();
    return fail(text, status_of(error), "%s: %s (CUDA error %d)", what, cudaGetErrorString(error),
                int(error));
}

static int32_t attribute(cudaDeviceAttr id, int32_t device_index) {
    int value = 0;
    if (cudaDeviceGetAttribute(&value, id, device_index) == cudaSuccess) return value;
    cudaGetLastError();
    return 0;
}

int32_t compute_capability(int32_t device_index) {
    return 10 * attribute(cudaDevAttrComputeCapabilityMajor, device_index) +
           attribute(cudaDevAttrComputeCapabilityMinor, device_index);
}

int32_t multiprocessors(int32_t device_index) {
    return attribute(cudaDevAttrMultiProcessorCount, device_index);
}

int32_t shared_memory(int32_t device_index) {
    return attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device_index);
}

Status configure(const Launch &launch, const void *kernel, const Shape3 &shape, const char *name,
                 Configuration *out) {
    constexpr size_t kStaticLimit = 48 * 1024;  // beyond it a kernel must be told
    if (shape.shared_bytes > kStaticLimit) {
        QK_TRY(check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          int(shape.shared_bytes)),
                     launch.error, name));
    }
    constexpr int32_t kPortableCluster = 8;  // the same for larger clusters
    if (shape.cluster > kPortableCluster) {
        QK_TRY(check(
            cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1),
            launch.error, name));
    }
    *out = {};
    unsigned count = 0;
    if (shape.overlaps && !launch.in_order) {
        cudaLaunchAttribute &a = out->attributes[count++];
        a.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        a.val.programmaticStreamSerializationAllowed = 1;
    }
    if (shape.cluster > 1) {
        cudaLaunchAttribute &a = out->attributes[count++];
        a.id = cudaLaunchAttributeClusterDimension;
        a.val.clusterDim.x = unsigned(shape.cluster);
        a.val.clusterDim.y = a.val.clusterDim.z = 1;
    }
    out->config.gridDim = shape.blocks;
    out->config.blockDim = dim3(uint32_t(shape.threads));
    out->config.dynamicSmemBytes = shape.shared_bytes;
    out->config.stream = stream_of(launch);
    out->config.attrs = out->attributes;
    out->config.numAttrs = count;
    return QK_OK;
}

}  // namespace qk::cuda
