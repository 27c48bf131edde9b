// Tables of 256 numbers that bytes index (of nested scales, of LUT8), and what functions that look
// many up at once are like.
#pragma once
#include <stdint.h>
#include <string.h>

namespace qk::cpu {

struct NestedCode {
    alignas(64) uint8_t plane[4][256];  // byte p of each value
    float value[256];
};

// Second scales of 8 rows over a run of groups: row r's is first[r], and last[r] from group
// change[r] of the run on.
struct SecondScales {
    float first[8], last[8];
    int32_t change[8];
};

// `count` groups of 8 rows: to = value[from] * second + bias, two roundings. `to` has room for a
// multiple of 8 groups.
using WidenNested = void (*)(const NestedCode &code, const char *from, int64_t count,
                             const SecondScales &second, float bias, float (*to)[8]);

// to[i] = value[from[i]] * scale.
using LookUpBytes = void (*)(const NestedCode &code, const uint8_t *from, int64_t count,
                             float scale, float *to);

namespace {

inline void load_nested_code(const void *from, NestedCode *code) {
    memcpy(code->value, from, sizeof(code->value));
    for (int64_t i = 0; i < 256; ++i) {
        for (int64_t p = 0; p < 4; ++p) {
            code->plane[p][i] = static_cast<const uint8_t *>(from)[4 * i + p];
        }
    }
}

}  // namespace
}  // namespace qk::cpu
