// From float weights and observed ranges to a frozen model. Host only.
#pragma once
#include <stdint.h>

#include "gru/calibrate/curve.hpp"
#include "gru/calibrate/scales.hpp"

namespace qk::gru {

// The widths of a preset and the flags it implies; false for an unknown one.
bool preset_quants(qk_gru_preset preset, qk_gru_quant quants[QK_GRU_TENSOR_COUNT], uint32_t *flags);

// Arrays of the model to be built, the caller's: shifts [3h], w [3h,c], r [3h,h] in the element
// type their bits ask for, biases [3h].
struct ModelStorage {
    int8_t *w_shift, *r_shift, *bw_shift, *br_shift;
    void *w, *r;
    int32_t *bw, *br;
    TableStorage tables[3];
};

// The model points into storage. Ranges must have seen at least one step.
void build_model(const FloatGru &gru, const Ranges &ranges, const BuildOptions &options,
                 ModelStorage *storage, qk_gru_model *model);

}  // namespace qk::gru
