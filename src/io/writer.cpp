// Declare, lay out as the reference writer does, write, then take the place of the old file.
#include "writer.hpp"

#include <stdlib.h>

namespace qk_io {
namespace {

qk_status check_declaring(const qk_writer *w, qk_io_message *message) {
    QK_IO_TRY(check_usable(w, message));
    if (w->state == qk_writer::kDeclaring) return QK_OK;
    return fail(message, QK_ERROR_STATE, "writer: data has been written; nothing can be declared");
}

qk_status check_name(const char *name, qk_io_message *message) {
    if (strlen(name) > static_cast<size_t>(kMaxNameBytes) || !is_utf8(name) ||
        same(name, "__metadata__")) {
        return fail(message, QK_ERROR_ARGUMENT,
                    "name: \"%.200s\" is not UTF-8 of at most %lld bytes other than __metadata__",
                    name, static_cast<long long>(kMaxNameBytes));
    }
    return QK_OK;
}

qk_status size_of(const DtypeRow &row, int32_t rank, const int64_t *shape, int64_t *bytes,
                  qk_io_message *message) {
    int64_t bits = row.bits;
    for (int32_t i = 0; i < rank; ++i) {
        if (shape[i] < 0 || __builtin_mul_overflow(bits, shape[i], &bits)) {
            return fail(message, QK_ERROR_SHAPE,
                        "shape[%d]: %lld; sizes are >= 0 and the whole "
                        "below 2^63 bits",
                        static_cast<int>(i), static_cast<long long>(shape[i]));
        }
    }
    if (bits % 8 != 0) {
        return fail(message, QK_ERROR_SHAPE, "shape: %lld bits of %s do not fill whole bytes",
                    static_cast<long long>(bits), row.name);
    }
    *bytes = bits / 8;
    return QK_OK;
}

qk_status declare_safetensors(qk_dtype dtype, int32_t rank, const int64_t *shape, Outgoing *tensor,
                              qk_io_message *message) {
    tensor->dtype = dtype_by_code(dtype);
    if (tensor->dtype == nullptr) {
        return fail(message, QK_ERROR_ARGUMENT, "dtype: %d is not one of safetensors' types",
                    static_cast<int>(dtype));
    }
    return size_of(*tensor->dtype, rank, shape, &tensor->bytes, message);
}

// The reference writer's order: widest dtype first (its list is kept in that order), then name.
int by_layout(const void *a, const void *b) {
    const Outgoing *x = *static_cast<Outgoing *const *>(a), *y = *static_cast<Outgoing *const *>(b);
    if (x->dtype->dtype != y->dtype->dtype) return x->dtype->dtype > y->dtype->dtype ? -1 : 1;
    return strcmp(x->name, y->name);
}

// false: the JSON library is out of memory; names are known to be UTF-8.
bool add_entry(json_t *header, const Outgoing &tensor) {
    json_t *shape = json_array();
    for (int32_t i = 0; i < tensor.rank; ++i) {
        if (json_array_append_new(shape, json_integer(tensor.shape[i])) != 0) break;
    }
    if (json_array_size(shape) != static_cast<size_t>(tensor.rank)) {
        json_decref(shape);
        return false;
    }
    json_t *entry = json_pack("{s:s, s:o, s:[I,I]}", "dtype", tensor.dtype->name, "shape", shape,
                              "data_offsets", static_cast<json_int_t>(tensor.offset),
                              static_cast<json_int_t>(tensor.offset + tensor.bytes));
    return json_object_set_new(header, tensor.name, entry) == 0;
}

json_t *make_header(const qk_writer *w, Outgoing *const *order) {
    json_t *header = json_object();
    json_t *metadata = json_object();
    bool ok = header != nullptr && metadata != nullptr;
    for (int64_t i = 0; ok && i < w->metadata.count; ++i) {
        const Pair &pair = w->metadata.items[i];
        ok = json_object_set_new(metadata, pair.key, json_string(pair.value)) == 0;
    }
    if (ok && w->metadata.count > 0) ok = json_object_set(header, "__metadata__", metadata) == 0;
    json_decref(metadata);
    for (int64_t i = 0; ok && i < w->tensors.count; ++i) ok = add_entry(header, *order[i]);
    if (ok) return header;
    json_decref(header);
    return nullptr;
}

// Length, JSON, spaces up to a multiple of 8.
qk_status write_header(qk_writer *w, Outgoing *const *order, qk_io_message *message) {
    json_t *header = make_header(w, order);
    if (header == nullptr) return out_of_memory(message);
    const size_t length = json_dumpb(header, nullptr, 0, JSON_COMPACT);
    const size_t padded = (length + 7) & ~size_t{7};
    char *text = nullptr;
    qk_status status = QK_OK;
    if (length == 0) {
        status = out_of_memory(message);
    } else if (padded > static_cast<size_t>(kMaxHeaderBytes)) {
        status = fail(message, QK_ERROR_ARGUMENT, "writer: a header of %lld bytes; at most %lld",
                      static_cast<long long>(padded), static_cast<long long>(kMaxHeaderBytes));
    } else {
        text = static_cast<char *>(w->memory.allocate(8 + padded, 8));
        if (text == nullptr) status = out_of_memory(message);
    }
    if (status == QK_OK) {
        for (int i = 0; i < 8; ++i) text[i] = static_cast<char>(padded >> (8 * i) & 0xff);
        json_dumpb(header, text + 8, length, JSON_COMPACT);
        memset(text + 8 + length, ' ', padded - length);
        status = replacement_write(&w->file, 0, text, 8 + padded, message);
        w->data_begin = static_cast<int64_t>(8 + padded);
    }
    w->memory.release(text);
    json_decref(header);
    return status;
}

qk_status lay_out(qk_writer *w, qk_io_message *message) {
    const size_t count = static_cast<size_t>(w->tensors.count);
    Outgoing **order =
        static_cast<Outgoing **>(w->memory.allocate(count * sizeof *order, alignof(Outgoing *)));
    if (order == nullptr) return out_of_memory(message);
    for (size_t i = 0; i < count; ++i) order[i] = &w->tensors.items[i];
    if (count > 1) qsort(order, count, sizeof *order, by_layout);
    int64_t end = 0;
    bool overflow = false;
    for (size_t i = 0; i < count; ++i) {
        order[i]->offset = end;
        overflow |= __builtin_add_overflow(end, order[i]->bytes, &end);
    }
    // The header comes before the data, and both must stay within a file offset.
    overflow |= end > INT64_MAX - 8 - kMaxHeaderBytes;
    const qk_status status =
        overflow ? fail(message, QK_ERROR_SHAPE, "writer: more than 2^63 bytes of data")
                 : write_header(w, order, message);
    w->memory.release(order);
    if (status == QK_OK) w->state = qk_writer::kWriting;
    return status;
}

qk_status begin_data(qk_writer *w, qk_io_message *message) {
    QK_IO_TRY(check_usable(w, message));
    if (w->state != qk_writer::kDeclaring) return QK_OK;
    if (!w->is_gguf) return lay_out(w, message);
    QK_IO_TRY(write_gguf_header(w, message));
    w->state = qk_writer::kWriting;
    return QK_OK;
}

qk_status check_complete(const qk_writer *w, qk_io_message *message) {
    for (int64_t i = 0; i < w->tensors.count; ++i) {
        const Outgoing &tensor = w->tensors.items[i];
        if (tensor.written == tensor.bytes) continue;
        return fail(message, QK_ERROR_STATE, "writer: tensor \"%.200s\" has %lld of its %lld bytes",
                    tensor.name, static_cast<long long>(tensor.written),
                    static_cast<long long>(tensor.bytes));
    }
    return QK_OK;
}

qk_status missing(qk_io_message *message, const char *name) {
    return fail(message, QK_ERROR_NULL, "%s: NULL", name);
}

qk_status check_removed(qk_writer *const *writers, int64_t count, const char *path, int64_t index,
                        qk_io_message *message) {
    if (path == nullptr) {
        return fail(message, QK_ERROR_NULL, "removed[%lld]: NULL", static_cast<long long>(index));
    }
    for (int64_t i = 0; i < count; ++i) {
        if (!same(writers[i]->file.path, path)) continue;
        return fail(message, QK_ERROR_ARGUMENT, "removed[%lld]: \"%.200s\" is written, too",
                    static_cast<long long>(index), path);
    }
    return QK_OK;
}

qk_status check_all(qk_writer *const *writers, int64_t count, const char *const *removed,
                    int64_t removed_count, qk_io_message *message) {
    if (writers == nullptr) return missing(message, "writers");
    if (removed == nullptr && removed_count > 0) return missing(message, "removed");
    if (count < 1 || count > kMaxShards || removed_count < 0 || removed_count > 2 * kMaxShards) {
        return fail(message, QK_ERROR_ARGUMENT,
                    "counts: %lld writers, %lld removed; 1..%lld and 0..%lld",
                    static_cast<long long>(count), static_cast<long long>(removed_count),
                    static_cast<long long>(kMaxShards), static_cast<long long>(2 * kMaxShards));
    }
    for (int64_t i = 0; i < count; ++i) {
        if (writers[i] == nullptr) return missing(message, "writer");
        for (int64_t j = 0; j < i; ++j) {
            if (!same(writers[i]->file.path, writers[j]->file.path)) continue;
            return fail(message, QK_ERROR_ARGUMENT, "writers[%lld] and [%lld] both write %.200s",
                        static_cast<long long>(j), static_cast<long long>(i),
                        writers[i]->file.path);
        }
        QK_IO_TRY(check_usable(writers[i], message));
        QK_IO_TRY(check_complete(writers[i], message));
    }
    for (int64_t i = 0; i < removed_count; ++i) {
        QK_IO_TRY(check_removed(writers, count, removed[i], i, message));
    }
    return QK_OK;
}

}  // namespace

qk_status check_usable(const qk_writer *w, qk_io_message *message) {
    QK_IO_TRY(replacement_check_owner(&w->file, message));
    if (w->state != qk_writer::kFinished) return QK_OK;
    return fail(message, QK_ERROR_STATE, "writer: it is finished; only destroy is left");
}

void forget_outgoing(qk_writer *w, int64_t count) {
    while (w->tensors.count > count) {
        const Outgoing &last = w->tensors.items[--w->tensors.count];
        w->tensor_names.remove(last.name);
        w->bytes -= last.bytes;
    }
}

}  // namespace qk_io

