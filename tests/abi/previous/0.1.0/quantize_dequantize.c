/* Quantizes a weight matrix to NF4 with nested scales, decodes it, and shows what it cost.
 *
 *   cc -std=c99 quantize_dequantize.c -lqk -lpthread -lm */
#include <math.h>
#include <qk.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 96, COLUMNS = 256, COUNT = ROWS * COLUMNS };

static qk_context *context;

static void check(qk_status status) {
    if (status == QK_OK) return;
    fprintf(stderr, "%s: %s\n", qk_status_string(status), qk_context_error(context));
    exit(1);
}

/* Heavy tails, as weights have them: the product of two uniform numbers in [-1, 1]. */
static float random_weight(void) {
    double a = 2.0 * rand() / RAND_MAX - 1.0, b = 2.0 * rand() / RAND_MAX - 1.0;
    return (float)(a * b);
}

int main(void) {
    static float weights[COUNT], decoded[COUNT], table[256];
    void *planes[1];
    size_t bytes = 0, total = 0;
    double worst = 0, error = 0, energy = 0;
    qk_tensor *dense, *nf4, *back;
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    int i;

    for (i = 0; i < COUNT; ++i) weights[i] = random_weight();
    check(qk_context_create(NULL, &context));

    /* Two dense tensors over the arrays above: nothing is copied. */
    desc.rank = 2;
    desc.shape[0] = ROWS;
    desc.shape[1] = COLUMNS;
    planes[0] = weights;
    check(qk_tensor_wrap(context, &desc, planes, 1, &dense));
    planes[0] = decoded;
    check(qk_tensor_wrap(context, &desc, planes, 1, &back));

    /* The quantized one: 64 codes share a scale, scales are 8-bit codes of a 256-entry table. */
    desc.format = QK_FORMAT_NF4;
    desc.layout = QK_LAYOUT_ROW_HIGH;
    desc.scale_format = QK_FORMAT_LUT8;
    desc.group_size = 64;
    check(qk_tensor_create(context, &desc, &nf4));
    check(qk_dynamic_table(table));
    check(qk_tensor_upload(context, nf4, QK_PLANE_SCALE_CODE, table, sizeof table));

    check(qk_quantize(context, dense, nf4));
    check(qk_dequantize(context, nf4, back));

    for (i = 0; i < QK_PLANE_COUNT; ++i) {
        check(qk_tensor_plane_bytes(&desc, i, &bytes));
        total += bytes;
    }
    for (i = 0; i < COUNT; ++i) {
        double difference = fabs((double)weights[i] - decoded[i]);
        worst = difference > worst ? difference : worst;
        error += difference * difference;
        energy += (double)weights[i] * weights[i];
    }
    printf("%d x %d weights: %d bytes as f32, %d as nested NF4 (%.2f bits a weight)\n", ROWS,
           COLUMNS, (int)sizeof weights, (int)total, 8.0 * (double)total / COUNT);
    printf("worst error %.4f, relative error %.4f\n", worst, sqrt(error / energy));

    qk_tensor_destroy(dense);
    qk_tensor_destroy(nf4);
    qk_tensor_destroy(back);
    qk_context_destroy(context);
    return worst <= 0.16 ? 0 : 1; /* half of the widest gaps: .152 NF4, .007 scales */
}
