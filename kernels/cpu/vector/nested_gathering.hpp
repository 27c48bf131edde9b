// Nested scales where there is no better way: a look-up in memory each.
#pragma once
#include "backend/backend.hpp"
#include "cpu/vector/nested.hpp"

namespace qk::cpu {
namespace {

inline WidenNested nested_widener(const Device &) { return widen_gathering; }

}  // namespace
}  // namespace qk::cpu
