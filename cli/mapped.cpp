#include "mapped.hpp"

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <map>
#include <vector>

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common.hpp"

namespace {

struct MappedFile {
    std::string path;
    uintptr_t begin = UINTPTR_MAX, end = 0;  // of its tensors
    struct stat status = {};
};

std::vector<MappedFile> files;  // of all checkpoints: each stays open until the command ends
std::string opened;
std::atomic<const char *> opening{nullptr};
std::atomic<const char *> shrunk{nullptr};  // the path of a file that could not be read
uintptr_t page_bytes = 4096;

uintptr_t page_of(uintptr_t address) { return address & ~(page_bytes - 1); }

// Zero pages replace what is gone, so that a reader on any thread finishes normally; the main
// thread then throws (check_readable). Makes only calls that are safe in a signal handler.
void give_zeros(int signal, siginfo_t *info, void *) {
    const uintptr_t at = reinterpret_cast<uintptr_t>(info->si_addr);
    const char *path = info->si_code == BUS_ADRERR ? opening.load() : nullptr;
    uintptr_t end = page_of(at) + page_bytes;
    if (info->si_code == BUS_ADRERR) {
        for (const MappedFile &file : files) {
            if (at < page_of(file.begin) || at >= file.end) continue;
            path = file.path.c_str();
            end = page_of(file.end - 1) + page_bytes;
        }
    }
    if (path != nullptr && mmap(reinterpret_cast<void *>(page_of(at)), end - page_of(at), PROT_READ,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED) {
        shrunk.store(path);
        return;
    }
    std::signal(signal, SIG_DFL);
    std::raise(signal);
}

[[noreturn]] void fail_shrunk(const std::string &path) {
    throw Failure(kFile, path + ": became shorter while it was read");
}

// Where the file of this base name is, of a checkpoint that was opened by this path.
std::string path_of(const std::string &checkpoint, const std::string &file) {
    struct stat status;
    if (stat(checkpoint.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) {
        return checkpoint + "/" + file;
    }
    const size_t slash = checkpoint.rfind('/');
    return slash == std::string::npos ? file : checkpoint.substr(0, slash + 1) + file;
}

}  // namespace

void catch_shrinking() {
    page_bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    struct sigaction action = {};
    action.sa_sigaction = give_zeros;
    action.sa_flags = SA_SIGINFO;
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, nullptr);
}

Opening::Opening(const std::string &path) {
    opened = path;
    opening.store(opened.c_str());
}

Opening::~Opening() { opening.store(nullptr); }

void watch_files(const std::string &path, const qk_checkpoint *checkpoint) {
    std::map<std::string, MappedFile> by_name;
    const int64_t count = qk_checkpoint_tensor_count(checkpoint);
    for (int64_t i = 0; i < count; ++i) {
        qk_file_tensor tensor;
        if (qk_checkpoint_tensor(checkpoint, i, &tensor) != QK_OK || tensor.bytes == 0) continue;
        MappedFile &file = by_name[tensor.file];
        const uintptr_t begin = reinterpret_cast<uintptr_t>(tensor.data);
        file.begin = std::min(file.begin, begin);
        file.end = std::max(file.end, begin + static_cast<uintptr_t>(tensor.bytes));
    }
    for (auto &[name, file] : by_name) {
        file.path = path_of(path, name);
        if (stat(file.path.c_str(), &file.status) == 0) files.push_back(file);
    }
}

void check_readable() {
    const char *path = shrunk.load();
    if (path != nullptr) fail_shrunk(path);
}

void check_files_whole() {
    check_readable();
    for (const MappedFile &file : files) {
        struct stat now;
        // Another file may have its name by now; the mapped one is whole then.
        const bool same = stat(file.path.c_str(), &now) == 0 && now.st_dev == file.status.st_dev &&
                          now.st_ino == file.status.st_ino;
        if (same && now.st_size < file.status.st_size) fail_shrunk(file.path);
    }
}
