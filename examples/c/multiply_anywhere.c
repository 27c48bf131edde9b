/* One program for the CPU and a GPU: quantizes a matrix to NF4 where it will be used, packs it
 * once, multiplies by it, and compares with the CPU's product.
 *
 *   cc -std=c99 multiply_anywhere.c -lqk -lpthread -lm     (a CUDA build adds its own: pkg-config)
 *   ./a.out                                                the first GPU, where there is one */
#include <math.h>
#include <qk.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 1000, COLUMNS = 768, BATCH = 3 };

static void check(qk_context *context, qk_status status) {
    if (status == QK_OK) return;
    fprintf(stderr, "%s: %s\n", qk_status_string(status),
            context != NULL ? qk_context_error(context) : "no context");
    exit(1);
}

/* Storage on the context's device; filled from `values` where they are given. */
static qk_tensor *dense(qk_context *context, int64_t rows, int64_t columns, const float *values) {
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    qk_tensor *tensor;
    desc.rank = 2, desc.shape[0] = rows, desc.shape[1] = columns;
    check(context, qk_tensor_create(context, &desc, &tensor));
    if (values == NULL) return tensor;
    check(context, qk_tensor_upload(context, tensor, QK_PLANE_DATA, values,
                                    (size_t)(rows * columns) * sizeof *values));
    return tensor;
}

/* NF4 in `layout`: 64 codes share an f32 scale. */
static qk_tensor *nf4(qk_context *context, qk_layout layout) {
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    qk_tensor *tensor;
    desc.format = QK_FORMAT_NF4, desc.scale_format = QK_FORMAT_F32, desc.layout = layout;
    desc.group_size = 64, desc.rank = 2, desc.shape[0] = ROWS, desc.shape[1] = COLUMNS;
    check(context, qk_tensor_create(context, &desc, &tensor));
    return tensor;
}

static void multiply(qk_device device, const float *weights, const float *x, float *y) {
    qk_context_options options = QK_CONTEXT_OPTIONS_INIT;
    qk_context *context;
    qk_tensor *w, *rows, *packed, *in, *out;
    options.device = device;
    check(NULL, qk_context_create(&options, &context));
    w = dense(context, ROWS, COLUMNS, weights);
    rows = nf4(context, QK_LAYOUT_ROW_HIGH), packed = nf4(context, QK_LAYOUT_PACKED);
    check(context, qk_quantize(context, w, rows));
    check(context, qk_repack(context, rows, packed)); /* once, when loading */
    in = dense(context, BATCH, COLUMNS, x), out = dense(context, BATCH, ROWS, NULL);
    check(context, qk_linear(context, in, packed, NULL, out));
    check(context, qk_tensor_download(context, out, QK_PLANE_DATA, y, BATCH * ROWS * sizeof *y));
    qk_tensor_destroy(w), qk_tensor_destroy(rows), qk_tensor_destroy(packed);
    qk_tensor_destroy(in), qk_tensor_destroy(out);
    qk_context_destroy(context);
}

int main(void) {
    static float weights[ROWS * COLUMNS], x[BATCH * COLUMNS], y[BATCH * ROWS], cpu[BATCH * ROWS];
    int32_t gpus = 0;
    double error = 0, energy = 0;
    int i;
    for (i = 0; i < ROWS * COLUMNS; ++i) weights[i] = (float)(2.0 * rand() / RAND_MAX - 1.0);
    for (i = 0; i < BATCH * COLUMNS; ++i) x[i] = (float)(2.0 * rand() / RAND_MAX - 1.0);
    check(NULL, qk_device_count(QK_DEVICE_CUDA, &gpus));
    multiply(gpus > 0 ? QK_DEVICE_CUDA : QK_DEVICE_CPU, weights, x, y);
    multiply(QK_DEVICE_CPU, weights, x, cpu);
    for (i = 0; i < BATCH * ROWS; ++i) {
        error += ((double)y[i] - cpu[i]) * ((double)y[i] - cpu[i]);
        energy += (double)cpu[i] * cpu[i];
    }
    printf("%s: y[0] = %.6f, relative difference from the CPU's product %.1e\n",
           gpus > 0 ? "GPU" : "no GPU, CPU", (double)y[0], sqrt(error / energy));
    return sqrt(error / energy) < 1e-5 ? 0 : 1;
}
