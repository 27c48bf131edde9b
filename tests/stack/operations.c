#include "operations.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Run {
    qk_context *context;
    const Watch *watch;
    uint64_t digest;
} Run;

void fail(const char *what, const char *why) {
    printf("%s: %s\n", what, why);
    exit(1);
}

static void before(const Run *run) {
    if (run->watch != NULL) run->watch->before();
}
static void after(const Run *run, const char *call, qk_status status) {
    if (run->watch != NULL) run->watch->after(call);
    if (status != QK_OK) {
        printf("%s: %d: %s\n", call, (int)status, qk_context_error(run->context));
        exit(1);
    }
}
#define CALL(run, name, ...)                         \
    do {                                             \
        before(run);                                 \
        const qk_status status_ = name(__VA_ARGS__); \
        after(run, #name, status_);                  \
    } while (0)

static void add_bytes(Run *run, const void *bytes, size_t count) {
    const unsigned char *const from = bytes;
    for (size_t i = 0; i < count; ++i) run->digest = (run->digest ^ from[i]) * 1099511628211u;
}

static void *memory(size_t bytes) {
    void *const pointer = malloc(bytes);
    if (pointer == NULL) fail("malloc", "no memory");
    return pointer;
}

static void add_tensor(Run *run, const qk_tensor *tensor, const qk_tensor_desc *desc) {
    for (qk_plane plane = 0; plane < QK_PLANE_COUNT; ++plane) {
        size_t bytes = 0;
        if (qk_tensor_plane_bytes(desc, plane, &bytes) != QK_OK || bytes == 0) continue;
        void *const host = memory(bytes);
        CALL(run, qk_tensor_download, run->context, tensor, plane, host, bytes);
        add_bytes(run, host, bytes);
        free(host);
    }
}

static qk_tensor_desc matrix(qk_format format, int64_t rows, int64_t columns) {
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    desc.format = format;
    desc.rank = 2;
    desc.shape[0] = rows;
    desc.shape[1] = columns;
    return desc;
}

static qk_tensor *create(Run *run, const qk_tensor_desc *desc) {
    qk_tensor *tensor = NULL;
    CALL(run, qk_tensor_create, run->context, desc, &tensor);
    return tensor;
}

/* Numbers of both signs, finite in f16 too. */
static qk_tensor *dense(Run *run, qk_tensor_desc desc, uint32_t seed) {
    qk_tensor *const tensor = create(run, &desc);
    size_t bytes = 0;
    CALL(run, qk_tensor_plane_bytes, &desc, QK_PLANE_DATA, &bytes);
    uint16_t *const half = memory(bytes);
    for (size_t i = 0; i < bytes / 2; ++i) {
        seed = seed * 1664525u + 1013904223u;
        half[i] = (uint16_t)(0x3800u + (seed >> 16 & 0x87ffu));
    }
    if (desc.format == QK_FORMAT_F32) {
        float *const wide = (float *)(void *)half;
        for (size_t i = 0; i < bytes / 4; ++i) {
            seed = seed * 1664525u + 1013904223u;
            wide[i] = (float)((int32_t)seed >> 12) / 524288.0f;
        }
    }
    CALL(run, qk_tensor_upload, run->context, tensor, QK_PLANE_DATA, half, bytes);
    free(half);
    return tensor;
}

static void upload_tables(Run *run, qk_tensor *tensor, const qk_tensor_desc *desc) {
    const qk_plane planes[] = {QK_PLANE_TABLE, QK_PLANE_SCALE_CODE};
    float table[256];
    CALL(run, qk_dynamic_table, table);
    for (int i = 0; i < 2; ++i) {
        size_t bytes = 0;
        if (qk_tensor_plane_bytes(desc, planes[i], &bytes) != QK_OK || bytes == 0) continue;
        CALL(run, qk_tensor_upload, run->context, tensor, planes[i], table, bytes);
    }
}

static void multiply(Run *run, const qk_tensor *w, int64_t n, int64_t k, int64_t m,
                     qk_format format) {
    const qk_tensor_desc y_desc = matrix(format, m, n);
    qk_tensor_desc bias_desc = matrix(QK_FORMAT_F32, n, 0);
    bias_desc.rank = 1;
    qk_tensor *const x = dense(run, matrix(format, m, k), 5), *const y = create(run, &y_desc);
    qk_tensor *const bias = dense(run, bias_desc, 7);
    CALL(run, qk_linear, run->context, x, w, bias, y);
    add_tensor(run, y, &y_desc);
    qk_tensor_destroy(x);
    qk_tensor_destroy(y);
    qk_tensor_destroy(bias);
}

static void multiply_all(Run *run, const qk_tensor *w, int64_t n, int64_t k) {
    const int64_t rows[] = {1, 2, 3, 8, 20};
    for (int i = 0; i < (k < 1024 ? 5 : 2); ++i) {
        multiply(run, w, n, k, rows[i], QK_FORMAT_F32);
        if (i % 3 == 0) multiply(run, w, n, k, rows[i], QK_FORMAT_F16);
    }
}

/* x [t,k] to a row a slot, joined, and to their sums. */
static void multiply_by_experts(Run *run, const qk_tensor *w, const qk_tensor_desc *desc,
                                int64_t tokens) {
    const int64_t n = desc->shape[1], k = desc->shape[2], slots = 3;
    int32_t numbers[32];
    for (int i = 0; i < 32; ++i) numbers[i] = i % 3 - 1;
    const qk_tensor_desc ids_desc = matrix(QK_FORMAT_I32, tokens, slots);
    const qk_tensor_desc sums_desc = matrix(QK_FORMAT_F32, tokens, n);
    qk_tensor_desc rows_desc = matrix(QK_FORMAT_F32, tokens, slots);
    rows_desc.rank = 3;
    rows_desc.shape[2] = n / 2;
    qk_tensor *const x = dense(run, matrix(QK_FORMAT_F32, tokens, k), 13);
    qk_tensor *const ids = create(run, &ids_desc);
    qk_tensor *const rows = create(run, &rows_desc), *const sums = create(run, &sums_desc);
    const size_t bytes = sizeof(int32_t) * (size_t)(tokens * slots);
    CALL(run, qk_tensor_upload, run->context, ids, QK_PLANE_DATA, numbers, bytes);
    qk_experts experts = QK_EXPERTS_INIT;
    qk_product product = QK_PRODUCT_INIT;
    experts.expert = ids;
    product.x = x;
    product.w = w;
    product.y = sums;
    product.experts = &experts;
    CALL(run, qk_multiply, run->context, &product, 1);
    add_tensor(run, sums, &sums_desc);
    experts.activation = QK_ACTIVATION_GELU;
    product.y = rows;
    CALL(run, qk_multiply, run->context, &product, 1);
    add_tensor(run, rows, &rows_desc);
    qk_tensor *const all[] = {x, ids, rows, sums};
    for (int i = 0; i < 4; ++i) qk_tensor_destroy(all[i]);
}

/* The weight's description as one of two experts. */
static void use_experts(Run *run, const qk_tensor_desc *of_all) {
    qk_tensor_desc desc = *of_all, full;
    desc.rank = 3;
    desc.shape[0] = 2;
    desc.shape[1] = of_all->shape[0] / 2;
    desc.shape[2] = of_all->shape[1];
    full = matrix(QK_FORMAT_F32, 2, desc.shape[1]);
    full.rank = 3;
    full.shape[2] = desc.shape[2];
    qk_tensor_desc packed_desc = desc;
    packed_desc.layout = desc.grouping == QK_GROUPING_FLAT ? QK_LAYOUT_ROW : QK_LAYOUT_PACKED;
    qk_tensor *const from = dense(run, full, 3), *const w = create(run, &desc);
    qk_tensor *const packed = create(run, &packed_desc);
    upload_tables(run, w, &desc);
    CALL(run, qk_quantize, run->context, from, w);
    CALL(run, qk_repack, run->context, w, packed);
    for (int64_t tokens = 1; tokens <= 9; tokens += 8) {
        multiply_by_experts(run, w, &desc, tokens);
        multiply_by_experts(run, packed, &desc, tokens);
    }
    qk_tensor *const all[] = {from, w, packed};
    for (int i = 0; i < 3; ++i) qk_tensor_destroy(all[i]);
}

/* Quantizes, repacks there and back, dequantizes, multiplies. */
static void use_weight(Run *run, const qk_tensor_desc *desc) {
    const int64_t n = desc->shape[0], k = desc->shape[1];
    qk_tensor_desc packed_desc = *desc;
    packed_desc.layout = desc->grouping == QK_GROUPING_FLAT ? QK_LAYOUT_ROW : QK_LAYOUT_PACKED;
    const qk_tensor_desc full = matrix(QK_FORMAT_F32, n, k), half = matrix(QK_FORMAT_F16, n, k);
    qk_tensor *const from = dense(run, full, 3), *const w = create(run, desc);
    qk_tensor *const packed = create(run, &packed_desc), *const again = create(run, desc);
    qk_tensor *const back = create(run, &full), *const halves = create(run, &half);
    upload_tables(run, w, desc);
    CALL(run, qk_quantize, run->context, from, w);
    add_tensor(run, w, desc);
    CALL(run, qk_repack, run->context, w, packed);
    CALL(run, qk_repack, run->context, packed, again);
    add_tensor(run, again, desc);
    CALL(run, qk_dequantize, run->context, w, back);
    add_tensor(run, back, &full);
    CALL(run, qk_dequantize, run->context, packed, halves);
    add_tensor(run, halves, &half);
    multiply_all(run, w, n, k);
    multiply_all(run, packed, n, k);
    qk_tensor *const all[] = {from, w, packed, again, back, halves};
    for (int i = 0; i < 6; ++i) qk_tensor_destroy(all[i]);
    use_experts(run, desc);
}

#ifdef QK_EMULATED
enum { kEvery = 7 }; /* of the weights: an emulator is slow */
#else
enum { kEvery = 1 };
#endif

static void use_weights(Run *run) {
    const qk_format formats[] = {QK_FORMAT_U4_AFFINE, QK_FORMAT_NF4, QK_FORMAT_FP4_E2M1,
                                 QK_FORMAT_LUT8, QK_FORMAT_S8};
    const qk_format scales[] = {QK_FORMAT_F32, QK_FORMAT_F16, QK_FORMAT_LUT8};
    const int32_t groups[] = {16, 64, 128};
    int32_t count = 0;
    for (int f = 0; f < 5; ++f) {
        for (qk_layout layout = QK_LAYOUT_ROW; layout <= QK_LAYOUT_WORD; ++layout) {
            for (int i = 0; i < 9; ++i) {
                if (f > 1 ? i % 4 != 0 : i % 2 != layout % 2) continue;
                qk_tensor_desc desc = matrix(formats[f], 40, 392);
                desc.layout = layout;
                desc.grouping = QK_GROUPING_ALONG_K;
                desc.scale_format = scales[i / 3];
                desc.group_size = groups[i % 3];
                size_t bytes = 0;
                if (qk_tensor_plane_bytes(&desc, QK_PLANE_DATA, &bytes) != QK_OK) continue;
                if (count++ % kEvery == 0) use_weight(run, &desc);
            }
            /* Rows of x longer than kernels keep whole. */
            qk_tensor_desc desc = matrix(formats[f], 16, 16384 + 256);
            desc.layout = layout;
            desc.scale_format = QK_FORMAT_F16;
            desc.group_size = 128;
            size_t bytes = 0;
            if (f > 1 || layout % 2 != 0 ||
                qk_tensor_plane_bytes(&desc, QK_PLANE_DATA, &bytes) != QK_OK) {
                continue;
            }
            if (count++ % kEvery == 0) use_weight(run, &desc);
        }
    }
    qk_tensor_desc flat = matrix(QK_FORMAT_NF4, 40, 392); /* groups that straddle rows */
    flat.layout = QK_LAYOUT_ROW_HIGH;
    flat.grouping = QK_GROUPING_FLAT;
    flat.scale_format = QK_FORMAT_LUT8;
    flat.group_size = 64;
    use_weight(run, &flat);
    const qk_tensor_desc plain = matrix(QK_FORMAT_BF16, 40, 392);
    qk_tensor *const w = dense(run, plain, 11);
    multiply_all(run, w, 40, 392);
    qk_tensor_destroy(w);
    if (count < 80) fail("use_weights", "most descriptions were refused");
}

static float *numbers(size_t count, uint32_t seed) {
    float *const to = memory(count * sizeof(float));
    for (size_t i = 0; i < count; ++i) {
        seed = seed * 1664525u + 1013904223u;
        to[i] = (float)((int32_t)seed >> 12) / 2097152.0f;
    }
    return to;
}

enum { kInput = 40, kHidden = 72, kSteps = 6, kBatch = 5 };

static void run_gru(Run *run, const qk_gru *gru, const qk_tensor *x, qk_tensor *y,
                    const qk_tensor_desc *y_desc) {
    qk_tensor_desc gates_desc = *y_desc;
    gates_desc.shape[2] = 4 * kHidden;
    qk_tensor *const gates = create(run, &gates_desc);
    qk_gru_state *state = NULL;
    float *const h = numbers(kBatch * kHidden, 21);
    CALL(run, qk_gru_state_create, run->context, gru, kBatch, &state);
    CALL(run, qk_gru_state_write, run->context, state, h);
    CALL(run, qk_gru_run, run->context, gru, state, x, y);
    add_tensor(run, y, y_desc);
    CALL(run, qk_gru_run_gates, run->context, gru, state, x, y, gates);
    add_tensor(run, gates, &gates_desc);
    CALL(run, qk_gru_state_read, run->context, state, h);
    add_bytes(run, h, sizeof(float) * kBatch * kHidden);
    qk_gru_state_destroy(state);
    qk_tensor_destroy(gates);
    free(h);
}

/* Made, calibrated, run in floats, frozen, run in integers, saved, loaded and run again. */
static void use_gru(Run *run, qk_gru_preset preset) {
    qk_gru_config config = QK_GRU_CONFIG_INIT;
    config.input_size = kInput;
    config.hidden_size = kHidden;
    config.preset = preset;
    float *const w_ih = numbers(3 * kHidden * kInput, 1);
    float *const w_hh = numbers(3 * kHidden * kHidden, 2);
    float *const bias = numbers(3 * kHidden, 3);
    qk_tensor_desc x_desc = matrix(QK_FORMAT_F32, kSteps, kBatch), y_desc = x_desc;
    x_desc.rank = y_desc.rank = 3;
    x_desc.shape[2] = kInput;
    y_desc.shape[2] = kHidden;
    qk_tensor *const x = dense(run, x_desc, 9), *const y = create(run, &y_desc);
    qk_gru *gru = NULL, *loaded = NULL;
    CALL(run, qk_gru_create, run->context, &config, w_ih, w_hh, bias, bias, &gru);
    CALL(run, qk_gru_calibrate, run->context, gru, x, NULL);
    CALL(run, qk_gru_run_float, run->context, gru, x, NULL, y);
    add_tensor(run, y, &y_desc);
    CALL(run, qk_gru_freeze, run->context, gru);
    run_gru(run, gru, x, y, &y_desc);
    size_t bytes = 0;
    CALL(run, qk_gru_save, gru, NULL, 0, &bytes);
    void *const image = memory(bytes);
    CALL(run, qk_gru_save, gru, image, bytes, &bytes);
    add_bytes(run, image, bytes);
    CALL(run, qk_gru_load, run->context, image, bytes, &loaded);
    run_gru(run, loaded, x, y, &y_desc);
    qk_gru_destroy(gru);
    qk_gru_destroy(loaded);
    qk_tensor_destroy(x);
    qk_tensor_destroy(y);
    free(w_ih);
    free(w_hh);
    free(bias);
    free(image);
}

uint64_t every_operation(const qk_context_options *options, const Watch *watch) {
    const uint32_t modes[] = {0, QK_CONTEXT_BF16_PRODUCTS, QK_CONTEXT_INT8_ACTIVATIONS};
    Run run = {NULL, watch, 14695981039346656037u};
    for (int i = 0; i < 3; ++i) {
        qk_context_options own = *options;
        own.flags = modes[i];
        own.workspace_bytes = (size_t)4 << 20;
        before(&run);
        const qk_status status = qk_context_create(&own, &run.context);
        after(&run, "qk_context_create", status);
        use_weights(&run);
        use_gru(&run, QK_GRU_W8A8);
        use_gru(&run, QK_GRU_W16A16);
        before(&run);
        qk_context_destroy(run.context);
        after(&run, "qk_context_destroy", QK_OK);
    }
    return run.digest;
}
