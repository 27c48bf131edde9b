#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "os.hpp"

namespace qk_io::os {
namespace {

// strerror_r has two signatures; each overload takes one library's.
[[maybe_unused]] const char *described(int, const char *buffer) { return buffer; }
[[maybe_unused]] const char *described(const char *result, const char *) { return result; }

Kind kind_of(mode_t mode) {
    return S_ISREG(mode)    ? Kind::kRegular
           : S_ISDIR(mode)  ? Kind::kDirectory
           : S_ISLNK(mode)  ? Kind::kLink
           : S_ISFIFO(mode) ? Kind::kPipe
           : S_ISSOCK(mode) ? Kind::kSocket
                            : Kind::kDevice;
}

bool told(int result, const struct stat &found, Status *status) {
    if (result != 0) return false;
    *status = {kind_of(found.st_mode), static_cast<uint64_t>(found.st_size),
               static_cast<uint32_t>(found.st_mode & 0777), found.st_uid, found.st_gid};
    return true;
}

int fd_of(Handle file) { return static_cast<int>(file); }

bool sync_fd(int fd) {
    int result;
    do {
        result = fsync(fd);
    } while (result != 0 && errno == EINTR);
    return result == 0;
}

}  // namespace

bool status_of(Handle file, Status *status) {
    struct stat found;
    return told(fstat(fd_of(file), &found), found, status);
}

bool status_of(const char *path, Status *status) {
    struct stat found;
    return told(stat(path, &found), found, status);
}

bool status_of_link(const char *path, Status *status) {
    struct stat found;
    return told(lstat(path, &found), found, status);
}

Handle open_to_read(const char *path) { return open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); }

Handle create_new(const char *path, bool owner_only) {
    return open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, owner_only ? 0600 : 0666);
}

ptrdiff_t read_some(Handle file, void *to, size_t bytes) {
    ssize_t got;
    do {
        got = read(fd_of(file), to, bytes);
    } while (got < 0 && errno == EINTR);
    return got;
}

ptrdiff_t write_some(Handle file, const void *from, size_t bytes, int64_t offset) {
    ssize_t done;
    do {
        done = pwrite(fd_of(file), from, bytes, static_cast<off_t>(offset));
    } while (done < 0 && errno == EINTR);
    return done;
}

bool sync(Handle file) { return sync_fd(fd_of(file)); }

void close_file(Handle file) { close(fd_of(file)); }

// Bits of a group that the file could not get would let other people in.
bool take_permissions(Handle file, const Status &old) {
    const int fd = fd_of(file);
    struct stat own;
    if (fstat(fd, &own) != 0) return false;
    mode_t mode = static_cast<mode_t>(old.mode);
    if ((own.st_uid != old.owner || own.st_gid != old.group) &&
        fchown(fd, old.owner, old.group) != 0 &&
        fchown(fd, static_cast<uid_t>(-1), old.group) != 0 && own.st_gid != old.group) {
        mode &= ~static_cast<mode_t>(070);
    }
    return (own.st_mode & 0777) == mode || fchmod(fd, mode) == 0;
}

void *map(Handle file, size_t bytes) {
    void *map = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, fd_of(file), 0);
    return map == MAP_FAILED ? nullptr : map;
}

void unmap(void *bytes, size_t size) { munmap(bytes, size); }

bool replace(const char *from, const char *to, const char *, Handle *) {
    return rename(from, to) == 0;
}
bool add_name(const char *path, const char *other) { return link(path, other) == 0; }
bool remove(const char *path) { return unlink(path) == 0; }

ptrdiff_t read_link(const char *path, char *target, size_t bytes) {
    return readlink(path, target, bytes);
}

bool sync_directory(const char *directory) {
    const int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    // Some file systems have no such call, and a directory may be closed to readers.
    if (fd < 0) return true;
    const bool good = sync_fd(fd) || errno == EINVAL || errno == ENOTSUP;
    const int error = errno;
    close(fd);
    errno = error;
    return good;
}

bool list(const char *directory, void (*visit)(void *user, const char *name), void *user) {
    DIR *dir = opendir(directory);
    if (dir == nullptr) return false;
    while (const dirent *entry = readdir(dir)) visit(user, entry->d_name);
    closedir(dir);
    return true;
}

bool hold(Handle file) {
    // Where the file system has no locks, remove_unless_held cannot have one either.
    return flock(fd_of(file), LOCK_SH | LOCK_NB) == 0 || errno != EWOULDBLOCK;
}

void remove_unless_held(const char *path) {
    const int flags = O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW;
    int fd = open(path, O_RDWR | flags);  // NFS locks only what may be written
    if (fd < 0) fd = open(path, O_RDONLY | flags);
    if (fd < 0) return;
    struct stat status;
    if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && flock(fd, LOCK_EX | LOCK_NB) == 0) {
        unlink(path);
    }
    close(fd);
}

bool is_separator(char letter) { return letter == '/'; }
bool is_absolute(const char *path) { return path[0] == '/'; }
int64_t process() { return getpid(); }

uint64_t nanoseconds() {
    struct timespec now = {};
    clock_gettime(CLOCK_REALTIME, &now);
    return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
}

const char *error_text(int error, char *buffer, size_t bytes) {
    return described(strerror_r(error, buffer, bytes), buffer);
}

}  // namespace qk_io::os
