#include "op/trace.hpp"

#include "base/os.hpp"

namespace qk {

double seconds_now() { return double(os::nanoseconds()) * 1e-9; }

void tell_trace(qk_context *context, const qk_trace &call) {
    const FloatScope floats(callbacks_mode(*context));
    context->trace(context->trace_user, &call);
}

}  // namespace qk
