// The table of dialects, and what they share.
#include "dialect.hpp"

#include <stdio.h>
#include <stdlib.h>

#include "methods.hpp"

namespace qk_io {
namespace {

// The first that claims a module gets it.
const Dialect *const kDialects[] = {
    &kGguf,         &kAwq,     &kGptq,     &kUnknownWords, &kCompressedFp4, &kCompressedTensors,
    &kBitsandbytes, &kLlmInt8, &kModelOpt, &kDeepSeek,     &kGptOss,        &kScaled,
    &kTorchAo,      &kDense};

// What the library itself says about the description decides, so that no rule about sizes is
// written twice.
qk_status check_planes(const Layer &layer, qk_io_message *message) {
    const int64_t n = layer.desc.shape[0], k = layer.desc.shape[1];
    for (qk_plane plane = 0; plane < QK_PLANE_COUNT; ++plane) {
        size_t bytes = 0;
        const bool described = qk_tensor_plane_bytes(&layer.desc, plane, &bytes) == QK_OK;
        if (n < 1 || k < 1 || (!described && layer.desc.group_size == 0)) {
            return fail(message, QK_ERROR_UNSUPPORTED,
                        "weight is [%lld,%lld]; a weight of qk has at least 1 of each",
                        static_cast<long long>(n), static_cast<long long>(k));
        }
        if (!described) {
            return fail(message, QK_ERROR_UNSUPPORTED,
                        "no qk tensor is [%lld,%lld] with groups of %d", static_cast<long long>(n),
                        static_cast<long long>(k), static_cast<int>(layer.desc.group_size));
        }
        if (bytes != layer.plane_bytes[plane]) {
            static constexpr const char *kPlanes[QK_PLANE_COUNT] = {
                "codes",        "scales",     "zeros",        "second scales", "scale table",
                "scale offset", "code table", "global scale", "second minima", "order"};
            return fail(message, QK_ERROR_CORRUPT,
                        "%s: the file has %lld bytes, [%lld,%lld] needs %lld", kPlanes[plane],
                        static_cast<long long>(layer.plane_bytes[plane]), static_cast<long long>(n),
                        static_cast<long long>(k), static_cast<long long>(bytes));
        }
    }
    return QK_OK;
}

qk_status add_layer(qk_checkpoint *c, const Dialect &dialect, const Module &module,
                    qk_io_message *message) {
    Layer *layer = static_cast<Layer *>(c->arena.take(&c->memory, sizeof(Layer)));
    if (layer == nullptr) return out_of_memory(message);
    *layer = Layer{};
    layer->name = module.name;
    layer->bytes = module.anchor->bytes;
    layer->desc.struct_size = sizeof layer->desc;
    qk_io_message why = {};
    layer->status = dialect.describe(c, module, layer, &why);
    if (layer->status == QK_ERROR_MEMORY) return out_of_memory(message);
    if (layer->status == QK_OK) layer->status = check_planes(*layer, &why);
    if (layer->status != QK_OK) {
        const uint32_t size = sizeof layer->desc;
        layer->desc = qk_tensor_desc{};
        layer->desc.struct_size = size;
    }
    if (layer->method == nullptr) layer->method = qk_dialect_name(layer->dialect);
    layer->reason = c->arena.copy(&c->memory, why.text, strlen(why.text));
    if (layer->reason == nullptr || !c->layers.push(&c->memory, layer)) {
        return out_of_memory(message);
    }
    return QK_OK;
}

// The dialect of the layer that a tensor announces, and the layer's name; NULL: it announces none.
const Dialect *dialect_of(const qk_checkpoint *c, const Tensor &tensor, char *name,
                          const Foreign **foreign) {
    *foreign = find_foreign(c, tensor, name);
    if (*foreign != nullptr) return &kForeignLayer;
    for (const Dialect *dialect : kDialects) {
        if (!ends_with(tensor.name, dialect->anchor)) continue;
        const size_t length = strlen(tensor.name) - strlen(dialect->anchor);
        memcpy(name, tensor.name, length);
        name[length] = 0;
        if (dialect->claims(Module{c, name, &tensor, nullptr})) return dialect;
    }
    return nullptr;
}

qk_status add_layer_of(qk_checkpoint *c, const Tensor &tensor, qk_io_message *message) {
    char name[kMaxNameBytes + 1];
    const Foreign *foreign = nullptr;
    const Dialect *dialect = dialect_of(c, tensor, name, &foreign);
    if (dialect == nullptr) return QK_OK;
    const Module module = {c, c->arena.copy(&c->memory, name, strlen(name)), &tensor, foreign};
    if (module.name == nullptr) return out_of_memory(message);
    return add_layer(c, *dialect, module, message);
}

int by_name(const void *a, const void *b) {
    const Layer *x = *static_cast<Layer *const *>(a), *y = *static_cast<Layer *const *>(b);
    const int order = strcmp(x->name, y->name);
    // A quantized layer before a dense leftover of the same name.
    return order != 0 ? order : y->dialect - x->dialect;
}

}  // namespace

qk_status find_layers(qk_checkpoint *c, qk_io_message *message) {
    for (int64_t i = 0; i < c->tensors.count; ++i) {
        QK_IO_TRY(add_layer_of(c, c->tensors.items[i], message));
    }
    if (c->layers.count > 1) {
        qsort(c->layers.items, static_cast<size_t>(c->layers.count), sizeof(Layer *), by_name);
    }
    return find_experts(c, message);
}

const Layer *find_layer(const qk_checkpoint *c, const char *name) {
    int64_t low = 0, high = c->layers.count;
    while (low < high) {  // the first that is not before name
        const int64_t middle = low + (high - low) / 2;
        if (strcmp(c->layers.items[middle]->name, name) < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    if (low == c->layers.count || !same(c->layers.items[low]->name, name)) return nullptr;
    return c->layers.items[low];
}

const Tensor *sibling(const Module &module, const char *suffix) {
    char name[kMaxNameBytes + 64];
    const int written = snprintf(name, sizeof name, "%s%s", module.name, suffix);
    if (written < 0 || static_cast<size_t>(written) >= sizeof name) return nullptr;
    return find_tensor(module.checkpoint, name);
}

const Tensor *use(const Module &module, const char *suffix, Layer *layer) {
    const Tensor *tensor = sibling(module, suffix);
    if (tensor != nullptr) layer->bytes += tensor->bytes;
    return tensor;
}

void set_plane(Layer *layer, qk_plane plane, const Tensor *tensor) {
    layer->planes[plane] = tensor->data;
    layer->plane_bytes[plane] = static_cast<size_t>(tensor->bytes);
}

void set_recipe(Layer *layer, qk_plane plane, const Recipe &recipe, int64_t bytes) {
    layer->recipes[plane] = recipe;
    layer->plane_bytes[plane] = static_cast<size_t>(bytes);
}

qk_status set_minima(Layer *layer, const Recipe &scales, const Recipe &minima,
                     qk_io_message *message) {
    if (scales.from->dtype == QK_DTYPE_F32) {
        return fail(message, QK_ERROR_UNSUPPORTED,
                    "asymmetric 8-bit codes with F32 scales, whose products with zeros are not "
                    "exact; qk loads those with F16 and BF16 scales: %s",
                    kInstead);
    }
    const int64_t n = layer->desc.shape[0], k = layer->desc.shape[1];
    const int64_t group = layer->desc.group_size;
    const int64_t bytes = n * (group == QK_GROUP_ROW ? 1 : ceil_div(k, group)) * 4;
    layer->desc.scale_format = QK_FORMAT_F32;
    layer->desc.flags |= QK_TENSOR_FLOAT_MIN;
    layer->planes[QK_PLANE_SCALE] = nullptr;
    set_recipe(layer, QK_PLANE_SCALE, scales, bytes);
    set_recipe(layer, QK_PLANE_ZERO, minima, bytes);
    return QK_OK;
}

bool is(const Tensor *tensor, qk_dtype dtype, int32_t rank) {
    return tensor != nullptr && tensor->dtype == dtype && tensor->rank == rank;
}

qk_format float_format(const Tensor *tensor) {
    if (tensor == nullptr) return 0;
    const bool dense = tensor->dtype == QK_DTYPE_F32 || tensor->dtype == QK_DTYPE_F16 ||
                       tensor->dtype == QK_DTYPE_BF16;
    return dense ? dtype_by_code(tensor->dtype)->format : 0;
}

int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0); }

ShapeText shape_text(const Tensor *tensor) {
    ShapeText result = {"absent"};
    if (tensor == nullptr) return result;
    int at = snprintf(result.text, sizeof result.text, "%.16s [", tensor->dtype_name);
    for (int32_t i = 0; i < tensor->rank && at < 60; ++i) {
        at += snprintf(result.text + at, sizeof result.text - static_cast<size_t>(at), "%s%lld",
                       i == 0 ? "" : ",", static_cast<long long>(tensor->shape[i]));
    }
    if (at < 79) snprintf(result.text + at, sizeof result.text - static_cast<size_t>(at), "]");
    return result;
}

void describe_weight(Layer *layer, qk_format format, qk_layout layout, int64_t group_size,
                     qk_format scale_format, int64_t n, int64_t k) {
    qk_tensor_desc &d = layer->desc;
    d.format = format;
    d.layout = layout;
    d.group_size = static_cast<int32_t>(group_size);
    d.scale_format = scale_format;
    d.rank = 2;
    d.shape[0] = n;
    d.shape[1] = k;
}

qk_status normal_group(int64_t given, int64_t k, int64_t *group, qk_io_message *message) {
    if (given != QK_GROUP_ROW && given <= 0) {
        return fail(message, QK_ERROR_CORRUPT, "group_size %lld in the configuration; -1 or > 0",
                    static_cast<long long>(given));
    }
    // A given size is kept even when one group covers the row: AWQ gemv pads by it.
    *group = given > 4096 && given >= k ? QK_GROUP_ROW : given;
    if (*group == QK_GROUP_ROW || (given >= 16 && given <= 4096)) return QK_OK;
    return fail(message, QK_ERROR_UNSUPPORTED, "groups of %lld; qk takes 16..4096 or whole rows",
                static_cast<long long>(given));
}

int64_t group_of_layer(const Config &config, int64_t k, int64_t groups) {
    const int64_t given = config.group_size == 0 ? QK_GROUP_ROW : config.group_size;
    if (!config.differs || groups <= 0 || k % groups != 0) return given;
    const int64_t said = given > 0 ? ceil_div(k, given) : 1;
    if (said == groups) return given;
    return groups == 1 ? QK_GROUP_ROW : k / groups;
}

int64_t bits_of_zeros(const Tensor *zeros, int64_t n) {
    int64_t bits = 0;
    if (!is(zeros, QK_DTYPE_I32, 2) || n <= 0) return 0;
    if (__builtin_mul_overflow(zeros->shape[1], 32, &bits)) return 0;
    return bits % n == 0 ? bits / n : 0;
}

qk_status take_bias(const Module &module, int64_t n, Layer *layer, qk_io_message *message) {
    const Tensor *bias = use(module, ".bias", layer);
    if (bias == nullptr) return QK_OK;
    if (float_format(bias) == 0 || bias->rank != 1 || bias->shape[0] != n) {
        return fail(message, QK_ERROR_CORRUPT, "bias is %s; expected F32, F16 or BF16 [%lld]",
                    shape_text(bias).text, static_cast<long long>(n));
    }
    layer->bias = bias;
    return QK_OK;
}

qk_status take_biases(const Module &module, const char *suffix, int64_t experts, int64_t n,
                      Layer *layer, qk_io_message *message) {
    const Tensor *bias = use(module, suffix, layer);
    if (bias == nullptr) return QK_OK;
    if (float_format(bias) == 0 || bias->rank != 2 || bias->shape[0] != experts ||
        bias->shape[1] != n) {
        return fail(message, QK_ERROR_CORRUPT, "bias is %s; expected F32, F16 or BF16 [%lld,%lld]",
                    shape_text(bias).text, static_cast<long long>(experts),
                    static_cast<long long>(n));
    }
    layer->bias = bias;
    return QK_OK;
}

}  // namespace qk_io

const char *qk_dialect_name(qk_dialect dialect) {
    static constexpr const char *kNames[] = {
        "unknown",  "dense",   "AutoAWQ gemm",       "AutoAWQ gemv",
        "GPTQ v1",  "GPTQ v2", "compressed-tensors", "bitsandbytes",
        "GGUF",     "FP8",     "ModelOpt",           "gpt-oss",
        "DeepSeek", "torchao"};
    return dialect < 0 || dialect > QK_DIALECT_TORCHAO ? kNames[0] : kNames[dialect];
}
