// The loader for builds that run 8-bit models alone (-DQK_GRU_8_BIT, docs/gru.md): the same file,
// the same checks and proofs as image_read(), in a quarter of its code.
#pragma once
#include <stddef.h>

#include "gru/cell.hpp"

namespace qk::gru {

// Trusts nothing. True exactly where image_read() finds no fault and is_small(cell): the cell then
// points into the image and is ready to run.
bool small_image_read(const void *image, size_t bytes, Cell *cell);

}  // namespace qk::gru
