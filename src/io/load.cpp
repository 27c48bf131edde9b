// A layer as tensors of a context, in place or copied; and reading what opening does not read.
#include "experts.hpp"

namespace qk_io {

qk_status from_context(const qk_context *context, qk_status status, const char *layer,
                       qk_io_message *message) {
    return fail(message, status, "layer \"%.200s\": %.250s", layer, qk_context_error(context));
}

namespace {

qk_status wrap(qk_context *context, const char *name, qk_tensor_desc desc,
               const void *const *planes, qk_tensor **out, qk_io_message *message) {
    void *borrowed[QK_PLANE_COUNT];
    // READ_ONLY is what makes casting const away true.
    for (int i = 0; i < QK_PLANE_COUNT; ++i) borrowed[i] = const_cast<void *>(planes[i]);
    desc.flags |= QK_TENSOR_READ_ONLY;
    const qk_status status = qk_tensor_wrap(context, &desc, borrowed, QK_PLANE_COUNT, out);
    return status == QK_OK ? QK_OK : from_context(context, status, name, message);
}

// A plane that the file stores in another way.
qk_status upload_made(Memory memory, qk_context *context, const Layer &layer, qk_plane plane,
                      qk_tensor *tensor, qk_io_message *message) {
    const size_t bytes = layer.plane_bytes[plane];
    uint8_t *made = static_cast<uint8_t *>(memory.allocate(bytes, alignof(double)));
    if (made == nullptr) return out_of_memory(message);
    layer.recipes[plane].make(layer, layer.recipes[plane], made);
    const qk_status status = qk_tensor_upload(context, tensor, plane, made, bytes);
    memory.release(made);
    return status == QK_OK ? QK_OK : from_context(context, status, layer.name, message);
}

qk_status fill(Memory memory, qk_context *context, const Layer &layer, qk_tensor *tensor,
               qk_io_message *message) {
    for (qk_plane plane = 0; plane < QK_PLANE_COUNT; ++plane) {
        if (layer.recipes[plane].make != nullptr) {
            QK_IO_TRY(upload_made(memory, context, layer, plane, tensor, message));
        } else if (layer.plane_bytes[plane] != 0) {
            const qk_status status = qk_tensor_upload(context, tensor, plane, layer.planes[plane],
                                                      layer.plane_bytes[plane]);
            if (status != QK_OK) return from_context(context, status, layer.name, message);
        }
    }
    return QK_OK;
}

bool is_as_stored(const Layer &layer) {
    for (const Recipe &recipe : layer.recipes) {
        if (recipe.make != nullptr) return false;
    }
    return true;
}

}  // namespace

qk_status make_tensor(Memory memory, qk_context *context, const Layer &layer, bool in_place,
                      qk_tensor **out, qk_io_message *message) {
    if (in_place && is_as_stored(layer)) {
        return wrap(context, layer.name, layer.desc, layer.planes, out, message);
    }
    qk_tensor *tensor = nullptr;
    qk_status status = qk_tensor_create(context, &layer.desc, &tensor);
    if (status != QK_OK) return from_context(context, status, layer.name, message);
    status = fill(memory, context, layer, tensor, message);
    if (status == QK_OK) {
        *out = tensor;
    } else {
        qk_tensor_destroy(tensor);
    }
    return status;
}

namespace {

// A layer of the bias alone: dense, as it is stored.
qk_status make_bias(Memory memory, qk_context *context, const Layer &owner, bool in_place,
                    qk_tensor **out, qk_io_message *message) {
    Layer bias = {};
    bias.name = owner.name;
    bias.desc = QK_TENSOR_DESC_INIT;
    bias.desc.format = float_format(owner.bias);
    // Biases of several experts are one after another, as their rows are.
    bias.desc.shape[0] = owner.bias->bytes / (bias.desc.format == QK_FORMAT_F32 ? 4 : 2);
    set_plane(&bias, QK_PLANE_DATA, owner.bias);
    return make_tensor(memory, context, bias, in_place, out, message);
}

qk_status loadable(const qk_checkpoint *c, const char *name, const Layer **out,
                   qk_io_message *message) {
    const Layer *layer = find_layer(c, name);
    if (layer == nullptr) {
        return fail(message, QK_ERROR_ARGUMENT, "layer: there is no \"%.200s\" in the checkpoint",
                    name);
    }
    if (layer->status != QK_OK) {
        return fail(message, layer->status, "layer \"%.200s\": %s", name, layer->reason);
    }
    *out = layer;
    return QK_OK;
}

// Exponent bits all ones: NaN or infinite, in any of the three float formats. Those of one byte
// have NaN alone.
bool finite(const uint8_t *at, qk_format format) {
    uint32_t wide = 0;
    uint16_t narrow = 0;
    if (format == QK_FORMAT_E8M0) return *at != 0xff;
    if (format == QK_FORMAT_E4M3) return (*at & 0x7f) != 0x7f;
    if (format == QK_FORMAT_F32) {
        memcpy(&wide, at, sizeof wide);
        return (wide & 0x7f800000u) != 0x7f800000u;
    }
    memcpy(&narrow, at, sizeof narrow);
    const uint16_t exponent = format == QK_FORMAT_F16 ? 0x7c00 : 0x7f80;
    return (narrow & exponent) != exponent;
}

qk_status check_finite(const char *layer, const char *what, const void *data, size_t bytes,
                       qk_format format, qk_io_message *message) {
    const bool byte = format == QK_FORMAT_E8M0 || format == QK_FORMAT_E4M3;
    const size_t width = format == QK_FORMAT_F32 ? 4 : byte ? 1 : 2;
    const uint8_t *at = static_cast<const uint8_t *>(data);
    for (size_t i = 0; i + width <= bytes; i += width) {
        if (finite(at + i, format)) continue;
        return fail(message, QK_ERROR_CORRUPT, "layer \"%.200s\": %s %lld is not a finite number",
                    layer, what, static_cast<long long>(i / width));
    }
    return QK_OK;
}

int64_t count_stored_15(const uint8_t *zeros, size_t bytes) {
    int64_t count = 0;
    for (size_t i = 0; i < bytes; ++i) count += ((zeros[i] & 15) == 15) + ((zeros[i] >> 4) == 15);
    return count;
}

}  // namespace

qk_status check_load(const qk_checkpoint *checkpoint, const qk_context *context, const char *layer,
                     uint32_t flags, qk_tensor *const *weight, qk_io_message *message) {
    clear(message);
    const char *missing = checkpoint == nullptr ? "checkpoint"
                          : context == nullptr  ? "context"
                          : layer == nullptr    ? "layer"
                          : weight == nullptr   ? "weight"
                                                : nullptr;
    if (missing != nullptr) return fail(message, QK_ERROR_NULL, "%s: NULL", missing);
    if ((flags & ~QK_LOAD_IN_PLACE) == 0) return QK_OK;
    return fail(message, QK_ERROR_ARGUMENT, "flags: 0x%x; only 0x%x is defined", flags,
                QK_LOAD_IN_PLACE);
}

}  // namespace qk_io

