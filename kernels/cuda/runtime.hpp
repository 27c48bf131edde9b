// The host side that every CUDA kernel shares: errors as status, the caller's device kept, launches
// that leave no error behind. Nothing here allocates, waits, or touches the default stream.
#pragma once
#include <cuda_runtime.h>

#include <type_traits>

#include "backend/backend.hpp"

namespace qk::cuda {

// Makes `device_index` current for the calling thread, which has its context from then on, and
// restores what was current before.
class DeviceGuard {
  public:
    explicit DeviceGuard(int32_t device_index);
    ~DeviceGuard();
    DeviceGuard(const DeviceGuard &) = delete;
    DeviceGuard &operator=(const DeviceGuard &) = delete;
    cudaError_t error() const { return error_; }

  private:
    int previous_ = -1;  // -1: nothing to restore
    cudaError_t error_;
};

// Whether the driver found no code of this build that it could run on the device.
bool lacks_code(cudaError_t error);

// QK_OK, or the status of a failed runtime call with a sentence. Takes the error out of the
// runtime's memory, so that no later call of anyone reports it again.
Status check(cudaError_t error, ErrorText *text, const char *what);

inline cudaStream_t stream_of(const Launch &launch) {
    return static_cast<cudaStream_t>(launch.stream);
}

// The grid of one launch.
struct Shape3 {
    dim3 blocks;
    int32_t threads;
    size_t shared_bytes = 0;
    // May start while the kernel before it still runs, and waits on its own. For kernels that bring
    // what they read through shared memory: the L1 is small for them and for what runs beside them.
    bool overlaps = false;
    int32_t cluster = 1;  // blocks along x that share their memory
};

struct Configuration {
    cudaLaunchConfig_t config;
    cudaLaunchAttribute attributes[2];
};

// Fills `out` for a launch on the current device.
Status configure(const Launch &launch, const void *kernel, const Shape3 &shape, const char *name,
                 Configuration *out);

template <class... Parameters>
Status launch_kernel(const Launch &launch, const char *name, void (*kernel)(Parameters...),
                     const Shape3 &shape, const std::type_identity_t<Parameters> &...given) {
    const DeviceGuard device(launch.device.index);
    QK_TRY(check(device.error(), launch.error, name));
    Configuration c;
    QK_TRY(configure(launch, reinterpret_cast<const void *>(kernel), shape, name, &c));
    return check(cudaLaunchKernelEx(&c.config, kernel, given...), launch.error, name);
}

// Blocks of `threads` for `count` items in loops of stride gridDim: enough to fill any GPU.
inline uint32_t blocks_for(int64_t count, int32_t threads) {
    const int64_t blocks = ceil_div(count, threads);
    return uint32_t(min64(blocks, int64_t{1} << 20));
}

}  // namespace qk::cuda
