// Experts as one tensor: the planes of all, one after another.
#include <stdio.h>

#include "experts.hpp"
#include "remake.hpp"

namespace qk_io {
namespace {

// One or two projections, and what they become.
struct Joined {
    const ExpertLayer *of[2];
    int64_t parts;
    qk_tensor_desc desc;
    size_t bytes[QK_PLANE_COUNT];
    uint8_t *planes[QK_PLANE_COUNT];

    const char *name() const { return of[0]->layer.name; }
    int64_t experts() const { return of[0]->count; }
    int64_t rows() const { return desc.shape[1] / parts; }  // of one part
};

// The layer that has rows of an expert, and which of so many equal parts of it they are.
struct Piece {
    const Layer *layer;
    int64_t part, parts;
    bool is_transposed;
};

Piece piece_of(const Joined &joined, int64_t expert, int64_t part) {
    const ExpertLayer &from = *joined.of[part];
    if (from.is_one) return {from.expert[0], expert, from.count, from.is_transposed};
    return {from.expert[expert], 0, 1, false};
}

bool is_nested(const Layer &layer) { return layer.desc.scale_format == QK_FORMAT_LUT8; }

// Of a plane of F32, also where the file has it in half precision.
float float_at(const Layer &layer, qk_plane plane, size_t index) {
    const Recipe &recipe = layer.recipes[plane];
    if (recipe.make != nullptr) return number_at(recipe.from, static_cast<int64_t>(index));
    float value;
    memcpy(&value, static_cast<const uint8_t *>(layer.planes[plane]) + index * 4, sizeof value);
    return value;
}

// docs/formats.md, "Scales": a product and a sum, rounded each.
void widen_nested(const Layer &layer, uint8_t *to) {
    const uint8_t *codes = static_cast<const uint8_t *>(layer.planes[QK_PLANE_SCALE]);
    const int32_t given = layer.desc.scale_group_size;
    const size_t group = given == 0 ? 256 : static_cast<size_t>(given);
    const float offset = float_at(layer, QK_PLANE_SCALE_BIAS, 0);
    for (size_t i = 0; i < layer.plane_bytes[QK_PLANE_SCALE]; ++i) {
        const float second = float_at(layer, QK_PLANE_SCALE2, i / group);
        const float scale = float_at(layer, QK_PLANE_SCALE_CODE, codes[i]) * second + offset;
        memcpy(to + i * 4, &scale, sizeof scale);
    }
}

// A plane as the file has it, made where it is stored in another way.
void copy_plane(const Piece &piece, qk_plane plane, uint8_t *to) {
    const Layer &layer = *piece.layer;
    const size_t bytes = layer.plane_bytes[plane] / static_cast<size_t>(piece.parts);
    if (layer.recipes[plane].make != nullptr) {
        layer.recipes[plane].make(layer, layer.recipes[plane], to);
    } else if (bytes != 0) {
        const size_t at = static_cast<size_t>(piece.part) * bytes;
        memcpy(to, static_cast<const uint8_t *>(layer.planes[plane]) + at, bytes);
    }
}

// [k,n] as [n,k], a tile at a time.
template <typename Element>
void turn(const uint8_t *from, int64_t n, int64_t k, uint8_t *to) {
    constexpr int64_t kTile = 32;
    for (int64_t row = 0; row < n; row += kTile) {
        const int64_t last_row = row + kTile < n ? row + kTile : n;
        for (int64_t column = 0; column < k; column += kTile) {
            const int64_t last = column + kTile < k ? column + kTile : k;
            for (int64_t i = row; i < last_row; ++i) {
                for (int64_t j = column; j < last; ++j) {
                    memcpy(to + (i * k + j) * int64_t{sizeof(Element)},
                           from + (j * n + i) * int64_t{sizeof(Element)}, sizeof(Element));
                }
            }
        }
    }
}

void turn_expert(const Joined &joined, const Piece &piece, uint8_t *to) {
    const size_t bytes = piece.layer->plane_bytes[QK_PLANE_DATA] / static_cast<size_t>(piece.parts);
    const uint8_t *const from = static_cast<const uint8_t *>(piece.layer->planes[QK_PLANE_DATA]) +
                                static_cast<size_t>(piece.part) * bytes;
    const int64_t n = joined.rows(), k = joined.desc.shape[2];
    if (joined.desc.format == QK_FORMAT_F32) return turn<uint32_t>(from, n, k, to);
    turn<uint16_t>(from, n, k, to);
}

void fill_in_sequence(const Joined &joined, const Piece &piece, qk_plane plane, uint8_t *to) {
    if (piece.is_transposed) {
        turn_expert(joined, piece, to);
    } else if (plane == QK_PLANE_GLOBAL) {
        for (int64_t row = 0; row < joined.rows(); ++row) {
            memcpy(to + row * 4, piece.layer->planes[plane], 4);
        }
    } else if (plane == QK_PLANE_SCALE && is_nested(*piece.layer)) {
        widen_nested(*piece.layer, to);
    } else {
        copy_plane(piece, plane, to);
    }
}

bool is_shared(qk_plane plane) { return plane == QK_PLANE_TABLE || plane == QK_PLANE_ORDER; }

size_t piece_bytes(const Joined &joined, qk_plane plane) {
    return joined.bytes[plane] / static_cast<size_t>(joined.experts() * joined.parts);
}

// One expert, repacked to the layout of all.
qk_status fill_repacked(const Joined &joined, Memory memory, qk_context *context,
                        const Layer &layer, size_t index, qk_io_message *message) {
    qk_tensor *stored = nullptr, *rows = nullptr;
    QK_IO_TRY(make_tensor(memory, context, layer, false, &stored, message));
    qk_tensor_desc desc = layer.desc;
    desc.layout = joined.desc.layout;
    qk_status status = qk_tensor_create(context, &desc, &rows);
    if (status == QK_OK) status = qk_repack(context, stored, rows);
    for (qk_plane plane = 0; status == QK_OK && plane < QK_PLANE_COUNT; ++plane) {
        const size_t bytes = piece_bytes(joined, plane);
        if (bytes == 0 || is_shared(plane)) continue;
        uint8_t *to = joined.planes[plane] + index * bytes;
        status = qk_tensor_download(context, rows, plane, to, bytes);
    }
    if (status != QK_OK) status = from_context(context, status, layer.name, message);
    qk_tensor_destroy(rows);
    qk_tensor_destroy(stored);
    return status;
}

qk_status fill(const Joined &joined, Memory memory, qk_context *context, qk_io_message *message) {
    const Layer &first = *joined.of[0]->expert[0];
    const bool repacks = first.desc.layout != joined.desc.layout;
    for (int64_t i = 0; i < joined.experts() * joined.parts; ++i) {
        const Piece piece = piece_of(joined, i / joined.parts, i % joined.parts);
        const size_t index = static_cast<size_t>(i);
        if (repacks) {
            QK_IO_TRY(fill_repacked(joined, memory, context, *piece.layer, index, message));
            continue;
        }
        for (qk_plane plane = 0; plane < QK_PLANE_COUNT; ++plane) {
            const size_t bytes = piece_bytes(joined, plane);
            if (bytes == 0 || is_shared(plane)) continue;
            fill_in_sequence(joined, piece, plane, joined.planes[plane] + index * bytes);
        }
    }
    for (qk_plane plane = 0; plane < QK_PLANE_COUNT; ++plane) {
        if (joined.bytes[plane] != 0 && is_shared(plane)) {
            memcpy(joined.planes[plane], first.planes[plane], joined.bytes[plane]);
        }
    }
    return QK_OK;
}

qk_status upload(const Joined &joined, qk_context *context, qk_tensor **out,
                 qk_io_message *message) {
    qk_tensor *tensor = nullptr;
    qk_status status = qk_tensor_create(context, &joined.desc, &tensor);
    for (qk_plane plane = 0; status == QK_OK && plane < QK_PLANE_COUNT; ++plane) {
        if (joined.bytes[plane] == 0) continue;
        status =
            qk_tensor_upload(context, tensor, plane, joined.planes[plane], joined.bytes[plane]);
    }
    if (status != QK_OK) {
        qk_tensor_destroy(tensor);
        return from_context(context, status, joined.name(), message);
    }
    *out = tensor;
    return QK_OK;
}

qk_status make_weight(Joined *joined, Memory memory, qk_context *context, qk_tensor **out,
                      qk_io_message *message) {
    qk_status status = QK_OK;
    for (qk_plane plane = 0; plane < QK_PLANE_COUNT; ++plane) {
        qk_tensor_plane_bytes(&joined->desc, plane, &joined->bytes[plane]);
        if (joined->bytes[plane] == 0) continue;
        joined->planes[plane] =
            static_cast<uint8_t *>(memory.allocate(joined->bytes[plane], alignof(double)));
        if (joined->planes[plane] == nullptr) status = out_of_memory(message);
    }
    if (status == QK_OK) status = fill(*joined, memory, context, message);
    if (status == QK_OK) status = upload(*joined, context, out, message);
    for (uint8_t *&plane : joined->planes) {
        memory.release(plane);
        plane = nullptr;
    }
    return status;
}

// Biases [E,n]: a plane of a dense tensor.
qk_status make_biases(const Joined &joined, Memory memory, qk_context *context, qk_tensor **out,
                      qk_io_message *message) {
    Joined biases = joined;
    biases.desc = QK_TENSOR_DESC_INIT;
    biases.desc.format = float_format(joined.of[0]->expert[0]->bias);
    biases.desc.rank = 2;
    biases.desc.shape[0] = joined.experts();
    biases.desc.shape[1] = joined.desc.shape[1];
    const size_t width = biases.desc.format == QK_FORMAT_F32 ? 4 : 2;
    const size_t bytes = static_cast<size_t>(joined.rows()) * width;
    const int64_t pieces = joined.experts() * joined.parts;
    size_t *const all = &biases.bytes[QK_PLANE_DATA];
    for (size_t &plane : biases.bytes) plane = 0;
    *all = static_cast<size_t>(pieces) * bytes;
    uint8_t *const made = static_cast<uint8_t *>(memory.allocate(*all, alignof(double)));
    if (made == nullptr) return out_of_memory(message);
    for (int64_t i = 0; i < pieces; ++i) {
        const Piece piece = piece_of(joined, i / joined.parts, i % joined.parts);
        memcpy(made + static_cast<size_t>(i) * bytes,
               piece.layer->bias->data + static_cast<size_t>(piece.part) * bytes, bytes);
    }
    biases.planes[QK_PLANE_DATA] = made;
    const qk_status status = upload(biases, context, out, message);
    memory.release(made);
    return status;
}

qk_status loadable(const qk_checkpoint *c, const char *name, const ExpertLayer **out,
                   qk_io_message *message) {
    const ExpertLayer *layer = find_expert_layer(c, name);
    if (layer == nullptr) {
        return fail(message, QK_ERROR_ARGUMENT,
                    "layer: there are no experts \"%.200s\" in the checkpoint", name);
    }
    if (layer->layer.status != QK_OK) {
        return fail(message, layer->layer.status, "layer \"%.200s\": %.250s", name,
                    layer->layer.reason);
    }
    *out = layer;
    return QK_OK;
}

// Two projections of the same experts.
qk_status join(Joined *joined, qk_io_message *message) {
    const ExpertLayer &gate = *joined->of[0], &up = *joined->of[1];
    const qk_tensor_desc &a = gate.layer.desc, &b = up.layer.desc;
    if (a.shape[0] != b.shape[0] || a.shape[1] != b.shape[1]) {
        return fail(message, QK_ERROR_SHAPE,
                    "up: \"%.150s\" is %lld experts of %lld rows, \"%.150s\" %lld of %lld",
                    up.layer.name, static_cast<long long>(b.shape[0]),
                    static_cast<long long>(b.shape[1]), gate.layer.name,
                    static_cast<long long>(a.shape[0]), static_cast<long long>(a.shape[1]));
    }
    char name[180], other[180];
    snprintf(name, sizeof name, "\"%.150s\"", up.layer.name);
    snprintf(other, sizeof other, "\"%.150s\"", gate.layer.name);
    if (gate.is_one != up.is_one) {
        return fail(message, QK_ERROR_UNSUPPORTED,
                    "up: one of %s and %s is a tensor of all experts, the other is not", name,
                    other);
    }
    QK_IO_TRY(check_alike(*up.expert[0], name, *gate.expert[0], other, message));
    const Layer &one = gate.is_one ? gate.layer : *gate.expert[0];
    return describe_experts(one, gate.count, 2, &joined->desc, message);
}

qk_status load(const qk_checkpoint *c, qk_context *context, Joined *joined, bool in_place,
               qk_tensor **weight, qk_tensor **bias, qk_io_message *message) {
    const Memory memory = c->memory;
    const ExpertLayer &first = *joined->of[0];
    if (in_place && first.is_one && joined->parts == 1 && !first.is_transposed) {
        Layer whole = *first.expert[0];
        whole.desc = joined->desc;
        QK_IO_TRY(make_tensor(memory, context, whole, true, weight, message));
    } else {
        QK_IO_TRY(make_weight(joined, memory, context, weight, message));
    }
    if (bias == nullptr || first.layer.bias == nullptr) return QK_OK;
    const qk_status status = make_biases(*joined, memory, context, bias, message);
    if (status != QK_OK) qk_tensor_destroy(*weight);
    return status;
}

}  // namespace
}  // namespace qk_io

