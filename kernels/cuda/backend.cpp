// The CUDA backend's row. Memory comes from cudaMalloc; transfers are queued on the context's
// stream and waited for.
#include "backend/registry.hpp"
#include "cuda/kernels.hpp"
#include "cuda/linear/cublaslt.hpp"
#include "cuda/runtime.hpp"
#include "cuda/scale_tables.hpp"

namespace qk {
namespace {

// 0 without a driver: a binary with this backend serves the CPU anywhere.
int32_t device_count() {
    int count = 0;
    if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
    cudaGetLastError();
    return 0;
}

// What a device is to its kernels. A binary has code for some compute capabilities, and the driver
// translates the code of an older one: there the instructions of newer ones are left out, so the
// kernels that need them do nothing. Hopper's own are in no code that is translated.
int32_t usable_capability(int32_t device, int32_t code) {
    if (code == 90 && device != 90) code = 89;
    return code < device ? code : device;
}

// Whatever fails: a context must not be slow for life because it could not read its device.
Status describe(int32_t index, uint32_t, Device *device) {
    int major = 0, minor = 0;
    const struct {
        cudaDeviceAttr id;
        int *value;
    } questions[] = {{cudaDevAttrComputeCapabilityMajor, &major},
                     {cudaDevAttrComputeCapabilityMinor, &minor},
                     {cudaDevAttrMultiProcessorCount, &device->multiprocessors},
                     {cudaDevAttrMaxSharedMemoryPerBlockOptin, &device->shared_bytes},
                     {cudaDevAttrL2CacheSize, &device->l2_bytes}};
    for (const auto &question : questions) {
        const cudaError_t error = cudaDeviceGetAttribute(question.value, question.id, index);
        QK_TRY(cuda::check(error, nullptr, "context"));
    }
    device->capability = 10 * major + minor;
    int32_t code = 0;
    const cudaError_t error = cuda::read_code_capability(index, &code);
    if (error == cudaSuccess) {
        device->capability = usable_capability(device->capability, code);
    } else if (!cuda::lacks_code(error)) {  // else the first call of a kernel says so
        return cuda::check(error, nullptr, "context");
    } else {
        cudaGetLastError();
    }
    device->tables = cuda::scale_tables(index);
    return QK_OK;
}

Status synchronize(const Launch &launch) {
    const cuda::DeviceGuard device(launch.device.index);
    QK_TRY(cuda::check(device.error(), launch.error, "synchronize"));
    return cuda::check(cudaStreamSynchronize(cuda::stream_of(launch)), launch.error, "synchronize");
}

qk_layout packed_layout(const Format &format) {
    if (format.bits != 4) return QK_LAYOUT_ROW;
    return format.kind == FormatKind::kU4 ? kLayoutTiles : kLayoutTilesPairs;
}

void *allocate(int32_t device_index, size_t bytes) {
    const cuda::DeviceGuard device(device_index);
    void *pointer = nullptr;
    if (device.error() == cudaSuccess && cudaMalloc(&pointer, bytes) == cudaSuccess) return pointer;
    cudaGetLastError();
    return nullptr;
}

void release(int32_t device_index, void *pointer) {
    const cuda::DeviceGuard device(device_index);  // where it fails: a pointer knows its device
    if (cudaFree(pointer) != cudaSuccess || device.error() != cudaSuccess) cudaGetLastError();
}

Status copy(const Launch &launch, void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
            const char *what) {
    const cuda::DeviceGuard device(launch.device.index);
    QK_TRY(cuda::check(device.error(), launch.error, what));
    const cudaStream_t stream = cuda::stream_of(launch);
    QK_TRY(cuda::check(cudaMemcpyAsync(to, from, bytes, kind, stream), launch.error, what));
    return cuda::check(cudaStreamSynchronize(stream), launch.error, what);
}

Status upload(const Launch &launch, void *device, const void *host, size_t bytes) {
    return copy(launch, device, host, bytes, cudaMemcpyHostToDevice, "upload");
}

Status download(const Launch &launch, void *host, const void *device, size_t bytes) {
    return copy(launch, host, device, bytes, cudaMemcpyDeviceToHost, "download");
}

constexpr Kernel<DequantizeArgs> const *kDequantize[] = {
    &cuda::kDequantizeStream, &cuda::kDequantizeAwq,     &cuda::kDequantizeGptq,
    &cuda::kDequantizeTiles,  &cuda::kDequantizeRecords, &cuda::kDequantizeColumns,
    &cuda::kDequantizeGeneric};
constexpr Kernel<QuantizeArgs> const *kQuantize[] = {&cuda::kQuantizeStream, &cuda::kQuantizeAffine,
                                                     &cuda::kQuantizeLut8, &cuda::kQuantizeRecords,
                                                     &cuda::kQuantizeGeneric};
constexpr Kernel<RepackArgs> const *kRepack[] = {&cuda::kRepackTiles, &cuda::kRepackWords,
                                                 &cuda::kRepackGeneric};
constexpr Kernel<GruArgs> const *kGru[] = {&cuda::kGruStep, &cuda::kGruCluster, &cuda::kGruGeneric};

}  // namespace

constinit const Backend kCudaBackend = {
    QK_DEVICE_CUDA,
    "cuda",
    device_count,
    describe,
    synchronize,
    packed_layout,
    {allocate, release, upload, download},
    kDequantize,
    kQuantize,
    kRepack,
    &cuda::kGatherColumns,
    cuda::kLinearKernels,  // linear/select.hpp chooses
    kGru,
    cuda::plan_linear,
    false,
    {},
    {},
    {},  // gru: no packing
    {cuda::lt_open, cuda::lt_close},
};

}  // namespace qk
