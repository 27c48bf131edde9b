// Every operation at once, for tests in which the operation is not what varies.
#pragma once
#include "api/support.hpp"

namespace api {

// Every operation on one description; all output bytes, one after the other.
std::vector<unsigned char> outputs_of(qk_context *context, const qk_tensor_desc &desc);

// 77 x 105 is odd in every way; 600 rows give every executor more tasks than threads.
std::vector<qk_tensor_desc> odd_descs();

}  // namespace api