using namespace qk_io;

qk_status qk_checkpoint_load_experts(const qk_checkpoint *checkpoint, qk_context *context,
                                     const char *layer_name, const char *up, uint32_t flags,
                                     qk_tensor **weight, qk_tensor **bias, qk_io_message *message) {
    QK_IO_TRY(check_load(checkpoint, context, layer_name, flags, weight, message));
    Joined joined = {};
    joined.parts = up == nullptr ? 1 : 2;
    QK_IO_TRY(loadable(checkpoint, layer_name, &joined.of[0], message));
    joined.desc = joined.of[0]->layer.desc;
    if (up != nullptr) {
        QK_IO_TRY(loadable(checkpoint, up, &joined.of[1], message));
        QK_IO_TRY(join(&joined, message));
    }
    qk_tensor *new_weight = nullptr, *new_bias = nullptr;
    QK_IO_TRY(load(checkpoint, context, &joined, (flags & QK_LOAD_IN_PLACE) != 0, &new_weight,
                   bias == nullptr ? nullptr : &new_bias, message));
    *weight = new_weight;
    if (bias != nullptr) *bias = new_bias;
    if (joined.of[0]->layer.dialect != QK_DIALECT_DENSE) return QK_OK;
    return fail(message, QK_OK, "layer \"%.200s\" is not quantized: its weights are %s", layer_name,
                format_name(joined.desc.format));
}
