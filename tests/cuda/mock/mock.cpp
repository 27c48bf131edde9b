#include "cuda/mock/mock.hpp"

#include <cstdlib>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "harness/guarded.hpp"

namespace mock {
namespace {

constexpr int kUsualShared = 48 * 1024;
constexpr unsigned kPortableCluster = 8;

struct KernelState {
    int dynamic = 0;  // never set: what kUsualShared leaves
    int carveout = cudaSharedmemCarveoutDefault;
    bool any_cluster = false;
};

struct State {
    Machine machine;
    bool runs_kernels = true;
    int calls = 0, fail_at = 0;
    cudaError_t error = cudaSuccess;
    Fault fault = Fault::kOnce;
    const char *failed = "";
    cudaError_t last = cudaSuccess;    // what cudaGetLastError will say
    cudaError_t sticky = cudaSuccess;  // the device is dead
    cudaError_t late = cudaSuccess;    // ... and it has not been reported yet
    std::set<void *> memory;
    std::map<std::pair<int, const void *>, KernelState> kernels;  // by device
    std::map<cudaStream_t, std::vector<std::function<void()>>> queues;
    std::set<cudaStream_t> streams;
    std::function<void()> before_launch;
};

State state;
std::recursive_mutex mutex;  // threads have contexts of their own, and one runtime
thread_local int current = 0;
thread_local bool has_context = false;  // of the driver: some calls of the runtime make it

using Lock = std::lock_guard<std::recursive_mutex>;

KernelState &kernel_state(const void *kernel) { return state.kernels[{current, kernel}]; }

void run_queue(cudaStream_t stream) {
    for (const std::function<void()> &work : std::exchange(state.queues[stream], {})) work();
}

void run_all_queues() {
    for (auto &[stream, queue] : state.queues) run_queue(stream);
}

cudaError_t remember(cudaError_t error) {
    if (error != cudaSuccess) state.last = error;
    return error;
}

// Calls that only ask, and leave a thread without a context.
bool only_asks(const char *name) {
    return strcmp(name, "cudaGetDevice") == 0 || strcmp(name, "cudaGetDeviceCount") == 0 ||
           strcmp(name, "cudaDeviceGetAttribute") == 0;
}

// Every call of the runtime begins here.
cudaError_t enter(const char *name, bool waits = false) {
    ++state.calls;
    if (!only_asks(name)) has_context = true;
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
    const Lock lock(mutex);
    current = 0;
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
bool thread_has_context() { return has_context; }
int current_device() { return current; }
void set_current_device(int device) { current = device; }

void before_launch(std::function<void()> act) { state.before_launch = std::move(act); }

cudaFuncAttributes attributes_of(const void *kernel) {
    const Lock lock(mutex);
    const KernelState &k = kernel_state(kernel);
    const int fixed = state.machine.static_shared_bytes;
    const int code = state.machine.code > 0 ? state.machine.code : state.machine.capability;
    return {size_t(fixed), k.dynamic > 0 ? k.dynamic : kUsualShared - fixed, k.carveout, code};
}

void forget_attributes() { state.kernels.clear(); }

std::set<cudaStream_t> streams_used() { return state.streams; }

int64_t queued() {
    int64_t count = 0;
    for (const auto &[stream, queue] : state.queues) count += int64_t(queue.size());
    return count;
}

void enqueue(cudaStream_t stream, std::function<void()> work) {
    const Lock lock(mutex);
    state.streams.insert(stream);
    state.queues[stream].push_back(std::move(work));
}

static unsigned cluster_of(const cudaLaunchConfig_t &config) {
    for (unsigned i = 0; i < config.numAttrs; ++i) {
        if (config.attrs[i].id == cudaLaunchAttributeClusterDimension) {
            return config.attrs[i].val.clusterDim.x;
        }
    }
    return 1;
}

cudaError_t begin_launch(const cudaLaunchConfig_t &config, const void *kernel) {
    if (const auto act = std::exchange(state.before_launch, nullptr)) act();
    const Lock lock(mutex);
    const cudaError_t error = enter("cudaLaunchKernelEx");
    if (error != cudaSuccess) return error;
    if (state.machine.without_code != cudaSuccess) return remember(state.machine.without_code);
    state.streams.insert(config.stream);
    const unsigned cluster = cluster_of(config);
    const bool fits = config.blockDim.x >= 1 && config.blockDim.y >= 1 && config.blockDim.z >= 1 &&
                      uint64_t{config.blockDim.x} * config.blockDim.y * config.blockDim.z <= 1024 &&
                      config.blockDim.z <= 64 && config.gridDim.x >= 1 &&
                      config.gridDim.x <= 2147483647u && config.gridDim.y >= 1 &&
                      config.gridDim.y <= 65535 && config.gridDim.z >= 1 &&
                      config.gridDim.z <= 65535 && config.gridDim.x % cluster == 0;
    if (!fits) return remember(cudaErrorInvalidConfiguration);
    if (cluster > kPortableCluster && !kernel_state(kernel).any_cluster) {
        return remember(cudaErrorInvalidClusterSize);
    }
    const size_t dynamic = size_t(attributes_of(kernel).maxDynamicSharedSizeBytes);
    return remember(config.dynamicSmemBytes <= dynamic ? cudaSuccess : cudaErrorInvalidValue);
}

}  // namespace mock

using mock::current;
using mock::enter;
using mock::Lock;
using mock::mutex;
using mock::remember;
using mock::state;

cudaError_t cudaGetDeviceCount(int *count) {
    const Lock lock(mutex);
    const cudaError_t error = enter("cudaGetDeviceCount");
    if (error != cudaSuccess) return error;
    *count = state.machine.devices;
    return state.machine.devices > 0 ? cudaSuccess : remember(state.machine.no_devices);
}

cudaError_t cudaGetDevice(int *device) {
    const Lock lock(mutex);
    const cudaError_t error = enter("cudaGetDevice");
    if (error == cudaSuccess) *device = current;
    return error;
}

cudaError_t cudaSetDevice(int device) {
    const Lock lock(mutex);
    const cudaError_t error = enter("cudaSetDevice");
    if (error != cudaSuccess) return error;
    if (device < 0 || device >= state.machine.devices) return remember(cudaErrorInvalidDevice);
    current = device;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device) {
    const Lock lock(mutex);
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
        case cudaDevAttrL2CacheSize: *value = state.machine.l2_bytes; return cudaSuccess;
    }
    return remember(cudaErrorInvalidValue);
}

cudaError_t cudaGetLastError() {
    const Lock lock(mutex);
    const cudaError_t last = state.last;
    state.last = state.sticky;
    return last;
}

cudaError_t cudaPeekAtLastError() { return state.last; }

const char *cudaGetErrorString(cudaError_t error) {
    return error == cudaSuccess ? "no error" : "an error of the mock";
}

cudaError_t cudaMalloc(void **pointer, size_t bytes) {
    const Lock lock(mutex);
    const cudaError_t error = enter("cudaMalloc");
    if (error != cudaSuccess) return error;
    if (bytes > size_t{1} << 40 || posix_memalign(pointer, 256, bytes) != 0) {
        return remember(cudaErrorMemoryAllocation);
    }
    memset(*pointer, harness::kPoisonNan, bytes);
    state.memory.insert(*pointer);
    return cudaSuccess;
}

// An error of cudaFree is one of earlier work: the memory is gone all the same.
cudaError_t cudaFree(void *pointer) {
    const Lock lock(mutex);
    const cudaError_t error = enter("cudaFree");
    if (pointer == nullptr) return error;
    mock::run_all_queues();
    if (state.memory.erase(pointer) != 1) return remember(cudaErrorInvalidValue);
    free(pointer);
    return error;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind) {
    const Lock lock(mutex);
    const cudaError_t error = enter("cudaMemcpy", true);
    mock::run_all_queues();
    if (error == cudaSuccess) memcpy(to, from, bytes);
    return error;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
    const Lock lock(mutex);
    const cudaError_t error = enter("cudaMemcpyAsync");
    if (error == cudaSuccess) mock::enqueue(stream, [=] { memcpy(to, from, bytes); });
    return error;
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
    const Lock lock(mutex);
    const cudaError_t error = enter("cudaMemsetAsync");
    if (error == cudaSuccess) mock::enqueue(stream, [=] { memset(to, value, bytes); });
    return error;
}

// Where it fails the work is done all the same: what it reads and writes may be gone hereafter.
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    const Lock lock(mutex);
    const cudaError_t error = enter("cudaStreamSynchronize", true);
    state.streams.insert(stream);
    mock::run_queue(stream);
    return error;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, const void *kernel) {
    const Lock lock(mutex);
    const cudaError_t error = enter("cudaFuncGetAttributes");
    if (error != cudaSuccess) return error;
    if (state.machine.without_code != cudaSuccess) return remember(state.machine.without_code);
    *attributes = mock::attributes_of(kernel);
    return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute attribute, int value) {
    const Lock lock(mutex);
    const cudaError_t error = enter("cudaFuncSetAttribute");
    if (error != cudaSuccess) return error;
    mock::KernelState &is = mock::kernel_state(kernel);
    const int most = state.machine.shared_bytes - state.machine.static_shared_bytes;
    switch (attribute) {
        case cudaFuncAttributeMaxDynamicSharedMemorySize:
            if (value < 0 || value > most) return remember(cudaErrorInvalidValue);
            is.dynamic = value;
            return cudaSuccess;
        case cudaFuncAttributePreferredSharedMemoryCarveout:
            if (value < -1 || value > 100) return remember(cudaErrorInvalidValue);
            is.carveout = value;
            return cudaSuccess;
        case cudaFuncAttributeNonPortableClusterSizeAllowed:
            is.any_cluster = value != 0;
            return cudaSuccess;
    }
    return remember(cudaErrorInvalidValue);
}
