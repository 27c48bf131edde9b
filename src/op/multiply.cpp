// Products, y = x . transpose(w) + bias, one or a list: checked, planned, run.
#include <stdio.h>
#include <string.h>

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

Status check_product(qk_context *context, const qk_product &p) {
    QK_TRY(check_operand(context, p.x, "x"));
    QK_TRY(check_weight(context, p.w));
    QK_TRY(check_output(context, p.y, "y"));
    QK_TRY(check_dense_float(context, p.x, "x"));
    QK_TRY(check_dense_float(context, p.y, "y"));
    QK_TRY(check_shapes(context, p.x, p.w, p.y));
    QK_TRY(check_disjoint(context, p.y, "y", p.x, "x"));
    QK_TRY(check_disjoint(context, p.y, "y", p.w, "w"));
    return p.bias == nullptr ? QK_OK : check_bias(context, p.bias, p.y);
}

LinearPlan plan(const qk_context &context, const LinearArgs &args, Explanation *explanation) {
    const Allowance allowed = {context.flags, context.workspace_bytes};
    return context.backend->plan_linear(args, context.device, allowed, explanation);
}

// A product that has been checked, as kernels see it, and what runs it.
struct Planned {
    LinearArgs args;
    Dense bias;
    float folded[kFolded];
    LinearPlan plan;
};

void fill_arguments(const qk_product &p, Planned *out) {
    // Field by field: one copy of the whole costs 25 ns a call.
    out->args.x = dense_view(*p.x);
    out->args.w = weight_view(*p.w, out->folded);
    out->args.bias = nullptr;
    out->args.y = dense_view(*p.y);
    if (p.bias != nullptr) {
        out->bias = dense_view(*p.bias);
        out->args.bias = &out->bias;
    }
}

void plan_product(const qk_context &context, const qk_product &p, Explanation *explanation,
                  Planned *out) {
    fill_arguments(p, out);
    out->plan = plan(context, out->args, explanation);
}

Status check_plan(qk_context *context, const LinearPlan &plan) {
    if (plan.kernel != nullptr) return QK_OK;
    QK_CHECK(plan.fastest != nullptr, &context->error, UNSUPPORTED, "w: %s has no kernel for it",
             context->backend->name);
    return fail(&context->error, QK_ERROR_WORKSPACE,
                "workspace: the product needs %zu bytes, the context has %zu", plan.fastest_bytes,
                context->workspace_bytes);
}

Status check_and_plan(qk_context *context, const qk_product &p, Explanation *explanation,
                      Planned *out) {
    QK_TRY(check_product(context, p));
    plan_product(*context, p, explanation, out);
    return check_plan(context, out->plan);
}

Status run(qk_context *context, const Planned &product) {
    return run_traced(context, *product.plan.kernel, product.args, "multiply");
}

// The caller's product as this library knows it: one of an older header has fewer fields, one of a
// newer header more, which must be 0.
Status read_product(qk_context *context, const void *given, qk_product *product) {
    constexpr uint32_t first_release = offsetof(qk_product, y) + sizeof(qk_tensor *);
    constexpr uint32_t largest = 4096, known = sizeof(qk_product), step = alignof(qk_product);
    ErrorText *const error = &context->error;
    uint32_t size;
    memcpy(&size, given, sizeof size);
    QK_CHECK(size >= first_release && size <= largest && size % step == 0, error, ABI,
             "struct_size: is %u, accepted are %u to %u in steps of %u", size, first_release,
             largest, step);
    memset(product, 0, known);
    memcpy(product, given, size < known ? size : known);
    const char *const bytes = static_cast<const char *>(given);
    for (uint32_t i = known; i < size; ++i) {
        QK_CHECK(bytes[i] == 0, error, ABI, "byte %u: is set, this library knows %u bytes", i,
                 known);
    }
    QK_CHECK(product->flags == 0, error, ARGUMENT, "flags: are 0x%x, accepted is 0",
             product->flags);
    return QK_OK;
}

