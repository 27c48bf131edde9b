// Integers of 8 bits in words of four: by rows (compressed-tensors) or by columns (GPTQ). Codes and
// zeros are stored with an offset of 128. qk has minima where files have zeros; a layer that was
// read from such a file has minima that are its scales times whole numbers again.
#include <math.h>

#include "writer_dialects.hpp"

namespace qk_io {
namespace {

struct Shape {
    int64_t n, k, groups, stored;  // stored: columns of a row, in whole words
};

Shape shape_of(const OutgoingLayer &layer) {
    const int64_t n = layer.desc.shape[0], k = layer.desc.shape[1];
    const int64_t group = layer.desc.group_size == QK_GROUP_ROW ? k : layer.desc.group_size;
    return {n, k, k / group + (k % group != 0), (k + 3) / 4 * 4};
}

bool has_minima(const OutgoingLayer &layer) {
    return (layer.desc.flags & QK_TENSOR_FLOAT_MIN) != 0;
}

size_t width_of(qk_format format) { return format == QK_FORMAT_F32 ? 4 : 2; }

int64_t code_at(const Shape &s, bool by_columns, int64_t row, int64_t column) {
    return by_columns ? (column / 4 * s.n + row) * 4 + column % 4 : row * s.stored + column;
}
int64_t zero_at(const Shape &s, bool by_columns, int64_t row, int64_t group) {
    return by_columns ? group * s.n + row : (row / 4 * s.groups + group) * 4 + row % 4;
}
int64_t scale_at(const Shape &s, bool by_columns, int64_t row, int64_t group) {
    return by_columns ? group * s.n + row : row * s.groups + group;
}

// The 16 bits of a number; false: it has more.
bool narrow(qk_format format, float value, uint16_t *half) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    const uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (format == QK_FORMAT_BF16) {
        *half = static_cast<uint16_t>(bits >> 16);
        return (bits & 0xffff) == 0;
    }
    if (magnitude < 113u << 23) {  // a multiple of 2^-24
        const float units = fabsf(value) * 0x1p24f;
        const uint32_t whole = static_cast<uint32_t>(units);
        *half = static_cast<uint16_t>(sign | whole);
        return units == static_cast<float>(whole);
    }
    const bool finite = magnitude < 0x7f800000;
    *half = static_cast<uint16_t>(sign | ((magnitude - (finite ? 112u << 23 : 224u << 23)) >> 13));
    return (magnitude & 0x1fff) == 0 && (!finite || magnitude < 143u << 23);
}

bool same_number(float a, float b) {
    return a == b ? signbit(a) == signbit(b) : isnan(a) && isnan(b);
}

// The library does without libm. 0 for a quotient that no zero is near to.
int nearest_zero(float quotient) {
    if (!(quotient > -128.5f && quotient < 127.5f)) return 0;
    return static_cast<int>(quotient < 0 ? quotient - 0.5f : quotient + 0.5f);
}

// The whole number that times the scale is the minimum, to the sign of a zero. Scales of 0 and
// infinite ones leave only signs to tell it by.
bool find_zero(float scale, float minimum, int *zero) {
    const int candidates[] = {nearest_zero(minimum / scale), 0, -1, 1};
    for (const int candidate : candidates) {
        if (!same_number(static_cast<float>(candidate) * scale, minimum)) continue;
        *zero = candidate;
        return true;
    }
    return false;
}

struct Numbers {
    uint8_t *scales, *zeros;
};

// Both planes [n,groups] in F32, as the file has them.
qk_status split(const OutgoingLayer &piece, const Int8Packing &packing, const float *scales,
                const float *minima, const Numbers &to, qk_io_message *message) {
    const Shape s = shape_of(piece);
    for (int64_t i = 0; i < s.n * s.groups; ++i) {
        const int64_t row = i / s.groups, group = i % s.groups;
        int zero = 0;
        if (!find_zero(scales[i], minima[i], &zero)) {
            return fail(message, QK_ERROR_UNSUPPORTED,
                        "layer \"%.200s\": the minimum %.9g is no whole multiple from -128 to 127 "
                        "of its scale %.9g, as zeros of 8 bits are",
                        piece.name, static_cast<double>(minima[i]), static_cast<double>(scales[i]));
        }
        to.zeros[zero_at(s, packing.by_columns, row, group)] = static_cast<uint8_t>(zero + 128);
        uint16_t half = 0;
        if (!narrow(piece.dense_format, scales[i], &half)) {
            return fail(message, QK_ERROR_UNSUPPORTED,
                        "layer \"%.200s\": its scale %.9g is no number of the 16 bits that scales "
                        "beside zeros have",
                        piece.name, static_cast<double>(scales[i]));
        }
        memcpy(to.scales + 2 * scale_at(s, packing.by_columns, row, group), &half, sizeof half);
    }
    return QK_OK;
}

// Scales without minima, whose zeros are all 128.
void spread(const OutgoingLayer &piece, const Int8Packing &packing, const uint8_t *scales,
            const Numbers &to) {
    const Shape s = shape_of(piece);
    const size_t width = width_of(piece.dense_format);
    for (int64_t i = 0; i < s.n * s.groups; ++i) {
        const int64_t row = i / s.groups, group = i % s.groups;
        to.zeros[zero_at(s, packing.by_columns, row, group)] = 128;
        memcpy(to.scales + static_cast<size_t>(scale_at(s, packing.by_columns, row, group)) * width,
               scales + static_cast<size_t>(i) * width, width);
    }
}

qk_status check_zeros(const OutgoingLayer &piece, uint8_t *zeros, size_t count,
                      qk_io_message *message) {
    if (piece.dialect != QK_DIALECT_GPTQ_V1) return QK_OK;
    for (size_t i = 0; i < count; ++i) {
        if (zeros[i] == 0) {
            return fail(message, QK_ERROR_UNSUPPORTED,
                        "layer \"%.200s\": GPTQ v1 stores zeros minus one, and its readers "
                        "disagree on a zero of 0; GPTQ v2 holds it",
                        piece.name);
        }
        --zeros[i];
    }
    return QK_OK;
}

qk_status write_numbers(qk_writer *w, qk_context *context, const OutgoingLayer &piece,
                        const qk_tensor *tensor, const Int8Packing &packing,
                        qk_io_message *message) {
    const Shape s = shape_of(piece);
    const size_t scale_bytes = static_cast<size_t>(s.n * s.groups) * width_of(piece.dense_format);
    const size_t zero_bytes = static_cast<size_t>((s.n + 3) / 4 * 4 * s.groups);
    uint8_t *made = static_cast<uint8_t *>(w->memory.allocate(scale_bytes + zero_bytes, 8));
    void *scales = nullptr, *minima = nullptr;
    if (made == nullptr) return out_of_memory(message);
    memset(made, 0, scale_bytes + zero_bytes);
    const Numbers to = {made, made + scale_bytes};
    qk_status status = download_plane(w, context, piece, tensor, QK_PLANE_SCALE, &scales, message);
    if (status == QK_OK && has_minima(piece)) {
        status = download_plane(w, context, piece, tensor, QK_PLANE_ZERO, &minima, message);
        if (status == QK_OK) {
            status = split(piece, packing, static_cast<const float *>(scales),
                           static_cast<const float *>(minima), to, message);
            w->memory.release(minima);
        }
    } else if (status == QK_OK) {
        spread(piece, packing, static_cast<const uint8_t *>(scales), to);
    }
    w->memory.release(scales);
    if (status == QK_OK) status = check_zeros(piece, to.zeros, zero_bytes, message);
    if (status == QK_OK) {
        status = write_bytes(w, piece, packing.scales, to.scales, scale_bytes, message);
    }
    if (status == QK_OK && (packing.by_columns || has_minima(piece))) {
        status = write_bytes(w, piece, packing.zeros, to.zeros, zero_bytes, message);
    }
    w->memory.release(made);
    return status;
}

// The same numbers plus 128: the highest bit flipped does that. Rows are filled up with zeros.
qk_status write_codes(qk_writer *w, qk_context *context, const OutgoingLayer &piece,
                      const qk_tensor *tensor, const Int8Packing &packing, qk_io_message *message) {
    const Shape s = shape_of(piece);
    const size_t bytes = static_cast<size_t>(s.n * s.stored);
    uint8_t *words = static_cast<uint8_t *>(w->memory.allocate(bytes, 8));
    if (words == nullptr) return out_of_memory(message);
    void *codes = nullptr;
    qk_status status = download_codes(w, context, piece, tensor, &codes, message);
    if (status == QK_OK) {
        memset(words, 0, bytes);
        const uint8_t *from = static_cast<const uint8_t *>(codes);
        for (int64_t i = 0; i < s.n * s.k; ++i) {
            words[code_at(s, packing.by_columns, i / s.k, i % s.k)] = from[i] ^ 0x80;
        }
        w->memory.release(codes);
        status = write_bytes(w, piece, packing.codes, words, bytes, message);
    }
    w->memory.release(words);
    return status;
}

}  // namespace

