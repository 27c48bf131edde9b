#include "files.hpp"

#include <errno.h>
#include <stdio.h>
#include <string.h>

namespace qk_io {
namespace {

os::Handle open_regular(const char *path, size_t *size, const char **why) {
    *why = nullptr;
    const os::Handle file = os::open_to_read(path);
    if (file == os::kNone) return os::kNone;
    os::Status status;
    if (!os::status_of(file, &status)) {
        os::close_file(file);
        return os::kNone;
    }
    if (status.kind != os::Kind::kRegular) *why = "it is not a regular file";
    if (status.bytes > SIZE_MAX / 2) *why = "it is too large";
    *size = static_cast<size_t>(status.bytes);
    if (*why == nullptr) return file;
    os::close_file(file);
    return os::kNone;
}

qk_status open_failed(qk_io_message *message, const char *path, const char *why) {
    if (why == nullptr) return file_error(message, path, "open");
    return fail(message, QK_ERROR_FILE, "%.300s: cannot open: %s", path, why);
}

qk_status read_all(os::Handle file, uint8_t *to, size_t size, const char *path,
                   qk_io_message *message) {
    size_t done = 0;
    while (done < size) {
        const size_t rest = size - done, most = size_t{1} << 30;
        const ptrdiff_t got = os::read_some(file, to + done, rest < most ? rest : most);
        if (got < 0) return file_error(message, path, "read");
        if (got == 0) {
            return fail(message, QK_ERROR_FILE, "%.300s: it shrank while it was being read", path);
        }
        done += static_cast<size_t>(got);
    }
    return QK_OK;
}

qk_status map_or_read(qk_checkpoint *c, os::Handle open, const char *path, File *file,
                      qk_io_message *message) {
    if (!c->read_whole && file->size > 0) {
        void *map = os::map(open, file->size);
        if (map == nullptr) return file_error(message, path, "map");
        file->bytes = static_cast<const uint8_t *>(map);
        file->kind = File::kMapped;
        return QK_OK;
    }
    uint8_t *bytes = static_cast<uint8_t *>(c->memory.allocate(file->size, 8));
    if (bytes == nullptr) return out_of_memory(message);
    file->bytes = bytes;
    file->kind = File::kOwned;
    const qk_status status = read_all(open, bytes, file->size, path, message);
    if (status != QK_OK) c->memory.release(bytes);
    return status;
}

}  // namespace

qk_status file_error(qk_io_message *message, const char *path, const char *verb) {
    const int error = errno;
    char buffer[96] = "";
    return fail(message, QK_ERROR_FILE, "%.300s: cannot %s: %s", path, verb,
                os::error_text(error, buffer, sizeof buffer));
}

qk_status add_file(qk_checkpoint *c, const char *path, const char *name, qk_io_message *message) {
    File file = {};
    file.name = c->arena.copy(&c->memory, name, strlen(name));
    if (file.name == nullptr) return out_of_memory(message);
    const char *why = nullptr;
    const os::Handle open = open_regular(path, &file.size, &why);
    if (open == os::kNone) return open_failed(message, path, why);
    qk_status status = map_or_read(c, open, path, &file, message);
    os::close_file(open);
    QK_IO_TRY(status);
    if (c->files.push(&c->memory, file)) return QK_OK;
    release_file(c, file);
    return out_of_memory(message);
}

void release_file(qk_checkpoint *c, const File &file) {
    void *bytes = const_cast<uint8_t *>(file.bytes);
    if (file.kind == File::kMapped) os::unmap(bytes, file.size);
    if (file.kind == File::kOwned) c->memory.release(bytes);
}

qk_status read_text(qk_checkpoint *c, const char *path, Text *text, qk_io_message *message) {
    size_t size = 0;
    const char *why = nullptr;
    const os::Handle file = open_regular(path, &size, &why);
    if (file == os::kNone && why == nullptr && errno == ENOENT) return QK_OK;
    if (file == os::kNone) return open_failed(message, path, why);
    qk_status status = QK_OK;
    uint8_t *bytes = nullptr;
    if (size > static_cast<size_t>(kMaxJsonFileBytes)) {
        status = fail(message, QK_ERROR_CORRUPT, "%.300s: %lld bytes; at most %lld", path,
                      static_cast<long long>(size), static_cast<long long>(kMaxJsonFileBytes));
    } else {
        bytes = static_cast<uint8_t *>(c->arena.take(&c->memory, size));
        status =
            bytes == nullptr ? out_of_memory(message) : read_all(file, bytes, size, path, message);
    }
    os::close_file(file);
    QK_IO_TRY(status);
    *text = Text{reinterpret_cast<const char *>(bytes), size};
    return QK_OK;
}

qk_status join_path(char *path, const char *directory, const char *name, qk_io_message *message) {
    const size_t length = strlen(directory);
    const bool slash = length > 0 && !os::is_separator(directory[length - 1]);
    const int written = snprintf(path, kPathBytes, "%s%s%s", directory, slash ? "/" : "", name);
    if (written >= 0 && static_cast<size_t>(written) < kPathBytes) return QK_OK;
    return fail(message, QK_ERROR_FILE, "%.300s...: a path of more than %lld bytes", directory,
                static_cast<long long>(kPathBytes - 1));
}

qk_status directory_of(char *directory, const char *path, qk_io_message *message) {
    QK_IO_TRY(join_path(directory, "", path, message));
    directory[base_name(path) - path] = 0;
    return QK_OK;
}

const char *base_name(const char *path) {
    const char *name = path;
    for (; *path != 0; ++path) {
        if (os::is_separator(*path)) name = path + 1;
    }
    return name;
}

}  // namespace qk_io
