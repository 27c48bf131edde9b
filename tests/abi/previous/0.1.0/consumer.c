/* The smallest real user: quantizes a matrix, multiplies with it on several threads, checks. */
#include <stdio.h>

#include "qk.h"

int consume(void);

int consume(void) {
    static float weights[40][64], x[64], y[40], y_dense[40];
    qk_context_options options = QK_CONTEXT_OPTIONS_INIT;
    qk_tensor_desc dense = QK_TENSOR_DESC_INIT, quantized;
    qk_context *context = NULL;
    qk_tensor *w = NULL, *q = NULL, *tx = NULL, *ty = NULL, *td = NULL;
    void *planes[1];
    int r, c, bad = 0;

    /* Powers of two and one scale a row: NF4 keeps -1, 0 and 1 exactly. */
    for (r = 0; r < 40; ++r)
        for (c = 0; c < 64; ++c) weights[r][c] = (float)((r + c) % 3 - 1) * (float)(1 << r % 5);
    for (c = 0; c < 64; ++c) x[c] = (float)(c % 7);

    options.thread_count = 3;
    bad |= qk_context_create(&options, &context) != QK_OK;
    dense.rank = 2;
    dense.shape[0] = 40;
    dense.shape[1] = 64;
    quantized = dense;
    quantized.format = QK_FORMAT_NF4;
    quantized.scale_format = QK_FORMAT_F32;
    quantized.group_size = QK_GROUP_ROW;
    planes[0] = weights;
    bad |= qk_tensor_wrap(context, &dense, planes, 1, &w) != QK_OK;
    bad |= qk_tensor_create(context, &quantized, &q) != QK_OK;
    bad |= qk_quantize(context, w, q) != QK_OK;
    dense.shape[0] = 1;
    planes[0] = x;
    bad |= qk_tensor_wrap(context, &dense, planes, 1, &tx) != QK_OK;
    dense.shape[1] = 40;
    planes[0] = y;
    bad |= qk_tensor_wrap(context, &dense, planes, 1, &ty) != QK_OK;
    planes[0] = y_dense;
    bad |= qk_tensor_wrap(context, &dense, planes, 1, &td) != QK_OK;
    bad |= qk_linear(context, tx, q, NULL, ty) != QK_OK;
    bad |= qk_linear(context, tx, w, NULL, td) != QK_OK;
    for (r = 0; r < 40; ++r) bad |= y[r] != y_dense[r];
    if (bad) printf("consumer: %s\n", qk_context_error(context));
    qk_context_destroy(context);
    qk_tensor_destroy(w);
    qk_tensor_destroy(q);
    qk_tensor_destroy(tx);
    qk_tensor_destroy(ty);
    qk_tensor_destroy(td);
    return bad;
}

#ifndef CONSUMER_OF_CPP
int main(void) { return consume(); }
#endif
