/* What llama.c needs around its model: a way to fail, its command line, the clock, and how fast the
 * threads of this machine read memory. */
#ifndef LLAMA_PROGRAM_H
#define LLAMA_PROGRAM_H
#define _POSIX_C_SOURCE 200809L /* clock_gettime, threads */
#include <math.h>
#include <pthread.h>
#include <qk_io.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { FAILED = 1, USAGE = 2 }; /* exit codes */
#define FAIL(code, ...) \
    (fprintf(stderr, "llama: " __VA_ARGS__), fputc('\n', stderr), fflush(stdout), exit(code))

static void check(qk_status status, const char *why) {
    if (status != QK_OK) FAIL(FAILED, "%s: %s", qk_status_string(status), why);
}

static void *allocate(int64_t count, size_t size) {
    void *memory = calloc((size_t)count, size);
    if (memory == NULL) FAIL(FAILED, "out of memory: %lld x %zu bytes", (long long)count, size);
    return memory;
}

/* ---- the command line ---------------------------------------------------------------------- */
static const char kUsage[] =
    "usage: llama MODEL --prompt TEXT | --ids 1,2,3 [options]\n"
    "  --tokens N       how many to generate; default: 64, fewer at the context's end\n"
    "  --temperature T  0, the default: the likeliest token; else drawn from softmax(logits / T)\n"
    "  --top-p P        drawn among the likeliest tokens that have P together; default: 1\n"
    "  --seed N         of the drawing; default: 0\n"
    "  --threads N      0, the default: one a core\n"
    "  --ignore-end     goes on after a token that ends a text\n"
    "  --int8, --bf16   faster products, a little less exact";

enum { TEMPERATURE, TOP_P, TOKENS, SEED, THREADS, PROMPT, IDS, IGNORE_END, INT8, BF16, OPTIONS };
static const char *const kOptions[OPTIONS] = {
    "--temperature", "--top-p", "--tokens",     "--seed", "--threads",
    "--prompt",      "--ids",   "--ignore-end", "--int8", "--bf16"};
static const double kPreset[PROMPT] = {0, 1, 64, 0, 0}, kMost[PROMPT] = {1e6, 1, 1e7, 0x1p53, 1024};
static const char *given[OPTIONS], *model_path;

static double option(int which) {
    char *end = "";
    const double value = given[which] == NULL ? kPreset[which] : strtod(given[which], &end);
    const int whole = which > TOP_P;
    if (end == given[which] || *end != 0 || !(value >= 0 && value <= kMost[which]) ||
        (whole && value != floor(value))) {
        FAIL(USAGE, "%s %s: accepted are %s, 0 to %.0f", kOptions[which], given[which],
             whole ? "whole numbers" : "numbers", kMost[which]);
    }
    return value;
}

static void read_options(int argc, char **argv) {
    for (int i = 1, which = 0; i < argc; ++i, which = 0) {
        while (which < OPTIONS && strcmp(argv[i], kOptions[which]) != 0) ++which;
        if (which < IGNORE_END && ++i == argc) FAIL(USAGE, "%s: its value is missing", argv[i - 1]);
        if (which == OPTIONS && (model_path != NULL || strncmp(argv[i], "--", 2) == 0)) {
            FAIL(USAGE, "%s: no option, and not the only MODEL\n%s", argv[i], kUsage);
        }
        *(which < OPTIONS ? &given[which] : &model_path) = argv[i];
    }
    if (model_path == NULL || (given[PROMPT] == NULL) == (given[IDS] == NULL)) {
        FAIL(USAGE, "needs a MODEL and one of --prompt and --ids\n%s", kUsage);
    }
    if (given[INT8] != NULL && given[BF16] != NULL) FAIL(USAGE, "--int8 and --bf16: not both");
    for (int i = 0; i < PROMPT; ++i) option(i);
}

/* ---- the memory's floor -------------------------------------------------------------------- */
static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

struct memory_part { /* what one thread reads */
    pthread_t thread;
    const uint64_t *words;
    size_t count;
    uint64_t sum;
};

static void *read_memory(void *argument) {
    struct memory_part *const part = argument;
    const uint64_t *const words = part->words;
    uint64_t sum = 0; /* not in *part: each addition would wait for the one before */
    for (size_t i = 0; i < part->count; ++i) sum += words[i];
    part->sum = sum;
    return NULL;
}

/* Bytes a second of `threads` that read `bytes` together (64 MB where that is more), the best of
 * five times. 0: there is no memory for it. */
static double memory_rate(size_t bytes, int threads) {
    const size_t count = (bytes > (size_t)1 << 26 ? bytes : (size_t)1 << 26) / 8 / (size_t)threads;
    uint64_t *const words = malloc(count * (size_t)threads * sizeof *words);
    struct memory_part *const parts = calloc((size_t)threads, sizeof *parts);
    double best = 0;
    if (words != NULL) memset(words, 1, count * (size_t)threads * 8); /* pages of its own */
    for (int run = 0; run < 5 && words != NULL && parts != NULL; ++run) {
        const double start = seconds();
        int running = 0;
        for (; running < threads; ++running) {
            struct memory_part *const part = parts + running;
            part->words = words + (size_t)running * count, part->count = count;
            if (pthread_create(&part->thread, NULL, read_memory, part) != 0) break;
        }
        for (int i = 0; i < running; ++i) pthread_join(parts[i].thread, NULL);
        const double rate = 8.0 * (double)count * running / (seconds() - start);
        if (rate > best) best = rate;
    }
    free(words), free(parts);
    return best;
}

#endif
