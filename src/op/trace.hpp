// How operations run kernels: the context's trace, where there is one, is told of each.
#pragma once
#include "object/context.hpp"

namespace qk {

// What a qk_trace says of an operation's operands.
static inline void fill_shape(const LinearArgs &args, int64_t *shape) {
    shape[0] = args.x.rows, shape[1] = args.w.geometry.n, shape[2] = args.w.geometry.k;
}
static inline void fill_shape(const DequantizeArgs &args, int64_t *shape) {
    shape[0] = args.to.rows, shape[1] = args.to.columns;
}
static inline void fill_shape(const QuantizeArgs &args, int64_t *shape) {
    shape[0] = args.from.rows, shape[1] = args.from.columns;
}
static inline void fill_shape(const RepackArgs &args, int64_t *shape) {
    shape[0] = args.from.geometry.n, shape[1] = args.from.geometry.k;
}
static inline void fill_shape(const GatherArgs &args, int64_t *shape) {
    shape[0] = args.from.rows, shape[1] = args.from.columns;
}
static inline void fill_shape(const GruArgs &args, int64_t *shape) {
    shape[0] = args.steps, shape[1] = args.batch;
    shape[2] = args.cell->input_size, shape[3] = args.cell->hidden_size;
}

double seconds_now();
// Calls the context's trace as any callback: in the caller's floating-point mode.
void tell_trace(qk_context *context, const qk_trace &call);

template <class Args>
void tell_trace(qk_context *context, const Kernel<Args> &kernel, const Args &args,
                const char *operation, Status status, double seconds) {
    qk_trace call = {sizeof(qk_trace), status, operation, kernel.name, {}, seconds};
    fill_shape(args, call.shape);
    tell_trace(context, call);
}

template <class Args>
Status run_traced(qk_context *context, const Kernel<Args> &kernel, const Args &args,
                  const char *operation, const Launch &launch) {
    if (context->trace == nullptr) return kernel.run(args, launch);
    const double before = seconds_now();
    const Status status = kernel.run(args, launch);
    tell_trace(context, kernel, args, operation, status, seconds_now() - before);
    return status;
}

// Kernel::run_siblings. The trace is told of each that ran, with its share of the time.
template <class Args>
Status run_siblings_traced(qk_context *context, const Kernel<Args> &kernel,
                           const Args *const *cases, int32_t count, const char *operation,
                           int32_t *ran) {
    const Launch launch = make_launch(context);
    if (context->trace == nullptr) return kernel.run_siblings(cases, count, launch, ran);
    const double before = seconds_now();
    const Status status = kernel.run_siblings(cases, count, launch, ran);
    const double seconds = seconds_now() - before;
    for (int32_t i = 0; i < *ran; ++i) {
        tell_trace(context, kernel, *cases[i], operation, status, seconds / *ran);
    }
    return status;
}

template <class Args>
Status run_traced(qk_context *context, const Kernel<Args> &kernel, const Args &args,
                  const char *operation) {
    return run_traced(context, kernel, args, operation, make_launch(context));
}

}  // namespace qk
