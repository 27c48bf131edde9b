#include "mapped.hpp"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <vector>

#include "common.hpp"
#include "os.hpp"

namespace {

struct MappedFile {
    std::string path;
    uintptr_t begin = UINTPTR_MAX, end = 0;  // of its tensors
    os::Identity identity = {};
};

std::vector<MappedFile> files;  // of all checkpoints: each stays open until the command ends
std::string opened;
std::atomic<const char *> opening{nullptr};
std::atomic<const char *> shrunk{nullptr};  // the path of a file that could not be read

// A reader on any thread finishes normally, on zeros; the main thread then throws (check_readable).
uintptr_t lost_until(uintptr_t address, uintptr_t page_bytes) {
    const auto page_of = [page_bytes](uintptr_t at) { return at & ~(page_bytes - 1); };
    const char *path = opening.load();
    uintptr_t end = page_of(address) + page_bytes;
    for (const MappedFile &file : files) {
        if (address < page_of(file.begin) || address >= file.end) continue;
        path = file.path.c_str();
        end = page_of(file.end - 1) + page_bytes;
    }
    if (path == nullptr) return 0;
    shrunk.store(path);
    return end;
}

[[noreturn]] void fail_shrunk(const std::string &path) {
    throw Failure(kFile, path + ": became shorter while it was read");
}

// Where the file of this base name is, of a checkpoint that was opened by this path.
std::string path_of(const std::string &checkpoint, const std::string &file) {
    if (os::kind_of(checkpoint) == os::Kind::kDirectory) return path_in(checkpoint, file);
    return checkpoint.substr(0, os::name_start(checkpoint)) + file;
}

}  // namespace

void catch_shrinking() { os::on_lost_pages(lost_until); }

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
        if (os::identify(file.path, &file.identity)) files.push_back(file);
    }
}

void check_readable() {
    const char *path = shrunk.load();
    if (path != nullptr) fail_shrunk(path);
}

void check_files_whole() {
    check_readable();
    for (const MappedFile &file : files) {
        os::Identity now;
        // Another file may have its name by now; the mapped one is whole then.
        const bool same = os::identify(file.path, &now) && now.is_same(file.identity);
        if (same && now.bytes < file.identity.bytes) fail_shrunk(file.path);
    }
}
