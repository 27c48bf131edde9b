// Rounding numbers to codes without branches.
#pragma once
#include "cpu/isa.hpp"
#include "format/group_scale.hpp"

namespace qk::cpu {
namespace {

template <class Code>
QK_INLINE inline void code_each(const float *__restrict x, int64_t count, uint8_t *__restrict codes,
                                const Code &code) {
    for (int64_t i = 0; i < count; ++i) codes[i] = code(x[i]);
}

// clamp_to_int(round_half_even(value) + add, low, high), both ways of each choice computed.
QK_INLINE inline int32_t round_and_clamp(float value, float add, float low, float high) {
    constexpr float magic = 12582912.0f, limit = 4194304.0f;
    const float rounded = (value + magic) - magic;
    const bool small = bool(int(value > -limit) & int(value < limit));
    float result = (small ? rounded : value) + add;
    result = result == result ? result : 0.0f;
    result = result < low ? low : result;
    return int32_t(result > high ? high : result);
}

// Numbers in order as integers in order; -0 is 0.
inline int32_t ordered_bits(float value) {
    const int32_t bits = int32_t(f32_bits(value + 0.0f));
    return bits ^ ((bits >> 31) & 0x7fffffff);
}

}  // namespace
}  // namespace qk::cpu
