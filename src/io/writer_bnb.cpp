// bitsandbytes: NF4 and FP4 with plain or nested scales, and LLM.int8.
// Source: bitsandbytes-foundation/bitsandbytes bitsandbytes/functional.py and nn/modules.py.
#include "tables.hpp"
#include "writer_dialects.hpp"

namespace qk_io {
namespace {

// A nested offset is known only once the layer is quantized, but the size of its JSON text is
// declared before: the text is padded with spaces, which JSON allows, for the longest number.
constexpr size_t kLongestNumber = 24;  // -1.2345678901234567e-308
constexpr size_t kMaxStateBytes = 512;

struct StateText {
    char text[kMaxStateBytes];
    size_t size;
};

const char *dtype_word(qk_format format) {
    return format == QK_FORMAT_F32 ? "float32" : format == QK_FORMAT_F16 ? "float16" : "bfloat16";
}

bool nested(const OutgoingLayer &layer) { return layer.desc.scale_format == QK_FORMAT_LUT8; }
bool nf4(const OutgoingLayer &layer) { return layer.desc.format == QK_FORMAT_NF4; }

qk_status check_bnb(const OutgoingLayer &layer, qk_io_message *message) {
    const qk_tensor_desc &d = layer.desc;
    const bool power =
        d.group_size >= 32 && d.group_size <= 4096 && (d.group_size & (d.group_size - 1)) == 0;
    // Groups along k that fill their rows are flat ones, and are described as either.
    const bool flat = d.grouping != QK_GROUPING_ALONG_K ||
                      (power && d.rank >= 2 && d.shape[d.rank - 1] % d.group_size == 0);
    const bool fits = (d.format == QK_FORMAT_NF4 || d.format == QK_FORMAT_FP4_BNB) &&
                      d.layout == QK_LAYOUT_ROW_HIGH && flat &&
                      (d.scale_format == QK_FORMAT_F32 || nested(layer)) && power && d.rank >= 2;
    if (fits) return QK_OK;
    return fail(message, QK_ERROR_UNSUPPORTED,
                "layer \"%.200s\": bitsandbytes has NF4 and FP4 in ROW_HIGH, flat groups of 32, 64 "
                "... 4096, F32 or nested scales",
                layer.name);
}

// As bitsandbytes' QuantState.as_dict(packed=True) writes it: its keys, its order.
json_t *state_json(const OutgoingLayer &layer, float offset) {
    json_t *shape = json_array();
    bool ok = shape != nullptr;
    for (int32_t i = 0; ok && i < layer.desc.rank; ++i) {
        ok = json_array_append_new(shape, json_integer(layer.desc.shape[i])) == 0;
    }
    json_t *root = json_pack("{s:s, s:i, s:s, s:o}", "quant_type", nf4(layer) ? "nf4" : "fp4",
                             "blocksize", static_cast<int>(layer.desc.group_size), "dtype",
                             dtype_word(layer.dense_format), "shape", shape);
    ok = ok && root != nullptr;
    if (ok && nested(layer)) {
        const int per = layer.desc.scale_group_size == 0 ? 256 : layer.desc.scale_group_size;
        const double value = static_cast<double>(offset);
        ok = json_object_set_new(root, "nested_blocksize", json_integer(per)) == 0 &&
             json_object_set_new(root, "nested_dtype", json_string("float32")) == 0 &&
             json_object_set_new(root, "nested_offset", json_real(value)) == 0;
    }
    if (ok) return root;
    json_decref(root);
    return nullptr;
}

// As few digits as give the same double back, as Python prints it.
bool print_state(const OutgoingLayer &layer, float offset, StateText *out) {
    json_t *root = state_json(layer, offset);
    bool ok = false;
    for (size_t digits = 1; root != nullptr && !ok && digits <= 17; ++digits) {
        out->size = json_dumpb(root, out->text, sizeof out->text, JSON_REAL_PRECISION(digits));
        if (out->size == 0 || out->size > sizeof out->text) break;
        json_t *back = json_loadb(out->text, out->size, 0, nullptr);
        ok = json_equal(root, back) != 0;
        json_decref(back);
    }
    json_decref(root);
    return ok;
}

// Of the text, whatever the offset will be.
bool state_size(const OutgoingLayer &layer, int64_t *size) {
    StateText text;
    if (!print_state(layer, 0.0f, &text)) return false;
    const size_t zero = sizeof "0.0" - 1;
    *size = static_cast<int64_t>(text.size + (nested(layer) ? kLongestNumber - zero : 0));
    return true;
}

const char *state_suffix(const OutgoingLayer &layer) {
    return nf4(layer) ? ".weight.quant_state.bitsandbytes__nf4"
                      : ".weight.quant_state.bitsandbytes__fp4";
}

qk_status declare_bnb(qk_writer *w, const OutgoingLayer &layer, qk_io_message *message) {
    int64_t text = 0;
    if (!state_size(layer, &text)) return out_of_memory(message);
    const int64_t scales = plane_bytes(layer, QK_PLANE_SCALE) / (nested(layer) ? 1 : 4);
    QK_IO_TRY(declare(w, layer, ".weight", QK_DTYPE_U8, 2, plane_bytes(layer, QK_PLANE_DATA), 1,
                      message));
    QK_IO_TRY(declare(w, layer, ".weight.absmax", nested(layer) ? QK_DTYPE_U8 : QK_DTYPE_F32, 1,
                      scales, 0, message));
    QK_IO_TRY(declare(w, layer, ".weight.quant_map", QK_DTYPE_F32, 1, 16, 0, message));
    QK_IO_TRY(declare(w, layer, state_suffix(layer), QK_DTYPE_U8, 1, text, 0, message));
    if (!nested(layer)) return QK_OK;
    QK_IO_TRY(declare(w, layer, ".weight.nested_absmax", QK_DTYPE_F32, 1,
                      plane_bytes(layer, QK_PLANE_SCALE2) / 4, 0, message));
    return declare(w, layer, ".weight.nested_quant_map", QK_DTYPE_F32, 1, 256, 0, message);
}

qk_status write_bnb(qk_writer *w, qk_context *context, const OutgoingLayer &piece,
                    const qk_tensor *tensor, qk_io_message *message) {
    constexpr Plane kPlanes[] = {{".weight", QK_PLANE_DATA},
                                 {".weight.absmax", QK_PLANE_SCALE},
                                 {".weight.nested_absmax", QK_PLANE_SCALE2}};
    for (const Plane &plane : kPlanes) {
        QK_IO_TRY(write_plane(w, context, piece, tensor, plane, message));
    }
    return QK_OK;
}

qk_status finish_bnb(qk_writer *w, qk_context *context, const OutgoingLayer &layer,
                     const qk_tensor *tensor, qk_io_message *message) {
    float offset = 0;
    if (nested(layer)) {
        const qk_status status =
            qk_tensor_download(context, tensor, QK_PLANE_SCALE_BIAS, &offset, sizeof offset);
        if (status != QK_OK) {
            return fail(message, status, "layer \"%.200s\": %.250s", layer.name,
                        qk_context_error(context));
        }
    }
    StateText text;
    int64_t size = 0;
    if (!(offset - offset == 0)) {
        return fail(message, QK_ERROR_CORRUPT, "layer \"%.200s\": its scale offset is not finite",
                    layer.name);
    }
    if (!print_state(layer, offset, &text) || !state_size(layer, &size)) {
        return out_of_memory(message);
    }
    memset(text.text + text.size, ' ', static_cast<size_t>(size) - text.size);
    QK_IO_TRY(write_plane(w, context, layer, tensor,
                          Plane{".weight.nested_quant_map", QK_PLANE_SCALE_CODE}, message));
    QK_IO_TRY(write_bytes(w, layer, ".weight.quant_map", nf4(layer) ? kNf4Table : kFp4Table,
                          sizeof kNf4Table, message));
    return write_bytes(w, layer, state_suffix(layer), text.text, static_cast<size_t>(size),
                       message);
}

/* ---- LLM.int8 ------------------------------------------------------------------------------ */

bool int8(const OutgoingLayer &layer) { return layer.desc.format == QK_FORMAT_S8; }

bool holds_int8(const qk_tensor_desc &d) {
    const bool a_row = d.group_size == QK_GROUP_ROW || (d.rank == 2 && d.group_size >= d.shape[1]);
    return d.rank == 2 && d.layout == QK_LAYOUT_ROW && d.grouping != QK_GROUPING_FLAT && a_row &&
           (d.flags & QK_TENSOR_FLOAT_MIN) == 0 && d.scale_format == QK_FORMAT_F32;
}

qk_status declare_int8(qk_writer *w, const OutgoingLayer &layer, qk_io_message *message) {
    const int64_t n = layer.desc.shape[0];
    QK_IO_TRY(declare(w, layer, ".weight", QK_DTYPE_I8, 2, n, layer.desc.shape[1], message));
    QK_IO_TRY(declare(w, layer, ".SCB", QK_DTYPE_F32, 1, n, 0, message));
    return declare(w, layer, ".weight_format", QK_DTYPE_U8, 0, 0, 0, message);
}

// The number whose product with 1 / 127 is rounded to `scale`: 127 scales or one of its neighbors.
// A scale of at most 17 significant bits has one; of the others some have none. NaN: none.
float largest_of(float scale) {
    const float near = scale * 127;
    uint32_t bits;
    memcpy(&bits, &near, sizeof bits);
    for (uint32_t step = 0; step < 9; ++step) {  // 0, 1, -1, 2, -2 ...
        const uint32_t candidate = step % 2 != 0 ? bits + (step + 1) / 2 : bits - step / 2;
        float largest;
        memcpy(&largest, &candidate, sizeof largest);
        if (largest * (1.0f / 127.0f) == scale) return largest;
    }
    return __builtin_nanf("");
}

qk_status write_scb(qk_writer *w, const OutgoingLayer &piece, const float *scales,
                    qk_io_message *message) {
    for (int64_t row = 0; row < piece.desc.shape[0]; ++row) {
        const float scale = scales[row], largest = largest_of(scale);
        if (!(largest - largest == 0)) {
            return fail(message, QK_ERROR_UNSUPPORTED,
                        "layer \"%.200s\": LLM.int8 stores 127 scales rounded to f32, and none "
                        "gives the scale %.9g of row %lld back",
                        piece.name, static_cast<double>(scale),
                        static_cast<long long>(piece.rows + row));
        }
        QK_IO_TRY(write_bytes(w, piece, ".SCB", &largest, sizeof largest, message));
    }
    return QK_OK;
}

qk_status write_int8(qk_writer *w, qk_context *context, const OutgoingLayer &piece,
                     const qk_tensor *tensor, qk_io_message *message) {
    void *scales = nullptr;
    QK_IO_TRY(write_plane(w, context, piece, tensor, {".weight", QK_PLANE_DATA}, message));
    QK_IO_TRY(download_plane(w, context, piece, tensor, QK_PLANE_SCALE, &scales, message));
    const qk_status status = write_scb(w, piece, static_cast<float *>(scales), message);
    w->memory.release(scales);
    return status;
}

/* ---- both ---------------------------------------------------------------------------------- */

qk_status check(const OutgoingLayer &layer, qk_io_message *message) {
    if (!int8(layer)) return check_bnb(layer, message);
    if (holds_int8(layer.desc)) return QK_OK;
    return fail(message, QK_ERROR_UNSUPPORTED,
                "layer \"%.200s\": LLM.int8 has S8 of rank 2 in ROW with one F32 scale a row",
                layer.name);
}

qk_status declare_layer(qk_writer *w, const OutgoingLayer &layer, qk_io_message *message) {
    return int8(layer) ? declare_int8(w, layer, message) : declare_bnb(w, layer, message);
}

qk_status write(qk_writer *w, qk_context *context, const OutgoingLayer &piece,
                const qk_tensor *tensor, qk_io_message *message) {
    return int8(piece) ? write_int8(w, context, piece, tensor, message)
                       : write_bnb(w, context, piece, tensor, message);
}

qk_status finish(qk_writer *w, qk_context *context, const OutgoingLayer &layer,
                 const qk_tensor *tensor, qk_io_message *message) {
    const uint8_t rows = 0;  // weight_format: in rows
    return int8(layer) ? write_bytes(w, layer, ".weight_format", &rows, sizeof rows, message)
                       : finish_bnb(w, context, layer, tensor, message);
}

}  // namespace

extern const DialectWriter kBnbWriter = {QK_DIALECT_BITSANDBYTES, check, declare_layer, write,
                                         finish};

}  // namespace qk_io
