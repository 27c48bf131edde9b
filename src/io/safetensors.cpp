// The safetensors header: u64 length, JSON, data. Every rule of the format is enforced here, so
// that all other files may trust a Tensor.
#include <cstdio>
#include <cstdlib>

#include "kinds.hpp"

namespace qk_io {
namespace {

// In the reference writer's order: widest last.
constexpr DtypeRow kDtypes[] = {
    {"BOOL", QK_DTYPE_BOOL, 8, 0},
    {"F4", QK_DTYPE_F4, 4, 0},
    {"F6_E2M3", QK_DTYPE_F6_E2M3, 6, 0},
    {"F6_E3M2", QK_DTYPE_F6_E3M2, 6, 0},
    {"U8", QK_DTYPE_U8, 8, 0},
    {"I8", QK_DTYPE_I8, 8, QK_FORMAT_I8},
    {"F8_E5M2", QK_DTYPE_F8_E5M2, 8, 0},
    {"F8_E4M3", QK_DTYPE_F8_E4M3, 8, 0},
    {"F8_E8M0", QK_DTYPE_F8_E8M0, 8, 0},
    {"I16", QK_DTYPE_I16, 16, QK_FORMAT_I16},
    {"U16", QK_DTYPE_U16, 16, 0},
    {"F16", QK_DTYPE_F16, 16, QK_FORMAT_F16},
    {"BF16", QK_DTYPE_BF16, 16, QK_FORMAT_BF16},
    {"I32", QK_DTYPE_I32, 32, 0},
    {"U32", QK_DTYPE_U32, 32, 0},
    {"F32", QK_DTYPE_F32, 32, QK_FORMAT_F32},
    {"C64", QK_DTYPE_C64, 64, 0},
    {"F64", QK_DTYPE_F64, 64, 0},
    {"I64", QK_DTYPE_I64, 64, 0},
    {"U64", QK_DTYPE_U64, 64, 0},
};

constexpr int64_t kMaxEntryValues = 1024;

uint64_t load_u64(const uint8_t *at) {
    uint64_t value = 0;
    for (int i = 7; i >= 0; --i) value = value << 8 | at[i];
    return value;
}

qk_status read_size(const json_t *json, const char *file, const char *name, const char *field,
                    int64_t *out, qk_io_message *message) {
    if (!json_is_integer(json) || json_integer_value(json) < 0) {
        return fail(message, QK_ERROR_CORRUPT,
                    "%s: tensor \"%.200s\": %s must be plain non-negative integers below 2^63",
                    file, name, field);
    }
    *out = json_integer_value(json);
    return QK_OK;
}

qk_status read_shape(qk_checkpoint *c, const json_t *shape, const char *file, Tensor *t,
                     qk_io_message *message) {
    if (!json_is_array(shape)) {
        return fail(message, QK_ERROR_CORRUPT, "%s: tensor \"%.200s\" has no shape array", file,
                    t->name);
    }
    const size_t rank = json_array_size(shape);
    if (rank > static_cast<size_t>(kMaxRank)) {
        return fail(message, QK_ERROR_CORRUPT, "%s: tensor \"%.200s\" has rank %lld; at most %d",
                    file, t->name, static_cast<long long>(rank), static_cast<int>(kMaxRank));
    }
    int64_t *sizes = static_cast<int64_t *>(c->arena.take(&c->memory, rank * sizeof(int64_t)));
    if (sizes == nullptr) return out_of_memory(message);
    for (size_t i = 0; i < rank; ++i) {
        QK_IO_TRY(read_size(json_array_get(shape, i), file, t->name, "sizes of the shape",
                            &sizes[i], message));
    }
    t->shape = sizes;
    t->rank = static_cast<int32_t>(rank);
    return QK_OK;
}

// Bytes that shape and dtype ask for against bytes that the offsets give.
qk_status check_bytes(const Tensor &t, int32_t bits, const char *file, qk_io_message *message) {
    int64_t total = 1;
    bool overflow = false;
    for (int32_t i = 0; i < t.rank; ++i) {
        overflow |= __builtin_mul_overflow(total, t.shape[i], &total);
    }
    overflow |= __builtin_mul_overflow(total, static_cast<int64_t>(bits), &total);
    if (overflow) {
        return fail(message, QK_ERROR_CORRUPT,
                    "%s: tensor \"%.200s\": the size of its shape overflows", file, t.name);
    }
    if (total % 8 != 0) {
        return fail(message, QK_ERROR_CORRUPT,
                    "%s: tensor \"%.200s\": %lld bits of %s do not fill whole bytes", file, t.name,
                    static_cast<long long>(total), t.dtype_name);
    }
    if (total / 8 != t.bytes) {
        return fail(message, QK_ERROR_CORRUPT,
                    "%s: tensor \"%.200s\": shape and %s need %lld bytes, data_offsets give %lld",
                    file, t.name, t.dtype_name, static_cast<long long>(total / 8),
                    static_cast<long long>(t.bytes));
    }
    return QK_OK;
}

qk_status read_offsets(const json_t *offsets, const char *file, Tensor *t, qk_io_message *message) {
    if (!json_is_array(offsets) || json_array_size(offsets) != 2) {
        return fail(message, QK_ERROR_CORRUPT,
                    "%s: tensor \"%.200s\": data_offsets must be [begin, end]", file, t->name);
    }
    int64_t end = 0;
    QK_IO_TRY(
        read_size(json_array_get(offsets, 0), file, t->name, "data_offsets", &t->begin, message));
    QK_IO_TRY(read_size(json_array_get(offsets, 1), file, t->name, "data_offsets", &end, message));
    if (end < t->begin) {
        return fail(message, QK_ERROR_CORRUPT,
                    "%s: tensor \"%.200s\": data_offsets end at %lld before they begin at %lld",
                    file, t->name, static_cast<long long>(end), static_cast<long long>(t->begin));
    }
    t->bytes = end - t->begin;
    return QK_OK;
}

qk_status fill_entry(qk_checkpoint *c, const json_t *entry, const char *file, Tensor *t,
                     qk_io_message *message) {
    if (!json_is_object(entry)) {
        return fail(message, QK_ERROR_CORRUPT, "%s: tensor \"%.200s\" is not an object", file,
                    t->name);
    }
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    if (dtype == nullptr || strlen(dtype) > 64) {
        return fail(message, QK_ERROR_CORRUPT,
                    "%s: tensor \"%.200s\": dtype must be a string of at most 64 bytes", file,
                    t->name);
    }
    QK_IO_TRY(read_offsets(json_object_get(entry, "data_offsets"), file, t, message));
    QK_IO_TRY(read_shape(c, json_object_get(entry, "shape"), file, t, message));
    const DtypeRow *row = dtype_by_name(dtype);
    if (row == nullptr) {  // newer than this reader: an error only when it is loaded
        t->dtype_name = c->arena.copy(&c->memory, dtype, strlen(dtype));
        return t->dtype_name == nullptr ? out_of_memory(message) : QK_OK;
    }
    t->dtype = row->dtype;
    t->dtype_name = row->name;
    return check_bytes(*t, row->bits, file, message);
}

qk_status read_entry(qk_checkpoint *c, int32_t file, const char *name, Text value,
                     qk_io_message *message) {
    const char *file_name = c->files.items[file].name;
    if (c->tensors.count >= c->limits.tensors) {
        return fail(message, QK_ERROR_CORRUPT, "%s: more than %lld tensors, the limit", file_name,
                    static_cast<long long>(c->limits.tensors));
    }
    char what[320];
    snprintf(what, sizeof what, "%.64s: the entry of tensor \"%.200s\"", file_name, name);
    if (json_has_minus(value)) {
        return fail(message, QK_ERROR_CORRUPT,
                    "%s has a minus sign; sizes and offsets must be plain non-negative integers",
                    what);
    }
    qk_status status = QK_OK;
    json_t *entry =
        json_parse(value, c->limits.json_depth, kMaxEntryValues, what, message, &status);
    if (entry == nullptr) return status;
    Tensor tensor = {};
    tensor.name = name;
    tensor.file = file;
    status = fill_entry(c, entry, file_name, &tensor, message);
    json_decref(entry);
    QK_IO_TRY(status);
    return c->tensors.push(&c->memory, tensor) ? QK_OK : out_of_memory(message);
}

int by_key(const void *a, const void *b) {
    return strcmp(static_cast<const Pair *>(a)->key, static_cast<const Pair *>(b)->key);
}

qk_status read_metadata(qk_checkpoint *c, const char *file, Text text, qk_io_message *message) {
    const int64_t first = c->metadata.count;
    char what[320];
    snprintf(what, sizeof what, "%.255s: a string of __metadata__", file);
    JsonMembers members = json_members(text, c->limits.json_depth);
    Text key, value;
    int next = 0;
    while ((next = json_next(&members, &key, &value)) == 1) {
        Pair pair = {};
        if (value.size == 0 || value.data[0] != '"') {
            return fail(message, QK_ERROR_CORRUPT, "%s: __metadata__ must map strings to strings",
                        file);
        }
        QK_IO_TRY(decode_string(c, key, what, &pair.key, message));
        QK_IO_TRY(decode_string(c, value, what, &pair.value, message));
        if (!c->metadata.push(&c->memory, pair)) return out_of_memory(message);
    }
    if (next < 0) {
        return fail(message, QK_ERROR_CORRUPT, "%s: __metadata__ is not a JSON object: %s", file,
                    members.error);
    }
    Pair *pairs = c->metadata.items + first;
    const int64_t count = c->metadata.count - first;
    if (count > 1) qsort(pairs, static_cast<size_t>(count), sizeof(Pair), by_key);
    for (int64_t i = 1; i < count; ++i) {
        if (same(pairs[i - 1].key, pairs[i].key)) {
            return fail(message, QK_ERROR_CORRUPT, "%s: __metadata__ has \"%.200s\" twice", file,
                        pairs[i].key);
        }
    }
    return QK_OK;
}

qk_status read_members(qk_checkpoint *c, int32_t file, Text header, qk_io_message *message) {
    const char *file_name = c->files.items[file].name;
    JsonMembers members = json_members(header, c->limits.json_depth);
    Text key, value;
    int next = 0;
    bool metadata_seen = false;
    char what[320];
    snprintf(what, sizeof what, "%.255s: a tensor's name", file_name);
    while ((next = json_next(&members, &key, &value)) == 1) {
        const char *name = nullptr;
        QK_IO_TRY(decode_string(c, key, what, &name, message));
        if (same(name, "__metadata__")) {
            if (metadata_seen) {
                return fail(message, QK_ERROR_CORRUPT, "%s: the header has __metadata__ twice",
                            file_name);
            }
            metadata_seen = true;
            QK_IO_TRY(read_metadata(c, file_name, value, message));
            continue;
        }
        if (strlen(name) > static_cast<size_t>(kMaxNameBytes)) {
            return fail(message, QK_ERROR_CORRUPT, "%s: a tensor's name is longer than %lld bytes",
                        file_name, static_cast<long long>(kMaxNameBytes));
        }
        QK_IO_TRY(read_entry(c, file, name, value, message));
    }
    if (next < 0) {
        return fail(message, QK_ERROR_CORRUPT, "%s: the header is not a JSON object: %s", file_name,
                    members.error);
    }
    return QK_OK;
}

int by_offset(const void *a, const void *b) {
    const Tensor *x = static_cast<const Tensor *>(a), *y = static_cast<const Tensor *>(b);
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

int64_t described_bytes(const Tensor *tensors, int64_t count) {
    int64_t most = 0;
    for (int64_t i = 0; i < count; ++i) {
        const int64_t end = tensors[i].begin + tensors[i].bytes;  // as the header has it
        if (end > most) most = end;
    }
    return most;
}

// Contiguous from 0 to the end of the file: a gap could hide anything, and bytes in two tensors
// could mean two things.
qk_status place_tensors(Tensor *tensors, int64_t count, const File &file, size_t data_begin,
                        qk_io_message *message) {
    const int64_t size = static_cast<int64_t>(file.size - data_begin);
    if (count > 1) qsort(tensors, static_cast<size_t>(count), sizeof(Tensor), by_offset);
    int64_t end = 0;
    for (int64_t i = 0; i < count; ++i) {
        Tensor &t = tensors[i];
        if (t.begin != end) {
            return fail(message, QK_ERROR_CORRUPT,
                        "%s: tensor \"%.200s\" begins at %lld, which leaves %s: expected %lld",
                        file.name, t.name, static_cast<long long>(t.begin),
                        t.begin > end ? "a hole" : "an overlap", static_cast<long long>(end));
        }
        if (t.bytes > size - end) {
            return fail(message, QK_ERROR_CORRUPT,
                        "%s: tensor \"%.200s\" ends past the end of the file: it is cut short, as "
                        "an unfinished download is (%lld bytes of data, the header describes %lld)",
                        file.name, t.name, static_cast<long long>(size),
                        static_cast<long long>(described_bytes(tensors, count)));
        }
        end += t.bytes;
        t.data = file.bytes + data_begin + t.begin;
    }
    if (end != size) {
        return fail(message, QK_ERROR_CORRUPT,
                    "%s: tensors cover %lld bytes, but %lld follow the header", file.name,
                    static_cast<long long>(end), static_cast<long long>(size));
    }
    return QK_OK;
}

int by_name(const void *a, const void *b) {
    return strcmp(static_cast<const Tensor *>(a)->name, static_cast<const Tensor *>(b)->name);
}

}  // namespace

const DtypeRow *dtype_by_name(const char *name) {
    for (const DtypeRow &row : kDtypes) {
        if (same(row.name, name)) return &row;
    }
    return nullptr;
}

const DtypeRow *dtype_by_code(qk_dtype dtype) {
    for (const DtypeRow &row : kDtypes) {
        if (row.dtype == dtype) return &row;
    }
    return nullptr;
}

qk_status out_of_memory(qk_io_message *message) {
    return fail(message, QK_ERROR_MEMORY, "the allocator returned no memory");
}

qk_status decode_string(qk_checkpoint *c, Text quoted, const char *what, const char **out,
                        qk_io_message *message) {
    qk_status status = QK_OK;
    json_t *json = json_parse(quoted, 1, 1, what, message, &status);
    if (json == nullptr) return status;
    *out = json_is_string(json)
               ? c->arena.copy(&c->memory, json_string_value(json), json_string_length(json))
               : nullptr;
    const bool is_string = json_is_string(json);
    json_decref(json);
    if (!is_string) return fail(message, QK_ERROR_CORRUPT, "%s is not a string", what);
    return *out == nullptr ? out_of_memory(message) : QK_OK;
}

qk_status read_safetensors(qk_checkpoint *c, int32_t file_index, qk_io_message *message) {
    const File file = c->files.items[file_index];
    if (file.size < 8) {
        return fail(message, QK_ERROR_CORRUPT, "%s: %lld bytes; a safetensors file has at least 8",
                    file.name, static_cast<long long>(file.size));
    }
    const uint64_t header_bytes = load_u64(file.bytes);
    const bool fits = header_bytes <= file.size - 8;
    if (!fits || header_bytes == 0 || file.bytes[8] != '{') QK_IO_TRY(check_kind(file, message));
    if (header_bytes > static_cast<uint64_t>(c->limits.header_bytes)) {
        return fail(message, QK_ERROR_CORRUPT,
                    "%s: a header of %llu bytes; at most %lld in a safetensors file", file.name,
                    static_cast<unsigned long long>(header_bytes),
                    static_cast<long long>(c->limits.header_bytes));
    }
    if (!fits) {
        return fail(message, QK_ERROR_CORRUPT,
                    "%s: a header of %llu bytes does not fit into %lld bytes of file, which is cut "
                    "short or no safetensors file",
                    file.name, static_cast<unsigned long long>(header_bytes),
                    static_cast<long long>(file.size));
    }
    const size_t header = static_cast<size_t>(header_bytes);
    const int64_t first = c->tensors.count;
    const Text text{reinterpret_cast<const char *>(file.bytes + 8), header};
    QK_IO_TRY(read_members(c, file_index, text, message));
    return place_tensors(c->tensors.items + first, c->tensors.count - first, file, 8 + header,
                         message);
}

qk_status sort_tensors(qk_checkpoint *c, qk_io_message *message) {
    const int64_t count = c->tensors.count;
    if (count > 1) qsort(c->tensors.items, static_cast<size_t>(count), sizeof(Tensor), by_name);
    for (int64_t i = 1; i < count; ++i) {
        const Tensor &a = c->tensors.items[i - 1], &b = c->tensors.items[i];
        if (!same(a.name, b.name)) continue;
        if (a.file == b.file) {
            return fail(message, QK_ERROR_CORRUPT, "%s: the header has tensor \"%.200s\" twice",
                        c->files.items[a.file].name, a.name);
        }
        return fail(message, QK_ERROR_CORRUPT, "tensor \"%.200s\" is in two shards: %.64s, %.64s",
                    a.name, c->files.items[a.file].name, c->files.items[b.file].name);
    }
    return QK_OK;
}

const Tensor *find_tensor(const qk_checkpoint *c, const char *name) {
    Tensor key = {};
    key.name = name;
    if (c->tensors.count == 0) return nullptr;
    return static_cast<const Tensor *>(bsearch(
        &key, c->tensors.items, static_cast<size_t>(c->tensors.count), sizeof(Tensor), by_name));
}

}  // namespace qk_io
