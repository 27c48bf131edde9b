// The system's files: mapping, reading, and replacing one at once.
#pragma once
#include "checkpoint.hpp"

namespace qk_io {

constexpr size_t kPathBytes = 4096;

// Why the system refused, from errno: "path: cannot verb: ...".
qk_status file_error(qk_io_message *message, const char *path, const char *verb);

// Adds a file to the checkpoint, mapped or read as its options say.
qk_status add_file(qk_checkpoint *checkpoint, const char *path, const char *name,
                   qk_io_message *message);
void release_file(qk_checkpoint *checkpoint, const File &file);

// A whole small file into the arena. *text stays NULL when there is no such file.
qk_status read_text(qk_checkpoint *checkpoint, const char *path, Text *text,
                    qk_io_message *message);

// directory (may be "") and name into path[kPathBytes].
qk_status join_path(char *path, const char *directory, const char *name, qk_io_message *message);
// What is before the last slash, with it.
qk_status directory_of(char *directory, const char *path, qk_io_message *message);
const char *base_name(const char *path);

// A new file beside path: open, write anywhere, then keep it (it takes path's place) or drop it.
struct Replacement {
    int fd;                 // -1: none open
    char path[kPathBytes];  // what it will replace
    char name[kPathBytes];  // its own until then
};
qk_status replacement_open(Replacement *file, const char *path, qk_io_message *message);
qk_status replacement_write(Replacement *file, int64_t offset, const void *data, size_t bytes,
                            qk_io_message *message);
qk_status replacement_keep(Replacement *file, qk_io_message *message);
void replacement_drop(Replacement *file);

}  // namespace qk_io
