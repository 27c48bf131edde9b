// The bytes of a frozen GRU: little-endian, every position computed from the header's sizes (no
// stored offset could be wrong), usable in place from flash. docs/gru.md lists the fields.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "gru/derive.hpp"

namespace qk::gru {

inline constexpr int64_t kImageAlignment = 8;

// Size of the image of a model whose header has been checked.
int64_t image_bytes(const qk_gru_model &model);

// Checks the whole model, then writes image_bytes() bytes at an 8-byte aligned address.
Fault image_write(const qk_gru_model &model, void *image);

// Trusts nothing. On kNone the model points into the image and the cell is ready to run.
Fault image_read(const void *image, size_t bytes, qk_gru_model *model, Cell *cell);

}  // namespace qk::gru
