// What src/io asks of the operating system. CMake takes os_posix.cpp or os_windows.cpp, which
// answer; no other file here knows which system it is. Paths are UTF-8. What fails says why in
// errno.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace qk_io::os {

using Handle = intptr_t;  // of an open file
constexpr Handle kNone = -1;

enum class Kind : uint8_t { kRegular, kDirectory, kLink, kPipe, kSocket, kDevice };
struct Status {
    Kind kind;
    uint64_t bytes;
    uint32_t mode, owner, group;  // where the system has such
};
bool status_of(Handle file, Status *status);
bool status_of(const char *path, Status *status);       // of what its links lead to
bool status_of_link(const char *path, Status *status);  // of the link itself

Handle open_to_read(const char *path);  // a pipe does not keep the caller waiting
// Fails where anything has the name. Never open to more readers than the file will be.
Handle create_new(const char *path, bool owner_only);
ptrdiff_t read_some(Handle file, void *to, size_t bytes);  // 0 at the end, -1 for a failure
ptrdiff_t write_some(Handle file, const void *from, size_t bytes, int64_t offset);
bool sync(Handle file);  // contents to the disk
void close_file(Handle file);
// The mode of the file that is replaced, and its owner as far as the system permits.
bool take_permissions(Handle file, const Status &old);

void *map(Handle file, size_t bytes);  // to read; null for a failure
void unmap(void *bytes, size_t size);

// At once: what was at `to` is there until then. *held is open under `other`, a second name of that
// or null: where nothing open can be replaced, it is let go of in between.
bool replace(const char *from, const char *to, const char *other = nullptr, Handle *held = nullptr);
bool add_name(const char *path, const char *other);
bool remove(const char *path);
ptrdiff_t read_link(const char *path, char *target, size_t bytes);
bool sync_directory(const char *directory);
bool list(const char *directory, void (*visit)(void *user, const char *name), void *user);

// Marks a file as in use until the process closes it or ends. False: another process has it.
bool hold(Handle file);
void remove_unless_held(const char *path);

bool is_separator(char letter);  // between the names of a path
bool is_absolute(const char *path);
int64_t process();       // a forked child has another
uint64_t nanoseconds();  // of the day's clock
const char *error_text(int error, char *buffer, size_t bytes);

}  // namespace qk_io::os
