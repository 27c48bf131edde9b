/* qk_gru.h - one step of an integer GRU in the caller's memory: for microcontrollers.
 *
 * Integers alone: no float, no heap, no state of its own, no C library but the memset and memcpy
 * that compilers ask of every program. A model is the file that qk_gru_save and `qk gru quantize`
 * write (as a C array: `qk gru export --c`); it is read in place, from flash. The states are, bit
 * for bit, those of qk_gru_run.
 *
 *     static qk_gru_cell cell;
 *     static int8_t x[INPUTS], h[2][UNITS];    int16_t where x_bytes, h_bytes are 2
 *     if (qk_gru_cell_load(&cell, model, model_bytes) != 0) ...
 *     qk_gru_cell_start(&cell, h[0]);
 *     for (t = 0;; t ^= 1) { fill x; qk_gru_cell_step(&cell, x, h[t], h[t ^ 1], scratch); }
 */
#ifndef QK_GRU_CELL_H
#define QK_GRU_CELL_H
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

/* A model that has been read. The fields are the library's own. */
typedef struct qk_gru_cell {
    const void *pointers[15];
    int32_t words[92];
} qk_gru_cell;

/* Reads a model in place. `image` is at a multiple of 8 bytes and outlives the cell. Nothing in it
 * is trusted: length, checksum, every field and weight are checked, and that no sum overflows is
 * proven. 0, or -1 where the bytes are no sound model, or one that this build leaves out. */
int qk_gru_cell_load(qk_gru_cell *cell, const void *image, size_t bytes);

typedef struct qk_gru_shape {
    int32_t input_size, hidden_size; /* codes of x, of h */
    int32_t x_bytes, h_bytes;        /* of a code: 1 is int8_t, 2 is int16_t */
    int32_t x_zero, x_shift;         /* real = (code - zero) * 2^-shift */
    int32_t h_zero, h_shift;
    int32_t scratch_bytes; /* that a step needs, 0 where it needs none */
} qk_gru_shape;
void qk_gru_cell_describe(const qk_gru_cell *cell, qk_gru_shape *shape);

/* The state of a sequence that begins: real 0 in every unit. */
void qk_gru_cell_start(const qk_gru_cell *cell, void *h);

/* x's code of the real number value * 2^-places, rounded half to even and cut to x's type. */
int32_t qk_gru_cell_input(const qk_gru_cell *cell, int32_t value, int32_t places);

/* One step: x and h to h_next, which must not overlap h. Arrays of int16_t are at even addresses.
 */
void qk_gru_cell_step(const qk_gru_cell *cell, const void *x, const void *h, void *h_next,
                      void *scratch);

#ifdef __cplusplus
}
#endif
#endif
