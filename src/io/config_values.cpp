// Values of config.json by the path of their keys. Each call parses the text again: a checkpoint
// stays as it is for any number of threads, and no tree stays in memory.
#include "checkpoint.hpp"

namespace qk_io {
namespace {

constexpr size_t kMaxKeyBytes = 256;

const char *kind_of(const json_t *value) {
    switch (json_typeof(value)) {
        case JSON_OBJECT: return "an object";
        case JSON_ARRAY: return "a list";
        case JSON_STRING: return "a text";
        case JSON_TRUE:
        case JSON_FALSE: return "true or false";
        default: return "a number";
    }
}

// An element of a list by its decimal index; NULL: there is none.
const json_t *element(const json_t *list, const char *index) {
    size_t i = 0;
    const size_t count = json_array_size(list);
    if (*index == 0) return nullptr;
    for (; *index != 0; ++index) {
        if (*index < '0' || *index > '9' || i >= count) return nullptr;
        i = i * 10 + static_cast<size_t>(*index - '0');
    }
    return json_array_get(list, i);
}

// Follows `path`, keys with dots between them; NULL: there is nothing, or null.
const json_t *follow(const json_t *value, const char *path) {
    for (;;) {
        const char *const dot = strchr(path, '.');
        const size_t bytes = dot == nullptr ? strlen(path) : static_cast<size_t>(dot - path);
        char key[kMaxKeyBytes];
        if (bytes >= sizeof key) return nullptr;
        memcpy(key, path, bytes);
        key[bytes] = 0;
        value = json_is_array(value) ? element(value, key) : json_object_get(value, key);
        if (value == nullptr || json_is_null(value)) return nullptr;
        if (dot == nullptr) return value;
        path = dot + 1;
    }
}

// On QK_OK *root is the caller's to release and holds *value.
qk_status find(const qk_checkpoint *c, const char *path, json_t **root, const json_t **value,
               qk_io_message *message) {
    if (c->config_json.data == nullptr) {
        return fail(message, QK_ERROR_ARGUMENT, "key: \"%.200s\", but there is no config.json",
                    path);
    }
    qk_status status = QK_OK;
    json_t *tree = json_parse(c->config_json, c->limits.json_depth, kMaxJsonValues, "config.json",
                              message, &status);
    if (tree == nullptr) return status;
    *value = follow(tree, path);
    if (*value == nullptr) {
        json_decref(tree);
        return fail(message, QK_ERROR_ARGUMENT, "key: config.json has no \"%.200s\"", path);
    }
    *root = tree;
    return QK_OK;
}

qk_status wrong_type(const char *path, const json_t *value, const char *wanted,
                     qk_io_message *message) {
    return fail(message, QK_ERROR_FORMAT, "config.json: \"%.200s\" is %s, not %s", path,
                kind_of(value), wanted);
}

qk_status number_of(const char *path, const json_t *value, double *out, qk_io_message *message) {
    if (json_is_boolean(value)) {
        *out = json_is_true(value) ? 1 : 0;
        return QK_OK;
    }
    if (!json_is_number(value)) return wrong_type(path, value, "a number", message);
    *out = json_number_value(value);
    return QK_OK;
}

qk_status text_of(const char *path, const json_t *value, char *text, size_t capacity,
                  qk_io_message *message) {
    if (!json_is_string(value)) return wrong_type(path, value, "a text", message);
    const size_t bytes = json_string_length(value) + 1;
    if (bytes > capacity) {
        return fail(message, QK_ERROR_BUFFER_SIZE,
                    "capacity: %zu; \"%.200s\" of config.json needs %zu", capacity, path, bytes);
    }
    memcpy(text, json_string_value(value), bytes);
    return QK_OK;
}

qk_status check(const qk_checkpoint *checkpoint, const char *key, const void *out,
                const char *out_name, qk_io_message *message) {
    clear(message);
    const char *const missing = checkpoint == nullptr ? "checkpoint"
                                : key == nullptr      ? "key"
                                : out == nullptr      ? out_name
                                                      : nullptr;
    return missing == nullptr ? QK_OK : fail(message, QK_ERROR_NULL, "%s: NULL", missing);
}

}  // namespace
}  // namespace qk_io

using namespace qk_io;

qk_status qk_checkpoint_config_number(const qk_checkpoint *checkpoint, const char *key,
                                      double *value, qk_io_message *message) {
    QK_IO_TRY(check(checkpoint, key, value, "value", message));
    json_t *root = nullptr;
    const json_t *found = nullptr;
    QK_IO_TRY(find(checkpoint, key, &root, &found, message));
    const qk_status status = number_of(key, found, value, message);
    json_decref(root);
    return status;
}

qk_status qk_checkpoint_config_text(const qk_checkpoint *checkpoint, const char *key, char *text,
                                    size_t capacity, qk_io_message *message) {
    QK_IO_TRY(check(checkpoint, key, text, "text", message));
    json_t *root = nullptr;
    const json_t *found = nullptr;
    QK_IO_TRY(find(checkpoint, key, &root, &found, message));
    const qk_status status = text_of(key, found, text, capacity, message);
    json_decref(root);
    return status;
}
