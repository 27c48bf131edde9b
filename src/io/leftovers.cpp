// A lock tells a file in use from a leftover: the system releases it however its holder ends, and
// unlike a process number it means the same in every container.
#include "leftovers.hpp"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

namespace qk_io {
namespace {

constexpr const char *kPrefix = ".qk-";

bool is_unfinished_name(const char *name) {
    const size_t prefix = strlen(kPrefix);
    if (strncmp(name, kPrefix, prefix) != 0) return false;
    name += prefix;
    name += strspn(name, "0123456789abcdef-");
    return same(name, kNewEnding) || same(name, kOldEnding);
}

// A new name is locked at once and used once, so that it cannot come to mean another file between
// the lock and unlink.
void delete_unless_held(const char *name) {
    const int flags = O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW;
    int fd = open(name, O_RDWR | flags);  // NFS locks only what may be written
    if (fd < 0) fd = open(name, O_RDONLY | flags);
    if (fd < 0) return;
    struct stat status;
    if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && flock(fd, LOCK_EX | LOCK_NB) == 0) {
        unlink(name);
    }
    close(fd);
}

}  // namespace

uint64_t name_stamp() {
    struct timespec now = {};
    clock_gettime(CLOCK_REALTIME, &now);
    return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
}

qk_status unfinished_name(char *name, const char *path, uint64_t stamp, int64_t index,
                          const char *ending, qk_io_message *message) {
    char directory[kPathBytes], base[96];
    QK_IO_TRY(directory_of(directory, path, message));
    snprintf(base, sizeof base, "%s%ld-%llx-%llx%s", kPrefix, static_cast<long>(getpid()),
             static_cast<unsigned long long>(stamp), static_cast<unsigned long long>(index),
             ending);
    return join_path(name, directory, base, message);
}

bool hold(int fd) {
    // Where the file system has no locks, delete_unless_held cannot have one either.
    return flock(fd, LOCK_SH | LOCK_NB) == 0 || errno != EWOULDBLOCK;
}

void delete_leftovers(const char *path) {
    char directory[kPathBytes], name[kPathBytes];
    if (directory_of(directory, path, nullptr) != QK_OK) return;
    DIR *dir = opendir(directory[0] == 0 ? "." : directory);
    if (dir == nullptr) return;
    while (const dirent *entry = readdir(dir)) {
        if (!is_unfinished_name(entry->d_name)) continue;
        if (join_path(name, directory, entry->d_name, nullptr) == QK_OK) delete_unless_held(name);
    }
    closedir(dir);
}

}  // namespace qk_io
