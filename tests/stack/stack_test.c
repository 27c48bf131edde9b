/* Threads with 64 KiB of stack run every operation: as callers, as an executor's threads and, by
 * default attributes that small, beside the library's own workers. Below each stack and its guard
 * page is a watched block; results are those of a thread with much stack.
 *
 *     stack_test caller | workers | executor */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "operations.h"

enum {
    kStack = 64 << 10,
    kMostDepth = 28 << 10, /* of a call of qk; the rest is the C library's and the caller's */
    kWatched = 1 << 20,
    kFill = 0x5a,
    kThreads = 3
};

typedef struct Stack {
    unsigned char *watched, *low;
    size_t bytes;
} Stack;

static unsigned char *map(size_t bytes) {
    void *const at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) fail("mmap", "no memory");
    return at;
}

static void check_watched(const unsigned char *watched) {
    size_t changed = 0;
    for (size_t i = 0; i < kWatched; ++i) changed += watched[i] != kFill;
    if (changed == 0) return;
    printf("%zu bytes below a stack's guard page were overwritten\n", changed);
    exit(1);
}

static size_t least_stack(void) {
    const long least = sysconf(_SC_THREAD_STACK_MIN);
    return least > kStack ? (size_t)least : kStack;
}

static Stack make_stack(void) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = least_stack();
    unsigned char *const watched = map(kWatched + page + bytes);
    memset(watched, kFill, kWatched);
    if (mprotect(watched + kWatched, page, PROT_NONE) != 0) fail("mprotect", "refused");
    const Stack stack = {watched, watched + kWatched + page, bytes};
    return stack;
}

static pthread_t start_on(const Stack *stack, void *(*run)(void *), void *argument) {
    pthread_attr_t attributes;
    pthread_t thread;
    if (pthread_attr_init(&attributes) != 0 ||
        pthread_attr_setstack(&attributes, stack->low, stack->bytes) != 0 ||
        pthread_create(&thread, &attributes, run, argument) != 0) {
        fail("pthread_create", "no thread with so little stack");
    }
    pthread_attr_destroy(&attributes);
    return thread;
}

/* ---- how deep calls go: the stack below the caller is filled, then searched ------------------ */

static unsigned char *measured_low;
static struct {
    const char *call;
    size_t depth;
} depths[64];

static __attribute__((noinline)) void fill_stack(void) {
    unsigned char *const end = (unsigned char *)__builtin_frame_address(0) - 512;
    memset(measured_low, kFill, (size_t)(end - measured_low));
}

static __attribute__((noinline)) void note_depth(const char *call) {
    const unsigned char *const end = __builtin_frame_address(0), *at = measured_low;
    uint64_t filled, word;
    memset(&filled, kFill, sizeof(filled));
    for (; at < end; at += sizeof(word)) {
        memcpy(&word, at, sizeof(word));
        if (word != filled) break;
    }
    for (int i = 0; i < 64; ++i) {
        if (depths[i].call != NULL && strcmp(depths[i].call, call) != 0) continue;
        depths[i].call = call;
        if ((size_t)(end - at) > depths[i].depth) depths[i].depth = (size_t)(end - at);
        return;
    }
}

static const Watch kMeasure = {fill_stack, note_depth};

/* ---- callers --------------------------------------------------------------------------------- */

typedef struct Job {
    const qk_context_options *options;
    uint64_t digest;
} Job;

static void *run_job(void *argument) {
    Job *const job = argument;
    job->digest = every_operation(job->options, &kMeasure);
    return NULL;
}

static void check_caller(uint32_t instruction_sets) {
    qk_context_options options = QK_CONTEXT_OPTIONS_INIT;
    options.thread_count = 1;
    options.instruction_sets = instruction_sets;
    const uint64_t expected = every_operation(&options, NULL);
    const Stack stack = make_stack();
    Job job = {&options, 0};
    measured_low = stack.low;
    pthread_join(start_on(&stack, run_job, &job), NULL);
    check_watched(stack.watched);
    if (job.digest != expected) fail("caller", "other results than with much stack");
    printf("instruction sets %#x: digest %016llx\n", (unsigned)instruction_sets,
           (unsigned long long)expected);
}

