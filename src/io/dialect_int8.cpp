// bitsandbytes' LLM.int8: X.weight I8 [n,k], X.SCB F32 [n], the largest |w| of every row, and
// X.weight_format, 0 for rows as they are.
// Source: bitsandbytes-foundation/bitsandbytes bitsandbytes/nn/modules.py, Linear8bitLt.
#include "dialect.hpp"
#include "methods.hpp"
#include "remake.hpp"

namespace qk_io {
namespace {

bool claims(const Module &module) {
    return module.anchor->dtype == QK_DTYPE_I8 && sibling(module, ".SCB") != nullptr;
}

// Before version 0.45 weights could be stored as one GPU's tensor cores want them.
qk_status check_format(const Tensor *format, qk_io_message *message) {
    if (format == nullptr) return QK_OK;
    if (format->dtype != QK_DTYPE_U8 || format->bytes != 1) {
        return fail(message, QK_ERROR_CORRUPT, "weight_format is %s; expected one U8",
                    shape_text(format).text);
    }
    if (format->data[0] == 0) return QK_OK;
    return fail(message, QK_ERROR_UNSUPPORTED,
                "weight_format %d, codes in the order of one GPU's tensor cores; qk loads 0, rows "
                "as they are: %s",
                format->data[0], kInstead);
}

qk_status describe(qk_checkpoint *checkpoint, const Module &module, Layer *layer,
                   qk_io_message *message) {
    layer->dialect = QK_DIALECT_BITSANDBYTES;
    layer->method = "LLM.int8";
    const Tensor *weight = module.anchor;
    const Tensor *largest = use(module, ".SCB", layer);
    QK_IO_TRY(check_format(use(module, ".weight_format", layer), message));
    if (weight->rank != 2 || !is(largest, QK_DTYPE_F32, 1) ||
        largest->shape[0] != weight->shape[0]) {
        return fail(message, QK_ERROR_CORRUPT,
                    "weight is %s, SCB is %s; expected I8 [n,k] and F32 [n]",
                    shape_text(weight).text, shape_text(largest).text);
    }
    const int64_t n = weight->shape[0], k = weight->shape[1];
    set_plane(layer, QK_PLANE_DATA, weight);
    set_recipe(layer, QK_PLANE_SCALE, {make_127th, largest, 0}, largest->bytes);
    // It quantizes f16 weights, whatever the model had.
    layer->dense_format = checkpoint->model_format != 0 ? checkpoint->model_format : QK_FORMAT_F16;
    describe_weight(layer, QK_FORMAT_S8, QK_LAYOUT_ROW, QK_GROUP_ROW, QK_FORMAT_F32, n, k);
    return take_bias(module, n, layer, message);
}

}  // namespace

extern const Dialect kLlmInt8 = {".weight", claims, describe};

}  // namespace qk_io
