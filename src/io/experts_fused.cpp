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

// X.experts.gate_up_proj and down_proj may be [E,k,2n] and [E,n,k], where others are [E,2n,k] and
// [E,k,n]. The sizes of both tell, as 2n is not n; those of one do not.
struct Way {
    bool transposed;
    const char *missing;  // the other of the pair; null: both are there, or it is none of a pair
};
// What modules have in the place of a dense gate_up_proj or down_proj. Their others are [E,n,k].
constexpr const char *kOtherFirst[] = {
    ".up_proj",          ".up_proj.weight",      ".gate_proj",
    ".gate_proj.weight", ".gate_up_proj_blocks", ".gate_up_proj_packed"};
constexpr const char *kOtherLast[] = {".down_proj_blocks", ".down_proj_packed"};
template <size_t count>
bool has_any(const Module &of, const char *const (&names)[count]) {
    for (const char *name : names) {
        if (sibling(of, name) != nullptr) return true;
    }
    return false;
}
Way way_of(const qk_checkpoint *c, const Name &name) {
    Name module = name;
    char *const dot = strrchr(module.text, '.');
    const bool is_gate_up = same(dot, kGateUp), is_down = same(dot, kDown);
    *dot = 0;
    if ((!is_gate_up && !is_down) || !is_named_experts(module)) return {};
    const Module of = {c, module.text, nullptr, nullptr};
    const Tensor *gate_up = sibling(of, kGateUp), *down = sibling(of, kDown);
    if (gate_up == nullptr) gate_up = sibling(of, ".gate_up_proj.weight");
    if (down == nullptr) down = sibling(of, ".down_proj.weight");
    if (gate_up == nullptr || down == nullptr) {
        const bool other = is_gate_up ? has_any(of, kOtherLast) : has_any(of, kOtherFirst);
        return {false, other ? nullptr : (is_gate_up ? kDown : kGateUp) + 1};
    }
    return {gate_up->rank == 3 && down->rank == 3 && gate_up->shape[0] == down->shape[0] &&
                gate_up->shape[1] == down->shape[2] && gate_up->shape[2] % 2 == 0 &&
                gate_up->shape[2] / 2 == down->shape[1],
            nullptr};
}

qk_status describe(const qk_checkpoint *c, const Tensor &tensor, const Way &way, Layer *layer,
                   qk_io_message *message) {
    if (way.missing != nullptr) {
        return fail(message, QK_ERROR_UNSUPPORTED,
                    "without %s, which may be in another file of the model, nothing says whether "
                    "experts are transposed",
                    way.missing);
    }
    qk_tensor_desc &d = layer->desc;
    d.format = layer->dense_format = float_format(&tensor);
    d.rank = 3;
    d.shape[0] = tensor.shape[0];
    d.shape[1] = tensor.shape[way.transposed ? 2 : 1];
    d.shape[2] = tensor.shape[way.transposed ? 1 : 2];
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
    const Way way = way_of(c, name);
    qk_io_message why = {};
    layer->status = describe(c, tensor, way, layer, &why);
    layer->reason = why.text;  // until it is copied
    const qk_status status = add_whole(c, layer, tensor.shape[0], way.transposed, message);
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
