// What both the microcontroller and the host run, on qk_gru.h alone: the model's bytes in place,
// 200 steps of made-up input codes, and one number over every state on the way. Equal numbers mean
// equal bits; make_model prints what qk_gru_run gives.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace mcu {

constexpr int kSteps = 200;

// False where the model is refused. elapsed: the clock over all steps.
bool run(const void *image, size_t bytes, uint32_t (*clock)(), uint64_t *digest, uint32_t *elapsed);

}  // namespace mcu
