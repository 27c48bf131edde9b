#include "cuda/simulated/fake_library.hpp"

#include <cublasLt.h>

#include "base/half.hpp"

namespace fake_library {
State state;
}

using fake_library::state;

struct cublasLtContext {};
struct cublasLtMatmulDescOpaque_t {
    cublasOperation_t transposed_a = {};
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    const void *bias = nullptr;
};
struct cublasLtMatrixLayoutOpaque_t {
    cudaDataType_t type;
    uint64_t rows, columns;
    int64_t stride;
};
struct cublasLtMatmulPreferenceOpaque_t {
    uint64_t workspace = 0;
    uint32_t alignment[4] = {256, 256, 256, 256};  // of a, b, c, d
};

static bool fails_now() { return state.fail_at > 0 && --state.fail_at == 0; }

template <class T, class Handle, class... Values>
static cublasStatus_t create(Handle *out, const Values &...values) {
    if (fails_now()) return CUBLAS_STATUS_ALLOC_FAILED;
    *out = new T{values...};
    ++state.objects;
    return CUBLAS_STATUS_SUCCESS;
}

template <class Handle>
static cublasStatus_t destroy(Handle handle) {
    delete handle;
    --state.objects;
    return CUBLAS_STATUS_SUCCESS;
}

template <class T>
static cublasStatus_t set(T *to, const void *value, size_t bytes) {
    if (fails_now() || value == nullptr || bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(to, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) {
    const cublasStatus_t status = create<cublasLtContext>(handle);
    state.open += status == CUBLAS_STATUS_SUCCESS;
    return status;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
    --state.open;
    return destroy(handle);
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *product, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
    const bool f32 = compute == CUBLAS_COMPUTE_32F && scale == CUDA_R_32F;
    return f32 ? create<cublasLtMatmulDescOpaque_t>(product) : CUBLAS_STATUS_NOT_SUPPORTED;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t product) { return destroy(product); }
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t product,
                                              cublasLtMatmulDescAttributes_t which,
                                              const void *value, size_t bytes) {
    switch (which) {
        case CUBLASLT_MATMUL_DESC_TRANSA: return set(&product->transposed_a, value, bytes);
        case CUBLASLT_MATMUL_DESC_EPILOGUE: return set(&product->epilogue, value, bytes);
        default: return set(&product->bias, value, bytes);
    }
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType_t type,
                                          uint64_t rows, uint64_t columns, int64_t stride) {
    return create<cublasLtMatrixLayoutOpaque_t>(layout, type, rows, columns, stride);
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
    return destroy(layout);
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t which,
                                                const void *value, size_t bytes) {
    switch (which) {
        case CUBLASLT_MATRIX_LAYOUT_TYPE: return set(&layout->type, value, bytes);
        case CUBLASLT_MATRIX_LAYOUT_ROWS: return set(&layout->rows, value, bytes);
        case CUBLASLT_MATRIX_LAYOUT_COLS: return set(&layout->columns, value, bytes);
        default: return set(&layout->stride, value, bytes);
    }
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference) {
    return create<cublasLtMatmulPreferenceOpaque_t>(preference);
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
    return destroy(preference);
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t which,
                                                    const void *value, size_t bytes) {
    if (which == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) {
        return set(&preference->workspace, value, bytes);
    }
    return set(&preference->alignment[which - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], value,
               bytes);
}

static int64_t bytes_of(cudaDataType_t type) { return type == CUDA_R_32F ? 4 : 2; }

// An algorithm is for one description alone.
static cublasLtMatmulAlgo_t algorithm_for(const cublasLtMatmulDescOpaque_t &product,
                                          const cublasLtMatrixLayoutOpaque_t &w,
                                          const cublasLtMatrixLayoutOpaque_t &x,
                                          const cublasLtMatrixLayoutOpaque_t &d) {
    return {{uint64_t(product.epilogue) << 8 | uint64_t(product.transposed_a),
             uint64_t(w.type) << 8 | uint64_t(d.type), w.rows, w.columns, x.columns,
             uint64_t(w.stride), uint64_t(x.stride), uint64_t(d.stride)}};
}

// Strides must keep to the alignment that was asked for.
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t product,
                                              cublasLtMatrixLayout_t w, cublasLtMatrixLayout_t x,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t *results,
                                              int *found) {
    ++state.asked;
    *found = 0;
    const cublasLtMatrixLayout_t layouts[] = {w, x, c, d};
    for (int i = 0; i < 4; ++i) {
        if (layouts[i]->stride * bytes_of(layouts[i]->type) % preference->alignment[i] != 0) {
            return CUBLAS_STATUS_NOT_SUPPORTED;
        }
    }
    if (state.refuses || wanted < 1 || preference->workspace == 0) return CUBLAS_STATUS_SUCCESS;
    results[0].algo = algorithm_for(*product, *w, *x, *d);
    *found = 1;
    return CUBLAS_STATUS_SUCCESS;
}

