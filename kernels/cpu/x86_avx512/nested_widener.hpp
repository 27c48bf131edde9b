// How AVX-512 widens nested scales: by byte permutes where there is VBMI, else by gathers.
#pragma once
#include "cpu/features.hpp"
#include "cpu/lists.hpp"
#include "cpu/vector/nested.hpp"

namespace qk::cpu {
namespace {

inline WidenNested nested_widener(const Device &device) {
    return has(device, kAvx512Vbmi) ? kWidenNestedVbmi : widen_gathering;
}

}  // namespace
}  // namespace qk::cpu
