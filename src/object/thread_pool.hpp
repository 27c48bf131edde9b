// qk's own threads: persistent workers that spin for a moment after a job, then sleep. One job at a
// time, from one caller; the caller works too.
#pragma once
#include <stdint.h>

#include "backend/backend.hpp"
#include "qk.h"

namespace qk {

struct ThreadPool;

// `threads` counts the caller: 1 makes no workers. Fewer workers than asked for are no failure;
// null means no memory.
ThreadPool *thread_pool_create(const qk_allocator &allocator, int32_t threads);
void thread_pool_destroy(const qk_allocator &allocator, ThreadPool *pool);
Parallel thread_pool_parallel(ThreadPool *pool);

int32_t usable_cores();  // what this process may run on, at least 1

}  // namespace qk
