// What look_up_64 gives (look_up_planes.hpp), with fewer shuffles: for processors that have one
// port for those of 512 bits. 64 codes take 21 on it instead of 25, those of a mirrored table 16.
#pragma once
#include <string.h>

#include "cpu/x86_avx512/look_up_planes.hpp"

namespace qk::cpu {
namespace {

enum class TableKind { kAny, kBlends, kMirrored };

// Whether codes below 127 stand for minus what 254 - code stands for, and 127 for 0, as in
// bitsandbytes' dynamic table: codes from 128 on are all that has to be looked up.
inline bool is_mirrored(const float (&value)[256]) {
    uint32_t bits[256];
    memcpy(bits, value, sizeof(bits));
    bool mirrored = bits[127] == 0;
    for (int code = 0; code < 127; ++code) {
        mirrored &= bits[code] == bits[254 - code] + 0x80000000u && bits[254 - code] < 0x80000000u;
    }
    return mirrored;
}

// Where the codes of 64 columns go. Blends leave even words of 128 bits to one quarter and odd ones
// to the next; the second half of a mirrored table's is interleaved.
template <TableKind kind>
struct Places {
    alignas(64) uint8_t at[64];

    constexpr Places() : at{} {
        for (int i = 0; i < 64; ++i) {
            const int lane = i / 16, byte = i % 8, half = i / 8 % 2;
            const bool blended = kind == TableKind::kBlends || half == 0;
            const int quarter = 2 * half + (blended ? byte % 2 : byte / 4);
            at[i] = uint8_t(16 * quarter + 4 * lane + (blended ? byte / 2 : byte % 4));
        }
    }
};

template <TableKind kind>
constexpr Places<kind> kPlaces;

inline __m512i look_up_mirrored(const Plane &plane, __m512i index, __mmask64 there) {
    return _mm512_maskz_permutex2var_epi8(there, plane.quarter[2], index, plane.quarter[3]);
}

template <TableKind kind, class Put>
inline __attribute__((always_inline)) void look_up_64_as(const Plane (&plane)[4], __m512i in_order,
                                                         const Put &put) {
    if constexpr (kind == TableKind::kAny) return look_up_64(plane, in_order, put);
    const __m512i codes = _mm512_permutexvar_epi8(_mm512_load_si512(kPlaces<kind>.at), in_order);
    const __mmask64 upper = _mm512_movepi8_mask(codes);
    __m512i b0, b1, b2, b3;
    if (kind == TableKind::kMirrored) {
        const __mmask64 there = _mm512_cmpneq_epi8_mask(codes, _mm512_set1_epi8(127));
        const __m512i below = _mm512_sub_epi8(_mm512_set1_epi8(126), codes);
        const __m512i index = _mm512_mask_mov_epi8(below, upper, codes);
        b0 = look_up_mirrored(plane[0], index, there);
        b1 = look_up_mirrored(plane[1], index, there);
        b2 = look_up_mirrored(plane[2], index, there);
        b3 = look_up_mirrored(plane[3], index, there);
        const __mmask64 minus = _kandn_mask64(upper, there);
        b3 = _mm512_mask_add_epi8(b3, minus, b3, _mm512_set1_epi8(char(0x80)));
    } else {
        b0 = look_up_plane(plane[0], codes, upper);
        b1 = look_up_plane(plane[1], codes, upper);
        b2 = look_up_plane(plane[2], codes, upper);
        b3 = look_up_plane(plane[3], codes, upper);
    }
    const auto blend = [&](__m512i low, __m512i high, int quarter) __attribute__((always_inline)) {
        constexpr __mmask32 odd = 0xaaaaaaaa;
        put(_mm512_mask_blend_epi16(odd, low, _mm512_slli_epi32(high, 16)), quarter);
        put(_mm512_mask_blend_epi16(odd, _mm512_srli_epi32(low, 16), high), quarter + 1);
    };
    blend(_mm512_unpacklo_epi8(b0, b1), _mm512_unpacklo_epi8(b2, b3), 0);
    const __m512i low = _mm512_unpackhi_epi8(b0, b1), high = _mm512_unpackhi_epi8(b2, b3);
    if (kind == TableKind::kBlends) return blend(low, high, 2);
    put(_mm512_unpacklo_epi16(low, high), 2);
    put(_mm512_unpackhi_epi16(low, high), 3);
}

}  // namespace
}  // namespace qk::cpu
