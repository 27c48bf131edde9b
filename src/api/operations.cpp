#include "op/operations.hpp"

#include "api/check.hpp"

extern "C" {

qk_status qk_quantize(qk_context *context, const qk_tensor *dense, qk_tensor *quantized) {
    QK_API_CONTEXT(context);
    return qk::compute(context, [&] { return qk::quantize(context, dense, quantized); });
}

qk_status qk_dequantize(qk_context *context, const qk_tensor *quantized, qk_tensor *dense) {
    QK_API_CONTEXT(context);
    return qk::compute(context, [&] { return qk::dequantize(context, quantized, dense); });
}

qk_status qk_repack(qk_context *context, const qk_tensor *from, qk_tensor *to) {
    QK_API_CONTEXT(context);
    return qk::compute(context, [&] { return qk::repack(context, from, to); });
}

qk_status qk_linear(qk_context *context, const qk_tensor *x, const qk_tensor *w,
                    const qk_tensor *bias, qk_tensor *y) {
    QK_API_CONTEXT(context);
    return qk::compute(context, [&] { return qk::linear(context, x, w, bias, y); });
}

qk_status qk_multiply(qk_context *context, const qk_product *products, int32_t count) {
    QK_API_CONTEXT(context);
    return qk::compute(context, [&] { return qk::multiply(context, products, count); });
}

qk_status qk_multiply_workspace(qk_context *context, const qk_product *products, int32_t count,
                                size_t *bytes) {
    QK_API_CONTEXT(context);
    QK_API_POINTER(context, bytes);
    return qk::multiply_workspace(context, products, count, bytes);
}

qk_status qk_explain(qk_context *context, const qk_product *product, qk_plan *plan) {
    QK_API_CONTEXT(context);
    QK_API_POINTER(context, product);
    QK_API_POINTER(context, plan);
    QK_CHECK(qk::is_growing_size(plan->struct_size), &context->error, ABI,
             "plan: struct_size is %u, accepted are 4 to 4096", plan->struct_size);
    qk_plan found = QK_PLAN_INIT;
    QK_TRY(qk::explain(context, product, &found));
    qk::fill_growing(found, plan);
    return QK_OK;
}

qk_status qk_linear_workspace(qk_context *context, const qk_tensor *w, int64_t m_max,
                              size_t *bytes) {
    QK_API_CONTEXT(context);
    QK_API_POINTER(context, bytes);
    return qk::linear_workspace(context, w, m_max, bytes);
}

}  // extern "C"
