// The one line a backend adds: its table, defined in kernels/NAME/backend.cpp.
#pragma once

namespace qk {

struct Backend;
extern const Backend kCpuBackend;
extern const Backend kCudaBackend;

}  // namespace qk
