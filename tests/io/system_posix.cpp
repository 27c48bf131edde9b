#include <cerrno>
#include <cstdarg>
#include <cstdio>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "system.hpp"

namespace io_test {

std::vector<std::string> calls_of_a_commit() {
    return {"create", "pwrite", "flock", "fchmod", "fsync", "link", "rename", "unlink", "open"};
}

namespace {

std::string file_of(int fd) {
    char path[4096];
    const std::string link = "/proc/self/fd/" + std::to_string(fd);
    const ssize_t length = readlink(link.c_str(), path, sizeof path - 1);
    path[length < 0 ? 0 : length] = 0;
    return base(path);
}

bool called(const char *name, const std::string &arguments) {
    if (!fails(name, arguments)) return false;
    errno = the_system().error;
    return true;
}

int open_file(const char *path, int flags, mode_t mode) {
    if (called((flags & O_CREAT) != 0 ? "create" : "open", base(path))) return -1;
    return static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}

ssize_t write_at(int fd, const void *data, size_t bytes, off_t offset) {
    const int64_t most = the_system().short_write;
    if (called("pwrite", file_of(fd))) return -1;
    if (most > 0 && bytes > static_cast<size_t>(most)) bytes = static_cast<size_t>(most);
    return syscall(SYS_pwrite64, fd, data, bytes, offset);
}

}  // namespace
}  // namespace io_test

using io_test::base;
using io_test::called;
using io_test::file_of;

extern "C" {

int fsync(int fd) {
    struct stat status;
    const bool directory = fstat(fd, &status) == 0 && S_ISDIR(status.st_mode);
    if (called("fsync", directory ? "directory" : file_of(fd))) return -1;
    return static_cast<int>(syscall(SYS_fsync, fd));
}
int rename(const char *from, const char *to) noexcept {
    if (called("rename", base(from) + " " + base(to))) return -1;
    return static_cast<int>(syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}
int link(const char *from, const char *to) noexcept {
    if (called("link", base(from) + " " + base(to))) return -1;
    return static_cast<int>(syscall(SYS_linkat, AT_FDCWD, from, AT_FDCWD, to, 0));
}
int unlink(const char *path) noexcept {
    if (called("unlink", base(path))) return -1;
    return static_cast<int>(syscall(SYS_unlinkat, AT_FDCWD, path, 0));
}
int fchmod(int fd, mode_t mode) noexcept {
    if (called("fchmod", file_of(fd))) return -1;
    return static_cast<int>(syscall(SYS_fchmod, fd, mode));
}
int fchown(int fd, uid_t owner, gid_t group) noexcept {
    if (called("fchown", file_of(fd))) return -1;
    return static_cast<int>(syscall(SYS_fchown, fd, owner, group));
}
int flock(int fd, int operation) noexcept {
    if (called("flock", file_of(fd))) return -1;
    return static_cast<int>(syscall(SYS_flock, fd, operation));
}
int open(const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    const mode_t mode = va_arg(rest, mode_t);
    va_end(rest);
    return io_test::open_file(path, flags, mode);
}
ssize_t pwrite(int fd, const void *data, size_t bytes, off_t offset) {
    return io_test::write_at(fd, data, bytes, offset);
}
#ifdef __GLIBC__  // where files beyond 2^31 bytes have names of their own
int open64(const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    const mode_t mode = va_arg(rest, mode_t);
    va_end(rest);
    return io_test::open_file(path, flags, mode);
}
ssize_t pwrite64(int fd, const void *data, size_t bytes, off_t offset) {
    return io_test::write_at(fd, data, bytes, offset);
}
#endif
int strcmp(const char *a, const char *b) noexcept {
    ++io_test::the_system().comparisons;
    while (*a != 0 && *a == *b) ++a, ++b;
    return static_cast<unsigned char>(*a) - static_cast<unsigned char>(*b);
}

}  // extern "C"
