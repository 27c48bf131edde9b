#include "op/checks.hpp"

namespace qk {
namespace {

using ll = long long;

}  // namespace

Status check_operand(qk_context *context, const qk_tensor *tensor, const char *name) {
    ErrorText *const error = &context->error;
    QK_CHECK(tensor != nullptr, error, NULL, "%s: is NULL", name);
    QK_CHECK(check_tensor(tensor) == QK_OK, error, STATE, "%s: is not a live tensor", name);
    const qk_context *const home = tensor->context;
    QK_CHECK(home->backend == context->backend && home->device.index == context->device.index,
             error, DEVICE_MIX, "%s: lives on %s:%d, the context on %s:%d", name,
             home->backend->name, home->device.index, context->backend->name,
             context->device.index);
    return QK_OK;
}

Status check_output(qk_context *context, const qk_tensor *tensor, const char *name) {
    QK_TRY(check_operand(context, tensor, name));
    QK_CHECK((tensor->desc.flags & QK_TENSOR_READ_ONLY) == 0, &context->error, STATE,
             "%s: is read-only", name);
    for (int32_t i = 0; i < QK_PLANE_COUNT; ++i) {
        if (tensor->shape.plane_bytes[i] == 0) continue;  // most, in a call of microseconds
        for (int32_t j = 0; j < i; ++j) {
            QK_CHECK(!overlap(tensor->planes[i], tensor->shape.plane_bytes[i], tensor->planes[j],
                              tensor->shape.plane_bytes[j]),
                     &context->error, STATE, "%s: its planes %d and %d overlap", name, j, i);
        }
    }
    return QK_OK;
}

Status check_disjoint(qk_context *context, const qk_tensor *output, const char *output_name,
                      const qk_tensor *input, const char *input_name) {
    for (int32_t i = 0; i < QK_PLANE_COUNT; ++i) {
        if (output->shape.plane_bytes[i] == 0) continue;
        for (int32_t j = 0; j < QK_PLANE_COUNT; ++j) {
            QK_CHECK(!overlap(output->planes[i], output->shape.plane_bytes[i], input->planes[j],
                              input->shape.plane_bytes[j]),
                     &context->error, STATE, "%s: plane %d overlaps plane %d of %s", output_name, i,
                     j, input_name);
        }
    }
    return QK_OK;
}

Status check_dense_float(qk_context *context, const qk_tensor *tensor, const char *name) {
    QK_CHECK(is_float(*tensor->shape.format), &context->error, FORMAT,
             "%s: is %s, accepted are f32, f16 and bf16", name, tensor->shape.format->name);
    return QK_OK;
}

Status check_quantized_format(qk_context *context, const qk_tensor *tensor, const char *name) {
    QK_CHECK(!is_dense(*tensor->shape.format), &context->error, FORMAT,
             "%s: is %s, a quantized format is needed", name, tensor->shape.format->name);
    return QK_OK;
}

Status check_same_shape(qk_context *context, const qk_tensor *a, const char *a_name,
                        const qk_tensor *b, const char *b_name) {
    QK_CHECK(a->shape.rows == b->shape.rows && a->shape.columns == b->shape.columns,
             &context->error, SHAPE, "%s is %lld x %lld, %s is %lld x %lld", a_name,
             ll(a->shape.rows), ll(a->shape.columns), b_name, ll(b->shape.rows),
             ll(b->shape.columns));
    return QK_OK;
}

}  // namespace qk
