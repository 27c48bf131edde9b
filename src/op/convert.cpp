// quantize, dequantize and repack.
#include "backend/quantize_rule.hpp"
#include "op/checks.hpp"
#include "op/operations.hpp"

namespace qk {

Status dequantize(qk_context *context, const qk_tensor *quantized, qk_tensor *dense) {
    QK_TRY(check_operand(context, quantized, "quantized"));
    QK_TRY(check_output(context, dense, "dense"));
    QK_TRY(check_quantized_format(context, quantized, "quantized"));
    QK_TRY(check_dense_float(context, dense, "dense"));
    QK_TRY(check_same_shape(context, quantized, "quantized", dense, "dense"));
    QK_TRY(check_disjoint(context, dense, "dense", quantized, "quantized"));
    float folded[kFolded];
    const DequantizeArgs args = {weight_view(*quantized, folded), dense_view(*dense)};
    return run_kernel(context, dequantizers(*context->backend, args), args, "dequantize");
}

Status quantize(qk_context *context, const qk_tensor *dense, qk_tensor *quantized) {
    QK_TRY(check_operand(context, dense, "dense"));
    QK_TRY(check_output(context, quantized, "quantized"));
    QK_TRY(check_dense_float(context, dense, "dense"));
    QK_TRY(check_compact(context, dense, "dense"));
    QK_TRY(check_quantized_format(context, quantized, "quantized"));
    QK_CHECK(!quantized->shape.ordered, &context->error, UNSUPPORTED,
             "quantized: has an order of columns, and qk_quantize chooses none: quantize into a "
             "tensor without QK_TENSOR_ORDERED");
    QK_TRY(check_same_shape(context, dense, "dense", quantized, "quantized"));
    QK_TRY(check_disjoint(context, quantized, "quantized", dense, "dense"));
    const QuantizeArgs args = {dense_view(*dense), stored_view(*quantized)};
    const Shape &to = quantized->shape;
    const char *const also = to.has_minimum    ? " and minima"
                             : to.globals != 0 ? " and a GLOBAL plane"
                                               : "";
    const bool record = to.layout->record != nullptr;
    QK_CHECK(rule_of(args.to) != Rule::kNone, &context->error, UNSUPPORTED,
             "quantized: qk has no quantizer for %s with %s scales%s%s%s", to.format->name,
             to.scale_format->name, also, record ? " in layout " : "",
             record ? to.layout->name : "");
    return run_kernel(context, context->backend->quantize, args, "quantize");
}

static Status check_same_values(qk_context *context, const qk_tensor *from, const qk_tensor *to) {
    ErrorText *const error = &context->error;
    const Shape &a = from->shape, &b = to->shape;
    QK_CHECK(a.format == b.format, error, FORMAT, "from is %s, to is %s: repack keeps the format",
             a.format->name, b.format->name);
    QK_CHECK(a.scale_format == b.scale_format, error, FORMAT,
             "from has %s scales, to has %s: repack keeps them", a.scale_format->name,
             b.scale_format->name);
    // Any size of at least k means one group a row, unless groups straddle rows.
    const bool one_a_row = !a.geometry.flat && a.geometry.groups_per_row == 1;
    QK_CHECK(a.geometry.group_count == b.geometry.group_count &&
                 a.geometry.groups_per_row == b.geometry.groups_per_row &&
                 a.geometry.flat == b.geometry.flat &&
                 (a.geometry.group_size == b.geometry.group_size || one_a_row),
             error, SHAPE,
             "from has %lld groups of %lld%s, to has %lld of %lld%s: repack keeps the groups",
             (long long)a.geometry.group_count, (long long)a.geometry.group_size,
             a.geometry.flat ? " (flat)" : "", (long long)b.geometry.group_count,
             (long long)b.geometry.group_size, b.geometry.flat ? " (flat)" : "");
    QK_CHECK(a.second_group == b.second_group, error, SHAPE,
             "from nests %lld scales, to nests %lld: repack keeps them", (long long)a.second_group,
             (long long)b.second_group);
    QK_CHECK(a.has_minimum == b.has_minimum, error, FORMAT,
             "from and to differ in having minima: repack keeps them");
    const Record *const record = b.layout->record;
    QK_CHECK(record == nullptr || record->set_scale != nullptr, error, UNSUPPORTED,
             "to: qk reads the records of layout %s and does not write them", b.layout->name);
    QK_CHECK(a.globals == b.globals && a.divides == b.divides, error, FORMAT,
             "from and to differ in their GLOBAL plane: repack keeps it");
    QK_CHECK(a.ordered == b.ordered, error, FORMAT,
             "from has %s order of columns, to has %s: repack keeps it", a.ordered ? "an" : "no",
             b.ordered ? "one" : "none");
    QK_CHECK(!a.has_zero || b.has_zero, error, FORMAT,
             "from has zeros, to is symmetric and could not keep them");
    return QK_OK;
}

Status repack(qk_context *context, const qk_tensor *from, qk_tensor *to) {
    QK_TRY(check_operand(context, from, "from"));
    QK_TRY(check_output(context, to, "to"));
    QK_TRY(check_quantized_format(context, from, "from"));
    QK_TRY(check_quantized_format(context, to, "to"));
    QK_TRY(check_same_shape(context, from, "from", to, "to"));
    QK_TRY(check_same_values(context, from, to));
    QK_TRY(check_disjoint(context, to, "to", from, "from"));
    const RepackArgs args = {stored_view(*from), stored_view(*to)};
    return run_kernel(context, context->backend->repack, args, "repack");
}

}  // namespace qk
