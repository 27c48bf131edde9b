// A lock tells a file in use from a leftover: the system releases it however its holder ends, and
// unlike a process number it means the same in every container.
#include "leftovers.hpp"

#include <stdio.h>

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
// the lock and the removal.
void remove_leftover(void *directory, const char *name) {
    char path[kPathBytes];
    if (is_unfinished_name(name) &&
        join_path(path, static_cast<const char *>(directory), name, nullptr) == QK_OK) {
        os::remove_unless_held(path);
    }
}

}  // namespace

qk_status unfinished_name(char *name, const char *path, uint64_t stamp, int64_t index,
                          const char *ending, qk_io_message *message) {
    char directory[kPathBytes], base[96];
    QK_IO_TRY(directory_of(directory, path, message));
    snprintf(base, sizeof base, "%s%lld-%llx-%llx%s", kPrefix,
             static_cast<long long>(os::process()), static_cast<unsigned long long>(stamp),
             static_cast<unsigned long long>(index), ending);
    return join_path(name, directory, base, message);
}

void delete_leftovers(const char *path) {
    char directory[kPathBytes];
    if (directory_of(directory, path, nullptr) != QK_OK) return;
    os::list(directory[0] == 0 ? "." : directory, remove_leftover, directory);
}

}  // namespace qk_io
