#include "cuda/simulated/leftovers.hpp"

#include "cuda/prim/shared.cuh"

namespace leftovers {

__global__ void look(Found *found) {
    __shared__ uint32_t own[kWords];
    QK_LAUNCH_SHARED(memory);
    uint32_t *const of_launch = reinterpret_cast<uint32_t *>(memory);
    found[blockIdx.x].own[threadIdx.x] = own[threadIdx.x];
    found[blockIdx.x].of_launch[threadIdx.x] = of_launch[threadIdx.x];
    own[threadIdx.x] = of_launch[threadIdx.x] = 1 + blockIdx.x;
}

}  // namespace leftovers
