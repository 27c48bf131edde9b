// What GPTQ's layers of 4 and of 8 bits share.
#pragma once
#include "dialect.hpp"

namespace qk_io {

struct GptqParts {
    const Tensor *qweight, *scales, *qzeros, *g_idx;
};

// Whatever desc_act says: what g_idx says is what dequantizes.
qk_status take_gptq_order(qk_checkpoint *checkpoint, const Tensor *g_idx, int64_t k, int64_t group,
                          Layer *layer, qk_io_message *message);
// A layer of 8 bits, whose version, types and ranks have been checked.
qk_status describe_gptq8(qk_checkpoint *checkpoint, const Module &module, const GptqParts &parts,
                         Layer *layer, qk_io_message *message);

}  // namespace qk_io