qk_status check_int8(const OutgoingLayer &layer, qk_io_message *message) {
    const qk_tensor_desc &d = layer.desc;
    const bool rows = d.rank == 2 && d.layout == QK_LAYOUT_ROW && d.grouping != QK_GROUPING_FLAT;
    const bool halves = layer.dense_format == QK_FORMAT_F16 || layer.dense_format == QK_FORMAT_BF16;
    const bool typed = has_minima(layer) ? d.scale_format == QK_FORMAT_F32 && halves
                                         : d.scale_format == layer.dense_format;
    if (rows && typed) return QK_OK;
    return fail(message, QK_ERROR_UNSUPPORTED,
                "layer \"%.200s\": %s has S8 of rank 2 in ROW, with scales of the type that "
                "dense_format names, or with F32 scales and minima that become scales of F16 or "
                "BF16 and zeros",
                layer.name, qk_dialect_name(layer.dialect));
}

qk_status declare_int8(qk_writer *w, const OutgoingLayer &layer, const Int8Packing &packing,
                       qk_io_message *message) {
    const Shape s = shape_of(layer);
    const bool turned = packing.by_columns;
    const int64_t words = s.stored / 4, lines = (s.n + 3) / 4;
    QK_IO_TRY(declare(w, layer, packing.codes, QK_DTYPE_I32, 2, turned ? words : s.n,
                      turned ? s.n : words, message));
    QK_IO_TRY(declare(w, layer, packing.scales, dtype_of(layer.dense_format), 2,
                      turned ? s.groups : s.n, turned ? s.n : s.groups, message));
    if (!turned && !has_minima(layer)) return QK_OK;
    return declare(w, layer, packing.zeros, QK_DTYPE_I32, 2, turned ? s.groups : lines,
                   turned ? lines : s.groups, message);
}

qk_status write_int8(qk_writer *w, qk_context *context, const OutgoingLayer &piece,
                     const qk_tensor *tensor, const Int8Packing &packing, qk_io_message *message) {
    QK_IO_TRY(write_codes(w, context, piece, tensor, packing, message));
    return write_numbers(w, context, piece, tensor, packing, message);
}

}  // namespace qk_io
