// The CPU's plan of a product.
#pragma once
#include "backend/backend.hpp"

namespace qk::cpu {

// Conditions of select.hpp that hold.
uint32_t linear_facts(const LinearArgs &args);

LinearPlan plan_linear(const LinearArgs &args, const Device &device, const Allowance &allowed,
                       Explanation *explanation);

}  // namespace qk::cpu
