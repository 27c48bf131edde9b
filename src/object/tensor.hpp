// What a qk_tensor points to: a checked description and the address of each plane.
#pragma once
#include "backend/weight.hpp"
#include "object/context.hpp"

struct qk_tensor {
    uint32_t magic;
    std::atomic<int64_t> references;  // the handle, and every DLPack view of it
    qk_context *context;
    qk_tensor_desc desc;  // grouping resolved
    qk::Shape shape;
    void *planes[QK_PLANE_COUNT];
    void *storage;        // owned planes, null where they are borrowed
    void *borrowed_from;  // with `release_borrowed`: called when the last user lets go
    void (*release_borrowed)(void *borrowed_from);
};

namespace qk {

constexpr uint32_t kTensorMagic = 0x716b5453;  // 'qkTS'

// The layout behind QK_LAYOUT_PACKED on this context's device for the description's format.
Status resolve_on(qk_context *context, const qk_tensor_desc &desc, Shape *shape);

Status tensor_create(qk_context *context, const qk_tensor_desc &desc, qk_tensor **out);
Status tensor_wrap(qk_context *context, const qk_tensor_desc &desc, void *const *planes,
                   int32_t plane_count, qk_tensor **out);
Status tensor_wrap_sized(qk_context *context, const qk_tensor_desc &desc, const qk_span *planes,
                         int32_t plane_count, qk_tensor **out);
void tensor_retain(qk_tensor *tensor);
void tensor_release(qk_tensor *tensor);
void tensor_destroy(qk_tensor *tensor);

Status check_tensor(const qk_tensor *tensor);
// Whether its format does, even if it is DATA of no rows.
bool has_plane(const qk_tensor &tensor, qk_plane plane);

// Views for kernels.
Dense dense_view(const qk_tensor &tensor);
Weight stored_view(const qk_tensor &tensor);  // of planes that are moved but not decoded
// `folded`: room for the scale codes of a tensor on the CPU whose GLOBAL number divides.
constexpr int64_t kFolded = 256;
Weight weight_view(const qk_tensor &tensor, float *folded);

// Whole-plane copies between host and the tensor's device.
Status tensor_upload(qk_context *context, qk_tensor *tensor, qk_plane plane, const void *host,
                     size_t bytes);
Status tensor_download(qk_context *context, const qk_tensor *tensor, qk_plane plane, void *host,
                       size_t bytes);

}  // namespace qk
