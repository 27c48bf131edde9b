// What a product with experts asks of its operands beyond what all products do.
#pragma once
#include "object/tensor.hpp"

namespace qk {

Status check_experts(qk_context *context, const qk_product &product);
Experts experts_view(const qk_product &product);  // of one that has been checked

}  // namespace qk
