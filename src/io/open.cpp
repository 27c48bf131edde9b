// Opening: options, which files, in which order; and closing.
#include <stdio.h>

#include "gguf.hpp"
#include "kinds.hpp"

namespace qk_io {
namespace {

constexpr int32_t kDefaultJsonDepth = 32, kMostJsonDepth = 256;
constexpr int64_t kDefaultTensors = int64_t{1} << 20;
constexpr const char *kIndexName = "model.safetensors.index.json";

template <typename T>
qk_status limit(const char *name, int64_t value, int64_t standard, int64_t most, T *out,
                qk_io_message *message) {
    if (value < 0 || value > most) {
        return fail(message, QK_ERROR_ARGUMENT, "options->%s: %lld; 0 (the default) .. %lld", name,
                    static_cast<long long>(value), static_cast<long long>(most));
    }
    *out = static_cast<T>(value == 0 ? standard : value);
    return QK_OK;
}

qk_status create(const qk_checkpoint_options *given, qk_checkpoint **out, qk_io_message *message) {
    const qk_checkpoint_options standard = QK_CHECKPOINT_OPTIONS_INIT;
    const qk_checkpoint_options &o = given == nullptr ? standard : *given;
    if (o.struct_size < sizeof o || o.abi_version != QK_ABI_VERSION) {
        return fail(message, QK_ERROR_ABI,
                    "options: struct_size %u and abi_version %u; this library has %u and %u",
                    o.struct_size, o.abi_version, static_cast<unsigned>(sizeof o),
                    static_cast<unsigned>(QK_ABI_VERSION));
    }
    if ((o.flags & ~QK_CHECKPOINT_READ) != 0) {
        return fail(message, QK_ERROR_ARGUMENT, "options->flags: 0x%x; only 0x%x is defined",
                    o.flags, QK_CHECKPOINT_READ);
    }
    Memory memory = {};
    if (!memory_from(o.allocator, &memory)) {
        return fail(message, QK_ERROR_NULL, "options->allocator: allocate or release is NULL");
    }
    Limits limits = {};
    QK_IO_TRY(limit("max_json_depth", o.max_json_depth, kDefaultJsonDepth, kMostJsonDepth,
                    &limits.json_depth, message));
    QK_IO_TRY(limit("max_header_bytes", o.max_header_bytes, kMaxHeaderBytes, kMaxHeaderBytes,
                    &limits.header_bytes, message));
    QK_IO_TRY(
        limit("max_tensors", o.max_tensors, kDefaultTensors, INT32_MAX, &limits.tensors, message));
    qk_checkpoint *c = static_cast<qk_checkpoint *>(
        memory.allocate(sizeof(qk_checkpoint), alignof(qk_checkpoint)));
    if (c == nullptr) return out_of_memory(message);
    *c = qk_checkpoint{};
    c->memory = memory;
    c->limits = limits;
    c->read_whole = (o.flags & QK_CHECKPOINT_READ) != 0;
    *out = c;
    return QK_OK;
}

// Files of a kind in a directory without model.safetensors: how many, and the first by name.
struct Files {
    int64_t count;
    char name[256];

