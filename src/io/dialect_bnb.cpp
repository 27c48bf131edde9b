// bitsandbytes 4-bit: X.weight (any dtype, its bytes matter), .absmax, .quant_map and the JSON
// text in .quant_state.bitsandbytes__nf4 or __fp4; nested: .nested_absmax, .nested_quant_map.
// Source: bitsandbytes-foundation/bitsandbytes bitsandbytes/functional.py, QuantState.
#include "dialect.hpp"
#include "remake.hpp"
#include "tables.hpp"

namespace qk_io {
namespace {

constexpr int64_t kMaxStateBytes = 4096;
constexpr int64_t kMaxStateValues = 64;

struct State {  // the JSON text
    char quant_type[8], dtype[16];
    int64_t blocksize, nested_blocksize;
    int64_t n, k;
    double nested_offset;
    bool nested;
};

constexpr const char *kNf4State = ".weight.quant_state.bitsandbytes__nf4";
constexpr const char *kFp4State = ".weight.quant_state.bitsandbytes__fp4";

const Tensor *state_of(const Module &module) {
    const Tensor *state = sibling(module, kNf4State);
    return state != nullptr ? state : sibling(module, kFp4State);
}

bool claims(const Module &module) { return state_of(module) != nullptr; }

qk_status word(const json_t *root, const char *key, char *out, size_t size,
               qk_io_message *message) {
    const char *value = json_string_value(json_object_get(root, key));
    if (value == nullptr || strlen(value) >= size) {
        return fail(message, QK_ERROR_CORRUPT,
                    "quant_state: %s must be a string of at most %d bytes", key,
                    static_cast<int>(size - 1));
    }
    memcpy(out, value, strlen(value) + 1);
    return QK_OK;
}

qk_status positive(const json_t *value, const char *key, int64_t *out, qk_io_message *message) {
    if (!json_is_integer(value) || json_integer_value(value) < 1) {
        return fail(message, QK_ERROR_CORRUPT, "quant_state: %s must be a positive integer", key);
    }
    *out = json_integer_value(value);
    return QK_OK;
}

// Leading dimensions of a weight count as rows.
qk_status read_shape(const json_t *shape, State *state, qk_io_message *message) {
    const size_t rank = json_array_size(shape);
    if (rank < 2 || rank > QK_MAX_RANK) {
        return fail(message, QK_ERROR_CORRUPT,
                    "quant_state: shape must be an array of 2 to %d sizes", QK_MAX_RANK);
    }
    state->n = 1;
    for (size_t i = 0; i + 1 < rank; ++i) {
        int64_t size = 0;
        QK_IO_TRY(positive(json_array_get(shape, i), "every size of shape", &size, message));
        if (__builtin_mul_overflow(state->n, size, &state->n)) {
            return fail(message, QK_ERROR_CORRUPT, "quant_state: the size of shape overflows");
        }
    }
    return positive(json_array_get(shape, rank - 1), "every size of shape", &state->k, message);
}

qk_status read_nested(const json_t *root, State *state, qk_io_message *message) {
    const json_t *offset = json_object_get(root, "nested_offset");
    state->nested = offset != nullptr || json_object_get(root, "nested_blocksize") != nullptr;
    if (!state->nested) return QK_OK;
    QK_IO_TRY(positive(json_object_get(root, "nested_blocksize"), "nested_blocksize",
                       &state->nested_blocksize, message));
    char dtype[16] = "";
    QK_IO_TRY(word(root, "nested_dtype", dtype, sizeof dtype, message));
    if (!same(dtype, "float32")) {
        return fail(message, QK_ERROR_UNSUPPORTED,
                    "nested_dtype \"%s\": every scale is rounded to it before the offset is added; "
                    "qk computes scales in float32",
                    dtype);
    }
    state->nested_offset = json_number_value(offset);
    const double most = 3.4028234663852886e38;  // FLT_MAX
    if (json_is_number(offset) && state->nested_offset >= -most && state->nested_offset <= most) {
        return QK_OK;
    }
    return fail(message, QK_ERROR_CORRUPT, "quant_state: nested_offset must be a finite float");
}

qk_status read_fields(const json_t *root, State *state, qk_io_message *message) {
    QK_IO_TRY(word(root, "quant_type", state->quant_type, sizeof state->quant_type, message));
    QK_IO_TRY(word(root, "dtype", state->dtype, sizeof state->dtype, message));
    QK_IO_TRY(
        positive(json_object_get(root, "blocksize"), "blocksize", &state->blocksize, message));
    const int64_t block = state->blocksize;
    if (block < 32 || block > 4096 || (block & (block - 1)) != 0) {
        return fail(message, QK_ERROR_CORRUPT,
                    "quant_state: blocksize %lld; bitsandbytes has powers of two from 32 to 4096",
                    static_cast<long long>(block));
    }
    QK_IO_TRY(read_shape(json_object_get(root, "shape"), state, message));
    return read_nested(root, state, message);
}

qk_status read_state(const qk_checkpoint *c, const Tensor *tensor, State *state,
                     qk_io_message *message) {
    if (!is(tensor, QK_DTYPE_U8, 1) || tensor->bytes > kMaxStateBytes) {
        return fail(message, QK_ERROR_CORRUPT, "quant_state is %s; expected U8 of at most %lld",
                    shape_text(tensor).text, static_cast<long long>(kMaxStateBytes));
    }
    const Text text{reinterpret_cast<const char *>(tensor->data),
                    static_cast<size_t>(tensor->bytes)};
    qk_status status = QK_OK;
    json_t *root =
        json_parse(text, c->limits.json_depth, kMaxStateValues, "quant_state", message, &status);
    if (root == nullptr) return status;
    status = read_fields(root, state, message);
    json_decref(root);
    return status;
}

// bitsandbytes dequantizes by the file's table. Where it is the usual one, qk's own copy does; any
// other goes with the codes.
qk_status read_table(const Tensor *map, const float *usual, qk_format *format, Layer *layer,
                     qk_io_message *message) {
    if (!is(map, QK_DTYPE_F32, 1) || map->shape[0] != 16) {
        return fail(message, QK_ERROR_CORRUPT, "quant_map is %s; expected F32 [16]",
                    shape_text(map).text);
    }
    for (int code = 0; code < 16; ++code) {
        float stored;
        memcpy(&stored, map->data + code * 4, sizeof stored);
        const bool zeros = stored == 0.0f && usual[code] == 0.0f;  // FP4's code 8 is -0 or 0
        if (zeros || memcmp(&stored, &usual[code], sizeof stored) == 0) continue;
        *format = QK_FORMAT_LUT4;
        set_plane(layer, QK_PLANE_TABLE, map);
        return QK_OK;
    }
    return QK_OK;
}

// Numbers that qk has as F32; of half precision they are the same numbers.
void set_f32(Layer *layer, qk_plane plane, const Tensor *tensor) {
    if (tensor->dtype == QK_DTYPE_F32) {
        set_plane(layer, plane, tensor);
    } else {
        set_recipe(layer, plane, {make_wider, tensor, 0}, tensor->bytes * 2);
    }
}

qk_status set_nested(qk_checkpoint *c, const Module &module, const State &state, Layer *layer,
                     qk_io_message *message) {
    const Tensor *scale2 = use(module, ".weight.nested_absmax", layer);
    const Tensor *map = use(module, ".weight.nested_quant_map", layer);
    const bool floats = float_format(scale2) != 0 && float_format(map) != 0;
    if (!floats || scale2->rank != 1 || map->rank != 1 || map->shape[0] != 256) {
        return fail(message, QK_ERROR_CORRUPT,
                    "nested_absmax is %s, nested_quant_map is %s; expected F32 of rank 1, [256]",
                    shape_text(scale2).text, shape_text(map).text);
    }
    if (state.nested_blocksize > INT32_MAX) {
        return fail(message, QK_ERROR_CORRUPT, "quant_state: nested_blocksize is too large");
    }
    // The offset is only in the JSON; the tensor wants it as a plane.
    float *offset = static_cast<float *>(c->arena.take(&c->memory, sizeof(float)));
    if (offset == nullptr) return out_of_memory(message);
    *offset = static_cast<float>(state.nested_offset);
    set_f32(layer, QK_PLANE_SCALE2, scale2);
    set_f32(layer, QK_PLANE_SCALE_CODE, map);
    layer->planes[QK_PLANE_SCALE_BIAS] = offset;
    layer->plane_bytes[QK_PLANE_SCALE_BIAS] = sizeof(float);
    layer->desc.scale_group_size = static_cast<int32_t>(state.nested_blocksize);
    return QK_OK;
}

// 16-bit and 32-bit storage may hold a few bytes more than the codes need.
qk_status set_codes(const Tensor *weight, const State &state, Layer *layer,
                    qk_io_message *message) {
    int64_t codes = 0;
    const DtypeRow *row = dtype_by_code(weight->dtype);
    const bool overflow = __builtin_mul_overflow(state.n, state.k, &codes);
    const int64_t needed = codes / 2 + codes % 2;
    const int64_t slack = row == nullptr ? 0 : row->bits / 8 - 1;
    if (overflow || weight->bytes < needed || weight->bytes - needed > slack) {
        return fail(message, QK_ERROR_CORRUPT,
                    "weight is %s, which is not 4 bits of shape [%lld,%lld]",
                    shape_text(weight).text, static_cast<long long>(state.n),
                    static_cast<long long>(state.k));
    }
    layer->planes[QK_PLANE_DATA] = weight->data;
    layer->plane_bytes[QK_PLANE_DATA] = static_cast<size_t>(needed);
    return QK_OK;
}

qk_status set_format(const State &state, qk_format *format, Layer *layer, qk_io_message *message) {
    *format = same(state.quant_type, "nf4")   ? QK_FORMAT_NF4
              : same(state.quant_type, "fp4") ? QK_FORMAT_FP4_BNB
                                              : 0;
    if (*format == 0) {
        return fail(message, QK_ERROR_UNSUPPORTED, "quant_type \"%s\"; nf4 and fp4 are supported",
                    state.quant_type);
    }
    layer->dense_format = format_named(state.dtype);
    if (layer->dense_format != 0) return QK_OK;
    return fail(message, QK_ERROR_UNSUPPORTED,
                "quant_state: dtype \"%s\"; float32, float16 and bfloat16 are supported",
                state.dtype);
}

qk_status describe(qk_checkpoint *c, const Module &module, Layer *layer, qk_io_message *message) {
    layer->dialect = QK_DIALECT_BITSANDBYTES;
    const Tensor *blob = state_of(module);
    const Tensor *absmax = use(module, ".weight.absmax", layer);
    const Tensor *map = use(module, ".weight.quant_map", layer);
    layer->bytes += blob->bytes;
    if (sibling(module, kNf4State) != nullptr && sibling(module, kFp4State) != nullptr) {
        return fail(message, QK_ERROR_CORRUPT,
                    "there are two quant_states, bitsandbytes__nf4 and bitsandbytes__fp4");
    }
    State state = {};
    qk_format format = 0;
    QK_IO_TRY(read_state(c, blob, &state, message));
    QK_IO_TRY(set_format(state, &format, layer, message));
    if (!ends_with(blob->name, state.quant_type)) {
        return fail(message, QK_ERROR_CORRUPT, "quant_state says \"%s\", its tensor's name differs",
                    state.quant_type);
    }
    const bool nf4 = format == QK_FORMAT_NF4;
    QK_IO_TRY(read_table(map, nf4 ? kNf4Table : kFp4Table, &format, layer, message));
    QK_IO_TRY(set_codes(module.anchor, state, layer, message));
    if (!is(absmax, state.nested ? QK_DTYPE_U8 : QK_DTYPE_F32, 1)) {
        return fail(message, QK_ERROR_CORRUPT, "absmax is %s; expected %s of rank 1",
                    shape_text(absmax).text, state.nested ? "U8" : "F32");
    }
    set_plane(layer, QK_PLANE_SCALE, absmax);
    if (state.nested) QK_IO_TRY(set_nested(c, module, state, layer, message));
    describe_weight(layer, format, QK_LAYOUT_ROW_HIGH, state.blocksize,
                    state.nested ? QK_FORMAT_LUT8 : QK_FORMAT_F32, state.n, state.k);
    layer->desc.grouping = QK_GROUPING_FLAT;
    return take_bias(module, state.n, layer, message);
}

}  // namespace

extern const Dialect kBitsandbytes = {".weight", claims, describe};

}  // namespace qk_io
