/* A denoiser from end to end: frames of 16 samples go through the GRU of examples/gru and a linear
 * layer, everything in integers. The model is an array that `qk gru export --c` wrote; the layer
 * and a noisy signal, with what it was before the noise, are in denoiser_data.h.
 *
 *     SNR -2.8 dB, denoised 5.0 dB, digest 1234567890
 */
#include "board.h"
#include "denoiser_data.h"
#include "denoiser_model.h"
#include "qk_gru.h"

enum { UNITS = 64, SAMPLE_PLACES = 15 }; /* a sample is sample * 2^-15 */

static qk_gru_cell cell;
static qk_gru_shape shape;
static int16_t state[2][UNITS], x[FRAME], scratch[UNITS]; /* of int8_t where codes have 8 bits */

static void put_code(void *codes, int bytes, int at, int32_t code) {
    if (bytes == 1)
        ((int8_t *)codes)[at] = (int8_t)code;
    else
        ((int16_t *)codes)[at] = (int16_t)code;
}

static int32_t get_code(const void *codes, int bytes, int at) {
    return bytes == 1 ? ((const int8_t *)codes)[at] : ((const int16_t *)codes)[at];
}

/* One sample of the layer: head_weight * 2^-HEAD_PLACES times h, plus a bias in the samples' scale.
 */
static int16_t head(int row, const void *h) {
    const int right = HEAD_PLACES + shape.h_shift - SAMPLE_PLACES;
    int32_t sum = right > 0 ? 1 << (right - 1) : 0;
    int k;
    for (k = 0; k < UNITS; ++k)
        sum += head_weight[row][k] * (get_code(h, shape.h_bytes, k) - shape.h_zero);
    sum = (sum >> right) + head_bias[row];
    return (int16_t)(sum < -32768 ? -32768 : sum > 32767 ? 32767 : sum);
}

static void denoise(int frame, const void *h, void *h_next, int16_t *samples) {
    int i;
    for (i = 0; i < FRAME; ++i)
        put_code(x, shape.x_bytes, i, qk_gru_cell_input(&cell, noisy[frame][i], SAMPLE_PLACES));
    qk_gru_cell_step(&cell, x, h, h_next, scratch);
    for (i = 0; i < FRAME; ++i) samples[i] = head(i, h_next);
}

static uint64_t square(int32_t value) { return (uint64_t)((int64_t)value * value); }

/* 10 log10(signal / error), in steps of 0.1: one is a factor of 1.0233. */
static void print_decibels(uint64_t signal, uint64_t error) {
    uint64_t small = signal < error ? signal : error;
    const uint64_t large = signal < error ? error : signal;
    uint32_t tenths = 0;
    if (signal < error) board_print("-");
    for (; small < large && small != 0; ++tenths) small += (small * 1527 + 65535) >> 16;
    board_print_number(tenths / 10);
    board_print(".");
    board_print_number(tenths % 10);
    board_print(" dB");
}

int program(void) {
    uint64_t signal = 0, error = 0, left = 0;
    uint32_t digest = 2166136261u; /* FNV-1a over the samples */
    int frame, i;
    if (qk_gru_cell_load(&cell, denoiser_model, denoiser_model_bytes) != 0) return 1;
    qk_gru_cell_describe(&cell, &shape);
    if (shape.input_size != FRAME || shape.hidden_size != UNITS ||
        HEAD_PLACES + shape.h_shift < SAMPLE_PLACES)
        return 1;
    qk_gru_cell_start(&cell, state[0]);
    for (frame = 0; frame < FRAMES; ++frame) {
        int16_t samples[FRAME];
        denoise(frame, state[frame & 1], state[~frame & 1], samples);
        for (i = 0; i < FRAME; ++i) {
            signal += square(clean[frame][i]);
            error += square(noisy[frame][i] - clean[frame][i]);
            left += square(samples[i] - clean[frame][i]);
            digest = (digest ^ (uint16_t)samples[i]) * 16777619u;
        }
    }
    board_print("SNR ");
    print_decibels(signal, error);
    board_print(", denoised ");
    print_decibels(signal, left);
    board_print(", digest ");
    board_print_number(digest);
    board_print("\nflash ");
    board_print_number(board_flash());
    board_print(" bytes: model ");
    board_print_number((uint32_t)sizeof(denoiser_model));
    board_print(", signals ");
    board_print_number((uint32_t)(sizeof(noisy) + sizeof(clean)));
    board_print("\nRAM ");
    board_print_number(board_ram());
    board_print(" bytes with the stack\n");
    return 0;
}
