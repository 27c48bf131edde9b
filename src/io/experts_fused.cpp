// Dense experts that are one tensor of the file, as transformers saves some models' and GGUF files
// have them: X.experts.gate_up_proj [E,2n,k], blk.0.ffn_up_exps.weight [E,n,k]. They are no layers.
#include <stdio.h>

#include "experts.hpp"

namespace qk_io {
namespace {

constexpr const char *kWeight = ".weight", *kGateUp = ".gate_up_proj", *kDown = ".down_proj";

struct Name {
    char text[kMaxNameBytes + 64];
};

// The tensor's, without ".weight".
Name name_of(const Tensor &tensor) {
    Name name = {};
    snprintf(name.text, sizeof name.text, "%s", tensor.name);
    if (ends_with(name.text, kWeight)) name.text[strlen(name.text) - strlen(kWeight)] = 0;
    return name;
}

bool is_named_experts(const Name &module) {
    return same(module.text, "experts") || ends_with(module.text, ".experts");
}

// "X.experts.Y", "X_moe.Y" and "X.Y_exps", where Y is no part of a quantized weight. A "*" would be
// a name of layers an expert.
bool is_of_experts(const Name &name) {
    const char *const dot = strrchr(name.text, '.');
    if (dot == nullptr || strchr(name.text, '*') != nullptr) return false;
    static constexpr const char *kOthers[] = {"scale", "bias", "zero"};
    for (const char *other : kOthers) {
        if (strstr(dot, other) != nullptr) return false;
    }
    Name module = name;
    module.text[dot - name.text] = 0;
    return is_named_experts(module) || ends_with(module.text, "_moe") ||
           ends_with(name.text, "_exps");
}

// Whether X.experts.gate_up_proj and down_proj, of one dtype, are [E,k,2n] and [E,n,k], where
// others have [E,2n,k] and [E,k,n]. Sizes tell: 2n is not n.
bool is_transposed(const qk_checkpoint *c, const Name &name) {
    Name module = name;
    char *const dot = strrchr(module.text, '.');
    if (!same(dot, kGateUp) && !same(dot, kDown)) return false;
    *dot = 0;
    if (!is_named_experts(module)) return false;
    const Module of = {c, module.text, nullptr, nullptr};
    const Tensor *const gate_up = sibling(of, kGateUp), *const down = sibling(of, kDown);
    return gate_up != nullptr && is(down, gate_up->dtype, 3) && gate_up->rank == 3 &&
           gate_up->shape[0] == down->shape[0] && gate_up->shape[1] == down->shape[2] &&
           gate_up->shape[2] % 2 == 0 && gate_up->shape[2] / 2 == down->shape[1];
}

qk_status describe(const qk_checkpoint *c, const Tensor &tensor, bool transposed, Layer *layer,
                   qk_io_message *message) {
    qk_tensor_desc &d = layer->desc;
    d.format = layer->dense_format = float_format(&tensor);
    d.rank = 3;
    d.shape[0] = tensor.shape[0];
    d.shape[1] = tensor.shape[transposed ? 2 : 1];
    d.shape[2] = tensor.shape[transposed ? 1 : 2];
    size_t bytes = 0;
    if (tensor.bytes == 0 || qk_tensor_plane_bytes(&d, QK_PLANE_DATA, &bytes) != QK_OK) {
        return fail(message, QK_ERROR_UNSUPPORTED,
                    "weight is %s; a weight of qk has at least 1 of each",
                    shape_text(&tensor).text);
    }
    set_plane(layer, QK_PLANE_DATA, &tensor);
    const Module module = {c, layer->name, &tensor, nullptr};
    const char *const bias = ends_with(tensor.name, kWeight) ? ".bias" : "_bias";
    return take_biases(module, bias, d.shape[0], d.shape[1], layer, message);
}

qk_status add_tensor(qk_checkpoint *c, const Tensor &tensor, qk_io_message *message) {
    const Name name = name_of(tensor);
    const bool is_weight = ends_with(tensor.name, kWeight);
    if (float_format(&tensor) == 0 || tensor.rank != 3 || !is_of_experts(name) ||
        find_layer(c, name.text) != nullptr ||
        (!is_weight && sibling(Module{c, name.text, nullptr, nullptr}, kWeight) != nullptr)) {
        return QK_OK;
    }
    Layer *const layer = static_cast<Layer *>(c->arena.take(&c->memory, sizeof(Layer)));
    if (layer == nullptr) return out_of_memory(message);
    *layer = Layer{};
    layer->name = c->arena.copy(&c->memory, name.text, strlen(name.text));
    if (layer->name == nullptr) return out_of_memory(message);
    layer->dialect = QK_DIALECT_DENSE;
    layer->method = qk_dialect_name(layer->dialect);
    layer->bytes = tensor.bytes;
    layer->desc = QK_TENSOR_DESC_INIT;
    const bool transposed = is_transposed(c, name);
    qk_io_message why = {};
    layer->status = describe(c, tensor, transposed, layer, &why);
    layer->reason = why.text;  // until it is copied
    const qk_status status = add_whole(c, layer, tensor.shape[0], transposed, message);
    layer->reason = "";
    return status;
}

}  // namespace

qk_status add_fused(qk_checkpoint *c, qk_io_message *message) {
    for (int64_t i = 0; i < c->tensors.count; ++i) {
        QK_IO_TRY(add_tensor(c, c->tensors.items[i], message));
    }
    return QK_OK;
}

}  // namespace qk_io
