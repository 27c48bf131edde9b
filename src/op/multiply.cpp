// Products, y = x . transpose(w) + bias, one or a list: checked, planned, run.
#include <stddef.h>
#include <stdio.h>

#include <initializer_list>

#include "base/growing.hpp"
#include "op/checks.hpp"
#include "op/experts.hpp"
#include "op/operations.hpp"

namespace qk {
namespace {

using ll = long long;

constexpr int64_t kGatherAlignment = 256;  // of what a kernel finds behind gathered x

// A product that has been checked, as kernels see it, and what runs it.
struct Planned {
    LinearArgs args;
    Dense bias;
    float folded[kFolded];
    const void *order;  // of w's columns; null: x is read as it is
    Experts experts;    // args.experts points here, where w has them
    LinearPlan plan;
};

// What x takes at the start of the workspace once it is gathered in the order of w's columns. Where
// tasks have working memory, a block of it holds what fits.
size_t gathered_bytes(const qk_context &context, const Dense &x) {
    int64_t bytes = 0;
    if (__builtin_mul_overflow(x.rows, x.columns * (x.format->bits / 8), &bytes) ||
        bytes > INT64_MAX - kGatherAlignment) {
        return SIZE_MAX / 2;
    }
    if (context.scratch != nullptr && bytes <= int64_t(kScratchBytes)) return 0;
    return size_t(round_up(bytes, kGatherAlignment));
}

// Where x has no rows, y has none, and no kernel is asked.
constexpr Kernel<LinearArgs> kNothing = {
    "nothing", nullptr, nullptr, [](const LinearArgs &, const Launch &) { return Status{QK_OK}; }};

// An object with a name: GCC for aarch64 keeps the image of one without among writable data.
constexpr LinearPlan kPlanOfNothing = {&kNothing, 0, &kNothing, 0};

LinearPlan plan_nothing(Explanation *explanation) {
    if (explanation != nullptr) *explanation = {};
    return kPlanOfNothing;
}

LinearPlan plan(const qk_context &context, const Planned &product, Explanation *explanation) {
    const LinearArgs &args = product.args;
    if (args.x.rows == 0) return plan_nothing(explanation);
    const size_t gathered = product.order == nullptr ? 0 : gathered_bytes(context, args.x);
    const bool fits = gathered <= context.workspace_bytes;
    const Allowance allowed = {context.flags, fits ? context.workspace_bytes - gathered : 0,
                               context.parallel.concurrency};
    LinearPlan plan = context.backend->plan_linear(args, context.device, allowed, explanation);
    plan.workspace_bytes += gathered;
    plan.fastest_bytes += gathered;
    if (!fits) plan.kernel = nullptr;
    return plan;
}

// Kernels multiply columns as they are stored. Where w has an order, x is gathered first, and is
// then as well aligned as the workspace; transposed products write y by the order.
void set_operands(const Dense &x, const Weight &w, const Dense &y, uint32_t flags, Planned *out) {
    // Field by field: one copy of the whole costs 25 ns a call.
    out->args.x = x;
    out->args.w = w;
    out->args.bias = nullptr;
    out->args.y = y;
    out->args.transposed = (flags & QK_PRODUCT_TRANSPOSED) != 0;
    out->args.accumulate = (flags & QK_PRODUCT_ACCUMULATE) != 0;
    out->args.experts = nullptr;
    out->order = nullptr;
    if (w.order == nullptr || out->args.transposed || x.rows == 0) return;
    out->order = w.order;
    out->args.w.order = nullptr;
    out->args.x.data = nullptr;
    out->args.x.stride = 0;
}

void fill_arguments(const qk_product &p, Planned *out) {
    set_operands(dense_view(*p.x), weight_view(*p.w, out->folded), dense_view(*p.y), p.flags, out);
    if (p.bias != nullptr) {
        out->bias = dense_view(*p.bias);
        out->args.bias = &out->bias;
    }
    if (p.experts == nullptr) return;
    out->experts = experts_view(p);
    out->args.experts = &out->experts;
}

void plan_product(const qk_context &context, const qk_product &p, Explanation *explanation,
                  Planned *out) {
    fill_arguments(p, out);
    out->plan = plan(context, *out, explanation);
}

bool same_class(const qk_context &context, Planned product, int64_t m, const Explanation &as) {
    Explanation there = {};
    product.args.x.rows = product.args.y.rows = m;
    plan(context, product, &there);
    return there.batch_first == as.batch_first && there.batch_last == as.batch_last;
}

// Gathered x of more rows leaves kernels less of the workspace. What its class may be with what is
// left at both of its ends, it is between them; otherwise these rows are one of their own.
void clip_class(const qk_context &context, const Planned &product, Explanation *explanation) {
    if (product.order == nullptr) return;
    const Dense &x = product.args.x;
    const int64_t row_bytes = x.columns * (x.format->bits / 8);
    const int64_t fit = int64_t(context.workspace_bytes & (SIZE_MAX >> 1)) / row_bytes;
    const int64_t last = min64(explanation->batch_last, max64(fit, x.rows));
    if (same_class(context, product, explanation->batch_first, *explanation) &&
        same_class(context, product, last, *explanation)) {
        return;
    }
    explanation->batch_first = explanation->batch_last = int32_t(min64(x.rows, INT32_MAX));
}

Status check_plan(qk_context *context, const LinearArgs &args, const LinearPlan &plan) {
    if (plan.kernel != nullptr) return QK_OK;
    QK_CHECK(plan.fastest != nullptr || args.experts == nullptr, &context->error, UNSUPPORTED,
             "experts: %s has no kernel for them", context->backend->name);
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
    return check_plan(context, out->args, out->plan);
}

Status run_gathered(qk_context *context, const Dense &x, void *gathered, Planned *product,
                    const Launch &launch) {
    LinearArgs &args = product->args;
    args.x.data = gathered;
    const GatherArgs gather = {x, args.x, product->order};
    const Kernel<GatherArgs> &kernel = *context->backend->gather;
    QK_TRY(run_traced(context, kernel, gather, "gather", launch));
    return run_traced(context, *product->plan.kernel, args, "multiply", launch);
}

Status run(qk_context *context, const qk_product &given, Planned *product) {
    Launch launch = make_launch(context);
    if (product->order == nullptr) {
        return run_traced(context, *product->plan.kernel, product->args, "multiply", launch);
    }
    const Dense x = dense_view(*given.x);
    const size_t bytes = gathered_bytes(*context, x);
    if (bytes == 0) {
        void *const block = scratch_take(context->scratch);
        const Status status = run_gathered(context, x, block, product, launch);
        scratch_give(context->scratch, block);
        return status;
    }
    launch.workspace = static_cast<char *>(launch.workspace) + bytes;
    launch.workspace_bytes -= bytes;
    return run_gathered(context, x, context->workspace, product, launch);
}

// The caller's product as this library knows it.
Status read_product(qk_context *context, const void *given, qk_product *product) {
    constexpr uint32_t first_release = offsetof(qk_product, y) + sizeof(qk_tensor *);
    constexpr uint32_t known = QK_PRODUCT_TRANSPOSED | QK_PRODUCT_ACCUMULATE;
    ErrorText *const error = &context->error;
    QK_TRY(read_growing(given, first_release, "", product, error));
    QK_CHECK((product->flags & ~known) == 0, error, ARGUMENT, "flags: are 0x%x, accepted are 0x%x",
             product->flags, known);
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

// Whether the product in front, whose y has been found to be elsewhere, has the same routing.
bool same_routing(const Experts &e, const Experts &in_front) {
    return e.expert == in_front.expert && e.tokens == in_front.tokens && e.slots == in_front.slots;
}

// Puts the product's name in front of a failure's sentence.
Status named(qk_context *context, int32_t index, Status status) {
    if (status == QK_OK) return QK_OK;
    const ErrorText sentence = context->error;
    return fail(&context->error, status, "products[%d]: %s", index, sentence.text);
}

// Products from number `first` on that have its kernel, and its x or experts, where the kernel runs
// several of them together: `ran` of them, or 0. `kernels`: of the products before number `end`.
Status run_siblings(qk_context *context, const qk_product *products,
                    const Kernel<LinearArgs> *const *kernels, int32_t first, int32_t end,
                    int32_t *ran) {
    Planned planned[kSiblings];
    const LinearArgs *cases[kSiblings];
    const Kernel<LinearArgs> *const kernel = kernels[first];
    int32_t count = 0;
    *ran = 0;
    if (kernel->run_siblings == nullptr) return QK_OK;
    while (count < kSiblings && first + count < end && kernels[first + count] == kernel) {
        qk_product product;
        QK_TRY(named(context, first + count,
                     read_product_at(context, products, first + count, &product)));
        Planned &next = planned[count];
        fill_arguments(product, &next);
        const bool one_x = next.args.x.data == planned[0].args.x.data;
        if (next.order != nullptr || (!one_x && next.args.experts == nullptr)) break;
        cases[count++] = &next.args;
    }
    if (count < 2) return QK_OK;
    return named(context, first,
                 run_siblings_traced(context, *kernel, cases, count, "multiply", ran));
}

LinearPlan plan_at(const qk_context &context, const qk_tensor &w, const Format *format, int64_t m) {
    Planned product;
    set_operands({format, m, w.shape.columns, nullptr}, weight_view(w, product.folded),
                 {format, m, w.shape.rows, nullptr}, 0, &product);
    return plan(context, product, nullptr);
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
    const qk_product product = {sizeof(qk_product), 0, x, w, bias, y, nullptr};
    QK_TRY(check_and_plan(context, product, nullptr, &planned));
    return run(context, product, &planned);
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
    if (count == 1) return named(context, 0, run(context, product, &planned));
    Experts in_front = {};
    for (int32_t i = 0; i < count; ++i) {
        const int32_t kept = count < kKept ? count : kKept;
        int32_t ran = 0;
        if (i < kept) QK_TRY(run_siblings(context, products, kernels, i, kept, &ran));
        if (ran > 0) {
            in_front = {};
            i += ran - 1;
            continue;
        }
        QK_TRY(named(context, i, read_product_at(context, products, i, &product)));
        fill_arguments(product, &planned);
        if (product.experts != nullptr) {
            planned.experts.routed_early = same_routing(planned.experts, in_front);
            in_front = planned.experts;
        } else {
            in_front = {};
        }
        planned.plan.kernel = i < kKept ? kernels[i] : plan(*context, planned, nullptr).kernel;
        QK_TRY(named(context, i, run(context, product, &planned)));
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
    if (product.experts == nullptr) clip_class(*context, planned, &explanation);
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
