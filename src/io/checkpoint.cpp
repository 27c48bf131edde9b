// Lists: tensors, metadata, layers.
#include "checkpoint.hpp"

#include "experts.hpp"
#include "gguf.hpp"
#include "methods.hpp"

namespace qk_io {
namespace {

void describe(const qk_checkpoint *c, const Tensor &t, qk_file_tensor *out) {
    *out = qk_file_tensor{t.name,  t.dtype_name, t.dtype, t.rank,
                          t.shape, t.bytes,      t.data,  c->files.items[t.file].name};
}

qk_status describe(const Layer &layer, qk_layer *out, size_t bytes) {
    qk_layer full = {
        layer.name,         layer.dialect, layer.status, layer.reason, layer.bias != nullptr,
        layer.dense_format, layer.bytes,   layer.desc};
    const size_t room = bytes - offsetof(qk_layer, desc);
    if (room < full.desc.struct_size) full.desc.struct_size = static_cast<uint32_t>(room);
    memcpy(out, &full, bytes < sizeof full ? bytes : sizeof full);
    return QK_OK;
}

// A caller with an older, smaller description at the end gets what it knows.
constexpr size_t kSmallestLayer = offsetof(qk_layer, desc) + offsetof(qk_tensor_desc, row_stride);

}  // namespace
}  // namespace qk_io

using namespace qk_io;

const char *qk_dtype_name(qk_dtype dtype) {
    const DtypeRow *row = dtype_by_code(dtype);
    const GgufType *type = dtype < QK_DTYPE_GGUF
                               ? nullptr
                               : find_gguf_type(static_cast<uint32_t>(dtype - QK_DTYPE_GGUF));
    if (type != nullptr) return type->name;
    return row == nullptr ? "unknown" : row->name;
}

int64_t qk_checkpoint_tensor_count(const qk_checkpoint *c) {
    return c == nullptr ? 0 : c->tensors.count;
}

qk_status qk_checkpoint_tensor(const qk_checkpoint *c, int64_t index, qk_file_tensor *tensor) {
    if (c == nullptr || tensor == nullptr) return QK_ERROR_NULL;
    if (index < 0 || index >= c->tensors.count) return QK_ERROR_ARGUMENT;
    describe(c, c->tensors.items[index], tensor);
    return QK_OK;
}

qk_status qk_checkpoint_find_tensor(const qk_checkpoint *c, const char *name,
                                    qk_file_tensor *tensor) {
    if (c == nullptr || name == nullptr || tensor == nullptr) return QK_ERROR_NULL;
    const Tensor *found = find_tensor(c, name);
    if (found == nullptr) return QK_ERROR_ARGUMENT;
    describe(c, *found, tensor);
    return QK_OK;
}

int64_t qk_checkpoint_metadata_count(const qk_checkpoint *c) {
    return c == nullptr ? 0 : c->metadata.count;
}

qk_status qk_checkpoint_metadata(const qk_checkpoint *c, int64_t index, const char **key,
                                 const char **value) {
    if (c == nullptr || key == nullptr || value == nullptr) return QK_ERROR_NULL;
    if (index < 0 || index >= c->metadata.count) return QK_ERROR_ARGUMENT;
    *key = c->metadata.items[index].key;
    *value = c->metadata.items[index].value;
    return QK_OK;
}

int64_t qk_checkpoint_layer_count(const qk_checkpoint *c) {
    return c == nullptr ? 0 : c->layers.count;
}

qk_status qk_checkpoint_layer(const qk_checkpoint *c, int64_t index, qk_layer *layer,
                              size_t layer_bytes) {
    if (c == nullptr || layer == nullptr) return QK_ERROR_NULL;
    if (layer_bytes < kSmallestLayer) return QK_ERROR_ABI;
    if (index < 0 || index >= c->layers.count) return QK_ERROR_ARGUMENT;
    return describe(*c->layers.items[index], layer, layer_bytes);
}

qk_status qk_checkpoint_find_layer(const qk_checkpoint *c, const char *name, qk_layer *layer,
                                   size_t layer_bytes) {
    if (c == nullptr || name == nullptr || layer == nullptr) return QK_ERROR_NULL;
    if (layer_bytes < kSmallestLayer) return QK_ERROR_ABI;
    const Layer *found = find_layer(c, name);
    return found == nullptr ? QK_ERROR_ARGUMENT : describe(*found, layer, layer_bytes);
}

int64_t qk_checkpoint_expert_layer_count(const qk_checkpoint *c) {
    return c == nullptr ? 0 : c->experts.count;
}

qk_status qk_checkpoint_expert_layer(const qk_checkpoint *c, int64_t index, qk_layer *layer,
                                     size_t layer_bytes) {
    if (c == nullptr || layer == nullptr) return QK_ERROR_NULL;
    if (layer_bytes < kSmallestLayer) return QK_ERROR_ABI;
    if (index < 0 || index >= c->experts.count) return QK_ERROR_ARGUMENT;
    return describe(c->experts.items[index]->layer, layer, layer_bytes);
}

qk_status qk_checkpoint_find_expert_layer(const qk_checkpoint *c, const char *name, qk_layer *layer,
                                          size_t layer_bytes) {
    if (c == nullptr || name == nullptr || layer == nullptr) return QK_ERROR_NULL;
    if (layer_bytes < kSmallestLayer) return QK_ERROR_ABI;
    const ExpertLayer *found = find_expert_layer(c, name);
    return found == nullptr ? QK_ERROR_ARGUMENT : describe(found->layer, layer, layer_bytes);
}

const char *qk_checkpoint_layer_method(const qk_checkpoint *c, const char *name) {
    if (c == nullptr || name == nullptr) return nullptr;
    if (const Layer *found = find_layer(c, name)) return found->method;
    const ExpertLayer *experts = find_expert_layer(c, name);
    return experts == nullptr ? nullptr : experts->layer.method;
}

qk_status qk_checkpoint_method(const qk_checkpoint *c, const char **name, qk_io_message *message) {
    clear(message);
    if (c == nullptr || name == nullptr) {
        return fail(message, QK_ERROR_NULL, "%s: NULL", c == nullptr ? "checkpoint" : "name");
    }
    *name = c->config.method_name;
    if (c->config.method != Method::kOther) return QK_OK;
    for (int64_t i = 0; i < c->layers.count; ++i) {  // tensors are better witnesses than names
        // Where a layer is refused, its own reason says more.
        const qk_dialect dialect = c->layers.items[i]->dialect;
        if (dialect != QK_DIALECT_DENSE && dialect != QK_DIALECT_UNKNOWN) return QK_OK;
    }
    return fail(message, QK_ERROR_UNSUPPORTED,
                "the model is quantized with %s, which qk does not load: %s",
                saying_of(c->config).text, kInstead);
}
