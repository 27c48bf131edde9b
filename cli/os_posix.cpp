#include "os.hpp"

#include <csignal>
#include <cstdlib>
#include <cstring>

#include <dirent.h>
#include <fnmatch.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace os {
namespace {

uintptr_t (*lost)(uintptr_t address, uintptr_t page_bytes) = nullptr;
uintptr_t page_bytes = 4096;

// Zero pages replace what is gone, so that a reader on any thread finishes normally. Makes only
// calls that are safe in a signal handler.
void give_zeros(int signal, siginfo_t *info, void *) {
    const uintptr_t at = reinterpret_cast<uintptr_t>(info->si_addr), page = at & ~(page_bytes - 1);
    const uintptr_t end = info->si_code == BUS_ADRERR ? lost(at, page_bytes) : 0;
    if (end != 0 && mmap(reinterpret_cast<void *>(page), end - page, PROT_READ,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED) {
        return;
    }
    std::signal(signal, SIG_DFL);
    std::raise(signal);
}

}  // namespace

std::vector<std::string> start(int argc, char **argv) {
    return std::vector<std::string>(argv, argv + argc);
}

Kind kind_of(const std::string &path) {
    struct stat status;
    if (stat(path.c_str(), &status) != 0) return Kind::kNothing;
    return S_ISREG(status.st_mode)   ? Kind::kFile
           : S_ISDIR(status.st_mode) ? Kind::kDirectory
                                     : Kind::kOther;
}

bool is_something(const std::string &path) {
    struct stat status;
    return lstat(path.c_str(), &status) == 0;
}

bool identify(const std::string &path, Identity *identity) {
    struct stat status;
    if (stat(path.c_str(), &status) != 0) return false;
    *identity = {uint64_t(status.st_dev), uint64_t(status.st_ino), int64_t(status.st_size)};
    return true;
}

std::FILE *open_file(const std::string &path) { return std::fopen(path.c_str(), "rb"); }

int64_t regular_bytes(std::FILE *file) {
    struct stat status;
    if (fstat(fileno(file), &status) != 0) return -1;
    return S_ISREG(status.st_mode) ? int64_t(status.st_size) : -2;
}

bool make_directory(const std::string &path) { return mkdir(path.c_str(), 0777) == 0; }
void remove_directory(const std::string &path) { rmdir(path.c_str()); }

bool list(const std::string &directory, std::vector<std::string> *names) {
    DIR *const open = opendir(directory.c_str());
    if (open == nullptr) return false;
    while (const dirent *entry = readdir(open)) names->emplace_back(entry->d_name);
    closedir(open);
    return true;
}

size_t name_start(const std::string &path) { return path.rfind('/') + 1; }
bool is_name(const std::string &text) { return text.find('/') == std::string::npos; }

bool matches(const char *pattern, const char *text) { return fnmatch(pattern, text, 0) == 0; }

// A dumb terminal cannot go back to the start of a line.
size_t terminal_columns() {
    const char *const kind = std::getenv("TERM");
    if (isatty(STDERR_FILENO) == 0 || kind == nullptr || kind[0] == 0 ||
        std::strcmp(kind, "dumb") == 0) {
        return 0;
    }
    winsize size = {};
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

void on_interrupt(void (*handler)(int signal)) {
    // A write past the file size limit then fails like one to a full disk, and is cleaned up.
    std::signal(SIGXFSZ, SIG_IGN);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
        if (std::signal(signal, handler) == SIG_IGN) std::signal(signal, SIG_IGN);
    }
}

void on_lost_pages(uintptr_t (*lost_until)(uintptr_t address, uintptr_t page_bytes)) {
    lost = lost_until;
    page_bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    struct sigaction action = {};
    action.sa_sigaction = give_zeros;
    action.sa_flags = SA_SIGINFO;
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, nullptr);
}

}  // namespace os
