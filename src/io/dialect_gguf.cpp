// Weights of a GGUF file in blocks of one of ggml's types.
#include "dialect.hpp"

namespace qk_io {
namespace {

bool claims(const Module &module) {
    const Tensor &weight = *module.anchor;
    return module.checkpoint->config.method == Method::kGguf && float_format(&weight) == 0 &&
           (weight.rank == 2 || weight.rank == 3);
}

qk_status describe(qk_checkpoint *, const Module &module, Layer *layer, qk_io_message *message) {
    layer->method = module.anchor->dtype_name;
    // No sizes: all layers of a type have one sentence.
    return fail(message, QK_ERROR_UNSUPPORTED,
                "weight is of type %s, which qk does not load; of a GGUF file it loads F32, F16 "
                "and BF16",
                module.anchor->dtype_name);
}

}  // namespace

extern const Dialect kGguf = {".weight", claims, describe};

}  // namespace qk_io
