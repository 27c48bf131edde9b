// Codes as the dot products read them.
#pragma once
#include "cpu/gru/isa.hpp"

namespace qk::cpu {

// For weights of 16 bits: words, in planes where a code has two bytes.
template <class Isa>
inline void store_words(uint8_t *row, int64_t plane_stride, int64_t index, Ints<Isa> code,
                        int planes) {
    using Ints = typename Isa::Ints;
    char *const to = reinterpret_cast<char *>(row + 2 * index);
    if (planes == 1) return Isa::store_codes(to, 2, kGruUnits, code);
    Isa::store_codes(to, 2, kGruUnits, code >> Ints::splat(8));
    Isa::store_codes(to + plane_stride, 2, kGruUnits, (code & Ints::splat(255)) - Ints::splat(128));
}

template <class Isa>
inline int planes_for(const GruRows &rows, int32_t code_bytes) {
    return rows.has_words() ? code_bytes : Isa::code_planes(code_bytes);
}

template <class Isa>
QK_INLINE inline void store_for(const GruRows &rows, uint8_t *row, int64_t plane_stride,
                                int64_t index, Ints<Isa> code, int planes) {
    if (rows.has_words())
        store_words<Isa>(row, plane_stride, index, code, planes);
    else
        Isa::store_operands(row, plane_stride, index, code, planes);
}

}  // namespace qk::cpu
