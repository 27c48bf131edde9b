// Layers that were never quantized: X.weight F32, F16 or BF16 [n,k].
#include "dialect.hpp"
#include "methods.hpp"

namespace qk_io {
namespace {

// VPTQ keeps a layer's codebooks in modules of their own: X.centroids.weight.
bool is_codebook(const Module &module) {
    static constexpr const char *kParts[] = {".centroids", ".res_centroids", ".outlier_centroids"};
    for (const char *part : kParts) {
        if (!ends_with(module.name, part)) continue;
        char owner[kMaxNameBytes + 1];
        const size_t length = strlen(module.name) - strlen(part);
        memcpy(owner, module.name, length);
        owner[length] = 0;
        return sibling(Module{module.checkpoint, owner, nullptr, nullptr}, ".indices") != nullptr;
    }
    return false;
}

// Norms and convolutions have other ranks. Other types of rank 2 are quantized weights of a dialect
// that qk does not read: they are listed with a reason.
bool claims(const Module &module) { return module.anchor->rank == 2 && !is_codebook(module); }

qk_status describe(qk_checkpoint *, const Module &module, Layer *layer, qk_io_message *message) {
    const Tensor *weight = module.anchor;
    const qk_format format = float_format(weight);
    if (format == 0) {
        return fail(message, QK_ERROR_UNSUPPORTED,
                    "weight is %s (%s), of no method that qk knows; dense weights are F32, F16 or "
                    "BF16",
                    shape_text(weight).text, saying_of(module.checkpoint->config).text);
    }
    const Tensor *bias = sibling(module, ".bias");
    if (float_format(bias) != 0 && bias->rank == 1 && bias->shape[0] == weight->shape[1] &&
        weight->shape[0] != weight->shape[1]) {
        return fail(message, QK_ERROR_UNSUPPORTED,
                    "weight is %s with a bias of %lld: stored as [k,n], as GPT-2's Conv1D does; qk "
                    "multiplies by [n,k]",
                    shape_text(weight).text, static_cast<long long>(bias->shape[0]));
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
