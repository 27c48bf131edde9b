#include "object/executor.hpp"

#include <atomic>

namespace qk {
namespace {

constexpr int32_t kMostAtOnce = 4096;  // tasks that an executor is given together

using Task = void (*)(void *argument, int32_t index);

// One call of parallel_for.
struct Job {
    Task task;
    void *argument;
    int32_t first, count;  // tasks first .. first + count - 1
    std::atomic<int32_t> ran;
    std::atomic<uint64_t> claimed[kMostAtOnce / 64];

    bool claim(int32_t index) {
        if (index < 0 || index >= count) return false;
        const uint64_t bit = uint64_t{1} << (index % 64);
        return (claimed[index / 64].fetch_or(bit, std::memory_order_relaxed) & bit) == 0;
    }
};

void run_task(void *opaque, int32_t index) {
    Job &job = *static_cast<Job *>(opaque);
    if (!job.claim(index)) return;
    {
        const FloatScope floats(kDefaultFloats);
        job.task(job.argument, job.first + index);
    }
    job.ran.fetch_add(1, std::memory_order_release);
}

void run(void *opaque, int32_t task_count, Task task, void *argument) {
    Executor &executor = *static_cast<Executor *>(opaque);
    int32_t ran = 0;
    for (int32_t first = 0; first < task_count; first += kMostAtOnce) {
        const int32_t left = task_count - first;
        Job job = {task, argument, first, left < kMostAtOnce ? left : kMostAtOnce, {}, {}};
        {
            const FloatScope floats(*executor.outside);
            executor.given.parallel_for(executor.given.user, job.count, run_task, &job);
        }
        ran += job.ran.load(std::memory_order_acquire);
    }
    if (ran == task_count || executor.task_count != 0) return;
    executor.task_count = task_count;
    executor.ran = ran;
}

}  // namespace

Parallel executor_parallel(Executor *executor) {
    return {run, executor, executor->given.concurrency};
}

}  // namespace qk
