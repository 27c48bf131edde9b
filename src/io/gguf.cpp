// The header of a GGUF file, version 2 or 3: magic, counts, key-value pairs, tensors; then data. No
// count is trusted: each item is read from the bytes that remain, and nothing is allocated ahead.
#include "gguf.hpp"

#include <stdio.h>
#include <stdlib.h>

namespace qk_io {
namespace {

constexpr uint32_t kMaxDims = 4;            // ggml's own
constexpr int64_t kMaxAlignment = 1 << 20;  // 32 in practice
constexpr uint64_t kMaxKeyBytes = 65535;    // the format's own
enum ValueType : uint32_t { kU32 = 4, kF32 = 6, kBool = 7, kString = 8, kArray = 9, kF64 = 12 };

struct ValueKind {
    const char *name;
    uint32_t bytes;  // 0: no plain number
    bool is_signed;
};
constexpr ValueKind kValues[] = {{"u8", 1, false},    {"i8", 1, true},    {"u16", 2, false},
                                 {"i16", 2, true},    {"u32", 4, false},  {"i32", 4, true},
                                 {"f32", 4, false},   {"bool", 1, false}, {"string", 0, false},
                                 {"array", 0, false}, {"u64", 8, false},  {"i64", 8, true},
                                 {"f64", 8, false}};
constexpr uint32_t kValueTypes = sizeof kValues / sizeof kValues[0];

struct Reader {
    qk_checkpoint *checkpoint;
    const char *name;  // the file's
    const uint8_t *begin, *at;
    size_t rest;
    int32_t file;
    int64_t alignment;
    GgufSplit split;
    qk_io_message *message;
};

qk_status corrupt(Reader *r, const char *why) {
    return fail(r->message, QK_ERROR_CORRUPT, "%s: %s", r->name, why);
}

qk_status take(Reader *r, uint64_t bytes, const uint8_t **out, const char *what) {
    if (bytes > r->rest) {
        return fail(r->message, QK_ERROR_CORRUPT,
                    "%s: %s needs %llu bytes where %llu remain: the file is cut short or damaged",
                    r->name, what, static_cast<unsigned long long>(bytes),
                    static_cast<unsigned long long>(r->rest));
    }
    *out = r->at;
    r->at += bytes;
    r->rest -= static_cast<size_t>(bytes);
    if (r->at - r->begin > r->checkpoint->limits.header_bytes) {
        return fail(r->message, QK_ERROR_CORRUPT, "%s: a header of more than %lld bytes", r->name,
                    static_cast<long long>(r->checkpoint->limits.header_bytes));
    }
    return QK_OK;
}

uint64_t number_of(const uint8_t *at, uint32_t bytes) {
    uint64_t value = 0;
    for (uint32_t i = bytes; i > 0; --i) value = value << 8 | at[i - 1];
    return value;
}

qk_status take_number(Reader *r, uint32_t bytes, uint64_t *out, const char *what) {
    const uint8_t *at = nullptr;
    QK_IO_TRY(take(r, bytes, &at, what));
    *out = number_of(at, bytes);
    return QK_OK;
}

qk_status take_text(Reader *r, uint64_t most, const char **out, const char *what) {
    uint64_t bytes = 0;
    const uint8_t *at = nullptr;
    QK_IO_TRY(take_number(r, 8, &bytes, what));
    if (bytes > most) {
        return fail(r->message, QK_ERROR_CORRUPT, "%s: %s is longer than %llu bytes", r->name, what,
                    static_cast<unsigned long long>(most));
    }
    QK_IO_TRY(take(r, bytes, &at, what));
    const char *text = reinterpret_cast<const char *>(at);
    const size_t size = static_cast<size_t>(bytes);
    *out = r->checkpoint->arena.copy(&r->checkpoint->memory, text, size);
    if (*out == nullptr) return out_of_memory(r->message);
    if (size > 0 && memchr(text, 0, size) != nullptr) {
        return fail(r->message, QK_ERROR_CORRUPT, "%s: %s has a zero byte", r->name, what);
    }
    if (is_utf8(*out)) return QK_OK;
    return fail(r->message, QK_ERROR_CORRUPT, "%s: %s is not UTF-8", r->name, what);
}

// "true", "-7", "0.5".
void number_text(uint32_t type, uint64_t bits, char *text, size_t size) {
    const ValueKind &kind = kValues[type];
    if (type == kBool) {
        snprintf(text, size, "%s", bits == 0 ? "false" : "true");
    } else if (type == kF32) {
        const uint32_t narrow = static_cast<uint32_t>(bits);
        float value = 0;
        memcpy(&value, &narrow, sizeof value);
        snprintf(text, size, "%.9g", static_cast<double>(value));
    } else if (type == kF64) {
        double value = 0;
        memcpy(&value, &bits, sizeof value);
        snprintf(text, size, "%.17g", value);
    } else if (kind.is_signed) {
        const int shift = 64 - static_cast<int>(kind.bytes) * 8;
        snprintf(text, size, "%lld", static_cast<long long>(bits << shift) >> shift);
    } else {
        snprintf(text, size, "%llu", static_cast<unsigned long long>(bits));
    }
}

// Elements are passed over: tokenizers have a hundred thousand. The text is "[151936 strings]".
qk_status skip_array(Reader *r, const char *what, char *text, size_t size) {
    uint64_t type = 0, count = 0, bytes = 0;
    const uint8_t *at = nullptr;
    QK_IO_TRY(take_number(r, 4, &type, what));
    QK_IO_TRY(take_number(r, 8, &count, what));
    if (type >= kValueTypes || type == kArray) {
        return fail(r->message, QK_ERROR_CORRUPT, "%s: %s is an array of %s", r->name, what,
                    type == kArray ? "arrays" : "an unknown type");
    }
    snprintf(text, size, "[%llu %ss]", static_cast<unsigned long long>(count), kValues[type].name);
    if (type != kString) {
        if (__builtin_mul_overflow(count, uint64_t{kValues[type].bytes}, &bytes))
            bytes = UINT64_MAX;
        return take(r, bytes, &at, what);
    }
    for (; count > 0; --count) {
        QK_IO_TRY(take_number(r, 8, &bytes, what));
        QK_IO_TRY(take(r, bytes, &at, what));
    }
    return QK_OK;
}

// The pairs that say how to read the rest.
qk_status note_value(Reader *r, const char *key, uint32_t type, uint64_t bits) {
    const bool is_alignment = same(key, "general.alignment");
    if (is_alignment && type != kU32) return corrupt(r, "general.alignment is no u32");
    if (is_alignment) {
        const int64_t value = static_cast<int64_t>(bits);
        if (value <= 0 || value > kMaxAlignment || (value & (value - 1)) != 0) {
            return fail(r->message, QK_ERROR_CORRUPT,
                        "%s: general.alignment is %lld; a power of two up to %lld", r->name,
                        static_cast<long long>(value), static_cast<long long>(kMaxAlignment));
        }
        r->alignment = value;
        return QK_OK;
    }
    int64_t *const fields[] = {&r->split.number, &r->split.count, &r->split.tensors};
    static constexpr const char *kKeys[] = {"split.no", "split.count", "split.tensors.count"};
    for (int i = 0; i < 3; ++i) {
        if (!same(key, kKeys[i])) continue;
        if (kValues[type].bytes == 0 || kValues[type].bytes > 4 || type == kF32) {
            return fail(r->message, QK_ERROR_CORRUPT, "%s: %s is a %s", r->name, key,
                        kValues[type].name);
        }
        *fields[i] = static_cast<int64_t>(bits);
    }
    return QK_OK;
}

qk_status read_value(Reader *r, Pair *pair) {
    char what[160], text[48];
    uint64_t type = 0, bits = 0;
    snprintf(what, sizeof what, "the value of \"%.100s\"", pair->key);
    QK_IO_TRY(take_number(r, 4, &type, what));
    if (type >= kValueTypes) {
        return fail(r->message, QK_ERROR_CORRUPT, "%s: %s has type %llu; the last one is %u",
                    r->name, what, static_cast<unsigned long long>(type), kValueTypes - 1);
    }
    if (type == kString) {
        QK_IO_TRY(note_value(r, pair->key, kString, 0));
        return take_text(r, UINT64_MAX, &pair->value, what);
    }
    if (type == kArray) {
        QK_IO_TRY(note_value(r, pair->key, kArray, 0));
        QK_IO_TRY(skip_array(r, what, text, sizeof text));
    } else {
        const uint32_t known = static_cast<uint32_t>(type);
        QK_IO_TRY(take_number(r, kValues[known].bytes, &bits, what));
        QK_IO_TRY(note_value(r, pair->key, known, bits));
        number_text(known, bits, text, sizeof text);
    }
    pair->value = r->checkpoint->arena.copy(&r->checkpoint->memory, text, strlen(text));
    return pair->value == nullptr ? out_of_memory(r->message) : QK_OK;
}

int by_key(const void *a, const void *b) {
    return strcmp(static_cast<const Pair *>(a)->key, static_cast<const Pair *>(b)->key);
}

qk_status read_pairs(Reader *r, uint64_t count) {
    qk_checkpoint *c = r->checkpoint;
    const int64_t first = c->metadata.count;
    for (; count > 0; --count) {
        Pair pair = {};
        QK_IO_TRY(take_text(r, kMaxKeyBytes, &pair.key, "a key"));
        if (pair.key[0] == 0) return corrupt(r, "a key is empty");
        QK_IO_TRY(read_value(r, &pair));
        if (!c->metadata.push(&c->memory, pair)) return out_of_memory(r->message);
    }
    Pair *pairs = c->metadata.items + first;
    const int64_t found = c->metadata.count - first;
    if (found > 1) qsort(pairs, static_cast<size_t>(found), sizeof(Pair), by_key);
    for (int64_t i = 1; i < found; ++i) {
        if (!same(pairs[i - 1].key, pairs[i].key)) continue;
        return fail(r->message, QK_ERROR_CORRUPT, "%s: the key \"%.200s\" is there twice", r->name,
                    pairs[i].key);
    }
    return QK_OK;
}

// Sizes slowest first, as everywhere in qk; in the file the first is k.
qk_status read_shape(Reader *r, Tensor *t, const char *what) {
    uint64_t rank = 0, size = 0;
    QK_IO_TRY(take_number(r, 4, &rank, what));
    if (rank > kMaxDims) {
        return fail(r->message, QK_ERROR_CORRUPT, "%s: %s has rank %llu; at most %u", r->name, what,
                    static_cast<unsigned long long>(rank), kMaxDims);
    }
    qk_checkpoint *c = r->checkpoint;
    int64_t *sizes = static_cast<int64_t *>(c->arena.take(&c->memory, rank * sizeof(int64_t)));
    if (sizes == nullptr) return out_of_memory(r->message);
    for (uint64_t i = rank; i > 0; --i) {
        QK_IO_TRY(take_number(r, 8, &size, what));
        if (size > static_cast<uint64_t>(INT64_MAX)) {
            return fail(r->message, QK_ERROR_CORRUPT, "%s: %s has a size of 2^63 or more", r->name,
                        what);
        }
        sizes[i - 1] = static_cast<int64_t>(size);
    }
    t->shape = sizes;
    t->rank = static_cast<int32_t>(rank);
    return QK_OK;
}

// Blocks lie along k: k is divided before anything is multiplied.
qk_status count_bytes(Reader *r, const GgufType &type, Tensor *t, const char *what) {
    const int64_t k = t->rank == 0 ? 1 : t->shape[t->rank - 1];
    if (k % type.elements != 0) {
        return fail(r->message, QK_ERROR_CORRUPT, "%s: %s: rows of %lld are no blocks of %d, %s's",
                    r->name, what, static_cast<long long>(k), static_cast<int>(type.elements),
                    type.name);
    }
    bool overflow = __builtin_mul_overflow(k / type.elements, int64_t{type.bytes}, &t->bytes);
    for (int32_t i = 0; i + 1 < t->rank; ++i) {
        overflow |= __builtin_mul_overflow(t->bytes, t->shape[i], &t->bytes);
    }
    if (!overflow) return QK_OK;
    return fail(r->message, QK_ERROR_CORRUPT, "%s: %s: the size of its shape overflows", r->name,
                what);
}

qk_status read_type(Reader *r, Tensor *t, const char *what) {
    qk_checkpoint *c = r->checkpoint;
    uint64_t number = 0;
    QK_IO_TRY(take_number(r, 4, &number, what));
    const GgufType *type = find_gguf_type(static_cast<uint32_t>(number));
    if (type == nullptr) {  // newer than this reader: its size is what the next tensor leaves
        char text[32];
        snprintf(text, sizeof text, "type %llu", static_cast<unsigned long long>(number));
        t->dtype_name = c->arena.copy(&c->memory, text, strlen(text));
        t->bytes = -1;
        return t->dtype_name == nullptr ? out_of_memory(r->message) : QK_OK;
    }
    t->dtype = type->dtype != 0 ? type->dtype : QK_DTYPE_GGUF + static_cast<qk_dtype>(number);
    t->dtype_name = type->name;
    return count_bytes(r, *type, t, what);
}

qk_status read_infos(Reader *r, uint64_t count) {
    qk_checkpoint *c = r->checkpoint;
    char what[160];
    for (; count > 0; --count) {
        Tensor t = {};
        uint64_t begin = 0;
        if (c->tensors.count >= c->limits.tensors) {
            return fail(r->message, QK_ERROR_CORRUPT, "%s: more than %lld tensors, the limit",
                        r->name, static_cast<long long>(c->limits.tensors));
        }
        QK_IO_TRY(take_text(r, kMaxNameBytes, &t.name, "a tensor's name"));
        snprintf(what, sizeof what, "tensor \"%.100s\"", t.name);
        QK_IO_TRY(read_shape(r, &t, what));
        QK_IO_TRY(read_type(r, &t, what));
        QK_IO_TRY(take_number(r, 8, &begin, what));
        if (begin > static_cast<uint64_t>(INT64_MAX) ||
            static_cast<int64_t>(begin) % r->alignment != 0) {
            return fail(r->message, QK_ERROR_CORRUPT,
                        "%s: %s begins at %llu, no multiple of the alignment %lld", r->name, what,
                        static_cast<unsigned long long>(begin),
                        static_cast<long long>(r->alignment));
        }
        t.begin = static_cast<int64_t>(begin);
        t.file = r->file;
        if (!c->tensors.push(&c->memory, t)) return out_of_memory(r->message);
    }
    return QK_OK;
}

// In the order of their data; one of unknown size before one of none.
int by_offset(const void *a, const void *b) {
    const Tensor *x = static_cast<const Tensor *>(a), *y = static_cast<const Tensor *>(b);
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1;
    return strcmp(x->name, y->name);
}

int64_t aligned(const Reader &r, int64_t at) {
    const int64_t over = at % r.alignment;
    return over == 0 ? at : at + (r.alignment - over);
}

// One after the other to the end of the file, each aligned: a gap could hide anything, and bytes
// in two tensors could mean two things. Padding after the last one may be missing.
qk_status place_tensors(Reader *r, Tensor *tensors, int64_t count) {
    if (count > 1) qsort(tensors, static_cast<size_t>(count), sizeof(Tensor), by_offset);
    const int64_t head = aligned(*r, r->at - r->begin) - (r->at - r->begin);
    const int64_t size = static_cast<int64_t>(r->rest) - head;
    int64_t end = 0, next = 0;
    for (int64_t i = 0; i < count; ++i) {
        Tensor &t = tensors[i];
        if (t.begin != next) {
            return fail(r->message, QK_ERROR_CORRUPT,
                        "%s: tensor \"%.200s\" begins at %lld, which leaves %s: expected %lld",
                        r->name, t.name, static_cast<long long>(t.begin),
                        t.begin > next ? "a hole" : "an overlap", static_cast<long long>(next));
        }
        const int64_t limit = i + 1 < count ? tensors[i + 1].begin : size;
        if (t.bytes < 0) t.bytes = limit > t.begin ? limit - t.begin : 0;
        if (t.begin > size || t.bytes > size - t.begin) {
            return fail(r->message, QK_ERROR_CORRUPT,
                        "%s: tensor \"%.200s\" ends past the end of the file: it is cut short, as "
                        "an unfinished download is (%lld bytes of data)",
                        r->name, t.name, static_cast<long long>(size < 0 ? 0 : size));
        }
        t.data = r->at + head + t.begin;
        end = t.begin + t.bytes;
        next = aligned(*r, end);
    }
    if (size <= next) return QK_OK;
    return fail(r->message, QK_ERROR_CORRUPT,
                "%s: tensors cover %lld bytes, but %lld follow the header", r->name,
                static_cast<long long>(end), static_cast<long long>(size));
}

qk_status check_version(Reader *r, uint64_t version) {
    if ((version & 0xffff) == 0 && version != 0) {
        return fail(r->message, QK_ERROR_UNSUPPORTED,
                    "%s is a big-endian GGUF file; qk reads little-endian ones", r->name);
    }
    if (version == 2 || version == 3) return QK_OK;
    return fail(r->message, QK_ERROR_UNSUPPORTED,
                "%s is a GGUF file of version %llu; qk reads versions 2 and 3", r->name,
                static_cast<unsigned long long>(version));
}

}  // namespace

bool is_gguf(const File &file) { return file.size >= 4 && memcmp(file.bytes, "GGUF", 4) == 0; }

qk_status read_gguf_file(qk_checkpoint *c, int32_t file, GgufSplit *split, qk_io_message *message) {
    const File &whole = c->files.items[file];
    Reader r = {c, whole.name, whole.bytes, whole.bytes, whole.size, file, 32, {}, message};
    const int64_t first = c->tensors.count;
    uint64_t magic = 0, version = 0, tensors = 0, pairs = 0;
    QK_IO_TRY(take_number(&r, 4, &magic, "the magic"));
    QK_IO_TRY(take_number(&r, 4, &version, "the version"));
    QK_IO_TRY(check_version(&r, version));
    QK_IO_TRY(take_number(&r, 8, &tensors, "the number of tensors"));
    QK_IO_TRY(take_number(&r, 8, &pairs, "the number of keys"));
    QK_IO_TRY(read_pairs(&r, pairs));
    QK_IO_TRY(read_infos(&r, tensors));
    *split = r.split;
    return place_tensors(&r, c->tensors.items + first, c->tensors.count - first);
}

}  // namespace qk_io
