// Nested scales, one look-up in memory each. Included after an instruction set's lanes.hpp.
#pragma once
#include <string.h>

namespace qk::cpu {
namespace {

class NestedTable {
  public:
    void load(const void *code) { memcpy(code_, code, sizeof(code_)); }
    // `count` groups of 8 rows: code * second + bias.
    void widen(const char *from, int64_t count, const float (&second)[8], float bias,
               float (*to)[8]) const {
        for (int64_t i = 0; i < count; ++i) {
            widen_nested(from + i * 8, code_, second, bias, to[i]);
        }
    }

  private:
    float code_[256];
};

}  // namespace
}  // namespace qk::cpu