// One of a list, whose products are as far apart as the caller's header has them.
Status read_product_at(qk_context *context, const qk_product *products, int32_t index,
                       qk_product *product) {
    const uint32_t size = products->struct_size;
    const char *const first = reinterpret_cast<const char *>(products);
    QK_TRY(read_product(context, first + index * int64_t{size}, product));
    QK_CHECK(product->struct_size == size, &context->error, ABI,
             "struct_size: is %u, that of products[0] is %u", product->struct_size, size);
    return QK_OK;
}

Status check_list(qk_context *context, const qk_product *products, int32_t count) {
    QK_CHECK(count >= 0, &context->error, ARGUMENT, "count: is %d, must be at least 0", count);
    QK_CHECK(count == 0 || products != nullptr, &context->error, NULL, "products: is NULL");
    return QK_OK;
}

// Puts the product's name in front of a failure's sentence.
Status named(qk_context *context, int32_t index, Status status) {
    if (status == QK_OK) return QK_OK;
    const ErrorText sentence = context->error;
    return fail(&context->error, status, "products[%d]: %s", index, sentence.text);
}

LinearPlan plan_at(const qk_context &context, const qk_tensor &w, const Format *format, int64_t m) {
    float folded[kFolded];
    return plan(context,
                {{format, m, w.shape.columns, nullptr},
                 weight_view(w, folded),
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
    Planned planned;
    QK_TRY(check_and_plan(context, {sizeof(qk_product), 0, x, w, bias, y}, nullptr, &planned));
    return run(context, planned);
}

// All are checked before the first one runs.
Status multiply(qk_context *context, const qk_product *products, int32_t count) {
    constexpr int32_t kKept = 64;  // a longer list plans the products past these twice
    const Kernel<LinearArgs> *kernels[kKept];
    QK_TRY(check_list(context, products, count));
    qk_product product;
    Planned planned;
    for (int32_t i = 0; i < count; ++i) {
        QK_TRY(named(context, i, read_product_at(context, products, i, &product)));
        QK_TRY(named(context, i, check_and_plan(context, product, nullptr, &planned)));
        if (i < kKept) kernels[i] = planned.plan.kernel;
    }
    if (count == 1) return named(context, 0, run(context, planned));
    for (int32_t i = 0; i < count; ++i) {
        QK_TRY(named(context, i, read_product_at(context, products, i, &product)));
        fill_arguments(product, &planned);
        planned.plan.kernel = i < kKept ? kernels[i] : plan(*context, planned.args, nullptr).kernel;
        QK_TRY(named(context, i, run(context, planned)));
    }
    return QK_OK;
}

Status multiply_workspace(qk_context *context, const qk_product *products, int32_t count,
                          size_t *bytes) {
    QK_TRY(check_list(context, products, count));
    size_t largest = 0;
    for (int32_t i = 0; i < count; ++i) {
        qk_product product;
        Planned planned;
        QK_TRY(named(context, i, read_product_at(context, products, i, &product)));
        QK_TRY(named(context, i, check_product(context, product)));
        plan_product(*context, product, nullptr, &planned);
        if (planned.plan.fastest_bytes > largest) largest = planned.plan.fastest_bytes;
    }
    *bytes = largest;
    return QK_OK;
}

Status explain(qk_context *context, const qk_product *given, qk_plan *plan) {
    qk_product product;
    Planned planned;
    Explanation explanation = {};
    QK_TRY(read_product(context, given, &product));
    QK_TRY(check_and_plan(context, product, &explanation, &planned));
    plan->batch_first = explanation.batch_first;
    plan->batch_last = explanation.batch_last;
    plan->workspace_bytes = planned.plan.workspace_bytes;
    plan->kernel = planned.plan.kernel->name;
    snprintf(plan->reason, sizeof plan->reason, "%s", explanation.reason);
    return QK_OK;
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
