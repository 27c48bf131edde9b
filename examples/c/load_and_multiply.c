/* Loads a layer of a quantized checkpoint and multiplies by it.
 *
 *   cc -std=c99 load_and_multiply.c -lqk_io -lqk -ljansson -lpthread -lm
 *   ./a.out model.safetensors [layer] */
#include <qk_io.h>
#include <stdio.h>
#include <stdlib.h>

static void check(qk_status status, const char *why) {
    if (status == QK_OK) return;
    fprintf(stderr, "%s: %s\n", qk_status_string(status), why);
    exit(1);
}

/* A dense [1,count] tensor over memory of ours. */
static qk_tensor *wrap_row(qk_context *context, float *values, int64_t count) {
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    void *planes[1];
    qk_tensor *tensor;
    planes[0] = values;
    desc.rank = 2;
    desc.shape[0] = 1;
    desc.shape[1] = count;
    check(qk_tensor_wrap(context, &desc, planes, 1, &tensor), qk_context_error(context));
    return tensor;
}

/* The layer of that name, or the first quantized one that qk can load. */
static qk_layer choose(const qk_checkpoint *checkpoint, const char *name) {
    qk_layer layer;
    int64_t i, count = qk_checkpoint_layer_count(checkpoint);
    if (name != NULL) {
        check(qk_checkpoint_find_layer(checkpoint, name, &layer, sizeof layer), name);
        return layer;
    }
    for (i = 0; i < count; ++i) {
        check(qk_checkpoint_layer(checkpoint, i, &layer, sizeof layer), "layer");
        if (layer.status == QK_OK && layer.dialect != QK_DIALECT_DENSE) return layer;
    }
    fprintf(stderr, "no quantized layer that qk can load\n");
    exit(1);
}

int main(int argc, char **argv) {
    qk_io_message message;
    qk_checkpoint *checkpoint;
    qk_context *context;
    qk_tensor *w, *bias, *x, *y;
    qk_layer layer;
    float *values, *results;
    int64_t i, n, k;

    if (argc < 2) return fprintf(stderr, "usage: %s model.safetensors [layer]\n", argv[0]), 2;
    check(qk_context_create(NULL, &context), "context");
    check(qk_checkpoint_open(argv[1], NULL, &checkpoint, &message), message.text);
    layer = choose(checkpoint, argc > 2 ? argv[2] : NULL);
    check(qk_checkpoint_load(checkpoint, context, layer.name, 0, &w, &bias, &message),
          message.text);
    n = layer.desc.shape[0];
    k = layer.desc.shape[1];
    printf("%s: %s, %d x %d\n", layer.name, qk_dialect_name(layer.dialect), (int)n, (int)k);

    values = malloc((size_t)k * sizeof *values);
    results = malloc((size_t)n * sizeof *results);
    if (values == NULL || results == NULL) return 1;
    for (i = 0; i < k; ++i) values[i] = 1.0f;
    x = wrap_row(context, values, k);
    y = wrap_row(context, results, n);
    check(qk_linear(context, x, w, bias, y), qk_context_error(context));
    for (i = 0; i < n && i < 4; ++i) printf("y[%d] = %g\n", (int)i, (double)results[i]);

    qk_tensor_destroy(x), qk_tensor_destroy(y), qk_tensor_destroy(w), qk_tensor_destroy(bias);
    qk_checkpoint_destroy(checkpoint);
    qk_context_destroy(context);
    free(values), free(results);
    return 0;
}
