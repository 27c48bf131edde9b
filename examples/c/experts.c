/* Takes a token through the experts of a mixture: two products with experts, in one call.
 *
 *   cc -std=c99 experts.c -lqk_io -lqk -ljansson -lpthread -lm
 *   ./a.out MODEL DOWN GATE UP      as Qwen3, Mixtral and DeepSeek have them: silu(gate) * up
 *   ./a.out MODEL DOWN GATE_UP      as gpt-oss has them: gate and up in turn, clamped
 *
 * The names are those that `qk inspect MODEL --json` gives the projections of a mixture:
 * "model.layers.0.mlp.experts.*.down_proj". */
#include <qk_io.h>
#include <stdio.h>
#include <stdlib.h>

static qk_context *context;

static void check(qk_status status, const char *why) {
    if (status == QK_OK) return;
    fprintf(stderr, "%s: %s\n", qk_status_string(status), why);
    exit(1);
}

/* A dense tensor [1,a] or, with b > 0, [1,a,b] over memory of ours. */
static qk_tensor *wrap(qk_format format, void *values, int64_t a, int64_t b) {
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    qk_tensor *tensor;
    desc.format = format;
    desc.rank = b > 0 ? 3 : 2;
    desc.shape[0] = 1, desc.shape[1] = a, desc.shape[2] = b;
    check(qk_tensor_wrap(context, &desc, &values, 1, &tensor), qk_context_error(context));
    return tensor;
}

static float *zeros(int64_t count) {
    float *values = (float *)calloc((size_t)count, sizeof *values);
    if (values == NULL) check(QK_ERROR_MEMORY, "values");
    return values;
}

int main(int argc, char **argv) {
    qk_io_message message;
    qk_checkpoint *model;
    qk_tensor *gate_up, *gate_up_bias, *down, *down_bias, *x, *joined, *y, *routing, *weights;
    qk_tensor_desc first = QK_TENSOR_DESC_INIT, second = QK_TENSOR_DESC_INIT;
    qk_experts gates = QK_EXPERTS_INIT, sums = QK_EXPERTS_INIT;
    qk_product products[2] = {QK_PRODUCT_INIT, QK_PRODUCT_INIT};
    int32_t chosen[2] = {0, 1};       /* what a router gives: two experts for the token, */
    float shares[2] = {0.75f, 0.25f}; /* and what each of them counts for */
    float *token, *between, *results;
    int64_t i, k, inner;

    if (argc < 4 || argc > 5)
        return fprintf(stderr, "usage: %s MODEL DOWN GATE UP or %s MODEL DOWN GATE_UP\n", argv[0],
                       argv[0]),
               2;
    check(qk_context_create(NULL, &context), "context");
    check(qk_checkpoint_open(argv[1], NULL, &model, &message), message.text);
    check(qk_checkpoint_load_experts(model, context, argv[3], argv[4], 0, &gate_up, &gate_up_bias,
                                     &message),
          message.text); /* [E,2*inner,k]; argv[4] or NULL */
    check(qk_checkpoint_load_experts(model, context, argv[2], NULL, 0, &down, &down_bias, &message),
          message.text); /* [E,k,inner] */
    check(qk_tensor_describe(gate_up, &first), "gate and up");
    check(qk_tensor_describe(down, &second), "down");
    k = first.shape[2], inner = second.shape[2];
    if (second.shape[1] != k || first.shape[1] != 2 * inner)
        check(QK_ERROR_SHAPE, "these are not the projections of one mixture");
    printf("%d experts, %d -> %d -> %d\n", (int)first.shape[0], (int)k, (int)inner, (int)k);
    chosen[1] = (int32_t)first.shape[0] - 1;

    token = zeros(k), between = zeros(2 * inner), results = zeros(k);
    for (i = 0; i < k; ++i) token[i] = (float)(i % 7) * 0.125f;
    x = wrap(QK_FORMAT_F32, token, k, 0);
    joined = wrap(QK_FORMAT_F32, between, 2, inner); /* a row a slot */
    y = wrap(QK_FORMAT_F32, results, k, 0);
    routing = wrap(QK_FORMAT_I32, chosen, 2, 0);
    weights = wrap(QK_FORMAT_F32, shares, 2, 0);
    gates.expert = sums.expert = routing;
    sums.weight = weights;
    gates.activation = argc > 4 ? QK_ACTIVATION_SILU : QK_ACTIVATION_SWIGLU_CLAMPED;
    gates.flags = argc > 4 ? 0 : QK_EXPERTS_INTERLEAVED;
    gates.limit = 7.0f, gates.alpha = 1.702f; /* of the clamped one */

    products[0].x = x, products[0].w = gate_up, products[0].bias = gate_up_bias;
    products[0].y = joined, products[0].experts = &gates;
    products[1].x = joined, products[1].w = down, products[1].bias = down_bias;
    products[1].y = y, products[1].experts = &sums;
    check(qk_multiply(context, products, 2), qk_context_error(context));
    for (i = 0; i < k; ++i) printf("y[%d] = %.9g\n", (int)i, (double)results[i]);

    qk_tensor_destroy(x), qk_tensor_destroy(joined), qk_tensor_destroy(y);
    qk_tensor_destroy(routing), qk_tensor_destroy(weights);
    qk_tensor_destroy(gate_up), qk_tensor_destroy(gate_up_bias);
    qk_tensor_destroy(down), qk_tensor_destroy(down_bias);
    qk_checkpoint_destroy(model);
    qk_context_destroy(context);
    free(token), free(between), free(results);
    return 0;
}