    void add(const char *other) {
        if (++count == 1 || strcmp(other, name) < 0) snprintf(name, sizeof name, "%s", other);
    }
};

struct Found {
    Files safetensors, gguf, other;
};

void find(void *user, const char *name) {
    Found *const found = static_cast<Found *>(user);
    if (name[0] == '.') return;
    if (ends_with(name, ".safetensors")) found->safetensors.add(name);
    if (ends_with(name, ".gguf") && !is_later_part(name)) found->gguf.add(name);
    if (is_other_name(name)) found->other.add(name);
}

// The one *.safetensors of a directory that has no model.safetensors; where there is none, the one
// *.gguf; else the first file of another kind, which then is called what it is.
qk_status find_only_file(char *path, const char *directory, qk_io_message *message) {
    Found found = {};
    if (!os::list(directory, find, &found)) return file_error(message, directory, "list");
    const Files &only = found.safetensors.count > 0 ? found.safetensors
                        : found.gguf.count > 0      ? found.gguf
                                                    : found.other;
    if (only.count == 1 || (only.count > 1 && &only == &found.other)) {
        return join_path(path, directory, only.name, message);
    }
    if (only.count == 0) {
        return fail(message, QK_ERROR_FILE, "%.200s: a directory without *.safetensors or *.gguf",
                    directory);
    }
    return fail(message, QK_ERROR_FILE,
                "%.200s: no model.safetensors, no %s, and %lld other *.%s instead of one",
                directory, kIndexName, static_cast<long long>(only.count),
                &only == &found.gguf ? "gguf" : "safetensors");
}

bool is_file(const char *path) {
    os::Status status;
    return os::status_of(path, &status) && status.kind != os::Kind::kDirectory;
}

// path as given -> the safetensors file or index to open.
qk_status resolve(char *resolved, const char *path, qk_io_message *message) {
    os::Status status;
    if (!os::status_of(path, &status)) return file_error(message, path, "open");
    if (status.kind != os::Kind::kDirectory) return join_path(resolved, "", path, message);
    QK_IO_TRY(join_path(resolved, path, "model.safetensors", message));
    if (is_file(resolved)) return QK_OK;
    QK_IO_TRY(join_path(resolved, path, kIndexName, message));
    if (is_file(resolved)) return QK_OK;
    return find_only_file(resolved, path, message);
}

qk_status read_configs(qk_checkpoint *c, const char *model_path, qk_io_message *message) {
    static constexpr const char *kNames[] = {"config.json", "quantize_config.json",
                                             "quant_config.json", "hf_quant_config.json"};
    char directory[kPathBytes], path[kPathBytes];
    QK_IO_TRY(directory_of(directory, model_path, message));
    bool found = false;
    for (const char *name : kNames) {
        Text text = {};
        QK_IO_TRY(join_path(path, directory, name, message));
        QK_IO_TRY(read_text(c, path, &text, message));
        if (text.data == nullptr) continue;
        if (same(name, "config.json")) c->config_json = text;
        // The first that speaks of quantization wins: config.json is what transformers reads.
        if (!found) QK_IO_TRY(read_config(c, text.data, text.size, name, &found, message));
    }
    return QK_OK;
}

qk_status open_path(qk_checkpoint *c, const char *path, qk_io_message *message) {
    char resolved[kPathBytes];
    QK_IO_TRY(resolve(resolved, path, message));
    if (ends_with(resolved, ".json")) {
        QK_IO_TRY(read_configs(c, resolved, message));
        QK_IO_TRY(read_shards(c, resolved, message));
        return find_layers(c, message);
    }
    QK_IO_TRY(add_file(c, resolved, base_name(resolved), message));
    if (is_gguf(c->files.items[0])) {
        QK_IO_TRY(read_gguf(c, resolved, message));
    } else {
        QK_IO_TRY(read_configs(c, resolved, message));
        QK_IO_TRY(read_safetensors(c, 0, message));
    }
    QK_IO_TRY(sort_tensors(c, message));
    return find_layers(c, message);
}

qk_status open_memory(qk_checkpoint *c, const void *bytes, size_t size, Text config,
                      qk_io_message *message) {
    const File file = {"memory", static_cast<const uint8_t *>(bytes), size, File::kBorrowed};
    bool found = false;
    if (config.size > static_cast<size_t>(kMaxJsonFileBytes)) {
        return fail(message, QK_ERROR_CORRUPT, "config: %lld bytes; at most %lld",
                    static_cast<long long>(config.size), static_cast<long long>(kMaxJsonFileBytes));
    }
    if (config.data != nullptr) {
        // A copy: the text is needed after this call, and only `bytes` is borrowed.
        c->config_json.data = c->arena.copy(&c->memory, config.data, config.size);
        if (c->config_json.data == nullptr) return out_of_memory(message);
        c->config_json.size = config.size;
        QK_IO_TRY(read_config(c, config.data, config.size, "config", &found, message));
    }
    if (!c->files.push(&c->memory, file)) return out_of_memory(message);
    if (is_gguf(file)) {
        c->config = Config{};  // another file's
        QK_IO_TRY(read_gguf(c, nullptr, message));
    } else {
        QK_IO_TRY(read_safetensors(c, 0, message));
    }
    QK_IO_TRY(sort_tensors(c, message));
    return find_layers(c, message);
}

qk_status settle(qk_checkpoint *c, qk_status status, qk_checkpoint **out) {
    if (status == QK_OK) {
        *out = c;
    } else {
        qk_checkpoint_destroy(c);
    }
    return status;
}

}  // namespace
}  // namespace qk_io

using namespace qk_io;

qk_status qk_checkpoint_open(const char *path, const qk_checkpoint_options *options,
                             qk_checkpoint **out, qk_io_message *message) {
    clear(message);
    if (path == nullptr || out == nullptr) {
        return fail(message, QK_ERROR_NULL, "%s: NULL", path == nullptr ? "path" : "out");
    }
    qk_checkpoint *c = nullptr;
    QK_IO_TRY(create(options, &c, message));
    return settle(c, open_path(c, path, message), out);
}

qk_status qk_checkpoint_open_memory(const void *bytes, size_t size_bytes, const char *config,
                                    size_t config_bytes, const qk_checkpoint_options *options,
                                    qk_checkpoint **out, qk_io_message *message) {
    clear(message);
    if (bytes == nullptr || out == nullptr) {
        return fail(message, QK_ERROR_NULL, "%s: NULL", bytes == nullptr ? "bytes" : "out");
    }
    if (config == nullptr && config_bytes != 0) {
        return fail(message, QK_ERROR_NULL, "config: NULL with %lld bytes",
                    static_cast<long long>(config_bytes));
    }
    qk_checkpoint *c = nullptr;
    QK_IO_TRY(create(options, &c, message));
    const Text text{config, config_bytes};
    return settle(c, open_memory(c, bytes, size_bytes, text, message), out);
}

void qk_checkpoint_destroy(qk_checkpoint *c) {
    if (c == nullptr) return;
    for (int64_t i = 0; i < c->files.count; ++i) release_file(c, c->files.items[i]);
    c->experts.release(&c->memory);
    c->layers.release(&c->memory);
    c->metadata.release(&c->memory);
    c->tensors.release(&c->memory);
    c->files.release(&c->memory);
    c->arena.release(&c->memory);
    Memory memory = c->memory;
    memory.release(c);
}
