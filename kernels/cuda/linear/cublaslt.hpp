// cuBLASLt for one context, loaded at run time: linking it would add 540 MB to every program.
#pragma once
#include "backend/backend.hpp"

namespace qk::cuda {

// A context with less workspace than this has no use for the library, and is spared loading it.
constexpr size_t kLtWorkspaceBytes = size_t{32} << 20;

// Loads the library and makes a handle on `device`, which is told where that fails; null then.
// libcublasLt.so.13 first, then .12. The library itself stays loaded.
void *lt_open(Device *device, size_t workspace_bytes);
void lt_close(int32_t device_index, void *state);

// d[m, n] = x[m, k] . transpose(w[n, k]) + bias[n], all of one type (f32, f16, bf16) with f32 sums,
// but for d, which may be f32; rows of x and d are strides apart. bias may be null. x, w, d, bias:
// multiples of 16 bytes, as rows are. Transposed: w is [k, n]. `adds`: to what d held.
struct LtProduct {
    qk_format type, d_type;
    bool transposed, adds;
    int64_t m, n, k, x_stride, d_stride;
    const void *x, *w, *bias;
    void *d;
    void *workspace;  // kLtWorkspaceBytes
};

// Queues it on the launch's stream, on the current device. UNSUPPORTED where the library has no
// algorithm for the case.
Status lt_multiply(void *state, const LtProduct &product, const Launch &launch);

}  // namespace qk::cuda
