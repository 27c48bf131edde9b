// Names of files that are not finished, and what becomes of those that a killed process left.
#pragma once
#include "files.hpp"

namespace qk_io {

// ".qk-PID-STAMP-INDEX" and ending, where the stamp is the time in nanoseconds, in the directory of
// path, into name[kPathBytes].
qk_status unfinished_name(char *name, const char *path, uint64_t stamp, int64_t index,
                          const char *ending, qk_io_message *message);
constexpr const char *kNewEnding = ".tmp", *kOldEnding = ".old";

// Deletes the unfinished files beside path that no process holds.
void delete_leftovers(const char *path);

}  // namespace qk_io
