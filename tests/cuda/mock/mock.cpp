#include "cuda/mock/mock.hpp"

#include <cstdlib>
#include <set>

namespace mock {
namespace {

struct State {
    Machine machine;
    bool runs_kernels = true;
    int calls = 0, fail_at = 0;
    cudaError_t error = cudaSuccess;
    Fault fault = Fault::kOnce;
    const char *failed = "";
    cudaError_t last = cudaSuccess;    // what cudaGetLastError will say
    cudaError_t sticky = cudaSuccess;  // the device is dead
    cudaError_t late = cudaSuccess;    // ... and nobody knows yet
    std::set<void *> memory;
    int device = 0;
};

State state;

cudaError_t remember(cudaError_t error) {
    if (error != cudaSuccess) state.last = error;
    return error;
}

// Every call of the runtime begins here.
cudaError_t enter(const char *name, bool waits = false) {
    ++state.calls;
    if (state.sticky != cudaSuccess) return remember(state.sticky);
    if (waits && state.late != cudaSuccess) return remember(state.sticky = state.late);
    if (state.calls != state.fail_at) return cudaSuccess;
    state.failed = name;
    if (state.fault == Fault::kLate) {
        state.late = state.error;
        return cudaSuccess;
    }
    if (state.fault == Fault::kSticky) state.sticky = state.error;
    return remember(state.error);
}

}  // namespace

void reset(const Machine &machine) {
    for (void *pointer : state.memory) free(pointer);
    state = State();
    state.machine = machine;
}

void fail(int call, cudaError_t error, Fault fault) {
    state.fail_at = call == 0 ? 0 : state.calls + call;
    state.error = error;
    state.fault = fault;
    state.failed = "";
}

void run_kernels(bool run) { state.runs_kernels = run; }
bool runs_kernels() { return state.runs_kernels; }
int calls() { return state.calls; }
const char *failed_call() { return state.failed; }
int64_t live_allocations() { return int64_t(state.memory.size()); }
int current_device() { return state.device; }
void set_current_device(int device) { state.device = device; }

cudaError_t begin_launch(const cudaLaunchConfig_t &config) {
    const cudaError_t error = enter("cudaLaunchKernelEx");
    if (error != cudaSuccess) return error;
    const bool fits = config.blockDim.x >= 1 && config.blockDim.x <= 1024 &&
                      config.gridDim.x >= 1 && config.gridDim.x <= 2147483647u &&
                      config.gridDim.y >= 1 && config.gridDim.y <= 65535 &&
                      config.gridDim.z >= 1 && config.gridDim.z <= 65535 &&
                      config.dynamicSmemBytes <= size_t(state.machine.shared_bytes);
    return remember(fits ? cudaSuccess : cudaErrorInvalidConfiguration);
}

}  // namespace mock

using mock::enter;
using mock::remember;
using mock::state;

cudaError_t cudaGetDeviceCount(int *count) {
    const cudaError_t error = enter("cudaGetDeviceCount");
    if (error != cudaSuccess) return error;
    *count = state.machine.devices;
    return state.machine.devices > 0 ? cudaSuccess : remember(state.machine.no_devices);
}

cudaError_t cudaGetDevice(int *device) {
    const cudaError_t error = enter("cudaGetDevice");
    if (error == cudaSuccess) *device = state.device;
    return error;
}

cudaError_t cudaSetDevice(int device) {
    const cudaError_t error = enter("cudaSetDevice");
    if (error != cudaSuccess) return error;
    if (device < 0 || device >= state.machine.devices) return remember(cudaErrorInvalidDevice);
    state.device = device;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device) {
    const cudaError_t error = enter("cudaDeviceGetAttribute");
    if (error != cudaSuccess) return error;
    if (device < 0 || device >= state.machine.devices) return remember(cudaErrorInvalidDevice);
    switch (attribute) {
        case cudaDevAttrMultiProcessorCount:
            *value = state.machine.multiprocessors;
            return cudaSuccess;
        case cudaDevAttrComputeCapabilityMajor:
            *value = state.machine.capability / 10;
            return cudaSuccess;
        case cudaDevAttrComputeCapabilityMinor:
            *value = state.machine.capability % 10;
            return cudaSuccess;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin:
            *value = state.machine.shared_bytes;
            return cudaSuccess;
    }
    return remember(cudaErrorInvalidValue);
}

cudaError_t cudaGetLastError() {
    const cudaError_t last = state.last;
    state.last = state.sticky;
    return last;
}

cudaError_t cudaPeekAtLastError() { return state.last; }

const char *cudaGetErrorString(cudaError_t error) {
    return error == cudaSuccess ? "no error" : "an error of the mock";
}

cudaError_t cudaMalloc(void **pointer, size_t bytes) {
    const cudaError_t error = enter("cudaMalloc");
    if (error != cudaSuccess) return error;
    if (bytes > size_t{1} << 40 || posix_memalign(pointer, 256, bytes) != 0) {
        return remember(cudaErrorMemoryAllocation);
    }
    memset(*pointer, 0xd5, bytes);
    state.memory.insert(*pointer);
    return cudaSuccess;
}

// An error of cudaFree is one of earlier work: the memory is gone all the same.
cudaError_t cudaFree(void *pointer) {
    const cudaError_t error = enter("cudaFree");
    if (pointer == nullptr) return error;
    if (state.memory.erase(pointer) != 1) return remember(cudaErrorInvalidValue);
    free(pointer);
    return error;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind) {
    const cudaError_t error = enter("cudaMemcpy", true);
    if (error == cudaSuccess) memcpy(to, from, bytes);
    return error;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t) {
    const cudaError_t error = enter("cudaMemcpyAsync");
    if (error == cudaSuccess) memcpy(to, from, bytes);
    return error;
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t) {
    const cudaError_t error = enter("cudaMemsetAsync");
    if (error == cudaSuccess) memset(to, value, bytes);
    return error;
}

cudaError_t cudaStreamSynchronize(cudaStream_t) { return enter("cudaStreamSynchronize", true); }

cudaError_t cudaFuncSetAttribute(const void *, cudaFuncAttribute, int) {
    return enter("cudaFuncSetAttribute");
}
