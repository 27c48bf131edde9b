/* Weights in the memory of the processors that read them, on machines with several memories (NUMA).
 *
 * Linux gives a page the memory of the processor that touches it first. The executor below has a
 * thread on every processor, node after node, and each always takes the same fraction of the tasks:
 * in qk_repack it is the first to touch the rows that it reads in every qk_linear.
 *
 *   cc -std=c99 numa.c -lqk -lpthread -lm */
#define _GNU_SOURCE /* sched_getaffinity, syscall */
#include <pthread.h>
#include <qk.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { N = 4096, K = 4096, MOST = 1024 };

typedef struct executor executor;
typedef struct worker {
    executor *of;
    int index, cpu, node;
    pthread_t thread;
} worker;

struct executor {
    pthread_mutex_t lock;
    pthread_cond_t posted, done;
    long job; /* its number; -1: stop */
    int working, count;
    int32_t tasks;
    void (*task)(void *argument, int32_t index);
    void *argument;
    worker workers[MOST];
};

static qk_context *context;

static void check(qk_status status) {
    if (status == QK_OK) return;
    fprintf(stderr, "%s: %s\n", qk_status_string(status), qk_context_error(context));
    exit(1);
}

/* Worker i of n takes tasks i * tasks / n up to those of the next: the same rows of a weight in
 * every call. A program that multiplies without a pause would spin here before it sleeps. */
static void *serve(void *argument) {
    worker *self = argument;
    executor *all = self->of;
    long seen = 0;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(self->cpu, &set);
    sched_setaffinity(0, sizeof(set), &set);
    for (;;) {
        int32_t i, last;
        pthread_mutex_lock(&all->lock);
        while (all->job == seen) pthread_cond_wait(&all->posted, &all->lock);
        seen = all->job;
        pthread_mutex_unlock(&all->lock);
        if (seen < 0) return NULL;
        i = (int32_t)((int64_t)all->tasks * self->index / all->count);
        last = (int32_t)((int64_t)all->tasks * (self->index + 1) / all->count);
        for (; i < last; ++i) all->task(all->argument, i);
        pthread_mutex_lock(&all->lock);
        if (--all->working == 0) pthread_cond_signal(&all->done);
        pthread_mutex_unlock(&all->lock);
    }
}

static void parallel_for(void *user, int32_t tasks, void (*task)(void *, int32_t), void *argument) {
    executor *all = user;
    pthread_mutex_lock(&all->lock);
    all->tasks = tasks;
    all->task = task;
    all->argument = argument;
    all->working = all->count;
    ++all->job;
    pthread_cond_broadcast(&all->posted);
    while (all->working > 0) pthread_cond_wait(&all->done, &all->lock);
    pthread_mutex_unlock(&all->lock);
}

/* A worker for each processor that this program may use, in the sequence of nodes; how many nodes
 * have one. */
static int make_workers(executor *all) {
    cpu_set_t allowed;
    int nodes = 0, node, cpu;
    sched_getaffinity(0, sizeof(allowed), &allowed);
    for (node = 0; node < 64; ++node) {
        const int before = all->count;
        for (cpu = 0; cpu < CPU_SETSIZE && all->count < MOST; ++cpu) {
            char path[96];
            snprintf(path, sizeof(path), "/sys/devices/system/node/node%d/cpu%d", node, cpu);
            if (!CPU_ISSET(cpu, &allowed) || access(path, F_OK) != 0) continue;
            all->workers[all->count].node = node;
            all->workers[all->count++].cpu = cpu;
        }
        nodes += all->count > before;
    }
    for (cpu = 0; all->count == 0; ++cpu) { /* a kernel that knows no nodes */
        if (!CPU_ISSET(cpu, &allowed)) continue;
        all->workers[all->count++].cpu = cpu;
        nodes = 1;
    }
    for (cpu = 0; cpu < all->count; ++cpu) {
        all->workers[cpu].of = all;
        all->workers[cpu].index = cpu;
        if (pthread_create(&all->workers[cpu].thread, NULL, serve, &all->workers[cpu]) != 0)
            exit(1);
    }
    return nodes;
}

static void stop(executor *all) {
    int i;
    pthread_mutex_lock(&all->lock);
    all->job = -1;
    pthread_cond_broadcast(&all->posted);
    pthread_mutex_unlock(&all->lock);
    for (i = 0; i < all->count; ++i) pthread_join(all->workers[i].thread, NULL);
}

/* Fresh pages from the system, placed by the first thread that writes them. malloc may return
 * memory that was freed before, whose pages already have a place. */
static void *allocate(void *user, size_t bytes, size_t align) {
    const size_t before = align < 64 ? 64 : align, all = before + bytes;
    char *memory = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char **last = user;
    if (memory == (char *)MAP_FAILED) return NULL;
    *last = memory + before;
    memcpy(memory + before - sizeof(all), &all, sizeof(all));
    memcpy(memory + before - 2 * sizeof(all), &before, sizeof(before));
    return *last;
}

