// Checks that several operations share. Each fails with the argument's name in the sentence.
#pragma once
#include "object/tensor.hpp"
#include "op/trace.hpp"

namespace qk {

// A live tensor on the context's device.
Status check_operand(qk_context *context, const qk_tensor *tensor, const char *name);
// ... that may be written, and shares no byte with `input`.
Status check_output(qk_context *context, const qk_tensor *tensor, const char *name);
Status check_disjoint(qk_context *context, const qk_tensor *output, const char *output_name,
                      const qk_tensor *input, const char *input_name);

// Of dense tensors: rows of numbers, that may be apart; and such without anything between them.
Status check_row_major(qk_context *context, const qk_tensor *tensor, const char *name);
Status check_compact(qk_context *context, const qk_tensor *tensor, const char *name);

Status check_dense_float(qk_context *context, const qk_tensor *tensor, const char *name);
Status check_quantized_format(qk_context *context, const qk_tensor *tensor, const char *name);
Status check_same_shape(qk_context *context, const qk_tensor *a, const char *a_name,
                        const qk_tensor *b, const char *b_name);

// The weight of a product, and all of a product: y = x . transpose(w) + bias.
Status check_weight(qk_context *context, const qk_tensor *w);
Status check_product(qk_context *context, const qk_product &product);

// Runs the first kernel of the list that takes the case and fits the context's workspace.
template <class Args>
Status run_kernel(qk_context *context, const KernelList<Args> &list, const Args &args,
                  const char *operation) {
    const Device &device = context->device;
    const Kernel<Args> *const kernel = pick_within(list, args, device, context->workspace_bytes);
    if (kernel != nullptr) return run_traced(context, *kernel, args, operation);
    const Kernel<Args> *const best = pick(list, args, device);
    QK_CHECK(best != nullptr, &context->error, UNSUPPORTED, "qk_%s: no kernel on %s for this case",
             operation, context->backend->name);
    return fail(&context->error, QK_ERROR_WORKSPACE,
                "qk_%s: needs %zu bytes of workspace, the context has %zu", operation,
                workspace_of(*best, args, device), context->workspace_bytes);
}

}  // namespace qk