static void callers(void) {
    check_caller(0);
#if defined(__aarch64__)
    const uint32_t caps[] = {QK_ISA_GENERIC, QK_ISA_NEON, QK_ISA_NEON | QK_ISA_DOTPROD};
#else
    const uint32_t caps[] = {QK_ISA_GENERIC, QK_ISA_AVX2, QK_ISA_AVX2 | QK_ISA_AVX512};
#endif
    for (size_t i = 0; i < sizeof(caps) / sizeof(caps[0]); ++i) check_caller(caps[i]);
    for (int i = 0; i < 64 && depths[i].call != NULL; ++i) {
        printf("%6zu bytes of stack: %s\n", depths[i].depth, depths[i].call);
        if (depths[i].depth > kMostDepth) fail(depths[i].call, "takes too much stack");
    }
    if (depths[10].call == NULL) fail("callers", "few calls were measured");
}

/* ---- qk's workers, in a process whose threads have little stack by default ------------------- */

static unsigned char *watched[16];
static int watched_count;

/* A context asks for memory right after it has made its threads: what is mapped then, the system
 * puts below the last stack and its guard. */
static void *allocate(void *user, size_t bytes, size_t align) {
    (void)user;
    if (watched_count < 16) {
        unsigned char *const block = map(kWatched);
        memset(block, kFill, kWatched);
        watched[watched_count++] = block;
    }
    void *pointer = NULL;
    return posix_memalign(&pointer, align, bytes) == 0 ? pointer : NULL;
}
static void release(void *user, void *pointer) {
    (void)user;
    free(pointer);
}

static void workers(void) {
    qk_context_options options = QK_CONTEXT_OPTIONS_INIT;
    options.thread_count = 1;
    const uint64_t expected = every_operation(&options, NULL);
    const qk_allocator allocator = {allocate, release, NULL};
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes) != 0 ||
        pthread_attr_setstacksize(&attributes, least_stack()) != 0 ||
        pthread_setattr_default_np(&attributes) != 0) {
        fail("workers", "no such default attributes");
    }
    options.thread_count = 2; /* one worker: its stack is the last one mapped */
    options.allocator = &allocator;
    for (int i = 0; i < 2; ++i, options.thread_count = 4) {
        if (every_operation(&options, NULL) != expected) fail("workers", "other results");
    }
    for (int i = 0; i < watched_count; ++i) check_watched(watched[i]);
}

/* ---- an executor's threads ------------------------------------------------------------------- */

typedef struct Share {
    Stack stack;
    void (*task)(void *argument, int32_t index);
    void *argument;
    int32_t first, count;
} Share;

static Share shares[kThreads];

static void *run_share(void *argument) {
    const Share *const share = argument;
    for (int32_t i = share->first; i < share->count; i += kThreads) share->task(share->argument, i);
    return NULL;
}

static void parallel_for(void *user, int32_t count, void (*task)(void *, int32_t), void *argument) {
    (void)user;
    pthread_t threads[kThreads];
    for (int32_t i = 0; i < kThreads; ++i) {
        shares[i].task = task;
        shares[i].argument = argument;
        shares[i].first = i;
        shares[i].count = count;
        threads[i] = start_on(&shares[i].stack, run_share, &shares[i]);
    }
    for (int32_t i = 0; i < kThreads; ++i) pthread_join(threads[i], NULL);
}

static void executors(void) {
    qk_context_options options = QK_CONTEXT_OPTIONS_INIT;
    options.thread_count = 1;
    const uint64_t expected = every_operation(&options, NULL);
    const qk_executor executor = {parallel_for, NULL, kThreads};
    options.executor = &executor;
    for (int i = 0; i < kThreads; ++i) shares[i].stack = make_stack();
    if (every_operation(&options, NULL) != expected) fail("executor", "other results");
    for (int i = 0; i < kThreads; ++i) check_watched(shares[i].stack.watched);
}

int main(int count, char **arguments) {
    const char *const who = count == 2 ? arguments[1] : "";
    if (strcmp(who, "caller") == 0) {
        callers();
    } else if (strcmp(who, "workers") == 0) {
        workers();
    } else if (strcmp(who, "executor") == 0) {
        executors();
    } else {
        fail("stack_test", "caller, workers or executor?");
    }
    return 0;
}
