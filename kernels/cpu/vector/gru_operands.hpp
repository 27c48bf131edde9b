// Codes as the sums of products read them. Included after an instruction set's gru_lanes.hpp.
#pragma once
#include "cpu/gru_pack.hpp"

namespace qk::cpu {
namespace {

// Codes for rows of weights, in planes where they have more than one.
inline void store_words(uint8_t *row, int64_t plane_stride, int64_t index, Ints code, int planes) {
    alignas(64) int32_t codes[kGruUnits];
    alignas(64) int16_t high[kGruUnits], low[kGruUnits];
    store(codes, code);
    for (int64_t i = 0; i < kGruUnits; ++i) {
        high[i] = int16_t(planes == 1 ? codes[i] : codes[i] >> 8);
        low[i] = int16_t((codes[i] & 255) - 128);
    }
    memcpy(row + 2 * index, high, sizeof(high));
    if (planes == 2) memcpy(row + plane_stride + 2 * index, low, sizeof(low));
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
