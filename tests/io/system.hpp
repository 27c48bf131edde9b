// The system's calls as the library makes them: counted, listed, and failing when a test says so.
// system_posix.cpp and system_windows.cpp define them for the whole program, in front of the
// system's own, under POSIX' names.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace io_test {

struct System {
    std::vector<std::string> calls;  // "fsync NAME", "rename A B", ...; base names
    std::string failing;             // the call that fails; "": none
    int64_t fail_at = -1;            // its n-th call, from 0
    bool from_then_on = false;       // and all later ones
    int error = 5;                   // EIO
    int64_t made = 0;                // calls of `failing` so far
    int64_t comparisons = 0;         // strcmp
    int64_t short_write = 0;         // most bytes that a write takes; 0: all
};
System &the_system();  // starts over with `the_system() = {}`
std::vector<std::string> calls_of_a_commit();

// For the definitions: whether this call, which is put on the list, is to fail.
bool fails(const std::string &call, const std::string &arguments);
std::string base(const std::string &path);

}  // namespace io_test
