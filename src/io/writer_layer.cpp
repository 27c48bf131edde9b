// Layers in the tensors of their dialects, so that Python can load them: what may be declared and
// written, whole or in pieces of rows.
#include <stddef.h>

#include "writer_dialects.hpp"

namespace qk_io {
namespace {

// But for the rows, of which a piece has fewer.
bool same_description(const qk_tensor_desc &a, const qk_tensor_desc &b) {
    bool equal = a.format == b.format && a.scale_format == b.scale_format && a.layout == b.layout &&
                 a.group_size == b.group_size && a.rank == b.rank &&
                 ((a.flags ^ b.flags) & ~QK_TENSOR_READ_ONLY) == 0;
    const int32_t per_a = a.scale_group_size == 0 ? 256 : a.scale_group_size;
    const int32_t per_b = b.scale_group_size == 0 ? 256 : b.scale_group_size;
    equal = equal && (a.scale_format != QK_FORMAT_LUT8 || per_a == per_b);
    for (int32_t i = 1; equal && i < a.rank; ++i) equal = a.shape[i] == b.shape[i];
    return equal;
}

// Experts [E,n,k] as the rows of all, one after another: pieces may then end at any row.
void join_experts(qk_tensor_desc *desc) {
    desc->rank = 2;
    desc->shape[0] *= desc->shape[1];
    desc->shape[1] = desc->shape[2];
    desc->shape[2] = 0;
}

bool has_experts(const OutgoingLayer &layer) {
    return layer.desc.rank == 3 &&
           (layer.dialect == QK_DIALECT_GPT_OSS || layer.dialect == QK_DIALECT_GGUF);
}

bool is_gptq(qk_dialect dialect) {
    return dialect == QK_DIALECT_GPTQ_V1 || dialect == QK_DIALECT_GPTQ_V2;
}

// Whether a piece may start after these rows: not in the middle of a byte, word or group.
bool can_cut(const OutgoingLayer &layer, int64_t rows) {
    const qk_tensor_desc &desc = layer.desc;
    if ((desc.flags & QK_TENSOR_ORDERED) != 0) return false;  // written whole
    if (layer.dialect == QK_DIALECT_DENSE || layer.dialect == QK_DIALECT_GGUF) return true;
    if (layer.dialect == QK_DIALECT_COMPRESSED_TENSORS) return rows % 8 == 0;
    if (desc.layout == QK_LAYOUT_ROW) return !is_gptq(layer.dialect);
    if (layer.dialect != QK_DIALECT_BITSANDBYTES) return false;  // words along n: in one piece
    int64_t per = desc.scale_group_size == 0 ? 256 : desc.scale_group_size;
    if (desc.scale_format != QK_FORMAT_LUT8) per = 1;
    for (int32_t i = 1; i < desc.rank; ++i) rows *= desc.shape[i];  // codes
    return rows % (desc.group_size * per) == 0;
}

// Orders of columns and minima, which few dialects have.
qk_status check_flags(const char *layer, qk_dialect dialect, const qk_tensor_desc &desc,
                      qk_io_message *message) {
    const bool int8 = desc.format == QK_FORMAT_S8;
    const bool has_both = is_gptq(dialect) || dialect == QK_DIALECT_COMPRESSED_TENSORS;
    if ((desc.flags & QK_TENSOR_ORDERED) != 0 &&
        !(has_both && (int8 || desc.format == QK_FORMAT_U4_AFFINE))) {
        return fail(message, QK_ERROR_UNSUPPORTED,
                    "layer \"%.200s\": its columns are stored in an order of their own "
                    "(act-order), which qk writes for integers of compressed-tensors and GPTQ",
                    layer);
    }
    if ((desc.flags & QK_TENSOR_FLOAT_MIN) == 0 || (has_both && int8) ||
        dialect == QK_DIALECT_GGUF) {
        return QK_OK;
    }
    return fail(message, QK_ERROR_UNSUPPORTED,
                "layer \"%.200s\": its groups have minima, which qk writes as the zeros of 8-bit "
                "integers of compressed-tensors and GPTQ",
                layer);
}

// Of the planes that all pieces of a layer share, with nested scales or GLOBAL: written once.
qk_status digest_shared(qk_context *context, const OutgoingLayer &layer, const qk_tensor *tensor,
                        uint64_t *digest) {
    *digest = 0;
    uint32_t words[257] = {};
    if ((layer.desc.flags & QK_TENSOR_GLOBAL) != 0) {
        QK_IO_TRY(qk_tensor_download(context, tensor, QK_PLANE_GLOBAL, words, 4));
    } else if (layer.desc.scale_format == QK_FORMAT_LUT8) {
        QK_IO_TRY(qk_tensor_download(context, tensor, QK_PLANE_SCALE_CODE, words, 1024));
        QK_IO_TRY(qk_tensor_download(context, tensor, QK_PLANE_SCALE_BIAS, words + 256, 4));
    } else {
        return QK_OK;
    }
    *digest = 0xcbf29ce484222325u;
    for (const uint32_t word : words) *digest = (*digest ^ word) * 0x100000001b3u;
    return QK_OK;
}

// The caller's description, which may be of an older header.
qk_tensor_desc known_desc(const qk_tensor_desc &given) {
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    const size_t size = given.struct_size < sizeof desc ? given.struct_size : sizeof desc;
    memcpy(&desc, &given, size);
    desc.struct_size = sizeof desc;
    return desc;
}

qk_status write_piece(qk_writer *w, qk_context *context, OutgoingLayer *layer, int64_t rows,
                      const qk_tensor *tensor, qk_io_message *message) {
    uint64_t shared = 0;
    const qk_status status = digest_shared(context, *layer, tensor, &shared);
    if (status != QK_OK) {
        return fail(message, status, "layer \"%.200s\": %.250s", layer->name,
                    qk_context_error(context));
    }
    if (layer->rows > 0 && shared != layer->shared) {
        return fail(
            message, QK_ERROR_ARGUMENT,
            "layer \"%.200s\": SCALE_CODE, SCALE_BIAS or GLOBAL differ from the first piece's",
            layer->name);
    }
    OutgoingLayer piece = *layer;
    piece.desc.shape[0] = rows;
    const DialectWriter *writer = writer_of(layer->dialect);
    QK_IO_TRY(writer->write(w, context, piece, tensor, message));
    layer->shared = shared;
    layer->rows += rows;
    if (layer->rows < layer->desc.shape[0]) return QK_OK;
    return writer->finish(w, context, *layer, tensor, message);
}

qk_status missing(qk_io_message *message, const char *name) {
    return fail(message, QK_ERROR_NULL, "%s: NULL", name);
}

}  // namespace

}  // namespace qk_io

