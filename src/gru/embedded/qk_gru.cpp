// The C interface for microcontrollers over the cell: what tools/amalgamate makes two files of.
#include "gru/embedded/qk_gru.h"

#include "gru/step.hpp"
#if defined(QK_GRU_8_BIT)
#include "gru/small_image.hpp"
#else
#include "gru/image.hpp"
#endif

static_assert(sizeof(qk::gru::Cell) <= sizeof(qk_gru_cell) &&
              alignof(qk::gru::Cell) <= alignof(qk_gru_cell));

static const qk::gru::Cell &cell_of(const qk_gru_cell *cell) {
    return *reinterpret_cast<const qk::gru::Cell *>(cell);
}

int qk_gru_cell_load(qk_gru_cell *cell, const void *image, size_t bytes) {
    qk::gru::Cell *const to = reinterpret_cast<qk::gru::Cell *>(cell);
#if defined(QK_GRU_8_BIT)
    return qk::gru::small_image_read(image, bytes, to) ? 0 : -1;
#else
    qk_gru_model model;
    return qk::gru::image_read(image, bytes, &model, to) == qk::gru::Fault::kNone ? 0 : -1;
#endif
}

void qk_gru_cell_describe(const qk_gru_cell *cell, qk_gru_shape *shape) {
    const qk::gru::Cell &from = cell_of(cell);
    *shape = {from.input_size, from.hidden_size, from.x_bytes,
              from.h_bytes,    from.x_zero,      from.x_scale,
              from.h_zero,     from.h_scale,     int32_t(qk::gru::step_scratch_bytes(from))};
}

void qk_gru_cell_start(const qk_gru_cell *cell, void *h) {
    const qk::gru::Cell &from = cell_of(cell);
    for (int32_t unit = 0; unit < from.hidden_size; ++unit)
        qk::gru::store_code(h, from.h_bytes, unit, from.h_zero);
}

int32_t qk_gru_cell_input(const qk_gru_cell *cell, int32_t value, int32_t places) {
    const qk::gru::Cell &from = cell_of(cell);
    // Beyond these every value but 0 is cut, or rounds to 0.
    const int64_t right = int64_t{places} - from.x_scale;
    const int32_t n = int32_t(qk::gru::clamp<int64_t>(right, -30, 62));
    return int32_t(qk::gru::clamp<int64_t>(qk::rounding_shift(int64_t{value}, n) + from.x_zero,
                                           from.x_min, from.x_max));
}

void qk_gru_cell_step(const qk_gru_cell *cell, const void *x, const void *h, void *h_next,
                      void *scratch) {
    qk::gru::step(cell_of(cell), x, h, h_next, scratch, nullptr);
}
