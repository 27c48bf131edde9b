/* Makes a GRU of the size of a small microcontroller task (c 32, h 64), freezes it and writes its
 * file. The weights are made up: what counts here is their number. Prints the digest of digest.hpp
 * over the states of qk_gru_run.
 *
 *   make_model PRESET FILE [C H]      0 W8A8, 1 W8H16, 2 W8A16, 3 W16A16, 4 W8A8 with uniform
 *                                     tables; C at most 32, H at most 64 */
#include <stdio.h>
#include <stdlib.h>

#include "qk.h"

enum { MAX_C = 32, MAX_H = 64, T = 200, W8A8_UNIFORM = 4 };

static float next_value(void) {
    static uint32_t random = 7;
    random = random * 1664525u + 1013904223u;
    return (float)(int32_t)random / 2147483648.0f;
}

static uint32_t random_code = 1;

/* The codes that digest.hpp makes up, the digest of the states that follow from them. */
static int print_digest(qk_context *context, qk_gru *gru, int c, int h) {
    static int16_t codes[T * MAX_C], states[T * MAX_H];
    qk_gru_model model = {0};
    qk_gru_state *state = NULL;
    qk_tensor *x = NULL, *y = NULL;
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    uint64_t digest = 0xcbf29ce484222325u;
    void *plane = codes;
    int i, ok;
    model.struct_size = sizeof(model);
    if (qk_gru_describe(gru, &model) != QK_OK) return 0;
    desc.rank = 3;
    desc.shape[0] = T;
    desc.shape[1] = 1;
    for (i = 0; i < T * c; ++i) {
        random_code = random_code * 1664525u + 1013904223u;
        if (model.quant[QK_GRU_X].bits <= 8)
            ((int8_t *)codes)[i] = (int8_t)(random_code >> 24);
        else
            codes[i] = (int16_t)(random_code >> 16);
    }
    desc.shape[2] = c;
    desc.format = model.quant[QK_GRU_X].bits <= 8 ? QK_FORMAT_I8 : QK_FORMAT_I16;
    ok = qk_tensor_wrap(context, &desc, &plane, 1, &x) == QK_OK;
    plane = states;
    desc.shape[2] = h;
    desc.format = model.quant[QK_GRU_H].bits <= 8 ? QK_FORMAT_I8 : QK_FORMAT_I16;
    ok = ok && qk_tensor_wrap(context, &desc, &plane, 1, &y) == QK_OK &&
         qk_gru_state_create(context, gru, 1, &state) == QK_OK &&
         qk_gru_run(context, gru, state, x, y) == QK_OK;
    for (i = 0; i < T * h; ++i) {
        const int32_t code = model.quant[QK_GRU_H].bits <= 8 ? ((int8_t *)states)[i] : states[i];
        digest = (digest ^ (uint32_t)code) * 0x100000001b3u;
    }
    if (ok) printf("digest %llx\n", (unsigned long long)digest);
    qk_gru_state_destroy(state);
    qk_tensor_destroy(x);
    qk_tensor_destroy(y);
    return ok;
}

static int check(qk_context *context, qk_status status) {
    if (status != QK_OK)
        fprintf(stderr, "%s: %s\n", qk_status_string(status), qk_context_error(context));
    return status == QK_OK;
}

int main(int argc, char **argv) {
    static float w[3 * MAX_H * MAX_C], r[3 * MAX_H * MAX_H], b[3 * MAX_H], x[T * MAX_C];
    static char file[1 << 20];
    size_t i, bytes = 0;
    qk_context *context = NULL;
    qk_gru *gru = NULL;
    qk_tensor *input = NULL;
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    qk_gru_config config = QK_GRU_CONFIG_INIT;
    void *planes[1];
    FILE *out;
    int preset, c, h;
    if (argc != 3 && argc != 5) return 2;
    preset = atoi(argv[1]);
    c = argc == 5 ? atoi(argv[3]) : MAX_C;
    h = argc == 5 ? atoi(argv[4]) : MAX_H;
    if (c < 1 || c > MAX_C || h < 1 || h > MAX_H) return 2;
    for (i = 0; i < sizeof(w) / sizeof(*w); ++i) w[i] = next_value() * 0.3f;
    for (i = 0; i < sizeof(r) / sizeof(*r); ++i) r[i] = next_value() * 0.2f;
    for (i = 0; i < sizeof(b) / sizeof(*b); ++i) b[i] = next_value() * 0.1f;
    for (i = 0; i < sizeof(x) / sizeof(*x); ++i) x[i] = next_value();
    config.input_size = c;
    config.hidden_size = h;
    config.preset = preset == W8A8_UNIFORM ? QK_GRU_W8A8 : preset;
    if (preset == W8A8_UNIFORM) config.flags |= QK_GRU_UNIFORM_TABLES;
    desc.rank = 2;
    desc.shape[0] = T;
    desc.shape[1] = c;
    planes[0] = x;
    if (qk_context_create(NULL, &context) != QK_OK) return 1;
    if (!check(context, qk_tensor_wrap(context, &desc, planes, 1, &input))) return 1;
    if (!check(context, qk_gru_create(context, &config, w, r, b, b, &gru))) return 1;
    if (!check(context, qk_gru_calibrate(context, gru, input, NULL))) return 1;
    if (!check(context, qk_gru_freeze(context, gru))) return 1;
    if (!check(context, qk_gru_save(gru, file, sizeof(file), &bytes))) return 1;
    out = fopen(argv[2], "wb");
    if (out == NULL || fwrite(file, 1, bytes, out) != bytes || fclose(out) != 0) return 1;
    if (!print_digest(context, gru, c, h)) return 1;
    qk_gru_destroy(gru);
    qk_tensor_destroy(input);
    qk_context_destroy(context);
    return 0;
}
