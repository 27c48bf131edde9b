// Layers that were never quantized: X.weight F32, F16 or BF16 [n,k].
#include "dialect.hpp"

namespace qk_io {
namespace {

// Norms and convolutions have other ranks. Other types of rank 2 are quantized weights of a dialect
// that qk does not read: they are listed with a reason.
bool claims(const Module &module) { return module.anchor->rank == 2; }

qk_status describe(qk_checkpoint *, const Module &module, Layer *layer, qk_io_message *message) {
    const Tensor *weight = module.anchor;
    const qk_format format = float_format(weight);
    if (format == 0) {
        return fail(message, QK_ERROR_UNSUPPORTED,
                    "weight is %s; F32, F16, BF16 and the 4-bit dialects are supported",
                    shape_text(weight).text);
    }
    layer->dialect = QK_DIALECT_DENSE;
    layer->dense_format = format;
    set_plane(layer, QK_PLANE_DATA, weight);
    describe_weight(layer, format, QK_LAYOUT_ROW, 0, 0, weight->shape[0], weight->shape[1]);
    return take_bias(module, weight->shape[0], layer, message);
}

}  // namespace

extern const Dialect kDense = {".weight", claims, describe};

}  // namespace qk_io
