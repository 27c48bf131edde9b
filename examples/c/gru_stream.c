/* Quantizes a trained GRU, saves and loads it, and streams a signal through it step by step.
 *
 *   cc -std=c99 gru_stream.c -lqk_io -lqk -ljansson -lpthread -lm
 *   ./a.out ../gru/denoiser.safetensors ../gru/calibration.f32 ../gru/test.f32 */
#include <math.h>
#include <qk_io.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { C = 16, H = 64, STEPS = 512 };

static qk_context *context;

static void check(qk_status status) {
    if (status == QK_OK) return;
    fprintf(stderr, "%s: %s\n", qk_status_string(status), qk_context_error(context));
    exit(1);
}

/* A tensor of the file, in place: PyTorch's writer aligns it, and this machine is little-endian as
 * the file is. */
static const float *weights(const qk_checkpoint *file, const char *name, int64_t count) {
    qk_file_tensor tensor;
    check(qk_checkpoint_find_tensor(file, name, &tensor));
    if (tensor.dtype == QK_DTYPE_F32 && tensor.bytes == count * 4) return tensor.data;
    fprintf(stderr, "%s: not %d values of f32\n", name, (int)count);
    exit(1);
}

static void read_signal(const char *path, float *values) {
    FILE *file = fopen(path, "rb");
    if (file == NULL || fread(values, 4 * C, STEPS, file) != STEPS) {
        fprintf(stderr, "%s: not %d steps of %d values\n", path, STEPS, C);
        exit(1);
    }
    fclose(file);
}

static qk_tensor *wrap(float *values, int64_t steps, int64_t size) {
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    void *planes[1];
    qk_tensor *tensor;
    planes[0] = values;
    desc.rank = 2;
    desc.shape[0] = steps;
    desc.shape[1] = size;
    check(qk_tensor_wrap(context, &desc, planes, 1, &tensor));
    return tensor;
}

/* Advances state by some steps of x. */
static void run(const qk_gru *gru, qk_gru_state *state, float *x, float *y, int64_t steps) {
    qk_tensor *in = wrap(x, steps, C), *out = wrap(y, steps, H);
    check(qk_gru_run(context, gru, state, in, out));
    qk_tensor_destroy(in), qk_tensor_destroy(out);
}

int main(int argc, char **argv) {
    static float learn[STEPS * C], x[STEPS * C], exact[STEPS * H], whole[STEPS * H], y[STEPS * H];
    qk_gru_config config = QK_GRU_CONFIG_INIT;
    qk_context_options options = QK_CONTEXT_OPTIONS_INIT;
    qk_io_message message;
    qk_checkpoint *file;
    qk_tensor *data, *truth;
    qk_gru *trained, *gru;
    qk_gru_state *state;
    void *image;
    size_t bytes;
    double signal = 0, noise = 0, sqnr;
    int i, same;

    if (argc < 4) return fprintf(stderr, "usage: %s WEIGHTS CALIBRATION TEST\n", argv[0]), 2;
    options.thread_count = 1;
    options.workspace_bytes = 1 << 20;
    check(qk_context_create(&options, &context));
    if (qk_checkpoint_open(argv[1], NULL, &file, &message) != QK_OK) {
        return fprintf(stderr, "%s\n", message.text), 1;
    }
    read_signal(argv[2], learn);
    read_signal(argv[3], x);

    config.input_size = C, config.hidden_size = H, config.preset = QK_GRU_W8H16;
    check(qk_gru_create(context, &config, weights(file, "gru.weight_ih_l0", 3 * H * C),
                        weights(file, "gru.weight_hh_l0", 3 * H * H),
                        weights(file, "gru.bias_ih_l0", 3 * H),
                        weights(file, "gru.bias_hh_l0", 3 * H), &trained));
    data = wrap(learn, STEPS, C);
    check(qk_gru_calibrate(context, trained, data, NULL)); /* what ranges do values take? */
    qk_tensor_destroy(data);
    data = wrap(x, STEPS, C), truth = wrap(exact, STEPS, H);
    check(qk_gru_run_float(context, trained, data, NULL, truth)); /* to compare with */
    qk_tensor_destroy(data), qk_tensor_destroy(truth);
    check(qk_gru_freeze(context, trained)); /* integers from here on */

    check(qk_gru_save(trained, NULL, 0, &bytes));
    image = malloc(bytes); /* what you would write to a file, or to flash */
    if (image == NULL) return 1;
    check(qk_gru_save(trained, image, bytes, &bytes));
    check(qk_gru_load(context, image, bytes, &gru));

    check(qk_gru_state_create(context, gru, 1, &state));
    for (i = 0; i < STEPS; ++i) run(gru, state, x + i * C, y + i * H, 1);
    check(qk_gru_state_reset(context, state));
    run(gru, state, x, whole, STEPS);
    same = memcmp(y, whole, sizeof y) == 0;

    for (i = 0; i < STEPS * H; ++i) {
        signal += (double)exact[i] * exact[i];
        noise += ((double)exact[i] - y[i]) * ((double)exact[i] - y[i]);
    }
    sqnr = 10 * log10(signal / noise);
    printf("%d inputs, %d units: %d bytes\nSQNR against float: %.2f dB\n", C, H, (int)bytes, sqnr);
    printf("%d calls of one step and one call of %d: %s\n", STEPS, STEPS,
           same ? "equal bits" : "DIFFERENT");

    qk_gru_state_destroy(state), qk_gru_destroy(gru), qk_gru_destroy(trained);
    free(image);
    qk_checkpoint_destroy(file);
    qk_context_destroy(context);
    return same && sqnr >= 29.5 ? 0 : 1; /* what W8H16 must reach on any network */
}
