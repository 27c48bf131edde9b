/* Two layers, each in both directions, put together from four GRUs: the backward ones read the
 * sequence reversed, the second layer reads what the first one wrote. Weights are random; the
 * same composition in float says how far the integers are.
 *
 *   cc -std=c99 gru_stacked.c -lqk -lpthread -lm */
#include <math.h>
#include <qk.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 2, C = 8, H = 12, STEPS = 200, WIDEST = 2 * H };

static qk_context *context;

static void check(qk_status status) {
    if (status == QK_OK) return;
    fprintf(stderr, "%s: %s\n", qk_status_string(status), qk_context_error(context));
    exit(1);
}

static void fill(float *values, int count, float spread) {
    static uint32_t seed = 1;
    int i;
    for (i = 0; i < count; ++i) {
        seed = seed * 1664525u + 1013904223u;
        values[i] = spread * ((float)(seed >> 8) / 8388608.0f - 1);
    }
}

static qk_tensor *wrap(float *values, int64_t size) {
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    void *planes[1];
    qk_tensor *tensor;
    planes[0] = values;
    desc.rank = 2;
    desc.shape[0] = STEPS;
    desc.shape[1] = size;
    check(qk_tensor_wrap(context, &desc, planes, 1, &tensor));
    return tensor;
}

static qk_gru *create(int inputs) {
    static float w[3 * H * WIDEST], r[3 * H * H], bw[3 * H], br[3 * H];
    qk_gru_config config = QK_GRU_CONFIG_INIT;
    qk_gru *gru;
    config.input_size = inputs, config.hidden_size = H, config.preset = QK_GRU_W8A16;
    fill(w, 3 * H * inputs, 0.5f), fill(r, 3 * H * H, 0.5f);
    fill(bw, 3 * H, 0.2f), fill(br, 3 * H, 0.2f);
    check(qk_gru_create(context, &config, w, r, bw, br, &gru));
    return gru;
}

/* One direction: in [STEPS,inputs] to the columns of out [STEPS,2*H] of that direction. */
static void pass(qk_gru *gru, int frozen, const float *in, int inputs, int backward, float *out) {
    static float x[STEPS * WIDEST], y[STEPS * H];
    qk_tensor *data, *states;
    qk_gru_state *state;
    int t;
    for (t = 0; t < STEPS; ++t) {
        int from = backward ? STEPS - 1 - t : t;
        memcpy(x + t * inputs, in + from * inputs, sizeof *x * (size_t)inputs);
    }
    data = wrap(x, inputs), states = wrap(y, H);
    if (frozen) {
        check(qk_gru_state_create(context, gru, 1, &state));
        check(qk_gru_run(context, gru, state, data, states));
        qk_gru_state_destroy(state);
    } else {
        check(qk_gru_run_float(context, gru, data, NULL, states));
        check(qk_gru_calibrate(context, gru, data, NULL));
    }
    qk_tensor_destroy(data), qk_tensor_destroy(states);
    for (t = 0; t < STEPS; ++t) { /* backward states return to the steps they belong to */
        int to = backward ? STEPS - 1 - t : t;
        memcpy(out + to * 2 * H + backward * H, y + t * H, sizeof *y * H);
    }
}

/* The whole stack: x [STEPS,C] to y [STEPS,2*H]. */
static void run(qk_gru *grus[LAYERS][2], int frozen, const float *x, float *y) {
    static float between[STEPS * 2 * H];
    int layer, backward;
    for (layer = 0; layer < LAYERS; ++layer) {
        const float *in = layer == 0 ? x : between;
        for (backward = 0; backward < 2; ++backward) {
            pass(grus[layer][backward], frozen, in, layer == 0 ? C : 2 * H, backward, y);
        }
        memcpy(between, y, sizeof between);
    }
}

int main(void) {
    static float x[STEPS * C], exact[STEPS * 2 * H], y[STEPS * 2 * H];
    qk_context_options options = QK_CONTEXT_OPTIONS_INIT;
    qk_gru *grus[LAYERS][2];
    double signal = 0, noise = 0, sqnr;
    int i;

    options.thread_count = 1;
    options.workspace_bytes = 1 << 20;
    check(qk_context_create(&options, &context));
    for (i = 0; i < 2 * LAYERS; ++i) grus[i / 2][i % 2] = create(i < 2 ? C : 2 * H);
    fill(x, STEPS * C, 1);
    run(grus, 0, x, exact); /* float, and every GRU is calibrated on what reaches it */
    for (i = 0; i < 2 * LAYERS; ++i) check(qk_gru_freeze(context, grus[i / 2][i % 2]));
    run(grus, 1, x, y);

    for (i = 0; i < STEPS * 2 * H; ++i) {
        signal += (double)exact[i] * exact[i];
        noise += ((double)exact[i] - y[i]) * ((double)exact[i] - y[i]);
    }
    sqnr = 10 * log10(signal / noise);
    printf("%d layers in both directions, SQNR against float: %.2f dB\n", LAYERS, sqnr);

    for (i = 0; i < 2 * LAYERS; ++i) qk_gru_destroy(grus[i / 2][i % 2]);
    qk_context_destroy(context);
    /* A layer in W8A16 must reach 38.5 dB; the second one adds as much error to the first's. */
    return sqnr >= 35.5 ? 0 : 1;
}
