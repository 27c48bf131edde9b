/* Multiplies by weights in memory you own, here constants as a firmware image has them:
 * qk reads them where they are and copies nothing.
 *
 *   cc -std=c99 wrap_memory.c -lqk -lpthread -lm */
#include <qk.h>
#include <stdio.h>
#include <stdlib.h>

/* w [2,16]: rows of 8 bytes, even columns in the low nibble; value = (code - 8) * scale. */
static const uint8_t codes[2 * 8] = {
    0x98, 0xba, 0xdc, 0xfe, 0x10, 0x32, 0x54, 0x76,  /* 0 to 7, -8 to -1 */
    0x99, 0x99, 0x99, 0x99, 0x99, 0x99, 0x99, 0x99}; /* all 1 */
static const float scales[2] = {0.5f, 0.25f};        /* one group a row */

static qk_context *context;

static void check(qk_status status) {
    if (status == QK_OK) return;
    fprintf(stderr, "%s: %s\n", qk_status_string(status), qk_context_error(context));
    exit(1);
}

static qk_tensor *wrap_vector(float *values, int64_t count) {
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    void *planes[1];
    qk_tensor *tensor;
    planes[0] = values;
    desc.rank = 2;
    desc.shape[0] = 1;
    desc.shape[1] = count;
    check(qk_tensor_wrap(context, &desc, planes, 1, &tensor));
    return tensor;
}

int main(void) {
    float ones[16], bias[2] = {100.0f, 200.0f}, result[2];
    void *planes[2];
    qk_tensor *w, *x, *b, *y;
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    qk_context_options options = QK_CONTEXT_OPTIONS_INIT;
    int i;

    for (i = 0; i < 16; ++i) ones[i] = 1.0f;
    options.thread_count = 1; /* the caller's thread alone */
    check(qk_context_create(&options, &context));

    desc.format = QK_FORMAT_U4_AFFINE;
    desc.scale_format = QK_FORMAT_F32;
    desc.group_size = QK_GROUP_ROW;
    desc.rank = 2;
    desc.shape[0] = 2;
    desc.shape[1] = 16;
    /* SYMMETRIC: every zero is 8, no ZERO plane. READ_ONLY: never an output, so that planes may
     * point at constants although their type has no const. */
    desc.flags = QK_TENSOR_SYMMETRIC | QK_TENSOR_READ_ONLY;
    planes[QK_PLANE_DATA] = (void *)codes;
    planes[QK_PLANE_SCALE] = (void *)scales;
    check(qk_tensor_wrap(context, &desc, planes, 2, &w));

    x = wrap_vector(ones, 16);
    b = wrap_vector(bias, 2);
    y = wrap_vector(result, 2);
    check(qk_linear(context, x, w, b, y));
    printf("y = %g %g\n", (double)result[0], (double)result[1]);

    qk_tensor_destroy(w); /* the handles; the memory stays yours */
    qk_tensor_destroy(x);
    qk_tensor_destroy(b);
    qk_tensor_destroy(y);
    qk_context_destroy(context);
    return result[0] == 96.0f && result[1] == 204.0f ? 0 : 1; /* -8 * .5 + 100, 16 * .25 + 200 */
}
