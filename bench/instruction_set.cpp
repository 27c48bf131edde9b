// Benches are linked with --wrap: the kernels' question goes through here first.
#include "instruction_set.hpp"

#include "cpu/features.hpp"

namespace {

uint32_t g_allowed = ~0u;

}  // namespace

extern "C" {
uint32_t __real__ZN2qk3cpu8featuresEv();  // qk::cpu::features()
uint32_t __wrap__ZN2qk3cpu8featuresEv() {
    return __real__ZN2qk3cpu8featuresEv() & g_allowed;
}
}

namespace bench {

void allow_instruction_set(const std::string &name) {
    using namespace qk::cpu;
    if (name == "all" || name == "i8mm") g_allowed = ~0u;
    if (name == "generic") g_allowed = 0;
    if (name == "avx2") g_allowed = kAvx2;
    if (name == "avx512") g_allowed = kAvx2 | kAvx512;
    if (name == "neon") g_allowed = kNeon;
    if (name == "dotprod") g_allowed = kNeon | kNeonDot;
}

}  // namespace bench