using namespace qk_io;

qk_status qk_checkpoint_load(const qk_checkpoint *checkpoint, qk_context *context,
                             const char *layer_name, uint32_t flags, qk_tensor **weight,
                             qk_tensor **bias, qk_io_message *message) {
    QK_IO_TRY(check_load(checkpoint, context, layer_name, flags, weight, message));
    const Layer *layer = nullptr;
    QK_IO_TRY(loadable(checkpoint, layer_name, &layer, message));
    const bool in_place = (flags & QK_LOAD_IN_PLACE) != 0;
    qk_tensor *new_weight = nullptr, *new_bias = nullptr;
    const Memory memory = checkpoint->memory;
    QK_IO_TRY(make_tensor(memory, context, *layer, in_place, &new_weight, message));
    if (bias != nullptr && layer->bias != nullptr) {
        const qk_status status = make_bias(memory, context, *layer, in_place, &new_bias, message);
        if (status != QK_OK) {
            qk_tensor_destroy(new_weight);
            return status;
        }
    }
    *weight = new_weight;
    if (bias != nullptr) *bias = new_bias;
    return QK_OK;
}

qk_status qk_checkpoint_verify_layer(const qk_checkpoint *checkpoint, const char *layer_name,
                                     qk_io_message *message) {
    clear(message);
    if (checkpoint == nullptr || layer_name == nullptr) {
        return fail(message, QK_ERROR_NULL, "%s: NULL",
                    checkpoint == nullptr ? "checkpoint" : "layer");
    }
    const Layer *layer = nullptr;
    QK_IO_TRY(loadable(checkpoint, layer_name, &layer, message));
    if (layer->dialect == QK_DIALECT_GGUF) QK_IO_TRY(check_records(*layer, message));
    struct Part {
        const char *what;
        qk_plane plane;
        qk_format format;
    };
    const qk_format scale = layer->desc.scale_format;
    const Part parts[] = {{"scale", QK_PLANE_SCALE, scale == QK_FORMAT_LUT8 ? 0 : scale},
                          {"second scale", QK_PLANE_SCALE2, QK_FORMAT_F32},
                          {"entry of the scale table", QK_PLANE_SCALE_CODE, QK_FORMAT_F32},
                          {"scale offset", QK_PLANE_SCALE_BIAS, QK_FORMAT_F32},
                          {"entry of the code table", QK_PLANE_TABLE, QK_FORMAT_F32},
                          {"global scale", QK_PLANE_GLOBAL, QK_FORMAT_F32}};
    for (const Part &part : parts) {
        if (part.format == 0) continue;                        // 8-bit codes of nested scales
        const Tensor *from = layer->recipes[part.plane].from;  // as the file has it
        const qk_format stored = float_format(from) != 0 ? float_format(from) : part.format;
        QK_IO_TRY(check_finite(
            layer->name, part.what, from != nullptr ? from->data : layer->planes[part.plane],
            from != nullptr ? static_cast<size_t>(from->bytes) : layer->plane_bytes[part.plane],
            stored, message));
    }
    if (layer->bias != nullptr) {
        QK_IO_TRY(check_finite(layer->name, "bias", layer->bias->data,
                               static_cast<size_t>(layer->bias->bytes), float_format(layer->bias),
                               message));
    }
    if (layer->dialect != QK_DIALECT_GPTQ_V1 || layer->desc.format != QK_FORMAT_U4_AFFINE) {
        return QK_OK;
    }
    const int64_t odd = count_stored_15(static_cast<const uint8_t *>(layer->planes[QK_PLANE_ZERO]),
                                        layer->plane_bytes[QK_PLANE_ZERO]);
    if (odd == 0) return QK_OK;
    return fail(message, QK_OK,
                "layer \"%.200s\": %lld zeros are stored as 0xF, on which readers of GPTQ v1 "
                "differ; they are read as 0",
                layer->name, static_cast<long long>(odd));
}
