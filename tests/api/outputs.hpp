// Every operation in one call, for tests that vary something else.
#pragma once
#include <functional>

#include "api/support.hpp"

namespace api {

// Runs one call of the library and returns its status.
using Around = std::function<qk_status(const std::function<qk_status()> &call)>;
inline qk_status plainly(const std::function<qk_status()> &call) { return call(); }

// Every operation on one description, dense weights times `scale`; all output bytes, one after the
// other.
std::vector<unsigned char> outputs_of(qk_context *context, const qk_tensor_desc &desc,
                                      float scale = 1, const Around &around = plainly);

// 105 columns and 77 rows are odd in every way; 600 rows give every executor more tasks than
// threads, and qk's own threads enough work to be handed some.
std::vector<qk_tensor_desc> odd_descs(int64_t rows = 77);

}  // namespace api
