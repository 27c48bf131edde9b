/* Preloaded in front of the C library: the n-th call of one function fails, or a file becomes
 * shorter in the middle of a run.
 *   QK_SHIM_CALL, QK_SHIM_AT   the function and its call, from 0; it fails with EIO
 *   QK_SHIM_TRUNCATE           the file that is cut to no bytes, QK_SHIM_AT readings of the clock
 *                              after it has been mapped
 *   QK_SHIM_SIGNAL             a signal that the process gets then, the file staying as it is
 *   QK_SHIM_DONE               a file that is made when it has happened */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static long wanted(void) {
    const char *at = getenv("QK_SHIM_AT");
    return at == NULL ? -1 : atol(at);
}

static void done(void) {
    const char *path = getenv("QK_SHIM_DONE");
    if (path == NULL) return;
    const long fd = syscall(SYS_openat, AT_FDCWD, path, O_CREAT | O_WRONLY, 0600);
    if (fd >= 0) syscall(SYS_close, fd);
}

static int fails(const char *call) {
    static long calls;
    const char *name = getenv("QK_SHIM_CALL");
    if (name == NULL || strcmp(name, call) != 0 || calls++ != wanted()) return 0;
    done();
    errno = EIO;
    return 1;
}

static int mapped;

static void tick(void) {
    static long ticks;
    const char *path = getenv("QK_SHIM_TRUNCATE");
    if (path == NULL || !mapped || ticks++ != wanted()) return;
    const char *sent = getenv("QK_SHIM_SIGNAL");
    if ((sent != NULL ? kill(getpid(), atoi(sent)) : truncate(path, 0)) == 0) done();
}

static void note_mapping(int fd) {
    char link[64], path[4096];
    const char *wanted_path = getenv("QK_SHIM_TRUNCATE");
    if (wanted_path == NULL || fd < 0) return;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return;
    path[length] = 0;
    if (strcmp(path, wanted_path) != 0) return;
    mapped = 1;
    tick();
}

#define PASS(type, name, parameters, arguments)                      \
    type name parameters {                                           \
        static type(*real) parameters;                               \
        if (real == NULL) *(void **)&real = dlsym(RTLD_NEXT, #name); \
        if (fails(#name)) return (type)-1;                           \
        return real arguments;                                       \
    }
PASS(ssize_t, pwrite, (int fd, const void *data, size_t bytes, off_t at), (fd, data, bytes, at))
PASS(ssize_t, pwrite64, (int fd, const void *data, size_t bytes, off64_t at), (fd, data, bytes, at))
PASS(int, fsync, (int fd), (fd))
PASS(int, rename, (const char *from, const char *to), (from, to))
PASS(int, link, (const char *from, const char *to), (from, to))
PASS(int, unlink, (const char *path), (path))
PASS(int, fchmod, (int fd, mode_t mode), (fd, mode))
PASS(int, mkdir, (const char *path, mode_t mode), (path, mode))
PASS(int, close, (int fd), (fd))

#define PASS_OPEN(name)                                              \
    int name(const char *path, int flags, ...) {                     \
        static int (*real)(const char *, int, ...);                  \
        va_list rest;                                                \
        va_start(rest, flags);                                       \
        const mode_t mode = va_arg(rest, mode_t);                    \
        va_end(rest);                                                \
        if (real == NULL) *(void **)&real = dlsym(RTLD_NEXT, #name); \
        if ((flags & O_CREAT) != 0 && fails("create")) return -1;    \
        return real(path, flags, mode);                              \
    }
PASS_OPEN(open)
PASS_OPEN(open64)

#define PASS_MAP(name)                                                                   \
    void *name(void *where, size_t bytes, int protection, int flags, int fd, off_t at) { \
        static void *(*real)(void *, size_t, int, int, int, off_t);                      \
        if (real == NULL) *(void **)&real = dlsym(RTLD_NEXT, #name);                     \
        void *map = real(where, bytes, protection, flags, fd, at);                       \
        note_mapping(fd);                                                                \
        return map;                                                                      \
    }
PASS_MAP(mmap)
PASS_MAP(mmap64)

int clock_gettime(clockid_t clock, struct timespec *now) {
    tick();
    return (int)syscall(SYS_clock_gettime, clock, now);
}
