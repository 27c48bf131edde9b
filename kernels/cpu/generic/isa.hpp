// What x86-64 and aarch64 have at least, and what a compiler makes of it elsewhere, for loops over
// vectors that compilers know.
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
