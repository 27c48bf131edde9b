// What a 4-bit code means. Tables live in constexpr functions so that host and device compile the
// same lines. docs/formats.md states where each comes from.
#pragma once
#include <stdint.h>

#include "base/half.hpp"
#include "base/hd.hpp"

namespace qk {

// NormalFloat-4 (Dettmers et al., "QLoRA", 2023, appendix E), as bitsandbytes ships it.
QK_HD static constexpr float nf4_value(int code) {
    constexpr float table[16] = {
        -1.0f,
        -0.6961928009986877f,
        -0.5250730514526367f,
        -0.39491748809814453f,
        -0.28444138169288635f,
        -0.18477343022823334f,
        -0.09105003625154495f,
        0.0f,
        0.07958029955625534f,
        0.16093020141124725f,
        0.24611230194568634f,
        0.33791524171829224f,
        0.44070982933044434f,
        0.5626170039176941f,
        0.7229568362236023f,
        1.0f,
    };
    return table[code & 15];
}

// bitsandbytes' FP4: bit 3 is the sign, the rest {0, 1/16, 8, 12, 4, 6, 2, 3} / 12. Code 8 is +0,
// as in the table that bitsandbytes writes into its files (its CUDA kernels read it as -0).
QK_HD static constexpr float fp4_bnb_value(int code) {
    constexpr float table[16] = {
        0.0f, 0.005208333333f,  0.66666667f,  1.0f,  0.33333333f,  0.5f,  0.16666667f,  0.25f,
        0.0f, -0.005208333333f, -0.66666667f, -1.0f, -0.33333333f, -0.5f, -0.16666667f, -0.25f,
    };
    return table[code & 15];
}

// OCP Microscaling Formats v1.0, E2M1.
QK_HD static constexpr float fp4_e2m1_value(int code) {
    constexpr float table[16] = {
        0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
        -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f,
    };
    return table[code & 15];
}

// ggml's IQ4_NL, the table of its IQ4_XS as well: integers, denser near 0.
QK_HD static constexpr float iq4_nl_value(int code) {
    constexpr float table[16] = {
        -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
    };
    return table[code & 15];
}

// ggml's MXFP4: E2M1 doubled, with one zero.
QK_HD static constexpr float fp4_ggml_value(int code) {
    constexpr float table[16] = {
        0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12,
    };
    return table[code & 15];
}

// OCP 8-bit floating point, E4M3: bias 7, no infinities, 0x7f and 0xff are NaN.
QK_HD static constexpr float e4m3_value(int code) {
    const uint32_t sign = uint32_t(code & 0x80) << 24, magnitude = uint32_t(code & 0x7f);
    if (magnitude == 0x7f) return f32_from_bits(sign | 0x7fc00000u);
    if (magnitude >= 8) return f32_from_bits(sign | ((magnitude << 20) + (120u << 23)));
    return f32_from_bits(sign | f32_bits(float(magnitude) * 0x1p-9f));  // subnormal
}

// OCP Microscaling Formats v1.0, E8M0: a power of two; the smallest is an f32 subnormal.
QK_HD static constexpr float e8m0_value(int code) {
    const uint32_t exponent = uint32_t(code & 0xff);
    if (exponent == 0xff) return f32_from_bits(0x7fc00000u);
    return f32_from_bits(exponent == 0 ? 0x00400000u : exponent << 23);
}

// The scales of ggml's MXFP4, halved as its entries are doubled: 2^(code - 128), without a NaN.
QK_HD static constexpr float e8m0_half_value(int code) {
    const uint32_t exponent = uint32_t(code & 0xff);
    return f32_from_bits(exponent < 2 ? 0x00200000u << exponent : (exponent - 1) << 23);
}

}  // namespace qk