static void release(void *user, void *memory) {
    size_t all, before;
    (void)user;
    memcpy(&all, (char *)memory - sizeof(all), sizeof(all));
    memcpy(&before, (char *)memory - 2 * sizeof(all), sizeof(before));
    munmap((char *)memory - before, all);
}

static qk_tensor *wrap(qk_context *in, const qk_tensor_desc *desc, void *data, void *scales) {
    void *planes[2];
    qk_tensor *tensor;
    planes[QK_PLANE_DATA] = data;
    planes[QK_PLANE_SCALE] = scales;
    check(qk_tensor_wrap(in, desc, planes, scales == NULL ? 1 : 2, &tensor));
    return tensor;
}

/* Prints how much of the packed codes is on the node of the worker that reads it. */
static void tell(const executor *all, const char *codes, int nodes) {
    const size_t size = (size_t)sysconf(_SC_PAGESIZE), count = (size_t)N * K / 2 / size;
    void **pages = malloc(count * sizeof(*pages));
    int *on = malloc(count * sizeof(*on));
    size_t i, local = 0;
    if (pages == NULL || on == NULL) exit(1);
    for (i = 0; i < count; ++i) pages[i] = (void *)(codes + i * size);
    if (syscall(SYS_move_pages, 0, (unsigned long)count, pages, NULL, on, 0) != 0) {
        printf("the system does not say where pages are\n");
    } else {
        for (i = 0; i < count; ++i) local += on[i] == all->workers[i * all->count / count].node;
        printf("%d workers on %d nodes: %d%% of the weight is beside its reader\n", all->count,
               nodes, (int)(100 * local / count));
    }
    free(pages);
    free(on);
}

int main(void) {
    static executor all = {PTHREAD_MUTEX_INITIALIZER,
                           PTHREAD_COND_INITIALIZER,
                           PTHREAD_COND_INITIALIZER,
                           0,
                           0,
                           0,
                           0,
                           NULL,
                           NULL,
                           {{NULL, 0, 0, 0, 0}}};
    static uint8_t codes[N * K / 2];
    static uint16_t scales[N * K / 128];
    static float x[K], y[2][N];
    char *last = NULL;
    qk_executor table = {parallel_for, NULL, 0};
    qk_allocator memory = {allocate, release, NULL};
    qk_context_options options = QK_CONTEXT_OPTIONS_INIT;
    qk_tensor_desc w = QK_TENSOR_DESC_INIT, row = QK_TENSOR_DESC_INIT;
    qk_tensor *stored, *packed, *tx, *ty[2];
    qk_context *other;
    const int nodes = make_workers(&all);
    int i;

    for (i = 0; i < N * K / 2; ++i) codes[i] = (uint8_t)(i * 37 >> 3);
    for (i = 0; i < N * K / 128; ++i) scales[i] = 0x2000; /* 1/128 */
    for (i = 0; i < K; ++i) x[i] = (float)(i % 9 - 4);

    table.user = &all;
    table.concurrency = all.count;
    memory.user = &last;
    options.executor = &table;
    options.allocator = &memory;
    check(qk_context_create(&options, &context));

    w.format = QK_FORMAT_U4_AFFINE;
    w.flags = QK_TENSOR_SYMMETRIC;
    w.scale_format = QK_FORMAT_F16;
    w.group_size = 128;
    row.rank = w.rank = 2;
    w.shape[0] = N;
    w.shape[1] = K;
    w.layout = QK_LAYOUT_ROW;
    stored = wrap(context, &w, codes, scales); /* as a checkpoint has it, wherever that is */
    w.layout = QK_LAYOUT_PACKED;
    check(qk_tensor_create(context, &w, &packed)); /* its pages are nowhere yet */
    check(qk_repack(context, stored, packed));     /* now where they are read */
    tell(&all, last, nodes);

    row.shape[0] = 1;
    row.shape[1] = K;
    tx = wrap(context, &row, x, NULL);
    row.shape[1] = N;
    for (i = 0; i < 2; ++i) ty[i] = wrap(context, &row, y[i], NULL);
    check(qk_linear(context, tx, packed, NULL, ty[0]));

    options.executor = NULL; /* the same bits on one thread */
    options.thread_count = 1;
    check(qk_context_create(&options, &other));
    check(qk_linear(other, tx, packed, NULL, ty[1]));

    qk_tensor_destroy(stored);
    qk_tensor_destroy(packed);
    qk_tensor_destroy(tx);
    for (i = 0; i < 2; ++i) qk_tensor_destroy(ty[i]);
    qk_context_destroy(other);
    qk_context_destroy(context);
    stop(&all);
    return memcmp(y[0], y[1], sizeof(y[0])) == 0 ? 0 : 1;
}
