// Planes that a file stores in another way than qk. They are made when a layer is loaded, so that
// opening a checkpoint reads none of its weights.
#pragma once
#include "checkpoint.hpp"

namespace qk_io {

// Of F32, F16 or BF16.
float number_at(const Tensor *tensor, int64_t index);

// What Recipe::make may be. `plane` has layer.plane_bytes.

// Codes of S8: bytes offset by 128, in rows of whole words (compressed-tensors) or, four columns a
// word, in words [k/4,n] (GPTQ).
void make_offset_rows(const Layer &layer, const Recipe &recipe, uint8_t *plane);
void make_offset_words(const Layer &layer, const Recipe &recipe, uint8_t *plane);
// Codes of 4 bits in the layer's order of columns, in words [k/8,n] (GPTQ) or [n,ceil(k/8)]
// (compressed-tensors) as before. Those of S8 follow the order too, where there is one.
void make_ordered_words(const Layer &layer, const Recipe &recipe, uint8_t *plane);
void make_ordered_rows(const Layer &layer, const Recipe &recipe, uint8_t *plane);
// Scales [n,groups] of one line for every recipe.rows rows, or of [groups,n].
void make_repeated(const Layer &layer, const Recipe &recipe, uint8_t *plane);
void make_transposed(const Layer &layer, const Recipe &recipe, uint8_t *plane);
// The same, of F16 or BF16, as F32.
void make_wide_repeated(const Layer &layer, const Recipe &recipe, uint8_t *plane);
void make_wide_transposed(const Layer &layer, const Recipe &recipe, uint8_t *plane);
// Minima [n,groups], F32: an 8-bit zero times its scale of 16 bits, which is exact. Zeros I8 that
// are stored as their scales are; and with an offset of 128 in words along n, [n/4,groups]
// (compressed-tensors) or [groups,n/4] (GPTQ).
void make_minima(const Layer &layer, const Recipe &recipe, uint8_t *plane);
void make_minima_of_rows(const Layer &layer, const Recipe &recipe, uint8_t *plane);
void make_minima_of_words(const Layer &layer, const Recipe &recipe, uint8_t *plane);
// F32 of 127 times as much; F32 of F16 or BF16.
void make_127th(const Layer &layer, const Recipe &recipe, uint8_t *plane);
void make_wider(const Layer &layer, const Recipe &recipe, uint8_t *plane);

}  // namespace qk_io
