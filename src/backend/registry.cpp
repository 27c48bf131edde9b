#include "backend/registry.hpp"
#include "backend/backend.hpp"

namespace qk {

static const Backend *const kBackends[] = {
    &kCpuBackend,
#if defined(QK_WITH_CUDA)
    &kCudaBackend,
#endif
    nullptr,
};

const Backend *backend_at(int32_t index) { return kBackends[index]; }

const Backend *find_backend(qk_device device) {
    for (int32_t i = 0; kBackends[i] != nullptr; ++i) {
        if (kBackends[i]->device == device) return kBackends[i];
    }
    return nullptr;
}

}  // namespace qk
