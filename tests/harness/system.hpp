// What tests ask of the operating system.
#pragma once
#include <cstdint>

namespace harness {

struct Resources {  // what the process holds: nothing may pile up
    int64_t resident_bytes = 0;
    int descriptors = 0, threads = 0;  // descriptors: Windows' handles
};

Resources resources();

// Whether a file may take the name of one that is open: POSIX' rename, and that of Windows 10,
// which Wine 8 has not.
bool can_replace_open_files();

}  // namespace harness
