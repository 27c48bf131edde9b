// Work split into tasks. No result depends on the split: a row, or a group, is computed whole by
// one task.
#pragma once
#include "backend/backend.hpp"

namespace qk::cpu {
namespace {

template <class Body>
struct Split {
    const Body *body;
    int64_t count, per_task;

    static void task(void *argument, int32_t index) {
        const Split &self = *static_cast<const Split *>(argument);
        const int64_t first = index * self.per_task;
        (*self.body)(first, min64(first + self.per_task, self.count));
    }
};

// Calls body(first, last) over 0 .. count in ranges that are multiples of `block` long.
template <class Body>
inline void parallel_ranges(const Parallel &parallel, int64_t count, int64_t block,
                            const Body &body) {
    const int64_t blocks = ceil_div(count, block);
    const int64_t most = min64(int64_t(parallel.concurrency) * 4, INT32_MAX);
    const int64_t tasks = min64(blocks, most);
    if (parallel.concurrency <= 1 || tasks <= 1) return body(int64_t{0}, count);
    Split<Body> split{&body, count, ceil_div(blocks, tasks) * block};
    parallel.run(parallel.pool, int32_t(ceil_div(count, split.per_task)), Split<Body>::task,
                 &split);
}

}  // namespace
}  // namespace qk::cpu
