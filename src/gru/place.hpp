// Where a refused model is at fault: which tensor, which row. Host only: a microcontroller has no
// use for sentences.
#pragma once
#include <stdint.h>

#include "gru/derive.hpp"

namespace qk::gru {

const char *tensor_name(int32_t which);  // "x" ... "new_out"

struct Place {
    int32_t tensor = -1;  // -1: none in particular
    int64_t row = -1;     // of its 3h, in the order u, r, n; -1: all of it
};

// Granularity promises equal shifts; a model may say it and not do it.
Place broken_granularity(const qk_gru_model &model);

// The first tensor, and row, that check_model, compute_offsets or derive finds at fault.
Place place_of(const qk_gru_model &model, Fault fault);

// "update_in: " or "bw, row 17: ", and "" for no place. `text` has kPlaceText bytes.
inline constexpr int32_t kPlaceText = 48;
const char *place_text(const Place &place, char *text);

}  // namespace qk::gru
