// compressed-tensors: pack-quantized integers of 4 and 8 bits, mxfp4, nvfp4 and FP8.
// Source: vllm-project/compressed-tensors src/compressed_tensors/compressors/.
#include "writer_dialects.hpp"

namespace qk_io {
namespace {

bool is_int8(const qk_tensor_desc &desc) { return desc.format == QK_FORMAT_S8; }
bool is_fp8(const qk_tensor_desc &desc) { return desc.format == QK_FORMAT_E4M3; }
bool is_fp4(const qk_tensor_desc &desc) { return desc.format == QK_FORMAT_FP4_E2M1; }
bool has_zeros(const qk_tensor_desc &desc) {
    return desc.format == QK_FORMAT_U4_AFFINE && (desc.flags & QK_TENSOR_SYMMETRIC) == 0;
}
bool is_ordered(const qk_tensor_desc &desc) { return (desc.flags & QK_TENSOR_ORDERED) != 0; }
bool has_global(const qk_tensor_desc &desc) { return (desc.flags & QK_TENSOR_GLOBAL) != 0; }

// By its size of groups the package tells mxfp4 from nvfp4.
bool is_mxfp4(const qk_tensor_desc &d) {
    return d.group_size == 32 && d.scale_format == QK_FORMAT_E8M0 && !has_global(d);
}
bool is_nvfp4(const qk_tensor_desc &d) {
    return d.group_size == 16 && d.scale_format == QK_FORMAT_E4M3 && has_global(d) &&
           (d.flags & QK_TENSOR_GLOBAL_DIVIDES) != 0;
}

bool is_held(const qk_tensor_desc &d) {
    if (d.rank != 2) return false;
    if (d.format == QK_FORMAT_U4_AFFINE) return d.layout == QK_LAYOUT_WORD;
    const bool rows = d.layout == QK_LAYOUT_ROW && d.grouping != QK_GROUPING_FLAT;
    if (is_fp8(d)) {
        return rows && (is_float(d.scale_format) ||
                        (d.scale_format == QK_FORMAT_E8M0 && d.group_size == 32));
    }
    if (!is_fp4(d) || !rows || d.shape[1] % d.group_size != 0) return false;
    return is_mxfp4(d) || is_nvfp4(d);
}

qk_status check(const OutgoingLayer &layer, qk_io_message *message) {
    if (is_int8(layer.desc)) return check_int8(layer, message);
    if (!is_held(layer.desc)) {
        return fail(
            message, QK_ERROR_UNSUPPORTED,
            "layer \"%.200s\": compressed-tensors has U4_AFFINE in WORD "
            "with F32, F16 or BF16 scales, E4M3 in ROW with those or E8M0 scales of 32, and "
            "FP4_E2M1 in ROW with E8M0 scales of 32 or "
            "E4M3 scales of 16 whose GLOBAL divides; whole groups, rank 2",
            layer.name);
    }
    if (is_fp4(layer.desc) || is_fp8(layer.desc) || layer.desc.scale_format == layer.dense_format) {
        return QK_OK;
    }
    return fail(message, QK_ERROR_UNSUPPORTED,
                "layer \"%.200s\": compressed-tensors' weights have the type of their scales; "
                "dense_format differs from scale_format",
                layer.name);
}

constexpr Int8Packing kInt8 = {".weight_packed", ".weight_scale", ".weight_zero_point", false};

qk_status declare_fp4(qk_writer *w, const OutgoingLayer &layer, qk_io_message *message) {
    const int64_t n = layer.desc.shape[0], k = layer.desc.shape[1];
    const bool nvfp4 = is_nvfp4(layer.desc);
    QK_IO_TRY(declare(w, layer, ".weight_packed", QK_DTYPE_U8, 2, n, k / 2, message));
    QK_IO_TRY(declare(w, layer, ".weight_scale", nvfp4 ? QK_DTYPE_F8_E4M3 : QK_DTYPE_U8, 2, n,
                      k / layer.desc.group_size, message));
    if (!nvfp4) return QK_OK;
    return declare(w, layer, ".weight_global_scale", QK_DTYPE_F32, 1, 1, 0, message);
}

qk_status declare_fp8(qk_writer *w, const OutgoingLayer &layer, qk_io_message *message) {
    const qk_tensor_desc &d = layer.desc;
    const int64_t n = d.shape[0], k = d.shape[1];
    const int64_t group = d.group_size == QK_GROUP_ROW ? k : d.group_size;
    const qk_dtype scales =
        d.scale_format == QK_FORMAT_E8M0 ? QK_DTYPE_U8 : dtype_of(d.scale_format);
    QK_IO_TRY(declare(w, layer, ".weight", QK_DTYPE_F8_E4M3, 2, n, k, message));
    return declare(w, layer, ".weight_scale", scales, 2, n, k / group + (k % group != 0), message);
}

qk_status declare_layer(qk_writer *w, const OutgoingLayer &layer, qk_io_message *message) {
    if (is_fp8(layer.desc)) return declare_fp8(w, layer, message);
    if (is_fp4(layer.desc)) return declare_fp4(w, layer, message);
    const int64_t n = layer.desc.shape[0], k = layer.desc.shape[1];
    QK_IO_TRY(declare(w, layer, ".weight_shape", QK_DTYPE_I64, 1, 2, 0, message));
    if (is_ordered(layer.desc)) {
        QK_IO_TRY(declare(w, layer, ".weight_g_idx", QK_DTYPE_I32, 1, k, 0, message));
    }
    if (is_int8(layer.desc)) return declare_int8(w, layer, kInt8, message);
    const int64_t width = layer.desc.scale_format == QK_FORMAT_F32 ? 4 : 2;
    const int64_t groups = plane_bytes(layer, QK_PLANE_SCALE) / (n * width);
    QK_IO_TRY(
        declare(w, layer, ".weight_packed", QK_DTYPE_I32, 2, n, k / 8 + (k % 8 != 0), message));
    QK_IO_TRY(declare(w, layer, ".weight_scale", dtype_of(layer.desc.scale_format), 2, n, groups,
                      message));
    if (!has_zeros(layer.desc)) return QK_OK;
    return declare(w, layer, ".weight_zero_point", QK_DTYPE_I32, 2, n / 8 + (n % 8 != 0), groups,
                   message);
}

qk_status write(qk_writer *w, qk_context *context, const OutgoingLayer &piece,
                const qk_tensor *tensor, qk_io_message *message) {
    constexpr Plane kPlanes[] = {{".weight_scale", QK_PLANE_SCALE},
                                 {".weight_zero_point", QK_PLANE_ZERO}};
    const Plane codes = {is_fp8(piece.desc) ? ".weight" : ".weight_packed", QK_PLANE_DATA};
    if (is_int8(piece.desc)) return write_int8(w, context, piece, tensor, kInt8, message);
    QK_IO_TRY(write_plane(w, context, piece, tensor, codes, message));
    for (const Plane &plane : kPlanes) {
        QK_IO_TRY(write_plane(w, context, piece, tensor, plane, message));
    }
    return QK_OK;
}

qk_status finish(qk_writer *w, qk_context *context, const OutgoingLayer &layer,
                 const qk_tensor *tensor, qk_io_message *message) {
    if (is_fp4(layer.desc)) {
        return write_plane(w, context, layer, tensor, {".weight_global_scale", QK_PLANE_GLOBAL},
                           message);
    }
    if (is_fp8(layer.desc)) return QK_OK;
    if (is_ordered(layer.desc)) {
        QK_IO_TRY(write_groups(w, context, layer, tensor, ".weight_g_idx", message));
    }
    return write_bytes(w, layer, ".weight_shape", layer.desc.shape, 2 * sizeof(int64_t), message);
}

}  // namespace

extern const DialectWriter kCtWriter = {QK_DIALECT_COMPRESSED_TENSORS, check, declare_layer, write,
                                        finish};

}  // namespace qk_io