using namespace qk_io;

qk_status qk_writer_declare_layer(qk_writer *w, qk_dialect dialect, const char *layer,
                                  const qk_tensor_desc *desc, qk_format dense_format,
                                  qk_io_message *message) {
    clear(message);
    if (w == nullptr || layer == nullptr || desc == nullptr) {
        return missing(message, w == nullptr ? "writer" : layer == nullptr ? "layer" : "desc");
    }
    size_t bytes = 0;
    constexpr uint32_t first_release = offsetof(qk_tensor_desc, row_stride);
    if (desc->struct_size < first_release) {
        return fail(message, QK_ERROR_ABI, "desc->struct_size: %u; at least %u", desc->struct_size,
                    first_release);
    }
    if (desc->layout == QK_LAYOUT_PACKED) {
        return fail(message, QK_ERROR_UNSUPPORTED,
                    "layer \"%.200s\": layout PACKED is the device's own; qk_repack it to a layout "
                    "that the file stores",
                    layer);
    }
    qk_status described = qk_tensor_plane_bytes(desc, QK_PLANE_DATA, &bytes);
    if (described == QK_OK && bytes == 0) described = QK_ERROR_SHAPE;  // a batch, and no weight
    if (described != QK_OK) {
        return fail(message, described, "desc: not a tensor: %s", qk_status_string(described));
    }
    const qk_tensor_desc known = known_desc(*desc);
    if (known.row_stride != 0 || (known.flags & QK_TENSOR_COLUMN_MAJOR) != 0) {
        return fail(message, QK_ERROR_FORMAT,
                    "layer \"%.200s\": files store rows one after the other, without a row_stride",
                    layer);
    }
    QK_IO_TRY(check_flags(layer, dialect, *desc, message));
    const DialectWriter *row = writer_of(dialect);
    if (row == nullptr || !is_float(dense_format)) {
        return fail(message, QK_ERROR_UNSUPPORTED,
                    "dialect %d, dense_format %d: the dialects of qk_dialect are written, of F32, "
                    "F16 and BF16",
                    static_cast<int>(dialect), static_cast<int>(dense_format));
    }
    const OutgoingLayer outgoing = {layer, dialect, known, dense_format, 0, 0, 0};
    if (w->is_gguf != (dialect == QK_DIALECT_GGUF) && dialect != QK_DIALECT_DENSE) {
        return fail(message, QK_ERROR_UNSUPPORTED,
                    "layer \"%.200s\": files named .gguf hold the dialect GGUF alone, others none "
                    "of it",
                    layer);
    }
    QK_IO_TRY(row->check(outgoing, message));
    OutgoingLayer kept = outgoing;
    kept.name = w->arena.copy(&w->memory, layer, strlen(layer));
    if (kept.name == nullptr) return out_of_memory(message);
    if (has_experts(kept)) {
        kept.rows_of_expert = known.shape[1];
        join_experts(&kept.desc);
    }
    const int64_t declared = w->tensors.count;
    const qk_status status = row->declare(w, outgoing, message);
    if (status == QK_OK && w->layer_names.reserve(&w->memory) && w->layers.push(&w->memory, kept)) {
        w->layer_names.add(kept.name, w->layers.count - 1);
        return QK_OK;
    }
    forget_outgoing(w, declared);
    return status == QK_OK ? out_of_memory(message) : status;
}

