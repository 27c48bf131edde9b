#include "step.hpp"

#include "gru/step.hpp"

namespace mcu {

void step(const qk::gru::Cell &cell, const void *x, const void *h, void *h_next, void *scratch) {
    qk::gru::step(cell, x, h, h_next, scratch, nullptr);
}

}  // namespace mcu