using namespace qk_io;

qk_status qk_writer_create(const char *path, const qk_allocator *allocator, qk_writer **out,
                           qk_io_message *message) {
    clear(message);
    if (path == nullptr || out == nullptr)
        return missing(message, path == nullptr ? "path" : "out");
    Memory memory = {};
    if (!memory_from(allocator, &memory))
        return missing(message, "allocator's allocate or release");
    qk_writer *w = static_cast<qk_writer *>(memory.allocate(sizeof(qk_writer), alignof(qk_writer)));
    if (w == nullptr) return out_of_memory(message);
    *w = qk_writer{};
    w->memory = memory;
    w->is_gguf = ends_with(path, ".gguf");
    const qk_status status = replacement_open(&w->file, path, message);
    if (status != QK_OK) {
        memory.release(w);
        return status;
    }
    *out = w;
    return QK_OK;
}

void qk_writer_destroy(qk_writer *w) {
    if (w == nullptr) return;
    replacement_drop(&w->file);
    w->tensors.release(&w->memory);
    w->layers.release(&w->memory);
    w->metadata.release(&w->memory);
    w->tensor_names.release(&w->memory);
    w->layer_names.release(&w->memory);
    w->keys.release(&w->memory);
    w->arena.release(&w->memory);
    Memory memory = w->memory;
    memory.release(w);
}

