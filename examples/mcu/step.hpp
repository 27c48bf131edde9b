// The step as its own object, so that its size, stack and instructions can be told apart.
#pragma once
#include "gru/cell.hpp"

namespace mcu {

void step(const qk::gru::Cell &cell, const void *x, const void *h, void *h_next, void *scratch);

}  // namespace mcu
