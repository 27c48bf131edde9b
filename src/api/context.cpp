#include "api/check.hpp"

extern "C" {

qk_status qk_device_count(qk_device device, int32_t *count) {
    if (count == nullptr) return QK_ERROR_NULL;
    if (device != QK_DEVICE_CPU && device != QK_DEVICE_CUDA) return QK_ERROR_ARGUMENT;
    const qk::Backend *const backend = qk::find_backend(device);
    *count = backend == nullptr ? 0 : backend->device_count();
    return QK_OK;
}

qk_status qk_context_create(const qk_context_options *options, qk_context **out) {
    if (out == nullptr) return QK_ERROR_NULL;
    return qk::context_create(options, out);
}

void qk_context_destroy(qk_context *context) { qk::context_destroy(context); }

qk_status qk_context_set_stream(qk_context *context, void *stream) {
    QK_API_CONTEXT(context);
    context->stream = stream;
    return QK_OK;
}

qk_status qk_context_synchronize(qk_context *context) {
    QK_API_CONTEXT(context);
    return context->backend->synchronize(qk::make_launch(context));
}

qk_status qk_context_describe(const qk_context *context, qk_context_info *info) {
    QK_TRY(qk::check_context(context));
    if (info == nullptr) return QK_ERROR_NULL;
    if (!qk::is_growing_size(info->struct_size)) return QK_ERROR_ABI;
    qk::fill_growing(qk::context_info(*context), info);
    return QK_OK;
}

const char *qk_context_error(const qk_context *context) {
    return qk::check_context(context) == QK_OK ? context->error.text : "";
}

}  // extern "C"