qk_status qk_writer_write_layer(qk_writer *w, qk_context *context, const char *layer,
                                const qk_tensor *tensor, qk_io_message *message) {
    clear(message);
    if (w == nullptr || context == nullptr || layer == nullptr || tensor == nullptr) {
        return missing(message, w == nullptr         ? "writer"
                                : context == nullptr ? "context"
                                : layer == nullptr   ? "layer"
                                                     : "tensor");
    }
    QK_IO_TRY(check_usable(w, message));
    const int64_t index = w->layer_names.find(layer);
    if (index < 0) {
        return fail(message, QK_ERROR_ARGUMENT, "layer: \"%.200s\" has not been declared", layer);
    }
    OutgoingLayer *found = &w->layers.items[index];
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    const qk_status status = qk_tensor_describe(tensor, &desc);
    if (status != QK_OK) return fail(message, status, "tensor: cannot be described");
    if (desc.rank == 3 && desc.shape[1] == found->rows_of_expert) join_experts(&desc);
    if (!same_description(desc, found->desc)) {
        return fail(message, QK_ERROR_FORMAT,
                    "tensor: not of the description that \"%.200s\" was declared with", layer);
    }
    const int64_t rows = desc.shape[0], left = found->desc.shape[0] - found->rows;
    if (rows > left) {
        return fail(message, QK_ERROR_BUFFER_SIZE,
                    "tensor: %lld rows, of \"%.200s\" %lld are left to be written",
                    static_cast<long long>(rows), layer, static_cast<long long>(left));
    }
    if (rows < left && !can_cut(*found, found->rows + rows)) {
        return fail(message, QK_ERROR_ARGUMENT,
                    "tensor: a piece of \"%.200s\" that ends after row %lld would cut a group, a "
                    "word or an order of columns",
                    layer, static_cast<long long>(found->rows + rows));
    }
    return write_piece(w, context, found, rows, tensor, message);
}
