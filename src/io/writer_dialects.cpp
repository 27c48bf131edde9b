// What a layer of each dialect is in a file: declared, then written.
#include <stdio.h>

#include "writer_dialects.hpp"

namespace qk_io {
namespace {

/* ---- AutoAWQ and GPTQ ---------------------------------------------------------------------- */

struct Words {  // qweight and qzeros, scales beside them
    qk_dialect dialect;
    qk_layout layout;
};
constexpr Words kWords[] = {{QK_DIALECT_AWQ_GEMM, QK_LAYOUT_AWQ_GEMM},
                            {QK_DIALECT_AWQ_GEMV, QK_LAYOUT_AWQ_GEMV},
                            {QK_DIALECT_GPTQ_V1, QK_LAYOUT_GPTQ_V1},
                            {QK_DIALECT_GPTQ_V2, QK_LAYOUT_GPTQ}};

bool is_gptq(const OutgoingLayer &layer) {
    return layer.dialect == QK_DIALECT_GPTQ_V1 || layer.dialect == QK_DIALECT_GPTQ_V2;
}

constexpr Int8Packing kInt8 = {".qweight", ".scales", ".qzeros", true};

bool is_int8(const OutgoingLayer &layer) {
    return is_gptq(layer) && layer.desc.format == QK_FORMAT_S8;
}

// GPTQ of 8 bits; AutoAWQ has none.
qk_status check_words_of_8(const OutgoingLayer &layer, qk_io_message *message) {
    QK_IO_TRY(check_int8(layer, message));
    const int64_t n = layer.desc.shape[0], k = layer.desc.shape[1];
    if (layer.dense_format == QK_FORMAT_F32) {
        return fail(message, QK_ERROR_UNSUPPORTED,
                    "layer \"%.200s\": its scales are F32; those of %s are F16 or BF16", layer.name,
                    qk_dialect_name(layer.dialect));
    }
    if (n % 4 == 0 && k % 4 == 0) return QK_OK;
    return fail(message, QK_ERROR_UNSUPPORTED,
                "layer \"%.200s\": %s of 8 bits has whole words of 4 codes; %lld x %lld is no "
                "multiple",
                layer.name, qk_dialect_name(layer.dialect), static_cast<long long>(n),
                static_cast<long long>(k));
}

qk_status check_words(const OutgoingLayer &layer, qk_io_message *message) {
    if (is_int8(layer)) return check_words_of_8(layer, message);
    const qk_tensor_desc &d = layer.desc;
    bool fits =
        d.format == QK_FORMAT_U4_AFFINE && d.rank == 2 &&
        (d.scale_format == QK_FORMAT_F16 || (d.scale_format == QK_FORMAT_BF16 && is_gptq(layer)));
    for (const Words &words : kWords) {
        fits = fits && (words.dialect != layer.dialect || words.layout == d.layout);
    }
    if (!fits || d.scale_format != layer.dense_format) {
        return fail(message, QK_ERROR_UNSUPPORTED,
                    "layer \"%.200s\": %s has U4_AFFINE of rank 2 with zeros in its own layout, "
                    "and scales of "
                    "%s, which dense_format names",
                    layer.name, qk_dialect_name(layer.dialect),
                    is_gptq(layer) ? "F16 or BF16" : "F16");
    }
    const bool words_along_n = layer.dialect != QK_DIALECT_AWQ_GEMV;
    const bool words_along_k = layer.dialect != QK_DIALECT_AWQ_GEMM;
    const int64_t n = d.shape[0], k = d.shape[1];
    if ((words_along_n && n % 8 != 0) || (words_along_k && k % 8 != 0)) {
        return fail(message, QK_ERROR_UNSUPPORTED,
                    "layer \"%.200s\": %s has whole words of 8 codes; %lld x %lld is no multiple",
                    layer.name, qk_dialect_name(layer.dialect), static_cast<long long>(n),
                    static_cast<long long>(k));
    }
    if (is_gptq(layer) || d.group_size == QK_GROUP_ROW || k % d.group_size == 0) return QK_OK;
    return fail(message, QK_ERROR_UNSUPPORTED,
                "layer \"%.200s\": AutoAWQ has whole groups; rows of %lld are no multiple of %d",
                layer.name, static_cast<long long>(k), static_cast<int>(d.group_size));
}

qk_status declare_words(qk_writer *w, const OutgoingLayer &layer, qk_io_message *message) {
    const int64_t n = layer.desc.shape[0], k = layer.desc.shape[1];
    if (is_int8(layer)) {
        QK_IO_TRY(declare(w, layer, ".g_idx", QK_DTYPE_I32, 1, k, 0, message));
        return declare_int8(w, layer, kInt8, message);
    }
    const bool gemv = layer.dialect == QK_DIALECT_AWQ_GEMV;
    // gemv pads its rows of groups, so the planes say how many there are.
    const int64_t zeros = plane_bytes(layer, QK_PLANE_ZERO) / 4;
    const int64_t scales = plane_bytes(layer, QK_PLANE_SCALE) / 2;
    const int64_t rows = gemv ? n : is_gptq(layer) ? k / 8 : k;
    QK_IO_TRY(declare(w, layer, ".qweight", QK_DTYPE_I32, 2, rows,
                      plane_bytes(layer, QK_PLANE_DATA) / 4 / rows, message));
    const int64_t groups = gemv ? n : scales / n;
    QK_IO_TRY(declare(w, layer, ".qzeros", QK_DTYPE_I32, 2, groups, zeros / groups, message));
    QK_IO_TRY(declare(w, layer, ".scales", dtype_of(layer.desc.scale_format), 2, groups,
                      scales / groups, message));
    return is_gptq(layer) ? declare(w, layer, ".g_idx", QK_DTYPE_I32, 1, k, 0, message) : QK_OK;
}

qk_status write_words(qk_writer *w, qk_context *context, const OutgoingLayer &piece,
                      const qk_tensor *tensor, qk_io_message *message) {
    if (is_int8(piece)) return write_int8(w, context, piece, tensor, kInt8, message);
    constexpr Plane kPlanes[] = {
        {".qweight", QK_PLANE_DATA}, {".qzeros", QK_PLANE_ZERO}, {".scales", QK_PLANE_SCALE}};
    for (const Plane &plane : kPlanes) {
        QK_IO_TRY(write_plane(w, context, piece, tensor, plane, message));
    }
    return QK_OK;
}

qk_status finish_words(qk_writer *w, qk_context *context, const OutgoingLayer &layer,
                       const qk_tensor *tensor, qk_io_message *message) {
    if (!is_gptq(layer)) return QK_OK;
    return write_groups(w, context, layer, tensor, ".g_idx", message);
}

/* ---- dense --------------------------------------------------------------------------------- */

qk_status check_dense(const OutgoingLayer &layer, qk_io_message *message) {
    if (layer.desc.format == layer.dense_format && layer.desc.rank == 2) return QK_OK;
    return fail(message, QK_ERROR_UNSUPPORTED,
                "layer \"%.200s\": a dense layer is F32, F16 or BF16 of rank 2, and dense_format "
                "says which",
                layer.name);
}

qk_status declare_dense(qk_writer *w, const OutgoingLayer &layer, qk_io_message *message) {
    return declare(w, layer, ".weight", dtype_of(layer.desc.format), 2, layer.desc.shape[0],
                   layer.desc.shape[1], message);
}

qk_status write_dense(qk_writer *w, qk_context *context, const OutgoingLayer &piece,
                      const qk_tensor *tensor, qk_io_message *message) {
    return write_plane(w, context, piece, tensor, Plane{".weight", QK_PLANE_DATA}, message);
}

qk_status finish_dense(qk_writer *, qk_context *, const OutgoingLayer &, const qk_tensor *,
                       qk_io_message *) {
    return QK_OK;
}

constexpr DialectWriter kWriters[] = {
    {QK_DIALECT_AWQ_GEMM, check_words, declare_words, write_words, finish_words},
    {QK_DIALECT_AWQ_GEMV, check_words, declare_words, write_words, finish_words},
    {QK_DIALECT_GPTQ_V1, check_words, declare_words, write_words, finish_words},
    {QK_DIALECT_GPTQ_V2, check_words, declare_words, write_words, finish_words},
    {QK_DIALECT_DENSE, check_dense, declare_dense, write_dense, finish_dense},
};

}  // namespace

bool is_float(qk_format format) {
    return format == QK_FORMAT_F32 || format == QK_FORMAT_F16 || format == QK_FORMAT_BF16;
}

qk_dtype dtype_of(qk_format format) {
    return format == QK_FORMAT_F32   ? QK_DTYPE_F32
           : format == QK_FORMAT_F16 ? QK_DTYPE_F16
                                     : QK_DTYPE_BF16;
}

int64_t plane_bytes(const OutgoingLayer &layer, qk_plane plane) {
    size_t bytes = 0;
    // The description was accepted when the layer was declared.
    return qk_tensor_plane_bytes(&layer.desc, plane, &bytes) == QK_OK ? static_cast<int64_t>(bytes)
                                                                      : 0;
}

qk_status declare(qk_writer *w, const OutgoingLayer &layer, const char *suffix, qk_dtype dtype,
                  int32_t rank, int64_t first, int64_t second, qk_io_message *message) {
    char name[kMaxNameBytes + 1];
    const int64_t shape[2] = {first, second};
    QK_IO_TRY(join_name(name, layer.name, suffix, message));
    return qk_writer_declare(w, name, dtype, rank, shape, message);
}

qk_status write_bytes(qk_writer *w, const OutgoingLayer &layer, const char *suffix,
                      const void *data, size_t bytes, qk_io_message *message) {
    char name[kMaxNameBytes + 1];
    QK_IO_TRY(join_name(name, layer.name, suffix, message));
    return qk_writer_write(w, name, data, bytes, message);
}

qk_status download_plane(qk_writer *w, qk_context *context, const OutgoingLayer &layer,
                         const qk_tensor *tensor, qk_plane plane, void **host,
                         qk_io_message *message) {
    const size_t bytes = static_cast<size_t>(plane_bytes(layer, plane));
    *host = w->memory.allocate(bytes, 8);
    if (*host == nullptr) return out_of_memory(message);
    const qk_status status = qk_tensor_download(context, tensor, plane, *host, bytes);
    if (status == QK_OK) return QK_OK;
    w->memory.release(*host);
    return fail(message, status, "layer \"%.200s\": %.250s", layer.name, qk_context_error(context));
}

qk_status write_plane(qk_writer *w, qk_context *context, const OutgoingLayer &layer,
                      const qk_tensor *tensor, const Plane &plane, qk_io_message *message) {
    const size_t bytes = static_cast<size_t>(plane_bytes(layer, plane.plane));
    void *host = nullptr;
    if (bytes == 0) return QK_OK;
    QK_IO_TRY(plane.plane == QK_PLANE_DATA
                  ? download_codes(w, context, layer, tensor, &host, message)
                  : download_plane(w, context, layer, tensor, plane.plane, &host, message));
    const qk_status status = write_bytes(w, layer, plane.suffix, host, bytes, message);
    w->memory.release(host);
    return status;
}

const DialectWriter *writer_of(qk_dialect dialect) {
    for (const DialectWriter &row : kWriters) {
        if (row.dialect == dialect) return &row;
    }
    static const DialectWriter *const kOthers[] = {
        &kBnbWriter, &kCtWriter, &kModelOptWriter, &kDeepSeekWriter, &kGptOssWriter, &kGgufWriter};
    for (const DialectWriter *writer : kOthers) {
        if (writer->dialect == dialect) return writer;
    }
    return nullptr;
}

qk_status join_name(char *name, const char *layer, const char *suffix, qk_io_message *message) {
    const int written = snprintf(name, kMaxNameBytes + 1, "%s%s", layer, suffix);
    if (written >= 0 && written <= kMaxNameBytes) return QK_OK;
    return fail(message, QK_ERROR_ARGUMENT, "layer: \"%.100s...\" is longer than %lld bytes", layer,
                static_cast<long long>(kMaxNameBytes));
}

}  // namespace qk_io
