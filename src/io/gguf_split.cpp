// A model in several GGUF files: name-00001-of-00003.gguf, each with a header and tensors of its
// own. Any of them opens all.
#include <stdio.h>

#include "gguf.hpp"

namespace qk_io {
namespace {

constexpr const char *kPattern = "-00001-of-00001.gguf";

bool is_digits(const char *at) {
    for (int i = 0; i < 5; ++i) {
        if (at[i] < '0' || at[i] > '9') return false;
    }
    return true;
}

bool is_part_name(const char *name) {
    const size_t size = strlen(name), tail = strlen(kPattern);
    if (size <= tail) return false;
    const char *at = name + size - tail;
    return at[0] == '-' && is_digits(at + 1) && memcmp(at + 6, "-of-", 4) == 0 &&
           is_digits(at + 10) && same(at + 15, ".gguf");
}

// The name of another part of the same model, from 1 on.
void set_part(char *name, int64_t part, int64_t count) {
    char tail[64];
    snprintf(tail, sizeof tail, "-%05lld-of-%05lld.gguf", static_cast<long long>(part),
             static_cast<long long>(count));
    memcpy(name + strlen(name) - strlen(kPattern), tail, strlen(kPattern));
}

// Header, name and the other parts agree.
qk_status check_part(const File &file, const GgufSplit &first, const GgufSplit &part,
                     qk_io_message *message) {
    char name[256];
    snprintf(name, sizeof name, "%s", file.name);
    set_part(name, part.number + 1, part.count);
    const bool same_model = part.count == first.count && part.tensors == first.tensors;
    if (same(name, file.name) && same_model) return QK_OK;
    return fail(message, QK_ERROR_CORRUPT,
                "%s: its header says part %lld of %lld, of %lld tensors, which is not what its "
                "name or the other parts say",
                file.name, static_cast<long long>(part.number + 1),
                static_cast<long long>(part.count), static_cast<long long>(part.tensors));
}

qk_status read_parts(qk_checkpoint *c, const char *path, const GgufSplit &first,
                     qk_io_message *message) {
    const char *given = base_name(path);
    char name[256], directory[kPathBytes], part_path[kPathBytes];
    snprintf(name, sizeof name, "%s", given);
    QK_IO_TRY(check_part(c->files.items[0], first, first, message));
    QK_IO_TRY(directory_of(directory, path, message));
    for (int64_t i = 0; i < first.count; ++i) {
        if (i == first.number) continue;
        GgufSplit part = {};
        set_part(name, i + 1, first.count);
        QK_IO_TRY(join_path(part_path, directory, name, message));
        QK_IO_TRY(add_file(c, part_path, name, message));
        const int32_t file = static_cast<int32_t>(c->files.count - 1);
        if (!is_gguf(c->files.items[file])) {
            return fail(message, QK_ERROR_CORRUPT, "%s does not begin as a GGUF file does", name);
        }
        QK_IO_TRY(read_gguf_file(c, file, &part, message));
        QK_IO_TRY(check_part(c->files.items[file], first, part, message));
    }
    if (first.tensors == c->tensors.count) return QK_OK;
    return fail(message, QK_ERROR_CORRUPT, "%s: %lld tensors in all parts; the header says %lld",
                given, static_cast<long long>(c->tensors.count),
                static_cast<long long>(first.tensors));
}

}  // namespace

qk_status read_gguf(qk_checkpoint *c, const char *path, qk_io_message *message) {
    GgufSplit split = {};
    c->config.method = Method::kGguf;
    snprintf(c->config.method_name, sizeof c->config.method_name, "gguf");
    QK_IO_TRY(read_gguf_file(c, 0, &split, message));
    if (split.count <= 1) return QK_OK;
    const char *name = c->files.items[0].name;
    if (split.count > kMaxShards || split.number >= split.count) {
        return fail(message, QK_ERROR_CORRUPT, "%s: part %lld of %lld; at most %lld parts", name,
                    static_cast<long long>(split.number + 1), static_cast<long long>(split.count),
                    static_cast<long long>(kMaxShards));
    }
    if (path != nullptr && strlen(name) < 256 && is_part_name(name)) {
        return read_parts(c, path, split, message);
    }
    return fail(message, QK_ERROR_UNSUPPORTED,
                "%s is part %lld of %lld of a model; qk finds the others where names end as in "
                "-00001-of-%05lld.gguf",
                name, static_cast<long long>(split.number + 1), static_cast<long long>(split.count),
                static_cast<long long>(split.count));
}

bool is_later_part(const char *name) {
    return is_part_name(name) && memcmp(name + strlen(name) - strlen(kPattern), "-00001", 6) != 0;
}

}  // namespace qk_io
