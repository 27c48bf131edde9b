// Names of files that are not finished, and what becomes of those that a killed process left.
#pragma once
#include "files.hpp"

namespace qk_io {

// A number that no earlier name of this process has: nanoseconds.
uint64_t name_stamp();
// ".qk-PID-STAMP-INDEX" and ending in the directory of path, into name[kPathBytes].
qk_status unfinished_name(char *name, const char *path, uint64_t stamp, int64_t index,
                          const char *ending, qk_io_message *message);
constexpr const char *kNewEnding = ".tmp", *kOldEnding = ".old";

// Marks an open file as in use until the process closes it or ends. False: another holds it.
bool hold(int fd);
// Deletes the unfinished files beside path that no process holds.
void delete_leftovers(const char *path);

}  // namespace qk_io
