// What the codes of coded scales stand for, in a device's memory.
#pragma once
#include <cuda_runtime.h>

#include "backend/backend.hpp"

namespace qk::cuda {

// Those that are built in, as device code reads them; the host's where this build has no code for
// the device, on which nothing that reads them can run.
const ScaleTables *scale_tables(int32_t device_index);

// The compute capability for which the code was compiled that this build has for a device: that of
// one kernel, and of all, for they are compiled alike.
cudaError_t read_code_capability(int32_t device_index, int32_t *capability);

// Fills the 256 values of `to` with those of `from`, divided by the one number of its GLOBAL plane.
Status fold_scale_code(const ScalePlane &from, const ScalePlane &to, const Launch &launch);

}  // namespace qk::cuda
