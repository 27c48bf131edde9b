// mma.sync on simulated threads: operands are exchanged, and every sum is made in f32.
#pragma once
#include <math.h>

#include "cuda/mock/simulator.hpp"

namespace simulator {

template <class Convert>
void multiply_16x8x16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                      const Convert &convert) {
    const uint32_t lane = threadIdx.x % 32, quad = lane / 4, t = lane % 4;
    const Shared &all = share({a[0], a[1], a[2], a[3], b0, b1, 0, 0});
    for (uint32_t i = 0; i < 4; ++i) {
        for (uint32_t k = 0; k < 16; ++k) {
            const uint32_t from = k % 8 / 2, half = k / 8, shift = k % 2 * 16;
            const float left = convert(uint16_t(all[quad * 4 + from][half * 2 + i / 2] >> shift));
            const uint32_t column = t * 2 + i % 2;
            const float right = convert(uint16_t(all[column * 4 + from][4 + half] >> shift));
            d[i] = fmaf(left, right, d[i]);
        }
    }
}

}  // namespace simulator
