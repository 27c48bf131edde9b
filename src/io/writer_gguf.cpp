// A GGUF file on its way out: version 3, tensors in the order of their declarations, at multiples
// of 32 bytes. Layers are records of ggml's types, in the layouts of their names.
#include "gguf.hpp"
#include "writer_dialects.hpp"

namespace qk_io {
namespace {

constexpr int64_t kAlignment = 32;  // GGUF's own
constexpr size_t kNameBytes = 63;   // ggml's limit
constexpr int32_t kRank = 4;        // the same
constexpr uint32_t kVersion = 3, kString = 8;

int64_t aligned(int64_t offset) { return (offset + kAlignment - 1) / kAlignment * kAlignment; }

// What is appended is counted first and stored on a second pass, where `to` is not NULL.
struct Header {
    uint8_t *to;
    size_t size;
};

void put(Header *header, const void *data, size_t bytes) {
    if (header->to != nullptr) memcpy(header->to + header->size, data, bytes);
    header->size += bytes;
}

void put_number(Header *header, uint64_t value, size_t bytes) {
    uint8_t little[8];
    for (size_t i = 0; i < bytes; ++i) little[i] = static_cast<uint8_t>(value >> (8 * i));
    put(header, little, bytes);
}

void put_text(Header *header, const char *text) {
    put_number(header, strlen(text), 8);
    put(header, text, strlen(text));
}

void put_all(const qk_writer *w, Header *header) {
    put(header, "GGUF", 4);
    put_number(header, kVersion, 4);
    put_number(header, static_cast<uint64_t>(w->tensors.count), 8);
    put_number(header, static_cast<uint64_t>(w->metadata.count), 8);
    for (int64_t i = 0; i < w->metadata.count; ++i) {
        put_text(header, w->metadata.items[i].key);
        put_number(header, kString, 4);
        put_text(header, w->metadata.items[i].value);
    }
    for (int64_t i = 0; i < w->tensors.count; ++i) {
        const Outgoing &tensor = w->tensors.items[i];
        put_text(header, tensor.name);
        put_number(header, static_cast<uint64_t>(tensor.rank), 4);
        for (int32_t axis = tensor.rank; axis-- > 0;) {  // fastest first
            put_number(header, static_cast<uint64_t>(tensor.shape[axis]), 8);
        }
        put_number(header, tensor.gguf->number, 4);
        put_number(header, static_cast<uint64_t>(tensor.offset), 8);
    }
    const uint8_t zeros[kAlignment] = {};
    const size_t rest = header->size % kAlignment;
    if (rest != 0) put(header, zeros, kAlignment - rest);
}

const GgufType *type_of(qk_dtype dtype) {
    if (dtype >= QK_DTYPE_GGUF) return find_gguf_type(static_cast<uint32_t>(dtype - QK_DTYPE_GGUF));
    for (uint32_t number = 0; number < 64; ++number) {
        const GgufType *type = find_gguf_type(number);
        if (type != nullptr && type->dtype == dtype && dtype != 0) return type;
    }
    return nullptr;
}

}  // namespace

qk_status declare_gguf(const char *name, qk_dtype dtype, int32_t rank, const int64_t *shape,
                       Outgoing *tensor, qk_io_message *message) {
    tensor->gguf = type_of(dtype);
    if (tensor->gguf == nullptr) {
        return fail(message, QK_ERROR_UNSUPPORTED, "\"%.200s\": GGUF has no type for %s", name,
                    qk_dtype_name(dtype));
    }
    if (strlen(name) > kNameBytes) {
        return fail(message, QK_ERROR_UNSUPPORTED, "\"%.200s\": ggml's names have at most %d bytes",
                    name, static_cast<int>(kNameBytes));
    }
    if (rank < 1 || rank > kRank) {
        return fail(message, QK_ERROR_UNSUPPORTED, "\"%.200s\": %d dimensions; GGUF has 1 to %d",
                    name, static_cast<int>(rank), static_cast<int>(kRank));
    }
    const GgufType &type = *tensor->gguf;
    int64_t bytes = type.bytes;
    for (int32_t i = rank; i-- > 0;) {  // as readers multiply: a 0 at the end hides no overflow
        const bool last = i + 1 == rank;
        const int64_t count = last ? shape[i] / type.elements : shape[i];
        if (shape[i] < 0 || (last && shape[i] % type.elements != 0) ||
            __builtin_mul_overflow(bytes, count, &bytes)) {
            return fail(
                message, QK_ERROR_SHAPE,
                "shape[%d]: %lld; sizes are >= 0, the last a multiple of the %d elements of "
                "a block of %s, and the whole below 2^63 bytes",
                static_cast<int>(i), static_cast<long long>(shape[i]),
                static_cast<int>(type.elements), type.name);
        }
    }
    tensor->bytes = bytes;
    return QK_OK;
}

qk_status write_gguf_header(qk_writer *w, qk_io_message *message) {
    int64_t end = 0;
    bool overflow = false;
    for (int64_t i = 0; i < w->tensors.count; ++i) {
        Outgoing *tensor = &w->tensors.items[i];
        tensor->offset = aligned(end);
        overflow |= __builtin_add_overflow(tensor->offset, tensor->bytes, &end);
        overflow |= end > INT64_MAX - kMaxHeaderBytes;
    }
    if (overflow) return fail(message, QK_ERROR_SHAPE, "writer: more than 2^63 bytes of data");
    Header header = {nullptr, 0};
    put_all(w, &header);
    if (header.size > static_cast<size_t>(kMaxHeaderBytes)) {
        return fail(message, QK_ERROR_ARGUMENT, "writer: a header of %lld bytes; at most %lld",
                    static_cast<long long>(header.size), static_cast<long long>(kMaxHeaderBytes));
    }
    header.to = static_cast<uint8_t *>(w->memory.allocate(header.size, 8));
    if (header.to == nullptr) return out_of_memory(message);
    header.size = 0;
    put_all(w, &header);
    qk_status status = replacement_write(&w->file, 0, header.to, header.size, message);
    w->memory.release(header.to);
    w->data_begin = static_cast<int64_t>(header.size);
    // The last tensor is filled up as those in front are, which the file system does. It may be
    // empty: then this is what fills up the one before it. Data that belongs here comes later.
    const uint8_t zero = 0;
    const int64_t size = aligned(end);
    if (status != QK_OK || size == 0) return status;
    return replacement_write(&w->file, w->data_begin + size - 1, &zero, 1, message);
}

namespace {

qk_status check(const OutgoingLayer &layer, qk_io_message *message) {
    const qk_tensor_desc &d = layer.desc;
    if (d.layout > 32 && d.layout < QK_LAYOUT_PACKED && (d.rank == 2 || d.rank == 3)) return QK_OK;
    return fail(message, QK_ERROR_UNSUPPORTED,
                "layer \"%.200s\": GGUF has layers of rank 2, or of rank 3 for experts, in the "
                "layouts GGUF_...",
                layer.name);
}

qk_status declare_layer(qk_writer *w, const OutgoingLayer &layer, qk_io_message *message) {
    char name[kMaxNameBytes + 1];
    QK_IO_TRY(join_name(name, layer.name, ".weight", message));
    return qk_writer_declare(w, name, QK_DTYPE_GGUF + layer.desc.layout - 32, layer.desc.rank,
                             layer.desc.shape, message);
}

qk_status write(qk_writer *w, qk_context *context, const OutgoingLayer &piece,
                const qk_tensor *tensor, qk_io_message *message) {
    return write_plane(w, context, piece, tensor, {".weight", QK_PLANE_DATA}, message);
}

qk_status finish(qk_writer *, qk_context *, const OutgoingLayer &, const qk_tensor *,
                 qk_io_message *) {
    return QK_OK;
}

}  // namespace

extern const DialectWriter kGgufWriter = {QK_DIALECT_GGUF, check, declare_layer, write, finish};

}  // namespace qk_io
