// What an operation means: check the operands, fill the arguments, pick a kernel, run it.
#pragma once
#include "object/tensor.hpp"

namespace qk {

Status quantize(qk_context *context, const qk_tensor *dense, qk_tensor *quantized);
Status dequantize(qk_context *context, const qk_tensor *quantized, qk_tensor *dense);
Status repack(qk_context *context, const qk_tensor *from, qk_tensor *to);
Status linear(qk_context *context, const qk_tensor *x, const qk_tensor *w, const qk_tensor *bias,
              qk_tensor *y);
Status linear_workspace(qk_context *context, const qk_tensor *w, int64_t m_max, size_t *bytes);

}  // namespace qk
