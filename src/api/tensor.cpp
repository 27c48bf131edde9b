#include "object/tensor.hpp"

#include <string.h>

#include "api/check.hpp"

namespace {

// Transfers take a tensor that may be destroyed or missing; the sentence names it.
qk_status check_argument(qk_context *context, const qk_tensor *tensor) {
    QK_API_POINTER(context, tensor);
    QK_CHECK(qk::check_tensor(tensor) == QK_OK, &context->error, STATE,
             "tensor: is not a live tensor");
    return QK_OK;
}

}  // namespace

extern "C" {

qk_status qk_tensor_plane_bytes(const qk_tensor_desc *desc, qk_plane plane, size_t *bytes) {
    if (desc == nullptr || bytes == nullptr) return QK_ERROR_NULL;
    if (plane < 0 || plane >= QK_PLANE_COUNT) return QK_ERROR_ARGUMENT;
    qk_tensor_desc read;
    QK_TRY(qk::read_desc(desc, &read, nullptr));
    if (read.layout == QK_LAYOUT_PACKED) return QK_ERROR_UNSUPPORTED;
    qk::Shape shape;
    QK_TRY(qk::resolve(read, QK_LAYOUT_PACKED, &shape, nullptr));
    if (uint64_t(shape.plane_bytes[plane]) > SIZE_MAX) return QK_ERROR_SHAPE;
    *bytes = size_t(shape.plane_bytes[plane]);
    return QK_OK;
}

qk_status qk_tensor_create(qk_context *context, const qk_tensor_desc *desc, qk_tensor **out) {
    QK_API_CONTEXT(context);
    QK_API_POINTER(context, desc);
    QK_API_POINTER(context, out);
    qk_tensor_desc read;
    QK_TRY(qk::read_desc(desc, &read, &context->error));
    return qk::tensor_create(context, read, out);
}

qk_status qk_tensor_wrap(qk_context *context, const qk_tensor_desc *desc, void *const *planes,
                         int32_t plane_count, qk_tensor **out) {
    QK_API_CONTEXT(context);
    QK_API_POINTER(context, desc);
    QK_API_POINTER(context, planes);
    QK_API_POINTER(context, out);
    qk_tensor_desc read;
    QK_TRY(qk::read_desc(desc, &read, &context->error));
    return qk::tensor_wrap(context, read, planes, plane_count, out);
}

qk_status qk_tensor_wrap_sized(qk_context *context, const qk_tensor_desc *desc,
                               const qk_span *planes, int32_t plane_count, qk_tensor **out) {
    QK_API_CONTEXT(context);
    QK_API_POINTER(context, desc);
    QK_API_POINTER(context, planes);
    QK_API_POINTER(context, out);
    qk_tensor_desc read;
    QK_TRY(qk::read_desc(desc, &read, &context->error));
    return qk::tensor_wrap_sized(context, read, planes, plane_count, out);
}

qk_status qk_tensor_describe(const qk_tensor *tensor, qk_tensor_desc *desc) {
    if (tensor == nullptr || desc == nullptr) return QK_ERROR_NULL;
    QK_TRY(qk::check_tensor(tensor));
    if (!qk::is_growing_size(desc->struct_size)) return QK_ERROR_ABI;
    qk::fill_growing(tensor->desc, desc);
    return QK_OK;
}

qk_status qk_tensor_upload(qk_context *context, qk_tensor *tensor, qk_plane plane, const void *host,
                           size_t bytes) {
    QK_API_CONTEXT(context);
    QK_TRY(check_argument(context, tensor));
    return qk::tensor_upload(context, tensor, plane, host, bytes);
}

qk_status qk_tensor_download(qk_context *context, const qk_tensor *tensor, qk_plane plane,
                             void *host, size_t bytes) {
    QK_API_CONTEXT(context);
    QK_TRY(check_argument(context, tensor));
    return qk::tensor_download(context, tensor, plane, host, bytes);
}

void qk_tensor_destroy(qk_tensor *tensor) { qk::tensor_destroy(tensor); }

}  // extern "C"
