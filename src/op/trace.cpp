#include "op/trace.hpp"

#include <time.h>

namespace qk {

double seconds_now() {
    timespec now = {};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return double(now.tv_sec) + double(now.tv_nsec) * 1e-9;
}

void tell_trace(qk_context *context, const qk_trace &call) {
    const FloatScope floats(callbacks_mode(*context));
    context->trace(context->trace_user, &call);
}

}  // namespace qk
