// Files: mapping and reading them, and their paths.
#pragma once
#include "checkpoint.hpp"
#include "os.hpp"

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
// What is before the last separator, with it.
qk_status directory_of(char *directory, const char *path, qk_io_message *message);
const char *base_name(const char *path);

}  // namespace qk_io
