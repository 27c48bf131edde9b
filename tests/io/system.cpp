#include "system.hpp"

namespace io_test {

System &the_system() {
    static System system;
    return system;
}

std::string base(const std::string &path) { return path.substr(path.find_last_of("/\\") + 1); }

bool fails(const std::string &call, const std::string &arguments) {
    System &s = the_system();
    s.calls.push_back(call + " " + arguments);
    if (s.failing != call) return false;
    const int64_t number = s.made++;
    return s.fail_at >= 0 && (s.from_then_on ? number >= s.fail_at : number == s.fail_at);
}

}  // namespace io_test
