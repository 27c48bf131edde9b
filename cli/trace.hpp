// QK_TRACE=1 in the environment: a line on stderr for each kernel that a context runs. The library
// reads no environment; the command and the benches do.
#pragma once
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "qk.h"

// qk trace: multiply 16 x 4096 x 4096, avx512 batch, 812.4 us
inline void print_trace(void *, const qk_trace *call) {
    fprintf(stderr, "qk trace: %s %lld", call->operation, (long long)call->shape[0]);
    for (int i = 1; i < 4 && call->shape[i] > 0; ++i) {
        fprintf(stderr, " x %lld", (long long)call->shape[i]);
    }
    fprintf(stderr, ", %s, %.1f us%s%s\n", call->kernel, call->seconds * 1e6,
            call->status == QK_OK ? "" : ", ",
            call->status == QK_OK ? "" : qk_status_string(call->status));
}

inline void trace_if_asked(qk_context_options *options) {
    const char *const asked = getenv("QK_TRACE");
    if (asked != nullptr && strcmp(asked, "1") == 0) options->trace = print_trace;
}
