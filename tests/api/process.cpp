// The process around the library: forks, signals, and threads that the system grants or refuses.
// Calls of the C library are counted, made to fail and delayed by the linker's --wrap.
#include <dirent.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "api/outputs.hpp"

namespace {

struct {
    std::atomic<int> created{0}, fail_after{INT32_MAX};
    std::atomic<size_t> least_stack{SIZE_MAX};
} g_threads;

// Between a waiter's look at its condition and its sleep: long enough for any signal that does not
// take the mutex to be lost.
struct {
    std::atomic<bool> on{false};
    std::atomic<int> signals{0}, widened{0}, lost{0};
} g_gap;

}  // namespace

extern "C" {
int __real_pthread_create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*main)(void *), void *argument) {
    size_t stack = 0;
    if (attributes != nullptr) pthread_attr_getstacksize(attributes, &stack);
    if (stack < g_threads.least_stack) g_threads.least_stack = stack;
    if (g_threads.created++ >= g_threads.fail_after) return EAGAIN;
    return __real_pthread_create(thread, attributes, main, argument);
}

int __real_pthread_cond_wait(pthread_cond_t *, pthread_mutex_t *);
int __wrap_pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *mutex) {
    if (!g_gap.on) return __real_pthread_cond_wait(condition, mutex);
    const int before = g_gap.signals;
    for (int i = 0; i < 20 && g_gap.signals == before; ++i) usleep(1000);
    ++g_gap.widened;
    timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 20;
    const int result = pthread_cond_timedwait(condition, mutex, &until);
    if (result == ETIMEDOUT) ++g_gap.lost;
    return 0;
}

int __real_pthread_cond_signal(pthread_cond_t *);
int __wrap_pthread_cond_signal(pthread_cond_t *condition) {
    const int result = __real_pthread_cond_signal(condition);
    ++g_gap.signals;
    return result;
}

int __real_pthread_cond_broadcast(pthread_cond_t *);
int __wrap_pthread_cond_broadcast(pthread_cond_t *condition) {
    const int result = __real_pthread_cond_broadcast(condition);
    ++g_gap.signals;
    return result;
}
}

