/* What one qk_linear costs from C: m = 1, n = k = 16, NF4, one thread. Prints ns per call. */
#define _POSIX_C_SOURCE 199309L
#include <qk.h>
#include <stdio.h>
#include <time.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

int main(void) {
    static float weights[16 * 16], x[16], y[16];
    qk_context_options options = QK_CONTEXT_OPTIONS_INIT;
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    qk_context *context;
    qk_tensor *dense, *w, *tx, *ty;
    void *planes[3];
    double best = 1e18;
    int round, i;

    planes[0] = weights, planes[1] = x, planes[2] = y;
    options.thread_count = 1;
    desc.rank = 2, desc.shape[0] = desc.shape[1] = 16;
    if (qk_context_create(&options, &context) != QK_OK) return 1;
    if (qk_tensor_wrap(context, &desc, planes, 1, &dense) != QK_OK) return 1;
    desc.format = QK_FORMAT_NF4, desc.scale_format = QK_FORMAT_F32, desc.group_size = 16;
    desc.layout = QK_LAYOUT_ROW_HIGH;
    if (qk_tensor_create(context, &desc, &w) != QK_OK) return 1;
    if (qk_quantize(context, dense, w) != QK_OK) return 1;
    desc = (qk_tensor_desc)QK_TENSOR_DESC_INIT;
    desc.shape[0] = 16;
    if (qk_tensor_wrap(context, &desc, planes + 1, 1, &tx) != QK_OK) return 1;
    if (qk_tensor_wrap(context, &desc, planes + 2, 1, &ty) != QK_OK) return 1;
    for (round = 0; round < 15; ++round) {
        const double start = now();
        for (i = 0; i < 20000; ++i) {
            if (qk_linear(context, tx, w, NULL, ty) != QK_OK) return 1;
        }
        if (now() - start < best) best = now() - start;
    }
    printf("%.1f\n", best / 20000);
    return 0;
}
