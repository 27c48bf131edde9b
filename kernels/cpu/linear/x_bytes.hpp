// A block of x as integers of three signed bytes each, 65536 * [2] + 256 * [1] + [0], for products
// of bytes by packed codes.
#pragma once
#include <stdint.h>

#include "cpu/order.hpp"

namespace qk::cpu {
namespace {

// Dword j has the columns whose codes are in dword j of a row: byte b is column 32 b + j in `low`,
// the low nibbles' one, and 32 b + 16 + j in `high`.
struct XBytes {
    alignas(64) uint32_t low[3][16], high[3][16];
    alignas(64) uint32_t sum[16];  // of a lane
    float unit;

    void place(const int32_t *__restrict q) {
        for (int j = 0; j < 16; ++j) {
            uint32_t even_bytes[3] = {}, odd_bytes[3] = {}, all = 0;
            for (int b = 0; b < 4; ++b) {
                int32_t even = q[32 * b + j], odd = q[32 * b + 16 + j];
                all += uint32_t(even) + uint32_t(odd);
                for (int i = 0; i < 3; ++i) {  // signed bytes, from the lowest
                    even_bytes[i] |= uint32_t(even & 255) << 8 * b;
                    odd_bytes[i] |= uint32_t(odd & 255) << 8 * b;
                    even = (even - int8_t(even)) >> 8;
                    odd = (odd - int8_t(odd)) >> 8;
                }
            }
            sum[j] = all;
            for (int i = 0; i < 3; ++i) {
                low[i][j] = even_bytes[i];
                high[i][j] = odd_bytes[i];
            }
        }
    }
};

}  // namespace
}  // namespace qk::cpu
