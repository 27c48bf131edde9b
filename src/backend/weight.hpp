// From a checked description and the addresses of planes to the weight that kernels see.
#pragma once
#include "backend/backend.hpp"
#include "format/describe.hpp"

namespace qk {

// `tables`: in the memory of the planes' device.
Weight weight_of(const Shape &shape, void *const *planes, const ScaleTables &tables);

// Host memory: scales that are divided by one number become codes that need no division. `room`:
// 256 floats that live as long as the weight is used.
void fold_global(Weight *w, float *room);

}  // namespace qk
