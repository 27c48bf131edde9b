#include "replace.hpp"

#include <errno.h>

#include "leftovers.hpp"

namespace qk_io {
namespace {

qk_status refuse_kind(const char *path, os::Kind kind, qk_io_message *message) {
    const char *const is = kind == os::Kind::kDirectory ? "a directory"
                           : kind == os::Kind::kPipe    ? "a pipe"
                           : kind == os::Kind::kSocket  ? "a socket"
                                                        : "a device";
    return fail(message, QK_ERROR_FILE, "%.300s: cannot replace: it is %s, not a regular file",
                path, is);
}

// path becomes what its links lead to, which is a regular file (*exists) or nothing.
qk_status follow_links(char *path, bool *exists, qk_io_message *message) {
    char target[kPathBytes], directory[kPathBytes];
    for (int links = 0; links < 40; ++links) {
        os::Status status;
        *exists = os::status_of_link(path, &status);
        if (!*exists && errno == ENOENT) return QK_OK;
        if (!*exists) return file_error(message, path, "replace");
        if (status.kind == os::Kind::kRegular) return QK_OK;
        if (status.kind != os::Kind::kLink) return refuse_kind(path, status.kind, message);
        const ptrdiff_t length = os::read_link(path, target, sizeof target - 1);
        if (length < 0) return file_error(message, path, "follow");
        target[length] = 0;
        QK_IO_TRY(directory_of(directory, path, message));
        QK_IO_TRY(join_path(path, os::is_absolute(target) ? "" : directory, target, message));
    }
    errno = ELOOP;
    return file_error(message, path, "follow");
}

}  // namespace

qk_status replacement_open(Replacement *file, const char *path, qk_io_message *message) {
    file->file = os::kNone;
    file->owner = os::process();
    bool exists = false;
    QK_IO_TRY(join_path(file->path, "", path, message));
    QK_IO_TRY(follow_links(file->path, &exists, message));
    if (base_name(file->path)[0] == 0) {
        return fail(message, QK_ERROR_FILE, "\"%.300s\": cannot create: no file name", path);
    }
    delete_leftovers(file->path);
    for (int attempt = 0; attempt < 100; ++attempt) {
        QK_IO_TRY(
            unfinished_name(file->name, file->path, os::nanoseconds(), 0, kNewEnding, message));
        // The owner alone may read it until it gets the mode of the file that it replaces.
        file->file = os::create_new(file->name, exists);
        if (file->file == os::kNone && errno != EEXIST) break;
        os::Status status;
        // Between open and hold another process may take it for a leftover.
        if (file->file != os::kNone && os::hold(file->file) && os::status_of(file->name, &status)) {
            return QK_OK;
        }
        replacement_drop(file);
    }
    return file_error(message, file->path, "create");
}

qk_status replacement_check_owner(const Replacement *file, qk_io_message *message) {
    if (file->owner == os::process()) return QK_OK;
    return fail(message, QK_ERROR_STATE,
                "writer: it belongs to process %lld; in a forked child only destroy is left",
                static_cast<long long>(file->owner));
}

qk_status replacement_write(Replacement *file, int64_t offset, const void *data, size_t bytes,
                            qk_io_message *message) {
    const uint8_t *from = static_cast<const uint8_t *>(data);
    while (bytes > 0) {
        const size_t most = size_t{1} << 30;
        const ptrdiff_t done =
            os::write_some(file->file, from, bytes < most ? bytes : most, offset);
        if (done == 0) errno = ENOSPC;  // no system says so, but the loop must end
        if (done <= 0) return file_error(message, file->path, "write");
        from += done;
        offset += done;
        bytes -= static_cast<size_t>(done);
    }
    return QK_OK;
}

void replacement_drop(Replacement *file) {
    if (file->file == os::kNone) return;
    if (file->owner == os::process()) os::remove(file->name);
    replacement_close(file);  // last: it holds the lock
}

void replacement_close(Replacement *file) {
    os::close_file(file->file);
    file->file = os::kNone;
}

}  // namespace qk_io