namespace api {
namespace {

int32_t threads_of(const qk_context *context) {
    qk_context_info info = QK_CONTEXT_INFO_INIT;
    EXPECT_EQ(qk_context_describe(context, &info), QK_OK);
    return info.thread_count;
}

// Work enough for several threads.
qk_tensor_desc any_weight() {
    return weight_desc(QK_FORMAT_NF4, QK_LAYOUT_ROW, 601, 256, 32, QK_FORMAT_F16);
}

#if defined(__SANITIZE_THREAD__)
#define QK_SKIP_FORKS GTEST_SKIP() << "ThreadSanitizer ends a forked child that makes threads"
#elif defined(QK_EMULATED)
#define QK_SKIP_FORKS GTEST_SKIP() << "qemu 7.2 fails in a forked child that makes threads"
#else
#define QK_SKIP_FORKS (void)0
#endif

// AddressSanitizer holds locks while a thread starts, and a child forked then waits for them in
// its first free: there, the other threads must have gone to sleep.
void wait_for_started_threads() {
#if defined(__SANITIZE_ADDRESS__)
    for (bool all = false; !all; usleep(1000)) {
        all = true;
        for (const auto &task : std::filesystem::directory_iterator("/proc/self/task")) {
            if (task.path().filename() == std::to_string(getpid())) continue;
            std::string text;
            std::ifstream stat(task.path() / "stat");
            std::getline(stat, text);
            all = all && text.find(") S ") != std::string::npos;
        }
    }
#endif
}

// The child's exit code; a child that hangs dies of SIGALRM, and that is no code.
template <class Body>
::testing::AssertionResult child_succeeds(const Body &body) {
    const pid_t child = fork();
    if (child == 0) {
        alarm(60);
        _exit(body());
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure()
           << (WIFSIGNALED(status) ? "signal " : "exit code ")
           << (WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
}

TEST(Fork, AChildDestroysWhatItInherits) {
    QK_SKIP_FORKS;
    for (const int32_t threads : {1, 2, 4, 8}) {
        for (const bool has_run : {false, true}) {
            Allocator allocator;
            qk_context *const context = make_context(allocator, threads);
            if (has_run) outputs_of(context, any_weight());
            wait_for_started_threads();
            EXPECT_TRUE(child_succeeds([&] {
                qk_context_destroy(context);
                return allocator.live() == 0 ? 0 : 2;
            })) << threads
                << " threads";
            qk_context_destroy(context);
        }
    }
}

TEST(Fork, AChildMultipliesWithWorkersOfItsOwn) {
    QK_SKIP_FORKS;
    Allocator allocator;
    qk_context *const context = make_context(allocator, 4);
    const auto expected = outputs_of(context, any_weight());
    const auto same = [&] { return outputs_of(context, any_weight()) == expected; };
    wait_for_started_threads();
    EXPECT_TRUE(child_succeeds([&] {
        if (threads_of(context) != 1) return 2;  // none yet
        if (!same()) return 3;
        if (threads_of(context) != 4) return 4;
        wait_for_started_threads();
        // And its child, in turn.
        if (!child_succeeds([&] { return same() && threads_of(context) == 4 ? 0 : 5; })) return 5;
        if (!same()) return 6;
        qk_context_destroy(context);
        return allocator.live() == 0 ? 0 : 7;
    }));
    EXPECT_EQ(threads_of(context), 4);
    EXPECT_EQ(outputs_of(context, any_weight()), expected);
    qk_context_destroy(context);
}

// The context is in a call of another thread, its workers in a job, locks taken.
TEST(Fork, WhileAnotherThreadMultiplies) {
    QK_SKIP_FORKS;
    Allocator allocator;
    qk_context *const context = make_context(allocator, 4);
    const auto w_desc = any_weight();
    const auto x_desc = dense_desc(QK_FORMAT_F32, {3, 256});
    const auto y_desc = dense_desc(QK_FORMAT_F32, {3, 601});
    Planes w(w_desc, 0x33), x(x_desc), y(y_desc), fresh(y_desc);
    x.fill_dense(QK_FORMAT_F32);
    qk_tensor *const tensors[] = {wrap(context, w_desc, w), wrap(context, x_desc, x),
                                  wrap(context, y_desc, y), wrap(context, y_desc, fresh)};
    const auto multiply = [&](qk_tensor *to) {
        return qk_linear(context, tensors[1], tensors[0], nullptr, to);
    };
    ASSERT_EQ(multiply(tensors[2]), QK_OK);
    const auto expected = y.bytes[0];
    std::atomic<bool> stop{false};
    std::thread other([&] {
        while (!stop) EXPECT_EQ(multiply(tensors[2]), QK_OK);
    });
    for (int i = 0; i < 40 && !HasFailure(); ++i) {
        EXPECT_TRUE(child_succeeds([&] {
            if (multiply(tensors[3]) != QK_OK || fresh.bytes[0] != expected) return 2;
            qk_context_destroy(context);
            return 0;
        })) << i;
    }
    stop = true;
    other.join();
    for (qk_tensor *const tensor : tensors) qk_tensor_destroy(tensor);
    qk_context_destroy(context);
}

// ------------------------------------------------------------------------------------- signals

// Threads of this process beside the calling one, by the kernel's list.
template <class Each>
void for_other_threads(const Each &each) {
    DIR *const folder = opendir("/proc/self/task");
    while (const dirent *const entry = readdir(folder)) {
        const std::string id = entry->d_name;
        if (id[0] == '.' || id == std::to_string(getpid())) continue;
        each("/proc/self/task/" + id + "/");
    }
    closedir(folder);
}

std::atomic<int> g_handled{0};

TEST(Signals, NeverRunOnWorkers) {
    g_handled = 0;
    struct sigaction action = {}, before;
    action.sa_handler = [](int) { ++g_handled; };
    sigaction(SIGUSR1, &action, &before);
    Allocator allocator;
    sigset_t mask_before, mask_after, blocked, pending;
    pthread_sigmask(SIG_SETMASK, nullptr, &mask_before);
    qk_context *const context = make_context(allocator, 4);
    pthread_sigmask(SIG_SETMASK, nullptr, &mask_after);
    for (int number = 1; number < NSIG; ++number) {
        EXPECT_EQ(sigismember(&mask_before, number), sigismember(&mask_after, number)) << number;
    }
    // Blocked here, a signal to the process waits, unless a worker takes it.
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &blocked, nullptr);
    kill(getpid(), SIGUSR1);
    outputs_of(context, any_weight());
    EXPECT_EQ(g_handled, 0) << "a worker ran the program's handler";
    sigpending(&pending);
    EXPECT_EQ(sigismember(&pending, SIGUSR1), 1);
    pthread_sigmask(SIG_UNBLOCK, &blocked, nullptr);
    EXPECT_EQ(g_handled, 1);
    sigaction(SIGUSR1, &before, nullptr);
    qk_context_destroy(context);
}

TEST(Signals, WorkersBlockAllButTheirOwnFaults) {
#if defined(QK_EMULATED)
    GTEST_SKIP() << "/proc lists the emulator's own masks";
#endif
    Allocator allocator;
    qk_context *const context = make_context(allocator, 4);
    const auto is_worker = [](const std::string &folder) {  // not a sanitizer's thread
        std::string name;
        std::getline(std::ifstream(folder + "comm"), name);
        return name == "qk";
    };
    int named = 0;
    for (int i = 0; i < 1000 && named < 3; ++i) {  // they take their name as they start
        usleep(i == 0 ? 0 : 10000);
        named = 0;
        for_other_threads([&](const std::string &folder) { named += is_worker(folder); });
    }
    for_other_threads([&](const std::string &folder) {
        if (!is_worker(folder)) return;
        std::ifstream status(folder + "status");
        for (std::string line; std::getline(status, line);) {
            if (line.rfind("SigBlk:", 0) != 0) continue;
            const uint64_t mask = std::stoull(line.substr(7), nullptr, 16);
            for (const int number :
                 {SIGHUP,  SIGINT,    SIGQUIT, SIGABRT,  SIGUSR1, SIGUSR2,  SIGPIPE, SIGALRM,
                  SIGTERM, SIGCHLD,   SIGCONT, SIGTSTP,  SIGTTIN, SIGTTOU,  SIGURG,  SIGXCPU,
                  SIGXFSZ, SIGVTALRM, SIGPROF, SIGWINCH, SIGIO,   SIGRTMIN, SIGRTMAX}) {
                EXPECT_EQ(mask >> (number - 1) & 1, 1u) << "signal " << number;
            }
            // Blocked, a fault ends the process without asking the program's handler.
            for (const int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS}) {
                EXPECT_EQ(mask >> (number - 1) & 1, 0u) << "signal " << number;
            }
        }
    });
    EXPECT_EQ(named, 3) << "threads called qk";
    qk_context_destroy(context);
}

// ------------------------------------------------------------------------------------- threads

TEST(Threads, WorkersHaveAStackOfAStatedSize) {
    g_threads.least_stack = SIZE_MAX;
    Allocator allocator;
    qk_context_destroy(make_context(allocator, 4));
    EXPECT_GE(g_threads.least_stack, size_t{256} << 10);
#if !defined(QK_SANITIZED)
    EXPECT_LT(g_threads.least_stack, size_t{1} << 20);
#endif
}

TEST(Threads, WhatCouldNotBeHadIsSaid) {
    for (const int given : {0, 1, 2}) {
        g_threads.created = 0;
        g_threads.fail_after = given;
        Allocator allocator;
        qk_context *const context = make_context(allocator, 8);
        g_threads.fail_after = INT32_MAX;
        EXPECT_EQ(threads_of(context), given + 1);
        qk_context *const one = make_context(allocator, 1);
        EXPECT_EQ(outputs_of(context, any_weight()), outputs_of(one, any_weight()));
        qk_context_destroy(one);
        qk_context_destroy(context);
    }
}

// Every wait starts late: a signal that is sent without the mutex comes before it, and is lost.
TEST(Threads, NoWakeUpIsLost) {
    Allocator allocator;
    qk_context *const context = make_context(allocator, 3);
    // Tasks of a millisecond: the caller, out of tasks, waits for those of the workers.
#if defined(QK_EMULATED) || defined(QK_SANITIZED)
    constexpr int64_t m = 4;
    constexpr int rounds = 8;
#else
    constexpr int64_t m = 256;
    constexpr int rounds = 30;
#endif
    const auto w_desc = weight_desc(QK_FORMAT_NF4, QK_LAYOUT_ROW, 601, 1024, 64);
    const auto x_desc = dense_desc(QK_FORMAT_F32, {m, 1024});
    const auto y_desc = dense_desc(QK_FORMAT_F32, {m, 601});
    qk_tensor *const tensors[] = {create(context, w_desc), create(context, x_desc),
                                  create(context, y_desc)};
    g_gap.widened = g_gap.lost = 0;
    g_gap.on = true;
    for (int i = 0; i < rounds && g_gap.lost == 0; ++i) {
        usleep(3000);  // the workers have gone to sleep
        EXPECT_EQ(qk_linear(context, tensors[1], tensors[0], nullptr, tensors[2]), QK_OK);
    }
    g_gap.on = false;
    for (qk_tensor *const tensor : tensors) qk_tensor_destroy(tensor);
    EXPECT_EQ(g_gap.lost, 0);
    EXPECT_GT(g_gap.widened, 0);
    qk_context_destroy(context);
}

}  // namespace
}  // namespace api
