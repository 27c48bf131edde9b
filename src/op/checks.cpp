#include "op/checks.hpp"

#include "op/experts.hpp"

namespace qk {
namespace {

using ll = long long;

// A plane as equally long lines of bytes, equally far apart.
struct Lines {
    uintptr_t first;
    int64_t count, stride, bytes;
};

Lines lines_of(const qk_tensor &tensor, int32_t plane) {
    const Shape &shape = tensor.shape;
    const uintptr_t first = uintptr_t(tensor.planes[plane]);
    const Dense a = dense_view(tensor);
    if (!is_dense(*shape.format) || is_compact(a)) return {first, 1, 0, shape.plane_bytes[plane]};
    const int64_t size = shape.format->bits / 8;
    if (shape.column_major) return {first, a.columns, shape.stride * size, a.rows * size};
    return {first, a.rows, shape.stride * size, a.columns * size};
}

// Whether a line of `many` has a byte of `bytes` from `line` on. The last one that begins before
// their end is the one to ask.
bool meets(const Lines &many, uintptr_t line, int64_t bytes) {
    const int64_t start = int64_t(uint64_t(line) - uint64_t(many.first)), end = start + bytes;
    if (end <= 0) return false;
    const int64_t last = many.count == 1 ? 0 : min64((end - 1) / many.stride, many.count - 1);
    return last * many.stride + many.bytes > start;
}

// Interleaved slices of one array share no byte though their planes cross.
bool share_bytes(const qk_tensor &a, int32_t a_plane, const qk_tensor &b, int32_t b_plane) {
    Lines few = lines_of(a, a_plane), many = lines_of(b, b_plane);
    if (few.count > many.count) {
        const Lines fewer = many;
        many = few, few = fewer;
    }
    for (int64_t i = 0; i < few.count; ++i) {
        if (meets(many, few.first + uintptr_t(i * few.stride), few.bytes)) return true;
    }
    return false;
}

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
                              input->shape.plane_bytes[j]) ||
                         !share_bytes(*output, i, *input, j),
                     &context->error, STATE, "%s: plane %d overlaps plane %d of %s", output_name, i,
                     j, input_name);
        }
    }
    return QK_OK;
}

Status check_row_major(qk_context *context, const qk_tensor *tensor, const char *name) {
    QK_CHECK(!tensor->shape.column_major, &context->error, UNSUPPORTED,
             "%s: is column-major, which only the output of qk_dequantize may be", name);
    return QK_OK;
}

Status check_compact(qk_context *context, const qk_tensor *tensor, const char *name) {
    if (!is_dense(*tensor->shape.format)) return QK_OK;
    QK_TRY(check_row_major(context, tensor, name));
    QK_CHECK(is_compact(dense_view(*tensor)), &context->error, UNSUPPORTED,
             "%s: has a row_stride of %lld; x and y of a product and the output of qk_dequantize "
             "may have one",
             name, ll(tensor->shape.stride));
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

Status check_weight(qk_context *context, const qk_tensor *w) {
    QK_TRY(check_operand(context, w, "w"));
    QK_CHECK(w->shape.format->kind != FormatKind::kInteger, &context->error, FORMAT,
             "w: is %s, accepted are float and quantized formats", w->shape.format->name);
    QK_CHECK(w->shape.rows >= 1, &context->error, SHAPE, "w: has no rows, must have at least 1");
    return QK_OK;
}

namespace {

Status check_shapes(qk_context *context, const qk_tensor *x, const qk_tensor *w, const qk_tensor *y,
                    bool transposed) {
    ErrorText *const error = &context->error;
    const Shape &a = x->shape, &b = w->shape, &c = y->shape;
    const char in = transposed ? 'n' : 'k', out = transposed ? 'k' : 'n';  // columns of x and y
    const int64_t w_in = transposed ? b.rows : b.columns, w_out = transposed ? b.columns : b.rows;
    QK_CHECK(w_in == a.columns, error, SHAPE, "w: %c is %lld, x has %c %lld", in, ll(w_in), in,
             ll(a.columns));
    QK_CHECK(c.rows == a.rows, error, SHAPE, "y: m is %lld, x has m %lld", ll(c.rows), ll(a.rows));
    QK_CHECK(c.columns == w_out, error, SHAPE, "y: %c is %lld, w has %c %lld", out, ll(c.columns),
             out, ll(w_out));
    QK_CHECK(c.format == a.format || c.format->id == QK_FORMAT_F32, error, FORMAT,
             "y: is %s, x is %s: they must be equal, or y f32", c.format->name, a.format->name);
    return QK_OK;
}

Status check_bias(qk_context *context, const qk_tensor *bias, const qk_tensor *y, bool transposed) {
    QK_TRY(check_operand(context, bias, "bias"));
    QK_TRY(check_dense_float(context, bias, "bias"));
    QK_CHECK(bias->shape.rows == 1 && bias->shape.columns == y->shape.columns, &context->error,
             SHAPE, "bias: is %lld x %lld, y has %c %lld", ll(bias->shape.rows),
             ll(bias->shape.columns), transposed ? 'k' : 'n', ll(y->shape.columns));
    QK_TRY(check_compact(context, bias, "bias"));
    return check_disjoint(context, y, "y", bias, "bias");
}

}  // namespace

Status check_product(qk_context *context, const qk_product &p) {
    const bool transposed = (p.flags & QK_PRODUCT_TRANSPOSED) != 0;
    QK_TRY(check_operand(context, p.x, "x"));
    QK_TRY(check_weight(context, p.w));
    QK_TRY(check_output(context, p.y, "y"));
    QK_TRY(check_dense_float(context, p.x, "x"));
    QK_TRY(check_dense_float(context, p.y, "y"));
    QK_TRY(check_row_major(context, p.x, "x"));
    QK_TRY(check_row_major(context, p.y, "y"));
    QK_TRY(check_compact(context, p.w, "w"));
    if (p.experts == nullptr) QK_TRY(check_shapes(context, p.x, p.w, p.y, transposed));
    QK_TRY(check_disjoint(context, p.y, "y", p.x, "x"));
    QK_TRY(check_disjoint(context, p.y, "y", p.w, "w"));
    if (p.experts != nullptr) return check_experts(context, p);
    return p.bias == nullptr ? QK_OK : check_bias(context, p.bias, p.y, transposed);
}

}  // namespace qk
