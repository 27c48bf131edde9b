// model.safetensors.index.json: {"metadata": ..., "weight_map": {tensor: file}}. The names of
// files are untrusted: base names only, so that an index cannot reach out of its directory.
#include <stdio.h>
#include <stdlib.h>

#include "gguf.hpp"

namespace qk_io {
namespace {

struct Shards {
    qk_checkpoint *checkpoint;
    const char *index_name;
    char what[320];  // "index_name: a string"
    qk_io_message *message;
    Array<Pair> map;            // tensor -> file
    Array<const char *> names;  // distinct files, sorted
};

bool is_base_name(const char *name) {
    return name[0] != 0 && name[0] != '.' && strlen(name) <= 255 && strchr(name, '/') == nullptr &&
           strchr(name, '\\') == nullptr && ends_with(name, ".safetensors");
}

qk_status read_weight_map(Shards *s, Text text) {
    qk_checkpoint *c = s->checkpoint;
    JsonMembers members = json_members(text, c->limits.json_depth);
    Text key, value;
    int next = 0;
    while ((next = json_next(&members, &key, &value)) == 1) {
        Pair pair = {};
        QK_IO_TRY(decode_string(c, key, s->what, &pair.key, s->message));
        QK_IO_TRY(decode_string(c, value, s->what, &pair.value, s->message));
        if (ends_with(pair.value, ".bin")) {
            return fail(s->message, QK_ERROR_UNSUPPORTED,
                        "%s names PyTorch's .bin files, which qk does not load: save the model as "
                        "safetensors",
                        s->index_name);
        }
        if (!is_base_name(pair.value)) {
            return fail(s->message, QK_ERROR_CORRUPT,
                        "%s: \"%.200s\" is not a shard's name; only *.safetensors base names in "
                        "the index's own directory are",
                        s->index_name, pair.value);
        }
        if (s->map.count >= c->limits.tensors) {
            return fail(s->message, QK_ERROR_CORRUPT, "%s: more than %lld tensors, the limit",
                        s->index_name, static_cast<long long>(c->limits.tensors));
        }
        if (!s->map.push(&c->memory, pair)) return out_of_memory(s->message);
    }
    if (next == 0) return QK_OK;
    return fail(s->message, QK_ERROR_CORRUPT, "%s: weight_map is not a JSON object: %s",
                s->index_name, members.error);
}

qk_status read_index(Shards *s, Text text) {
    qk_checkpoint *c = s->checkpoint;
    JsonMembers members = json_members(text, c->limits.json_depth);
    Text key, value;
    int next = 0;
    bool found = false;
    while ((next = json_next(&members, &key, &value)) == 1) {
        const char *name = nullptr;
        QK_IO_TRY(decode_string(c, key, s->what, &name, s->message));
        if (same(name, "weight_map")) {
            if (found) {
                return fail(s->message, QK_ERROR_CORRUPT, "%s: weight_map is there twice",
                            s->index_name);
            }
            found = true;
            QK_IO_TRY(read_weight_map(s, value));
            continue;
        }
        qk_status status = QK_OK;
        json_t *other = json_parse(value, c->limits.json_depth, kMaxJsonValues, s->index_name,
                                   s->message, &status);
        if (other == nullptr) return status;
        json_decref(other);
    }
    if (next < 0) {
        return fail(s->message, QK_ERROR_CORRUPT, "%s: not a JSON object: %s", s->index_name,
                    members.error);
    }
    if (found) return QK_OK;
    return fail(s->message, QK_ERROR_CORRUPT,
                "%s: there is no weight_map, so it is no index of a model's files", s->index_name);
}

int by_text(const void *a, const void *b) {
    return strcmp(*static_cast<const char *const *>(a), *static_cast<const char *const *>(b));
}

qk_status list_files(Shards *s) {
    qk_checkpoint *c = s->checkpoint;
    for (int64_t i = 0; i < s->map.count; ++i) {
        if (!s->names.push(&c->memory, s->map.items[i].value)) return out_of_memory(s->message);
    }
    const char **names = s->names.items;
    if (s->names.count > 1) {
        qsort(names, static_cast<size_t>(s->names.count), sizeof(const char *), by_text);
    }
    int64_t kept = 0;
    for (int64_t i = 0; i < s->names.count; ++i) {
        if (kept == 0 || !same(names[kept - 1], names[i])) names[kept++] = names[i];
    }
    s->names.count = kept;
    if (kept <= kMaxShards) return QK_OK;
    return fail(s->message, QK_ERROR_CORRUPT, "%s: %lld shards; at most %lld", s->index_name,
                static_cast<long long>(kept), static_cast<long long>(kMaxShards));
}

int by_key(const void *a, const void *b) {
    return strcmp(static_cast<const Pair *>(a)->key, static_cast<const Pair *>(b)->key);
}

// The index and the shards must agree, or a tensor could come from a file that was never reviewed.
qk_status check_map(Shards *s) {
    qk_checkpoint *c = s->checkpoint;
    Pair *map = s->map.items;
    if (s->map.count > 1) qsort(map, static_cast<size_t>(s->map.count), sizeof(Pair), by_key);
    for (int64_t i = 0; i < s->map.count; ++i) {
        if (i > 0 && same(map[i - 1].key, map[i].key)) {
            return fail(s->message, QK_ERROR_CORRUPT, "%s: weight_map has \"%.200s\" twice",
                        s->index_name, map[i].key);
        }
        const Tensor *tensor = find_tensor(c, map[i].key);
        if (tensor == nullptr || !same(c->files.items[tensor->file].name, map[i].value)) {
            return fail(s->message, QK_ERROR_CORRUPT,
                        "%s: tensor \"%.200s\" is not in %.64s, where weight_map puts it",
                        s->index_name, map[i].key, map[i].value);
        }
    }
    if (s->map.count == c->tensors.count) return QK_OK;
    return fail(s->message, QK_ERROR_CORRUPT,
                "%s: weight_map has %lld tensors, the shards have %lld", s->index_name,
                static_cast<long long>(s->map.count), static_cast<long long>(c->tensors.count));
}

qk_status open_shards(Shards *s, const char *index_path) {
    qk_checkpoint *c = s->checkpoint;
    char directory[kPathBytes], path[kPathBytes];
    Text text = {};
    QK_IO_TRY(read_text(c, index_path, &text, s->message));
    if (text.data == nullptr) {
        return fail(s->message, QK_ERROR_FILE, "%.300s: there is no such file", index_path);
    }
    QK_IO_TRY(read_index(s, text));
    QK_IO_TRY(list_files(s));
    QK_IO_TRY(directory_of(directory, index_path, s->message));
    for (int64_t i = 0; i < s->names.count; ++i) {
        QK_IO_TRY(join_path(path, directory, s->names.items[i], s->message));
        QK_IO_TRY(add_file(c, path, s->names.items[i], s->message));
        const int32_t file = static_cast<int32_t>(c->files.count - 1);
        if (is_gguf(c->files.items[file])) {
            return fail(s->message, QK_ERROR_CORRUPT,
                        "%s names %.200s, a GGUF file: those are opened by their own name",
                        s->index_name, s->names.items[i]);
        }
        QK_IO_TRY(read_safetensors(c, file, s->message));
    }
    QK_IO_TRY(sort_tensors(c, s->message));
    return check_map(s);
}

}  // namespace

qk_status read_shards(qk_checkpoint *checkpoint, const char *index_path, qk_io_message *message) {
    Shards shards = {checkpoint, base_name(index_path), {}, message, {}, {}};
    snprintf(shards.what, sizeof shards.what, "%.255s: a string", shards.index_name);
    const qk_status status = open_shards(&shards, index_path);
    shards.map.release(&checkpoint->memory);
    shards.names.release(&checkpoint->memory);
    return status;
}

}  // namespace qk_io
