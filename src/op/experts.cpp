#include "op/experts.hpp"

#include <stddef.h>

#include "base/growing.hpp"
#include "op/checks.hpp"

namespace qk {
namespace {

using ll = long long;

// The caller's description as this library knows it.
Status read_experts(qk_context *context, const qk_experts *given, qk_experts *experts) {
    constexpr uint32_t first_release = offsetof(qk_experts, reserved) + sizeof(uint32_t);
    ErrorText *const error = &context->error;
    QK_TRY(read_growing(given, first_release, "experts: ", experts, error));
    QK_CHECK((experts->flags & ~QK_EXPERTS_INTERLEAVED) == 0, error, ARGUMENT,
             "experts: flags are 0x%x, accepted are 0x%x", experts->flags, QK_EXPERTS_INTERLEAVED);
    QK_CHECK(experts->reserved == 0, error, ARGUMENT, "experts: reserved is %u, must be 0",
             experts->reserved);
    const qk_activation activation = experts->activation;
    QK_CHECK(activation >= QK_ACTIVATION_NONE && activation <= QK_ACTIVATION_SWIGLU_CLAMPED, error,
             ARGUMENT, "experts: activation is %d, accepted are %d to %d", activation,
             QK_ACTIVATION_NONE, QK_ACTIVATION_SWIGLU_CLAMPED);
    QK_CHECK(activation != QK_ACTIVATION_SWIGLU_CLAMPED || experts->limit > 0, error, ARGUMENT,
             "experts: limit is %g, must be above 0", double(experts->limit));
    return QK_OK;
}

// [t,top_k] without gaps.
Status check_routing(qk_context *context, const qk_tensor *tensor, const char *name,
                     qk_format format, const qk_tensor *y) {
    ErrorText *const error = &context->error;
    QK_TRY(check_operand(context, tensor, name));
    QK_CHECK(tensor->shape.format->id == format, error, FORMAT, "%s: is %s, accepted is %s", name,
             tensor->shape.format->name, find_format(format)->name);
    QK_CHECK(tensor->desc.rank == 2, error, SHAPE, "%s: has rank %d, accepted is [t,top_k]", name,
             tensor->desc.rank);
    QK_TRY(check_compact(context, tensor, name));
    return check_disjoint(context, y, "y", tensor, name);
}

bool is_shape(const qk_tensor *tensor, int64_t tokens, int64_t slots, int64_t columns) {
    const qk_tensor_desc &desc = tensor->desc;
    if (desc.rank == 2) return desc.shape[0] == tokens && desc.shape[1] == columns;
    return desc.rank == 3 && desc.shape[0] == tokens && desc.shape[1] == slots &&
           desc.shape[2] == columns;
}

Status check_rows(qk_context *context, const qk_tensor *tensor, const char *name, int64_t tokens,
                  int64_t slots, int64_t columns) {
    QK_CHECK(is_shape(tensor, tokens, slots, columns), &context->error, SHAPE,
             "%s: is %lld x %lld of rank %d, accepted are [%lld,%lld] and [%lld,%lld,%lld]", name,
             ll(tensor->shape.rows), ll(tensor->shape.columns), tensor->desc.rank, ll(tokens),
             ll(columns), ll(tokens), ll(slots), ll(columns));
    return QK_OK;
}

Status check_expert_bias(qk_context *context, const qk_product &p, int64_t count, int64_t n) {
    QK_TRY(check_operand(context, p.bias, "bias"));
    QK_TRY(check_dense_float(context, p.bias, "bias"));
    QK_CHECK(p.bias->shape.rows == count && p.bias->shape.columns == n, &context->error, SHAPE,
             "bias: is %lld x %lld, w has %lld experts of n %lld", ll(p.bias->shape.rows),
             ll(p.bias->shape.columns), ll(count), ll(n));
    QK_TRY(check_compact(context, p.bias, "bias"));
    return check_disjoint(context, p.y, "y", p.bias, "bias");
}

Status check_expert_weight(qk_context *context, const qk_product &p, const qk_experts &e) {
    const qk_tensor_desc &routing = e.expert->desc;
    QK_TRY(check_routing(context, e.weight, "weight", QK_FORMAT_F32, p.y));
    QK_CHECK(is_shape(e.weight, routing.shape[0], 0, routing.shape[1]), &context->error, SHAPE,
             "weight: is %lld x %lld, expert is %lld x %lld", ll(e.weight->shape.rows),
             ll(e.weight->shape.columns), ll(routing.shape[0]), ll(routing.shape[1]));
    QK_CHECK(p.y->desc.rank == 2, &context->error, SHAPE,
             "weight: needs y [t,n], which adds slots up; y has a row for each slot");
    return QK_OK;
}

}  // namespace

Status check_experts(qk_context *context, const qk_product &p) {
    ErrorText *const error = &context->error;
    qk_experts e;
    QK_TRY(read_experts(context, p.experts, &e));
    QK_CHECK((p.flags & QK_PRODUCT_TRANSPOSED) == 0, error, UNSUPPORTED,
             "flags: a product with experts cannot be transposed");
    const qk_tensor_desc &w = p.w->desc;
    QK_CHECK(w.rank == 3, error, SHAPE, "w: has rank %d, with experts it is [E,n,k]", w.rank);
    QK_TRY(check_routing(context, e.expert, "expert", QK_FORMAT_I32, p.y));
    const int64_t tokens = e.expert->desc.shape[0], slots = e.expert->desc.shape[1];
    const bool joins = e.activation != QK_ACTIVATION_NONE;
    QK_CHECK(!joins || w.shape[1] % 2 == 0, error, SHAPE,
             "w: n is %lld, must be even: half gate rows, half up rows", ll(w.shape[1]));
    QK_TRY(check_rows(context, p.x, "x", tokens, slots, w.shape[2]));
    QK_TRY(check_rows(context, p.y, "y", tokens, slots, joins ? w.shape[1] / 2 : w.shape[1]));
    const qk_format x = p.x->shape.format->id, y = p.y->shape.format->id;
    QK_CHECK(y == x || y == QK_FORMAT_F32, error, FORMAT,
             "y: is %s, x is %s: they must be equal, or y f32", p.y->shape.format->name,
             p.x->shape.format->name);
    if (p.bias != nullptr) QK_TRY(check_expert_bias(context, p, w.shape[0], w.shape[1]));
    return e.weight == nullptr ? QK_OK : check_expert_weight(context, p, e);
}

Experts experts_view(const qk_product &p) {
    qk_experts e;
    ErrorText unused;
    read_growing(p.experts, 0, "", &e, &unused);
    const qk_tensor &expert = *e.expert;
    return {expert.planes[QK_PLANE_DATA],
            e.weight == nullptr ? nullptr : e.weight->planes[QK_PLANE_DATA],
            expert.desc.shape[0],
            expert.desc.shape[1],
            p.w->desc.shape[0],
            p.x->desc.rank == 3,
            p.y->desc.rank == 2,
            (e.flags & QK_EXPERTS_INTERLEAVED) != 0,
            e.activation,
            e.limit,
            e.alpha,
            false};
}

}  // namespace qk
