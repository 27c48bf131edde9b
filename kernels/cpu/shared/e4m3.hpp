// E4M3's bits are f16's but for the bias: its number is 2^8 times that f16, subnormal ones
// included. Where all are multiplied by a factor anyway, one product does for both.
#pragma once
#include <stdint.h>

#include "base/half.hpp"

namespace qk::cpu {
namespace {

struct E4m3 {
    static constexpr float kUnit = 0x1p8f;
    static bool multiplies(float factor) { return __builtin_fabsf(factor) < 0x1p119f; }

    // Whether such a product may be halfway between two bf16 numbers. A code is an odd number of
    // four bits times a power of two, which changes no bit where products are normal.
    static bool has_halfway(float factor) {
        const float magnitude = __builtin_fabsf(factor);
        if (!(magnitude >= 0x1p-110f && magnitude <= 0x1p110f)) return true;
        uint32_t halfway = 0;
        for (int i = 0; i < 8; ++i) {
            halfway |= f32_bits(float(2 * i + 1) * factor) << 16 == 0x80000000u;
        }
        return halfway != 0;
    }
};

}  // namespace
}  // namespace qk::cpu
