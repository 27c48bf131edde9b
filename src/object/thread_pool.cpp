#include "object/thread_pool.hpp"

#include <atomic>

#include "base/float_mode.hpp"
#include "base/os.hpp"

namespace qk {
namespace {

// Spinning bridges the gap between two products of one token; sleeping spares the machine.
constexpr int32_t kSpins = 2000;

inline void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Several times what the kernels' frames and the C library need.
#if defined(QK_SANITIZED)
constexpr size_t kWorkerStack = size_t{4} << 20;  // sanitizers' frames are many times as large
#else
constexpr size_t kWorkerStack = size_t{256} << 10;
#endif

// Products of a task, at least. They take 2 to 4 us, of which handing a task to another thread,
// what it reads of this one's, and waiting for it take one.
constexpr int64_t kLeastTask = int64_t{1} << 17;

using Task = void (*)(void *argument, int32_t index);

}  // namespace

// A ticket is (job number << 32 | next task). Claiming compares and swaps the whole word after the
// job's fields were read, and the ticket is closed before those fields change, so a worker that
// wakes late can never run a task with another job's fields.
struct ThreadPool {
    std::atomic<uint64_t> ticket;
    std::atomic<Task> task;
    std::atomic<void *> argument;
    std::atomic<int32_t> task_count;
    std::atomic<int32_t> unfinished;
    std::atomic<bool> stopping;
    std::atomic<int32_t> sleepers;
    os::Mutex mutex;
    os::Condition job_posted, job_done;
    int64_t process;  // whose workers they are: a forked child has none
    int32_t wanted_workers, worker_count;
    os::Thread *workers;  // behind this struct, in the same allocation
};

namespace {

uint32_t job_of(uint64_t ticket) { return uint32_t(ticket >> 32); }

constexpr uint32_t kClosed = INT32_MAX;  // as next task: not below any task count

struct Done {
    int32_t tasks;
    bool last;  // of the job
};

// Runs tasks of job number `job` until none is left to claim. They are counted off together: each
// time that threads change one word in turns, it travels from one processor to the other.
Done work(ThreadPool *pool, uint32_t job) {
    Done done = {0, false};
    for (;;) {
        uint64_t ticket = pool->ticket.load(std::memory_order_acquire);
        const int32_t index = int32_t(uint32_t(ticket));
        const Task task = pool->task.load(std::memory_order_acquire);
        void *const argument = pool->argument.load(std::memory_order_acquire);
        const int32_t count = pool->task_count.load(std::memory_order_acquire);
        if (job_of(ticket) != job || index >= count) break;
        if (!pool->ticket.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel)) {
            continue;
        }
        task(argument, index);
        ++done.tasks;
    }
    if (done.tasks > 0) {
        done.last = pool->unfinished.fetch_sub(done.tasks, std::memory_order_acq_rel) == done.tasks;
    }
    return done;
}

// Returns the number of a job other than `seen`, or `seen` when the pool stops.
uint32_t wait_for_job(ThreadPool *pool, uint32_t seen) {
    for (int32_t spin = 0; spin < kSpins; ++spin) {
        const uint32_t job = job_of(pool->ticket.load(std::memory_order_acquire));
        if (job != seen) return job;
        relax();
    }
    os::lock(&pool->mutex);
    pool->sleepers.fetch_add(1);
    uint32_t job = seen;
    while ((job = job_of(pool->ticket.load())) == seen && !pool->stopping.load()) {
        os::wait(&pool->job_posted, &pool->mutex);
    }
    pool->sleepers.fetch_sub(1);
    os::unlock(&pool->mutex);
    return job;
}

void worker_main(void *argument) {
    ThreadPool *const pool = static_cast<ThreadPool *>(argument);
    set_float_mode(kDefaultFloats);  // not its creator's
    uint32_t seen = 0;
    while (!pool->stopping.load(std::memory_order_acquire)) {
        const uint32_t job = wait_for_job(pool, seen);
        if (job == seen) continue;
        if (work(pool, job).last) {
            os::lock(&pool->mutex);
            os::wake_one(&pool->job_done);
            os::unlock(&pool->mutex);
        }
        seen = job;
    }
}

// Puts a pool without workers into its first state and starts them, as many as can be had.
void start(ThreadPool *pool) {
    os::create(&pool->mutex);
    os::create(&pool->job_posted);
    os::create(&pool->job_done);
    pool->ticket.store(0);
    pool->sleepers.store(0);
    pool->stopping.store(false);
    pool->process = os::process();
    pool->worker_count = 0;
    while (pool->worker_count < pool->wanted_workers) {
        os::Thread *const worker = &pool->workers[pool->worker_count];
        *worker = {worker_main, pool, 0};
        if (!os::start(worker, kWorkerStack)) break;
        ++pool->worker_count;
    }
}

// Not where a forked child destroys what it inherited.
void stop(ThreadPool *pool) {
    os::lock(&pool->mutex);
    pool->stopping.store(true);
    os::wake_all(&pool->job_posted);
    os::unlock(&pool->mutex);
    for (int32_t i = 0; i < pool->worker_count; ++i) os::join(&pool->workers[i]);
    os::destroy(&pool->job_done);
    os::destroy(&pool->job_posted);
    os::destroy(&pool->mutex);
}

void run(void *opaque, int32_t task_count, Task task, void *argument) {
    ThreadPool *const pool = static_cast<ThreadPool *>(opaque);
    if (task_count <= 0) return;
    if (pool->worker_count == 0 || task_count == 1) {
        for (int32_t i = 0; i < task_count; ++i) task(argument, i);
        return;
    }
    // A forked child is known by its number, for which the system must be asked: where workers are
    // to be woken, and where those that should be awake took no task. The caller alone takes no
    // lock, so a lock that was held at the fork harms nothing.
    const bool asleep = pool->sleepers.load() > 0;
    if (asleep && pool->process != os::process()) start(pool);
    const uint64_t last = pool->ticket.load(std::memory_order_relaxed);
    // Jobs are numbered from 1 on; 0 is what workers have seen at their start.
    const uint32_t job = job_of(last) == UINT32_MAX ? 1 : job_of(last) + 1;
    pool->ticket.store(uint64_t(job_of(last)) << 32 | kClosed, std::memory_order_relaxed);
    pool->task.store(task, std::memory_order_release);
    pool->argument.store(argument, std::memory_order_release);
    pool->task_count.store(task_count, std::memory_order_release);
    pool->unfinished.store(task_count, std::memory_order_relaxed);
    pool->ticket.store(uint64_t(job) << 32);  // sequentially consistent with `sleepers` below
    if (pool->sleepers.load() > 0) {
        os::lock(&pool->mutex);
        os::wake_all(&pool->job_posted);
        os::unlock(&pool->mutex);
    }
    if (work(pool, job).tasks == task_count) {
        if (!asleep && pool->process != os::process()) start(pool);
        return;
    }
    for (int32_t spin = 0; spin < kSpins && pool->unfinished.load() > 0; ++spin) relax();
    if (pool->unfinished.load(std::memory_order_acquire) == 0) return;
    os::lock(&pool->mutex);
    while (pool->unfinished.load(std::memory_order_acquire) > 0) {
        os::wait(&pool->job_done, &pool->mutex);
    }
    os::unlock(&pool->mutex);
}

}  // namespace

ThreadPool *thread_pool_create(const qk_allocator &allocator, int32_t threads) {
    const size_t bytes = sizeof(ThreadPool) + sizeof(os::Thread) * size_t(threads - 1);
    void *const memory = allocator.allocate(allocator.user, bytes, 64);
    if (memory == nullptr) return nullptr;
    ThreadPool *const pool = static_cast<ThreadPool *>(memory);
    __builtin_memset(memory, 0, bytes);
    pool->workers = reinterpret_cast<os::Thread *>(pool + 1);
    pool->wanted_workers = threads - 1;
    start(pool);
    return pool;
}

void thread_pool_destroy(const qk_allocator &allocator, ThreadPool *pool) {
    if (pool == nullptr) return;
    if (pool->process == os::process()) stop(pool);
    allocator.release(allocator.user, pool);
}

Parallel thread_pool_parallel(ThreadPool *pool) {
    return {run, pool, pool->worker_count + 1, kLeastTask};
}

int32_t thread_pool_threads(const ThreadPool *pool) {
    return pool->process == os::process() ? pool->worker_count + 1 : 1;
}

}  // namespace qk
