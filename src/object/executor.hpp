// The caller's threads. The caller's code there finds the floating-point mode that it left; each
// task runs once, in qk's mode.
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
