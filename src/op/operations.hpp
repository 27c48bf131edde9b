// What an operation means: check the operands, fill the arguments, pick a kernel, run it.
#pragma once
#include "object/tensor.hpp"

namespace qk {

Status quantize(qk_context *context, const qk_tensor *dense, qk_tensor *quantized);
Status dequantize(qk_context *context, const qk_tensor *quantized, qk_tensor *dense);
Status repack(qk_context *context, const qk_tensor *from, qk_tensor *to);
Status linear(qk_context *context, const qk_tensor *x, const qk_tensor *w, const qk_tensor *bias,
              qk_tensor *y);
// Lists of products: a caller of an older header has fewer fields in each.
Status multiply(qk_context *context, const qk_product *products, int32_t count);
Status multiply_workspace(qk_context *context, const qk_product *products, int32_t count,
                          size_t *bytes);
Status explain(qk_context *context, const qk_product *product, qk_plan *plan);
Status linear_workspace(qk_context *context, const qk_tensor *w, int64_t m_max, size_t *bytes);

}  // namespace qk
