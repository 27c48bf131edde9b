// The caller's threads. What runs there is the caller's code around qk's tasks: it finds the
// floating-point mode it left, and each task runs in qk's, once.
#pragma once
#include "backend/backend.hpp"
#include "base/float_mode.hpp"

namespace qk {

struct Executor {
    qk_executor given;
    const FloatMode *outside;  // of the thread in the call
    int32_t task_count, ran;   // of the first job of the call that was left unfinished, else 0
};

// `executor` must outlive what is returned.
Parallel executor_parallel(Executor *executor);

}  // namespace qk
