#include "cuda/runtime.hpp"

namespace qk::cuda {

DeviceGuard::DeviceGuard(int32_t device_index) {
    int current = 0;
    error_ = cudaGetDevice(&current);
    if (error_ != cudaSuccess) return;
    error_ = cudaSetDevice(device_index);  // where it is current, too: a thread gets its context
    if (error_ == cudaSuccess && current != device_index) previous_ = current;
}

DeviceGuard::~DeviceGuard() {
    if (previous_ >= 0 && cudaSetDevice(previous_) != cudaSuccess) cudaGetLastError();
}

bool lacks_code(cudaError_t error) {
    switch (error) {
        case cudaErrorNoKernelImageForDevice:
        case cudaErrorInvalidDeviceFunction:
        case cudaErrorUnsupportedPtxVersion:  // of a newer toolkit than the driver's
        case cudaErrorJitCompilerNotFound:
        case cudaErrorJitCompilationDisabled: return true;
        default: return false;
    }
}

static Status status_of(cudaError_t error) {
    if (lacks_code(error)) return QK_ERROR_UNSUPPORTED;
    switch (error) {
        case cudaSuccess: return QK_OK;
        case cudaErrorMemoryAllocation: return QK_ERROR_MEMORY;
        case cudaErrorNoDevice:
        case cudaErrorInsufficientDriver:
        case cudaErrorInvalidDevice: return QK_ERROR_NO_DEVICE;
        case cudaErrorInvalidConfiguration:
        case cudaErrorLaunchOutOfResources: return QK_ERROR_INTERNAL;
        default: return QK_ERROR_DEVICE_FAULT;
    }
}

#if !defined(QK_CUDA_CODE)
#define QK_CUDA_CODE "no GPU"
#endif

Status check(cudaError_t error, ErrorText *text, const char *what) {
    if (error == cudaSuccess) return QK_OK;
    cudaGetLastError();
    if (lacks_code(error)) {
        return fail(text, status_of(error),
                    "%s: this build has code for " QK_CUDA_CODE
                    " and none for this GPU, build qk with -DQK_CUDA_ARCHITECTURES=native on its "
                    "machine, or all",
                    what);
    }
    return fail(text, status_of(error), "%s: %s (CUDA error %d)", what, cudaGetErrorString(error),
                int(error));
}

constexpr size_t kUsualShared = 48 * 1024;  // that a block of any kernel can have
constexpr int32_t kPortableCluster = 8;     // blocks, the same

// Gives a kernel what the device can give, once: attributes belong to the process, a kernel and a
// device, and the driver remembers them. Set to what one launch needs, they would fail a larger
// launch that another thread is about to make; so each takes one value only, and the one that is
// set last tells that the others are.
static cudaError_t prepare(const void *kernel, const Shape3 &shape, const Device &device) {
    cudaFuncAttributes is = {};
    cudaError_t error = cudaFuncGetAttributes(&is, kernel);
    const auto set = [&](cudaFuncAttribute attribute, int value) {
        if (error == cudaSuccess) error = cudaFuncSetAttribute(kernel, attribute, value);
    };
    const int dynamic = device.shared_bytes - int(is.sharedSizeBytes);
    if (is.maxDynamicSharedSizeBytes != dynamic) {
        if (shape.cluster > kPortableCluster) {
            set(cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
        }
        set(cudaFuncAttributeMaxDynamicSharedMemorySize, dynamic);
    }
    // Blocks that find no room beside this kernel's wait until multiprocessors run dry, and crowd
    // on the first that do (docs/measurements/cuda-designs.md). The price is most of the L1.
    if (shape.overlaps && is.preferredShmemCarveout != cudaSharedmemCarveoutMaxShared) {
        set(cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
    }
    return error;
}

Status configure(const Launch &launch, const void *kernel, const Shape3 &shape, const char *name,
                 Configuration *out) {
    if (shape.overlaps || shape.shared_bytes > kUsualShared || shape.cluster > kPortableCluster) {
        QK_TRY(check(prepare(kernel, shape, launch.device), launch.error, name));
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
