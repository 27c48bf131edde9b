// What every POSIX system answers alike; what they answer differently is in unix.hpp.
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#include <initializer_list>

#include "base/os.hpp"
#include "base/os/unix.hpp"

namespace qk::os {
namespace {

// Weights are read front to back, once a token: small pages cost a tenth of the memory's rate.
constexpr size_t kLargePage = size_t{2} << 20;

static_assert(sizeof(pthread_mutex_t) <= sizeof(Mutex) && alignof(pthread_mutex_t) <= 16);
static_assert(sizeof(pthread_cond_t) <= sizeof(Condition) && alignof(pthread_cond_t) <= 16);
static_assert(sizeof(pthread_t) <= sizeof(uintptr_t));

pthread_mutex_t *of(Mutex *mutex) { return reinterpret_cast<pthread_mutex_t *>(mutex->object); }
pthread_cond_t *of(Condition *condition) {
    return reinterpret_cast<pthread_cond_t *>(condition->object);
}

// Signals are the program's: its handlers run on its threads. Faults of a worker's own stay
// deliverable: blocked, they would end the process without asking the program's handler.
void block_signals(sigset_t *before) {
    sigset_t blocked;
    sigfillset(&blocked);
    for (const int fault : {SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP}) {
        sigdelset(&blocked, fault);
    }
    pthread_sigmask(SIG_SETMASK, &blocked, before);
}

bool set_stack(pthread_attr_t *attributes, size_t bytes) {
    const long least = sysconf(_SC_THREAD_STACK_MIN);  // glibc counts thread-local storage in
    return pthread_attr_setstacksize(attributes, bytes + (least > 0 ? size_t(least) : 0)) == 0;
}

void *run(void *argument) {
    const Thread *const thread = static_cast<const Thread *>(argument);
    name_thread("qk");
    thread->main(thread->argument);
    return nullptr;
}

bool start_with(const pthread_attr_t &attributes, Thread *thread) {
    pthread_t made;
    if (pthread_create(&made, &attributes, run, thread) != 0) return false;
    thread->handle = (uintptr_t)made;  // a number here, a pointer there
    return true;
}

}  // namespace

void *allocate(size_t bytes, size_t align) {
    void *pointer = nullptr;
    const bool large = bytes >= 2 * kLargePage;
    if (posix_memalign(&pointer, large && align < kLargePage ? kLargePage : align, bytes) != 0) {
        return nullptr;
    }
    if (large) advise_large_pages(pointer, bytes / kLargePage * kLargePage);
    return pointer;
}

void release(void *pointer) { free(pointer); }

int64_t process() { return getpid(); }

int64_t nanoseconds() {
    timespec now = {};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return int64_t{now.tv_sec} * 1000000000 + now.tv_nsec;
}

uintptr_t this_thread() { return (uintptr_t)pthread_self(); }
void yield() { sched_yield(); }

void create(Mutex *mutex) { pthread_mutex_init(of(mutex), nullptr); }
void destroy(Mutex *mutex) { pthread_mutex_destroy(of(mutex)); }
void lock(Mutex *mutex) { pthread_mutex_lock(of(mutex)); }
void unlock(Mutex *mutex) { pthread_mutex_unlock(of(mutex)); }
void create(Condition *condition) { pthread_cond_init(of(condition), nullptr); }
void destroy(Condition *condition) { pthread_cond_destroy(of(condition)); }
void wait(Condition *condition, Mutex *mutex) { pthread_cond_wait(of(condition), of(mutex)); }
void wake_one(Condition *condition) { pthread_cond_signal(of(condition)); }
void wake_all(Condition *condition) { pthread_cond_broadcast(of(condition)); }

bool start(Thread *thread, size_t stack_bytes) {
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes) != 0) return false;
    sigset_t before;
    block_signals(&before);
    const bool started = set_stack(&attributes, stack_bytes) && start_with(attributes, thread);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    pthread_attr_destroy(&attributes);
    return started;
}

void join(Thread *thread) { pthread_join((pthread_t)thread->handle, nullptr); }

}  // namespace qk::os
