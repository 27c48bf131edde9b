// How every entry point starts: a live context whose device can be reached, and no required pointer
// NULL; and what surrounds one that computes.
#pragma once
#include "base/growing.hpp"
#include "object/context.hpp"

#define QK_API_CONTEXT(context)           \
    QK_TRY(::qk::check_context(context)); \
    QK_TRY(::qk::check_reach(context))
#define QK_API_POINTER(context, pointer) \
    QK_CHECK((pointer) != nullptr, &(context)->error, NULL, #pointer ": is NULL")

namespace qk {

// Runs what computes floats or has tasks, in the default floating-point mode. Tasks that an
// executor left out make it fail. A call that is still marked was left by an exception or a jump
// out of a callback, or ran on another thread when this process was forked.
template <class Body>
static Status compute(qk_context *context, const Body &body) {
    const FloatScope floats(kDefaultFloats);
    if (context->is_computing && context->scratch != nullptr) scratch_reset(context->scratch);
    context->outside = floats.before();
    context->is_computing = true;
    context->executor.task_count = 0;
    const Status status = body();
    context->is_computing = false;
    const Executor &executor = context->executor;
    QK_CHECK(status != QK_OK || executor.task_count == 0, &context->error, DEVICE_FAULT,
             "executor: ran %d of %d tasks", executor.ran, executor.task_count);
    return status;
}

}  // namespace qk
