/* Quantizes one row whose values NF4 holds exactly and multiplies it by ones. */
#include <qk.h>
#include <stdio.h>

int main(void) {
    float weights[16], ones[16], y = 0;
    void *planes[1];
    qk_context *context = NULL;
    qk_tensor *dense = NULL, *nf4 = NULL, *x = NULL, *out = NULL;
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    int i, good;
    for (i = 0; i < 16; ++i) {
        weights[i] = i < 12 ? 2.0f : -2.0f;
        ones[i] = 1.0f;
    }
    desc.rank = 2;
    desc.shape[0] = 1;
    desc.shape[1] = 16;
    good = qk_context_create(NULL, &context) == QK_OK;
    planes[0] = weights;
    good = good && qk_tensor_wrap(context, &desc, planes, 1, &dense) == QK_OK;
    planes[0] = ones;
    good = good && qk_tensor_wrap(context, &desc, planes, 1, &x) == QK_OK;
    desc.shape[1] = 1;
    planes[0] = &y;
    good = good && qk_tensor_wrap(context, &desc, planes, 1, &out) == QK_OK;
    desc.shape[1] = 16;
    desc.format = QK_FORMAT_NF4;
    desc.scale_format = QK_FORMAT_F32;
    desc.group_size = 16;
    good = good && qk_tensor_create(context, &desc, &nf4) == QK_OK;
    good = good && qk_quantize(context, dense, nf4) == QK_OK;
    good = good && qk_linear(context, x, nf4, NULL, out) == QK_OK;
    printf("%s: y = %g\n", qk_build_info(), (double)y);
    qk_tensor_destroy(dense);
    qk_tensor_destroy(nf4);
    qk_tensor_destroy(x);
    qk_tensor_destroy(out);
    qk_context_destroy(context);
    return good && y == 16.0f ? 0 : 1; /* 12 * 2 - 4 * 2 */
}
