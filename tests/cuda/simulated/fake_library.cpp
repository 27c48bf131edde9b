#include "cuda/simulated/fake_library.hpp"

#include "base/half.hpp"
#include "cuda/runtime.hpp"

namespace fake_library {
State state;
}

using fake_library::state;

static float value_at(qk_format type, const void *data, int64_t i) {
    switch (type) {
        case QK_FORMAT_F16: return qk::f32_from_f16(static_cast<const uint16_t *>(data)[i]);
        case QK_FORMAT_BF16: return qk::f32_from_bf16(static_cast<const uint16_t *>(data)[i]);
        default: return static_cast<const float *>(data)[i];
    }
}

static void store(qk_format type, void *data, int64_t i, float value) {
    switch (type) {
        case QK_FORMAT_F16: static_cast<uint16_t *>(data)[i] = qk::f16_from_f32(value); break;
        case QK_FORMAT_BF16: static_cast<uint16_t *>(data)[i] = qk::bf16_from_f32(value); break;
        default: static_cast<float *>(data)[i] = value;
    }
}

namespace qk::cuda {

void *lt_open(int32_t, size_t workspace_bytes) {
    if (!state.present || workspace_bytes < kLtWorkspaceBytes) return nullptr;
    ++state.open;
    return &state;
}

void lt_close(int32_t, void *) { --state.open; }

static void multiply(const LtProduct &p) {
    for (int64_t i = 0; i < p.m; ++i) {
        for (int64_t r = 0; r < p.n; ++r) {
            float sum = 0;
            for (int64_t c = 0; c < p.k; ++c) {
                sum += value_at(p.type, p.x, i * p.k + c) * value_at(p.type, p.w, r * p.k + c);
            }
            if (p.bias != nullptr) sum += value_at(p.type, p.bias, r);
            store(p.type, p.d, i * p.d_stride + r, sum);
        }
    }
}

Status lt_multiply(void *, const LtProduct &p, const Launch &launch) {
    ++state.asked;
    if (state.refuses) return QK_ERROR_UNSUPPORTED;
    ++state.products;
    if (state.status == QK_OK) mock::enqueue(stream_of(launch), [p] { multiply(p); });
    return state.status;
}

}  // namespace qk::cuda