static float value_at(cudaDataType_t type, const void *data, int64_t i) {
    switch (type) {
        case CUDA_R_16F: return qk::f32_from_f16(static_cast<const uint16_t *>(data)[i]);
        case CUDA_R_16BF: return qk::f32_from_bf16(static_cast<const uint16_t *>(data)[i]);
        default: return static_cast<const float *>(data)[i];
    }
}

static void store(cudaDataType_t type, void *data, int64_t i, float value) {
    switch (type) {
        case CUDA_R_16F: static_cast<uint16_t *>(data)[i] = qk::f16_from_f32(value); break;
        case CUDA_R_16BF: static_cast<uint16_t *>(data)[i] = qk::bf16_from_f32(value); break;
        default: static_cast<float *>(data)[i] = value;
    }
}

static bool at_16(const void *pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

// Matrices are column by column: w [k, n], which is transposed, or [n, k], x [k, m], d [n, m].
cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t product, const void *alpha,
                              const void *w, cublasLtMatrixLayout_t w_layout, const void *x,
                              cublasLtMatrixLayout_t x_layout, const void *beta, const void *c,
                              cublasLtMatrixLayout_t, void *d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t *algorithm, void *workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
    const auto p = *product;
    const auto wl = *w_layout, xl = *x_layout, dl = *d_layout;
    const cublasLtMatmulAlgo_t expected = algorithm_for(p, wl, xl, dl);
    const bool flips = p.transposed_a == CUBLAS_OP_T;
    const uint64_t w_k = flips ? wl.rows : wl.columns, w_n = flips ? wl.columns : wl.rows;
    const float kept = *static_cast<const float *>(beta);
    const bool right = memcmp(&expected, algorithm, sizeof(expected)) == 0 &&
                       *static_cast<const float *>(alpha) == 1 && (kept == 0 || kept == 1) &&
                       c == d && w_k == xl.rows && dl.rows == w_n && dl.columns == xl.columns &&
                       wl.type == xl.type && (wl.type == dl.type || dl.type == CUDA_R_32F) &&
                       (p.epilogue == CUBLASLT_EPILOGUE_BIAS) == (p.bias != nullptr) && at_16(w) &&
                       at_16(x) && at_16(d) && at_16(p.bias) && workspace != nullptr &&
                       workspace_bytes >= qk::cuda::kLtWorkspaceBytes;
    if (!right) return CUBLAS_STATUS_INVALID_VALUE;
    if (state.fails) return CUBLAS_STATUS_EXECUTION_FAILED;
    ++state.products;
    mock::enqueue(stream, [=] {
        for (int64_t i = 0; i < int64_t(dl.columns); ++i) {
            for (int64_t r = 0; r < int64_t(dl.rows); ++r) {
                const int64_t at = i * dl.stride + r;
                float sum = kept == 0 ? 0 : value_at(dl.type, d, at);
                for (int64_t k = 0; k < int64_t(w_k); ++k) {
                    const int64_t from = flips ? r * wl.stride + k : k * wl.stride + r;
                    sum += value_at(wl.type, x, i * xl.stride + k) * value_at(wl.type, w, from);
                }
                if (p.bias != nullptr) sum += value_at(dl.type, p.bias, r);
                store(dl.type, d, at, sum);
            }
        }
    });
    return CUBLAS_STATUS_SUCCESS;
}

// In the place of the loader's (the linker's --wrap).
extern "C" {

void *__wrap_dlopen(const char *name, int) {
    state.names.push_back(name);
    return state.present && strcmp(name, state.name) == 0 ? &state : nullptr;
}

void *__wrap_dlsym(void *, const char *name) {
    if (strcmp(name, state.lacks) == 0) return nullptr;
#define QK_FAKE(function) \
    if (strcmp(name, #function) == 0) return reinterpret_cast<void *>(function);
    QK_FAKE(cublasLtCreate)
    QK_FAKE(cublasLtDestroy)
    QK_FAKE(cublasLtMatmul)
    QK_FAKE(cublasLtMatmulAlgoGetHeuristic)
    QK_FAKE(cublasLtMatmulDescCreate)
    QK_FAKE(cublasLtMatmulDescDestroy)
    QK_FAKE(cublasLtMatmulDescSetAttribute)
    QK_FAKE(cublasLtMatrixLayoutCreate)
    QK_FAKE(cublasLtMatrixLayoutDestroy)
    QK_FAKE(cublasLtMatrixLayoutSetAttribute)
    QK_FAKE(cublasLtMatmulPreferenceCreate)
    QK_FAKE(cublasLtMatmulPreferenceDestroy)
    QK_FAKE(cublasLtMatmulPreferenceSetAttribute)
#undef QK_FAKE
    return nullptr;
}

}  // extern "C"
