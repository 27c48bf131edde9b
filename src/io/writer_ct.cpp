// compressed-tensors: pack-quantized integers of 4 and 8 bits.
// Source: vllm-project/compressed-tensors src/compressed_tensors/compressors/.
#include "writer_dialects.hpp"

namespace qk_io {
namespace {

bool is_int8(const qk_tensor_desc &desc) { return desc.format == QK_FORMAT_S8; }
bool has_zeros(const qk_tensor_desc &desc) {
    return desc.format == QK_FORMAT_U4_AFFINE && (desc.flags & QK_TENSOR_SYMMETRIC) == 0;
}

qk_status check(const OutgoingLayer &layer, qk_io_message *message) {
    const qk_tensor_desc &d = layer.desc;
    const bool along_k = d.grouping != QK_GROUPING_FLAT;
    const bool fits =
        (d.format == QK_FORMAT_U4_AFFINE && d.layout == QK_LAYOUT_WORD) ||
        (is_int8(d) && d.layout == QK_LAYOUT_ROW && along_k && d.scale_format != QK_FORMAT_LUT8);
    if (!fits || d.rank != 2) {
        return fail(message, QK_ERROR_UNSUPPORTED,
                    "layer \"%.200s\": compressed-tensors has U4_AFFINE in WORD and S8 in ROW, of "
                    "rank 2",
                    layer.name);
    }
    if (d.scale_format == layer.dense_format) return QK_OK;
    return fail(message, QK_ERROR_UNSUPPORTED,
                "layer \"%.200s\": compressed-tensors' weights have the type of their scales; "
                "dense_format differs from scale_format",
                layer.name);
}

int64_t words_of_row(const qk_tensor_desc &desc) {
    const int64_t k = desc.shape[1], per = is_int8(desc) ? 4 : 8;
    return k / per + (k % per != 0);
}

qk_status declare_layer(qk_writer *w, const OutgoingLayer &layer, qk_io_message *message) {
    const int64_t n = layer.desc.shape[0];
    const int64_t width = layer.desc.scale_format == QK_FORMAT_F32 ? 4 : 2;
    const int64_t groups = plane_bytes(layer, QK_PLANE_SCALE) / (n * width);
    QK_IO_TRY(
        declare(w, layer, ".weight_packed", QK_DTYPE_I32, 2, n, words_of_row(layer.desc), message));
    QK_IO_TRY(declare(w, layer, ".weight_scale", dtype_of(layer.desc.scale_format), 2, n, groups,
                      message));
    QK_IO_TRY(declare(w, layer, ".weight_shape", QK_DTYPE_I64, 1, 2, 0, message));
    if (!has_zeros(layer.desc)) return QK_OK;
    return declare(w, layer, ".weight_zero_point", QK_DTYPE_I32, 2, n / 8 + (n % 8 != 0), groups,
                   message);
}

// Codes plus 128, four in a word, rows filled up with zeros: the highest bit flipped does that.
qk_status write_offset_bytes(qk_writer *w, qk_context *context, const OutgoingLayer &piece,
                             const qk_tensor *tensor, qk_io_message *message) {
    const size_t n = static_cast<size_t>(piece.desc.shape[0]);
    const size_t k = static_cast<size_t>(piece.desc.shape[1]);
    const size_t stored = 4 * static_cast<size_t>(words_of_row(piece.desc));
    uint8_t *words = static_cast<uint8_t *>(w->memory.allocate(n * stored, 8));
    if (words == nullptr) return out_of_memory(message);
    void *codes = nullptr;
    qk_status status = download_plane(w, context, piece, tensor, QK_PLANE_DATA, &codes, message);
    if (status == QK_OK) {
        for (size_t row = 0; row < n; ++row) {
            const uint8_t *from = static_cast<const uint8_t *>(codes) + row * k;
            uint8_t *to = words + row * stored;
            for (size_t i = 0; i < k; ++i) to[i] = from[i] ^ 0x80;
            memset(to + k, 0, stored - k);
        }
        w->memory.release(codes);
        status = write_bytes(w, piece, ".weight_packed", words, n * stored, message);
    }
    w->memory.release(words);
    return status;
}

qk_status write(qk_writer *w, qk_context *context, const OutgoingLayer &piece,
                const qk_tensor *tensor, qk_io_message *message) {
    constexpr Plane kPlanes[] = {{".weight_scale", QK_PLANE_SCALE},
                                 {".weight_zero_point", QK_PLANE_ZERO}};
    QK_IO_TRY(is_int8(piece.desc) ? write_offset_bytes(w, context, piece, tensor, message)
                                  : write_plane(w, context, piece, tensor,
                                                {".weight_packed", QK_PLANE_DATA}, message));
    for (const Plane &plane : kPlanes) {
        QK_IO_TRY(write_plane(w, context, piece, tensor, plane, message));
    }
    return QK_OK;
}

qk_status finish(qk_writer *w, qk_context *, const OutgoingLayer &layer, const qk_tensor *,
                 qk_io_message *message) {
    return write_bytes(w, layer, ".weight_shape", layer.desc.shape, 2 * sizeof(int64_t), message);
}

}  // namespace

extern const DialectWriter kCtWriter = {QK_DIALECT_COMPRESSED_TENSORS, check, declare_layer, write,
                                        finish};

}  // namespace qk_io
