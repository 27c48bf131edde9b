#include "cuda/linear/cublaslt.hpp"

#include <cublasLt.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/runtime.hpp"

namespace qk::cuda {
namespace {

// clang-format off
#define QK_LT_FUNCTIONS(X)                                                                       \
    X(cublasLtCreate) X(cublasLtDestroy) X(cublasLtMatmul) X(cublasLtMatmulAlgoGetHeuristic)     \
    X(cublasLtMatmulDescCreate) X(cublasLtMatmulDescDestroy) X(cublasLtMatmulDescSetAttribute)   \
    X(cublasLtMatrixLayoutCreate) X(cublasLtMatrixLayoutDestroy)                                 \
    X(cublasLtMatrixLayoutSetAttribute) X(cublasLtMatmulPreferenceCreate)                        \
    X(cublasLtMatmulPreferenceDestroy) X(cublasLtMatmulPreferenceSetAttribute)
// clang-format on

struct Functions {
#define QK_LT_MEMBER(name) decltype(&::name) name;
    QK_LT_FUNCTIONS(QK_LT_MEMBER)
#undef QK_LT_MEMBER
};

bool load(Functions *f) {
    void *library = nullptr;
    for (const char *name : {"libcublasLt.so.13", "libcublasLt.so.12"}) {
        library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
        if (library != nullptr) break;
    }
    if (library == nullptr) return false;
#define QK_LT_FIND(name) f->name = reinterpret_cast<decltype(&::name)>(dlsym(library, #name));
    QK_LT_FUNCTIONS(QK_LT_FIND)
#undef QK_LT_FIND
    bool found = true;
#define QK_LT_FOUND(name) found = found && f->name != nullptr;
    QK_LT_FUNCTIONS(QK_LT_FOUND)
#undef QK_LT_FOUND
    return found;
}

// The library's choice for a product, so that it is asked once.
struct Choice {
    qk_format type, d_type;
    int64_t m, n, k, x_stride, d_stride;
    bool transposed, bias, known;
    cublasLtMatmulAlgo_t algorithm;
};

constexpr uint32_t kChoices = 64;

// Everything a product needs is made with the handle; operations only set attributes.
struct State {
    Functions f;
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t w, x, d;
    cublasLtMatmulPreference_t preference;
    Choice choices[kChoices];
};

void destroy(State *s) {
    if (s->preference != nullptr) s->f.cublasLtMatmulPreferenceDestroy(s->preference);
    for (const cublasLtMatrixLayout_t layout : {s->w, s->x, s->d}) {
        if (layout != nullptr) s->f.cublasLtMatrixLayoutDestroy(layout);
    }
    if (s->product != nullptr) s->f.cublasLtMatmulDescDestroy(s->product);
    if (s->handle != nullptr) s->f.cublasLtDestroy(s->handle);
    free(s);
}

// Matrices are column-major here: a row-major [rows, columns] is its transpose. f32 keeps f32
// products (no TF32): the documented accuracy.
bool create(State *s) {
    const Functions &f = s->f;
    constexpr cublasStatus_t ok = CUBLAS_STATUS_SUCCESS;
    const size_t workspace = kLtWorkspaceBytes;
    const uint32_t alignment = 16;
    if (f.cublasLtCreate(&s->handle) != ok ||
        f.cublasLtMatmulDescCreate(&s->product, CUBLAS_COMPUTE_32F, CUDA_R_32F) != ok ||
        f.cublasLtMatmulPreferenceCreate(&s->preference) != ok ||
        f.cublasLtMatmulPreferenceSetAttribute(s->preference,
                                               CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                               sizeof(workspace)) != ok) {
        return false;
    }
    for (const cublasLtMatmulPreferenceAttributes_t which :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
        if (f.cublasLtMatmulPreferenceSetAttribute(s->preference, which, &alignment,
                                                   sizeof(alignment)) != ok) {
            return false;
        }
    }
    for (cublasLtMatrixLayout_t *layout : {&s->w, &s->x, &s->d}) {
        if (f.cublasLtMatrixLayoutCreate(layout, CUDA_R_16F, 1, 1, 1) != ok) return false;
    }
    return true;
}

cudaDataType_t type_of(qk_format type) {
    return type == QK_FORMAT_F16 ? CUDA_R_16F : type == QK_FORMAT_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

bool set_layout(const State &s, cublasLtMatrixLayout_t layout, qk_format type, int64_t rows,
                int64_t columns, int64_t stride) {
    const cudaDataType_t data = type_of(type);
    const uint64_t r = uint64_t(rows), c = uint64_t(columns);
    const auto set = [&](cublasLtMatrixLayoutAttribute_t which, const void *value, size_t bytes) {
        return s.f.cublasLtMatrixLayoutSetAttribute(layout, which, value, bytes) ==
               CUBLAS_STATUS_SUCCESS;
    };
    return set(CUBLASLT_MATRIX_LAYOUT_TYPE, &data, sizeof(data)) &&
           set(CUBLASLT_MATRIX_LAYOUT_ROWS, &r, sizeof(r)) &&
           set(CUBLASLT_MATRIX_LAYOUT_COLS, &c, sizeof(c)) &&
           set(CUBLASLT_MATRIX_LAYOUT_LD, &stride, sizeof(stride));
}

bool describe(const State &s, const LtProduct &p) {
    const cublasLtEpilogue_t epilogue =
        p.bias != nullptr ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    const auto set = [&](cublasLtMatmulDescAttributes_t which, const void *value, size_t bytes) {
        return s.f.cublasLtMatmulDescSetAttribute(s.product, which, value, bytes) ==
               CUBLAS_STATUS_SUCCESS;
    };
    // Its view of w[n, k] is [k, n], which it transposes; w[k, n] of a transposed product is as it
    // wants it.
    const cublasOperation_t operation = p.transposed ? CUBLAS_OP_N : CUBLAS_OP_T;
    const int64_t w_rows = p.transposed ? p.n : p.k, w_columns = p.transposed ? p.k : p.n;
    return set(CUBLASLT_MATMUL_DESC_TRANSA, &operation, sizeof(operation)) &&
           set(CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue)) &&
           set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, &p.bias, sizeof(p.bias)) &&
           set_layout(s, s.w, p.type, w_rows, w_columns, w_rows) &&
           set_layout(s, s.x, p.type, p.k, p.m, p.x_stride) &&
           set_layout(s, s.d, p.d_type, p.n, p.m, p.d_stride);
}

// The same calls in the same order get the same algorithms: the library's choice is a function of
// the case alone, and an older choice that shares its place is only asked for again.
const cublasLtMatmulAlgo_t *choose(State *s, const LtProduct &p) {
    const uint64_t mixed = (uint64_t(p.m) * 31 + uint64_t(p.n)) * 31 + uint64_t(p.k) * 7 +
                           uint64_t(p.type) + (p.bias != nullptr);
    Choice &c = s->choices[(mixed ^ mixed >> 9) % kChoices];
    if (c.known && c.type == p.type && c.d_type == p.d_type && c.transposed == p.transposed &&
        c.m == p.m && c.n == p.n && c.k == p.k && c.x_stride == p.x_stride &&
        c.d_stride == p.d_stride && c.bias == (p.bias != nullptr)) {
        return &c.algorithm;
    }
    cublasLtMatmulHeuristicResult_t result = {};
    int found = 0;
    if (s->f.cublasLtMatmulAlgoGetHeuristic(s->handle, s->product, s->w, s->x, s->d, s->d,
                                            s->preference, 1, &result,
                                            &found) != CUBLAS_STATUS_SUCCESS ||
        found == 0) {
        return nullptr;
    }
    c = {p.type,       p.d_type,          p.m,  p.n,        p.k, p.x_stride, p.d_stride,
         p.transposed, p.bias != nullptr, true, result.algo};
    return &c.algorithm;
}

}  // namespace

