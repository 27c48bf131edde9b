// qk's own threads: persistent workers that spin for a moment after a job, then sleep. One job at a
// time, from one caller; the caller works too. A forked child inherits the pool without its workers
// and starts its own with the first job.
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
int32_t thread_pool_threads(const ThreadPool *pool);  // that run in this process, the caller's too

}  // namespace qk
