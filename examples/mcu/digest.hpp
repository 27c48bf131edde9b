// What both the microcontroller and the host run: the model's bytes in place, T steps of made-up
// input codes, and one number over every state on the way. Equal numbers mean equal bits.
#pragma once
#include "gru/image.hpp"
#include "gru/small_image.hpp"
#include "gru/step.hpp"
#include "step.hpp"

namespace mcu {

constexpr int kSteps = 200;
constexpr int kMaxSize = 64;

struct Digest {
    uint64_t value;
    int32_t steps;
};

inline bool run(const void *image, size_t bytes, uint32_t (*clock)(), Digest *digest,
                uint32_t *elapsed) {
    qk::gru::Cell cell;
#if defined(QK_GRU_8_BIT)
    if (!qk::gru::small_image_read(image, bytes, &cell)) return false;
#else
    qk_gru_model model;
    if (qk::gru::image_read(image, bytes, &model, &cell) != qk::gru::Fault::kNone) return false;
#endif
    if (cell.input_size > kMaxSize || cell.hidden_size > kMaxSize) return false;
    alignas(4) static int16_t x[kMaxSize], h[kMaxSize], next[kMaxSize], scratch[kMaxSize];
    for (int32_t j = 0; j < cell.hidden_size; ++j)
        qk::gru::store_code(h, cell.h_bytes, j, cell.h_zero);
    uint32_t random = 1;
    *elapsed = 0;
    digest->value = 0xcbf29ce484222325u;  // FNV-1a
    for (digest->steps = 0; digest->steps < kSteps; ++digest->steps) {
        for (int32_t k = 0; k < cell.input_size; ++k) {
            random = random * 1664525u + 1013904223u;
            qk::gru::store_code(x, cell.x_bytes, k, int32_t(random) >> (32 - 8 * cell.x_bytes));
        }
        const uint32_t start = clock();
        step(cell, x, h, next, scratch);
        *elapsed += clock() - start;
        for (int32_t j = 0; j < cell.hidden_size; ++j) {
            const int32_t code = qk::gru::load_code(next, cell.h_bytes, j);
            qk::gru::store_code(h, cell.h_bytes, j, code);
            digest->value = (digest->value ^ uint32_t(code)) * 0x100000001b3u;
        }
    }
    return true;
}

}  // namespace mcu