qk_status qk_writer_metadata(qk_writer *w, const char *key, const char *value,
                             qk_io_message *message) {
    clear(message);
    if (w == nullptr) return missing(message, "writer");
    if (key == nullptr || value == nullptr)
        return missing(message, key == nullptr ? "key" : "value");
    QK_IO_TRY(check_declaring(w, message));
    if (!is_utf8(key) || !is_utf8(value)) {
        return fail(message, QK_ERROR_ARGUMENT, "metadata \"%.200s\": not UTF-8", key);
    }
    if (w->keys.find(key) >= 0) {
        return fail(message, QK_ERROR_ARGUMENT, "key: \"%.200s\" has been given already", key);
    }
    if (!w->keys.reserve(&w->memory)) return out_of_memory(message);
    const Pair pair = {w->arena.copy(&w->memory, key, strlen(key)),
                       w->arena.copy(&w->memory, value, strlen(value))};
    const bool ok =
        pair.key != nullptr && pair.value != nullptr && w->metadata.push(&w->memory, pair);
    if (!ok) return out_of_memory(message);
    w->keys.add(pair.key, w->metadata.count - 1);
    return QK_OK;
}

qk_status qk_writer_declare(qk_writer *w, const char *name, qk_dtype dtype, int32_t rank,
                            const int64_t *shape, qk_io_message *message) {
    clear(message);
    if (w == nullptr || name == nullptr) return missing(message, w == nullptr ? "writer" : "name");
    if (shape == nullptr && rank > 0) return missing(message, "shape");
    QK_IO_TRY(check_declaring(w, message));
    QK_IO_TRY(check_name(name, message));
    if (rank < 0 || rank > kMaxRank) {
        return fail(message, QK_ERROR_SHAPE, "rank: %d; 0..%d", static_cast<int>(rank),
                    static_cast<int>(kMaxRank));
    }
    Outgoing tensor = {};
    QK_IO_TRY(w->is_gguf ? declare_gguf(name, dtype, rank, shape, &tensor, message)
                         : declare_safetensors(dtype, rank, shape, &tensor, message));
    int64_t bytes = 0;
    if (__builtin_add_overflow(w->bytes, tensor.bytes, &bytes)) {
        return fail(message, QK_ERROR_SHAPE, "writer: more than 2^63 bytes of data");
    }
    if (w->tensor_names.find(name) >= 0) {
        return fail(message, QK_ERROR_ARGUMENT, "name: \"%.200s\" has been declared already", name);
    }
    if (!w->tensor_names.reserve(&w->memory)) return out_of_memory(message);
    int64_t *sizes = static_cast<int64_t *>(
        w->arena.take(&w->memory, static_cast<size_t>(rank) * sizeof(int64_t)));
    tensor.name = w->arena.copy(&w->memory, name, strlen(name));
    if (sizes == nullptr || tensor.name == nullptr) return out_of_memory(message);
    if (rank > 0) memcpy(sizes, shape, static_cast<size_t>(rank) * sizeof(int64_t));
    tensor.shape = sizes;
    tensor.rank = rank;
    if (!w->tensors.push(&w->memory, tensor)) return out_of_memory(message);
    w->tensor_names.add(tensor.name, w->tensors.count - 1);
    w->bytes = bytes;
    return QK_OK;
}

