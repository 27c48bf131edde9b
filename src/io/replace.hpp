// New files that take their places together, and old ones that go with them.
#pragma once
#include "files.hpp"

namespace qk_io {

// A new file in the directory of what it will replace: open, write anywhere, then commit or drop.
struct Replacement {
    os::Handle file;        // os::kNone: none open. Holds a lock that says that its process lives
    int64_t owner;          // a forked child must leave its parent's file alone
    char path[kPathBytes];  // what it will replace, symbolic links followed
    char name[kPathBytes];  // its own until then
};

// Also deletes what killed processes left in the same directory.
qk_status replacement_open(Replacement *file, const char *path, qk_io_message *message);
qk_status replacement_check_owner(const Replacement *file, qk_io_message *message);
qk_status replacement_write(Replacement *file, int64_t offset, const void *data, size_t bytes,
                            qk_io_message *message);
void replacement_drop(Replacement *file);   // with what it holds, unless it is closed
void replacement_close(Replacement *file);  // the file stays

// Every file takes its place and every path of `removed` goes, or all stays as it was; what could
// not be taken back is in the message. The files are closed in any case.
qk_status commit(Memory *memory, Replacement *const *files, int64_t count,
                 const char *const *removed, int64_t removed_count, qk_io_message *message);

}  // namespace qk_io
