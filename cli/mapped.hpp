// The files of the checkpoint are mapped. When another program makes one shorter, reading past its
// new end raises SIGBUS: here that becomes a sentence and exit code 3, with the usual cleaning up.
#pragma once
#include <string>

#include "qk_io.h"

// Handles SIGBUS from here on. One of any other origin ends the process, as always.
void catch_shrinking();

// While it lives, pages that cannot be read belong to the checkpoint at this path.
class Opening {
  public:
    explicit Opening(const std::string &path);
    ~Opening();
    Opening(const Opening &) = delete;
    Opening &operator=(const Opening &) = delete;
};
// Remembers where the files of an open checkpoint are in memory, and how long they are.
void watch_files(const std::string &path, const qk_checkpoint *checkpoint);

// Throws when a page could not be read so far: what was computed since is worthless.
void check_readable();
// The same, and when a file is shorter than it was, be it by bytes of a page already read. Called
// before results are printed or take their place.
void check_files_whole();
