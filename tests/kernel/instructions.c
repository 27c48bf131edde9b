/* Calls one kernel again and again, for instructions.sh to count what a call costs.
 *
 *     instructions generic|all nf4|u4|stored CALLS     packed; U4 as it is stored
 *     instructions generic|all FILE.qkg CALLS      a step of that GRU a call */
#include <qk.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 16, COLUMNS = 256, MOST = 1 << 16 };

static qk_context *context;

static void check(qk_status status) {
    if (status == QK_OK) return;
    fprintf(stderr, "%s: %s\n", qk_status_string(status), qk_context_error(context));
    exit(1);
}

static void fill(float *values, int count) {
    static uint32_t seed = 1;
    int i;
    for (i = 0; i < count; ++i) {
        seed = seed * 1664525u + 1013904223u;
        values[i] = (float)(seed >> 8) / 8388608.0f - 1;
    }
}

static qk_tensor *wrap(float *values, int64_t rows, int64_t columns) {
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    void *planes[1];
    qk_tensor *tensor;
    planes[0] = values;
    desc.rank = 2, desc.shape[0] = rows, desc.shape[1] = columns;
    check(qk_tensor_wrap(context, &desc, planes, 1, &tensor));
    return tensor;
}

static void multiply(qk_format format, int as_stored, int calls) {
    static float weights[ROWS * COLUMNS], x[COLUMNS], y[ROWS];
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    qk_tensor *stored, *packed, *tx = wrap(x, 1, COLUMNS), *ty = wrap(y, 1, ROWS);
    fill(weights, ROWS * COLUMNS), fill(x, COLUMNS);
    desc.rank = 2, desc.shape[0] = ROWS, desc.shape[1] = COLUMNS;
    desc.format = format, desc.scale_format = QK_FORMAT_F16, desc.group_size = 64;
    desc.layout = QK_LAYOUT_ROW;
    check(qk_tensor_create(context, &desc, &stored));
    desc.layout = QK_LAYOUT_PACKED;
    check(qk_tensor_create(context, &desc, &packed));
    check(qk_quantize(context, wrap(weights, ROWS, COLUMNS), stored));
    check(qk_repack(context, stored, packed));
    while (calls-- > 0) check(qk_linear(context, tx, as_stored ? stored : packed, NULL, ty));
    fwrite(y, sizeof *y, ROWS, stdout);
}

static void step(const char *file, int calls) {
    static unsigned char bytes[MOST];
    static float x[1024], y[1024];
    qk_gru_model model;
    FILE *from = fopen(file, "rb");
    size_t size = from == NULL ? 0 : fread(bytes, 1, MOST, from);
    qk_gru *gru;
    qk_gru_state *state;
    qk_tensor *tx, *ty;
    check(qk_gru_load(context, bytes, size, &gru));
    memset(&model, 0, sizeof model);
    model.struct_size = sizeof model;
    check(qk_gru_describe(gru, &model));
    check(qk_gru_state_create(context, gru, 1, &state));
    tx = wrap(x, 1, model.input_size), ty = wrap(y, 1, model.hidden_size);
    fill(x, model.input_size);
    while (calls-- > 0) check(qk_gru_run(context, gru, state, tx, ty));
    fwrite(y, sizeof *y, (size_t)model.hidden_size, stdout);
}

int main(int argc, char **argv) {
    qk_context_options options = QK_CONTEXT_OPTIONS_INIT;
    if (argc != 4) return 2;
    options.thread_count = 1;
    options.instruction_sets = strcmp(argv[1], "all") == 0 ? 0 : QK_ISA_GENERIC;
    check(qk_context_create(&options, &context));
    if (strcmp(argv[2], "nf4") == 0)
        multiply(QK_FORMAT_NF4, 0, atoi(argv[3]));
    else if (strcmp(argv[2], "u4") == 0)
        multiply(QK_FORMAT_U4_AFFINE, 0, atoi(argv[3]));
    else if (strcmp(argv[2], "stored") == 0)
        multiply(QK_FORMAT_U4_AFFINE, 1, atoi(argv[3]));
    else
        step(argv[2], atoi(argv[3]));
    return 0;
}
