// How AVX-512 widens nested scales: by byte permutes where there is VBMI, else by gathers.
#pragma once
#include "cpu/features.hpp"
#include "cpu/lists.hpp"
#include "cpu/vector/nested.hpp"

namespace qk::cpu {
namespace {

inline WidenNested nested_widener() {
    return (features() & kAvx512Vbmi) != 0 ? kWidenNestedVbmi : widen_gathering;
}

}  // namespace
}  // namespace qk::cpu