qk_status qk_writer_write(qk_writer *w, const char *name, const void *data, size_t bytes,
                          qk_io_message *message) {
    clear(message);
    if (w == nullptr || name == nullptr) return missing(message, w == nullptr ? "writer" : "name");
    if (data == nullptr && bytes > 0) return missing(message, "data");
    QK_IO_TRY(check_usable(w, message));
    const int64_t index = w->tensor_names.find(name);
    if (index < 0) {
        return fail(message, QK_ERROR_ARGUMENT, "name: \"%.200s\" has not been declared", name);
    }
    Outgoing *tensor = &w->tensors.items[index];
    const int64_t rest = tensor->bytes - tensor->written;
    if (bytes > static_cast<uint64_t>(rest)) {
        return fail(message, QK_ERROR_BUFFER_SIZE,
                    "bytes: %llu for \"%.200s\", which was declared with %lld and has %lld left",
                    static_cast<unsigned long long>(bytes), name,
                    static_cast<long long>(tensor->bytes), static_cast<long long>(rest));
    }
    QK_IO_TRY(begin_data(w, message));
    const int64_t at = w->data_begin + tensor->offset + tensor->written;
    QK_IO_TRY(replacement_write(&w->file, at, data, bytes, message));
    tensor->written += static_cast<int64_t>(bytes);
    return QK_OK;
}

int64_t qk_writer_bytes(const qk_writer *w) { return w == nullptr ? 0 : w->bytes; }

qk_status qk_writer_append(qk_writer *w, const void *data, size_t bytes, qk_io_message *message) {
    clear(message);
    if (w == nullptr) return missing(message, "writer");
    if (data == nullptr && bytes > 0) return missing(message, "data");
    QK_IO_TRY(check_usable(w, message));
    if (w->state == qk_writer::kWriting || w->tensors.count > 0 || w->metadata.count > 0) {
        return fail(message, QK_ERROR_STATE,
                    "writer: tensors or metadata have been declared; nothing can be appended");
    }
    w->state = qk_writer::kAppending;
    QK_IO_TRY(replacement_write(&w->file, w->bytes, data, bytes, message));
    w->bytes += static_cast<int64_t>(bytes);
    return QK_OK;
}

qk_status qk_writer_finish(qk_writer *w, qk_io_message *message) {
    return qk_writer_finish_all(&w, 1, nullptr, 0, message);
}

qk_status qk_writer_finish_all(qk_writer *const *writers, int64_t count, const char *const *removed,
                               int64_t removed_count, qk_io_message *message) {
    clear(message);
    QK_IO_TRY(check_all(writers, count, removed, removed_count, message));
    Memory memory = writers[0]->memory;
    const size_t bytes = static_cast<size_t>(count) * sizeof(Replacement *);
    Replacement **files = static_cast<Replacement **>(memory.allocate(bytes, alignof(void *)));
    if (files == nullptr) return out_of_memory(message);
    qk_status status = QK_OK;
    for (int64_t i = 0; status == QK_OK && i < count; ++i) {
        files[i] = &writers[i]->file;
        status = begin_data(writers[i], message);
    }
    if (status == QK_OK) {
        status = commit(&memory, files, count, removed, removed_count, message);
        for (int64_t i = 0; i < count; ++i) {
            if (files[i]->file == os::kNone) writers[i]->state = qk_writer::kFinished;
        }
    }
    memory.release(files);
    return status;
}
