// y = x . transpose(w) + bias.
#include <initializer_list>

#include "op/checks.hpp"
#include "op/operations.hpp"

namespace qk {
namespace {

using ll = long long;

Status check_weight(qk_context *context, const qk_tensor *w) {
    QK_TRY(check_operand(context, w, "w"));
    QK_CHECK(w->shape.format->kind != FormatKind::kInteger, &context->error, FORMAT,
             "w: is %s, accepted are float and quantized formats", w->shape.format->name);
    return QK_OK;
}

Status check_shapes(qk_context *context, const qk_tensor *x, const qk_tensor *w,
                    const qk_tensor *y) {
    ErrorText *const error = &context->error;
    const Shape &a = x->shape, &b = w->shape, &c = y->shape;
    QK_CHECK(b.columns == a.columns, error, SHAPE, "w: k is %lld, x has k %lld", ll(b.columns),
             ll(a.columns));
    QK_CHECK(c.rows == a.rows, error, SHAPE, "y: m is %lld, x has m %lld", ll(c.rows), ll(a.rows));
    QK_CHECK(c.columns == b.rows, error, SHAPE, "y: n is %lld, w has n %lld", ll(c.columns),
             ll(b.rows));
    QK_CHECK(c.format == a.format, error, FORMAT, "y: is %s, x is %s: they must be equal",
             c.format->name, a.format->name);
    return QK_OK;
}

Status check_bias(qk_context *context, const qk_tensor *bias, const qk_tensor *y) {
    QK_TRY(check_operand(context, bias, "bias"));
    QK_TRY(check_dense_float(context, bias, "bias"));
    QK_CHECK(bias->shape.rows == 1 && bias->shape.columns == y->shape.columns, &context->error,
             SHAPE, "bias: is %lld x %lld, y has n %lld", ll(bias->shape.rows),
             ll(bias->shape.columns), ll(y->shape.columns));
    return check_disjoint(context, y, "y", bias, "bias");
}

LinearPlan plan(const qk_context &context, const LinearArgs &args, Explanation *explanation) {
    const Backend &backend = *context.backend;
    const Allowance allowed = {context.flags, context.workspace_bytes};
    return backend.plan_linear != nullptr
               ? backend.plan_linear(args, context.device, allowed, explanation)
               : plan_by_lists(backend, args, context.device, allowed, explanation);
}

Status run(qk_context *context, const LinearArgs &args) {
    const LinearPlan planned = plan(*context, args, nullptr);
    if (planned.kernel != nullptr) return planned.kernel->run(args, make_launch(context));
    QK_CHECK(planned.fastest != nullptr, &context->error, UNSUPPORTED,
             "qk_linear: no kernel on %s for this case", context->backend->name);
    return fail(&context->error, QK_ERROR_WORKSPACE,
                "qk_linear: needs %zu bytes of workspace, the context has %zu",
                planned.fastest_bytes, context->workspace_bytes);
}

LinearPlan plan_at(const qk_context &context, const qk_tensor &w, const Format *format, int64_t m) {
    return plan(context,
                {{format, m, w.shape.columns, nullptr},
                 weight_view(w),
                 nullptr,
                 {format, m, w.shape.rows, nullptr}},
                nullptr);
}

// The largest need of low .. high rows. A kernel's own grows with m; where the next one takes over
// it may fall, so the last m of each counts.
size_t largest_need(const qk_context &context, const qk_tensor &w, const Format *format,
                    int64_t low, int64_t high) {
    const LinearPlan first = plan_at(context, w, format, low);
    const LinearPlan last = plan_at(context, w, format, high);
    if (first.fastest == last.fastest || high - low < 2) {
        return first.fastest_bytes > last.fastest_bytes ? first.fastest_bytes : last.fastest_bytes;
    }
    const int64_t middle = low + (high - low) / 2;
    const size_t below = largest_need(context, w, format, low, middle);
    const size_t above = largest_need(context, w, format, middle, high);
    return below > above ? below : above;
}

}  // namespace

Status linear(qk_context *context, const qk_tensor *x, const qk_tensor *w, const qk_tensor *bias,
              qk_tensor *y) {
    QK_TRY(check_operand(context, x, "x"));
    QK_TRY(check_weight(context, w));
    QK_TRY(check_output(context, y, "y"));
    QK_TRY(check_dense_float(context, x, "x"));
    QK_TRY(check_dense_float(context, y, "y"));
    QK_TRY(check_shapes(context, x, w, y));
    QK_TRY(check_disjoint(context, y, "y", x, "x"));
    QK_TRY(check_disjoint(context, y, "y", w, "w"));
    Dense bias_view = {};
    if (bias != nullptr) {
        QK_TRY(check_bias(context, bias, y));
        bias_view = dense_view(*bias);
    }
    const LinearArgs args = {dense_view(*x), weight_view(*w),
                             bias != nullptr ? &bias_view : nullptr, dense_view(*y)};
    return run(context, args);
}

Status linear_workspace(qk_context *context, const qk_tensor *w, int64_t m_max, size_t *bytes) {
    QK_TRY(check_weight(context, w));
    QK_CHECK(m_max >= 1, &context->error, SHAPE, "m_max: is %lld, must be at least 1", ll(m_max));
    size_t largest = 0;
    for (const qk_format id : {QK_FORMAT_F32, QK_FORMAT_F16, QK_FORMAT_BF16}) {
        const Format *const format = find_format(id);
        for (int64_t low = 1, high = 1;; low = high, high = low > m_max / 2 ? m_max : low * 2) {
            const size_t needed = largest_need(*context, *w, format, low, high);
            if (needed > largest) largest = needed;
            if (high == m_max) break;
        }
    }
    *bytes = largest;
    return QK_OK;
}

}  // namespace qk
