#include "replace.hpp"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "leftovers.hpp"

namespace qk_io {
namespace {

const char *kind_of(mode_t mode) {
    return S_ISDIR(mode)    ? "a directory"
           : S_ISFIFO(mode) ? "a pipe"
           : S_ISSOCK(mode) ? "a socket"
           : S_ISLNK(mode)  ? "a symbolic link"
                            : "a device";
}

qk_status refuse_kind(const char *path, mode_t mode, qk_io_message *message) {
    return fail(message, QK_ERROR_FILE, "%.300s: cannot replace: it is %s, not a regular file",
                path, kind_of(mode));
}

// path becomes what its links lead to, which is a regular file (*exists) or nothing.
qk_status follow_links(char *path, bool *exists, qk_io_message *message) {
    char target[kPathBytes], directory[kPathBytes];
    for (int links = 0; links < 40; ++links) {
        struct stat status;
        *exists = lstat(path, &status) == 0;
        if (!*exists && errno == ENOENT) return QK_OK;
        if (!*exists) return file_error(message, path, "replace");
        if (S_ISREG(status.st_mode)) return QK_OK;
        if (!S_ISLNK(status.st_mode)) return refuse_kind(path, status.st_mode, message);
        const ssize_t length = readlink(path, target, sizeof target - 1);
        if (length < 0) return file_error(message, path, "follow");
        target[length] = 0;
        QK_IO_TRY(directory_of(directory, path, message));
        QK_IO_TRY(join_path(path, target[0] == '/' ? "" : directory, target, message));
    }
    errno = ELOOP;
    return file_error(message, path, "follow");
}

}  // namespace

qk_status replacement_open(Replacement *file, const char *path, qk_io_message *message) {
    file->fd = -1;
    file->owner = getpid();
    bool exists = false;
    QK_IO_TRY(join_path(file->path, "", path, message));
    QK_IO_TRY(follow_links(file->path, &exists, message));
    if (base_name(file->path)[0] == 0) {
        return fail(message, QK_ERROR_FILE, "\"%.300s\": cannot create: no file name", path);
    }
    delete_leftovers(file->path);
    for (int attempt = 0; attempt < 100; ++attempt) {
        QK_IO_TRY(unfinished_name(file->name, file->path, name_stamp(), 0, kNewEnding, message));
        // Never open to more readers than the file will be: 0666 under the umask where it is new,
        // the owner alone until it gets the mode of the file that it replaces.
        file->fd = open(file->name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, exists ? 0600 : 0666);
        if (file->fd < 0 && errno != EEXIST) break;
        struct stat status;
        // Between open and hold another process may take it for a leftover.
        if (file->fd >= 0 && hold(file->fd) && stat(file->name, &status) == 0) return QK_OK;
        replacement_drop(file);
    }
    return file_error(message, file->path, "create");
}

qk_status replacement_check_owner(const Replacement *file, qk_io_message *message) {
    if (file->owner == getpid()) return QK_OK;
    return fail(message, QK_ERROR_STATE,
                "writer: it belongs to process %ld; in a forked child only destroy is left",
                static_cast<long>(file->owner));
}

qk_status replacement_write(Replacement *file, int64_t offset, const void *data, size_t bytes,
                            qk_io_message *message) {
    const uint8_t *from = static_cast<const uint8_t *>(data);
    while (bytes > 0) {
        const size_t most = size_t{1} << 30;
        const ssize_t done =
            pwrite(file->fd, from, bytes < most ? bytes : most, static_cast<off_t>(offset));
        if (done < 0 && errno == EINTR) continue;
        if (done == 0) errno = ENOSPC;  // no system says so, but the loop must end
        if (done <= 0) return file_error(message, file->path, "write");
        from += done;
        offset += done;
        bytes -= static_cast<size_t>(done);
    }
    return QK_OK;
}

void replacement_drop(Replacement *file) {
    if (file->fd < 0) return;
    if (file->owner == getpid()) unlink(file->name);
    close(file->fd);  // last: it holds the lock
    file->fd = -1;
}

}  // namespace qk_io
