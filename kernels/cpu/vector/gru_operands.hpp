// Codes as the sums of products read them. Included after an instruction set's gru_lanes.hpp.
#pragma once
#include "cpu/gru_pack.hpp"

namespace qk::cpu {
namespace {

// Codes for rows of weights, in planes where they have more than one.
inline void store_words(uint8_t *row, int64_t plane_stride, int64_t index, Ints code, int planes) {
    char *const to = reinterpret_cast<char *>(row + 2 * index);
    if (planes == 1) return store_codes(to, 2, kGruUnits, code);
    store_codes(to, 2, kGruUnits, shift_right(code, splat(8)));
    store_codes(to + plane_stride, 2, kGruUnits, sub(both(code, splat(255)), splat(128)));
}

inline int planes_for(const GruRows &rows, int32_t code_bytes) {
    return rows.has_words() ? code_bytes : planes_of(code_bytes);
}
QK_GRU_INLINE inline void store_for(const GruRows &rows, uint8_t *row, int64_t plane_stride,
                                    int64_t index, Ints code, int planes) {
    if (rows.has_words())
        store_words(row, plane_stride, index, code, planes);
    else
        store_view(row, plane_stride, index, code, planes);
}

}  // namespace
}  // namespace qk::cpu