void *lt_open(Device *device, size_t workspace_bytes) {
    if (workspace_bytes < kLtWorkspaceBytes) return nullptr;
    device->lacks_library = true;
    const DeviceGuard guard(device->index);
    void *memory = nullptr;
    if (posix_memalign(&memory, 64, sizeof(State)) != 0) return nullptr;
    memset(memory, 0, sizeof(State));
    State *const s = static_cast<State *>(memory);
    if (guard.error() == cudaSuccess && load(&s->f) && create(s)) {
        device->lacks_library = false;
        return s;
    }
    destroy(s);
    cudaGetLastError();
    return nullptr;
}

void lt_close(int32_t device_index, void *state) {
    const DeviceGuard device(device_index);
    destroy(static_cast<State *>(state));
    cudaGetLastError();
}

Status lt_multiply(void *state, const LtProduct &p, const Launch &launch) {
    State *const s = static_cast<State *>(state);
    QK_CHECK(describe(*s, p), launch.error, INTERNAL, "cuBLASLt refused a description");
    const cublasLtMatmulAlgo_t *const algorithm = choose(s, p);
    if (algorithm == nullptr) return QK_ERROR_UNSUPPORTED;
    const float one = 1, kept = p.adds ? 1 : 0;
    const cublasStatus_t status = s->f.cublasLtMatmul(
        s->handle, s->product, &one, p.w, s->w, p.x, s->x, &kept, p.d, s->d, p.d, s->d, algorithm,
        p.workspace, kLtWorkspaceBytes, stream_of(launch));
    QK_CHECK(status == CUBLAS_STATUS_SUCCESS, launch.error, DEVICE_FAULT,
             "cuBLASLt: product failed (status %d)", int(status));
    return QK_OK;
}

}  // namespace qk::cuda
