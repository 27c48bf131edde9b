// The compiler's vector types at the least width of x86-64 and aarch64; other processors run what
// the compiler makes of them.
#pragma once
#include <stdint.h>

namespace qk::cpu {
namespace {

struct Generic {
    static constexpr uint32_t kFeature = 0;
    static constexpr int kVectorBytes = 16;
};

}  // namespace
}  // namespace qk::cpu
